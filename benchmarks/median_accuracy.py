"""What a private median gives for which ε and how many records, on made-up data.

    python -m benchmarks.median_accuracy

Draws `docs/images/tables.svg`: the error of `prudent.median` without a proposal, and half the width
of its 95 % interval, both in standard deviations of normal data, for tables of several sizes. Every
point is the median of `TRIALS` releases. It takes about a minute.
"""

from pathlib import Path

import numpy as np

from prudent.release import Released, median, open_column

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "tables.svg"
SIZES = (300, 3_000, 30_000, 300_000)
EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0)
TRIALS = 25
CENTRE, DEVIATION = 52_000.0, 9_000.0
COLOURS = ("#E69F00", "#009E73", "#0072B2", "#332288")


def measured(size: int, epsilon: float) -> tuple[float, float]:
    """Medians of the error and of half the width of the interval, in standard deviations."""
    values = np.random.default_rng(size).normal(CENTRE, DEVIATION, size)
    column, truth = open_column(values), np.sort(values)[(size + 1) // 2 - 1]
    errors, widths = [], []
    for _ in range(TRIALS):
        released = median(column, epsilon=epsilon)
        assert isinstance(released, Released)
        low, high = released.usual_interval or (-np.inf, np.inf)
        errors.append(abs(released.value - truth) / DEVIATION)
        widths.append((high - low) / 2 / DEVIATION)
    return float(np.median(errors)), float(np.median(widths))


def draw() -> None:
    """Measure and draw."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "prudent"
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for size, colour in zip(SIZES, COLOURS, strict=True):
        points = np.array([measured(size, epsilon) for epsilon in EPSILONS])
        for panel, numbers in zip(panels, points.T, strict=True):
            known = numbers < 1.0  # a wider interval than the data says nothing
            panel.plot(
                np.array(EPSILONS)[known],
                100 * numbers[known],
                "o-",
                color=colour,
                markersize=4,
                label=f"{size:,} records",
            )
            print(f"{size:>8,}", *(f"{100 * number:10.3g}" for number in numbers))
    panels[0].set(title="error", ylabel="% of the standard deviation")
    panels[1].set(title="95 % interval: answer ± this")
    for panel in panels:
        panel.set(xscale="log", yscale="log", xlabel="ε")
        panel.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        panel.minorticks_off()
        panel.set_yticks([0.001, 0.01, 0.1, 1, 10, 100], ["0.001", "0.01", "0.1", "1", "10", "100"])
        panel.grid(color="#e6e6e6", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    panels[1].legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    draw()
