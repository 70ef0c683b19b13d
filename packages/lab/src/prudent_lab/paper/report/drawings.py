"""The plots of a report, as HTML: accuracy over ε, and the private test over time."""

import functools
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
from matplotlib.figure import Figure as Canvas

from prudent_lab.paper import plots
from prudent_lab.paper.jobs import published
from prudent_lab.paper.panels import Figure
from prudent_lab.paper.report import display_names
from prudent_lab.paper.report.cells import best_setting, tuned_dpsgd
from prudent_lab.paper.report.tables import inline
from prudent_lab.paper.results import Estimate, Reading, Results

_KIND_COLOURS = {
    "none": "#000000",
    "label": "#E69F00",
    "feature": "#009E73",
    "gradient": "#0072B2",
    "label-targeted": "#CC79A7",
    "sign-flip": "#D55E00",
}
_RATIO_DASHES = {"": "", "0.1": "", "0.2": "4 2"}


@attrs.frozen
class LegendKey:
    """An entry of a legend: a name and how its line is drawn."""

    name: str
    colour: str
    dashes: str


@attrs.frozen
class DrawnLine:
    """One curve: estimates at positions on the horizontal axis."""

    key: LegendKey
    points: tuple[tuple[float, Estimate], ...]
    marker: str = ""


def paper_figure(figure: Figure) -> str:
    """A figure of the paper; one with few panels is not stretched to the whole width."""
    drawing = plots.inline(functools.partial(plots.draw, figure), f"figure{figure.number}")
    box = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+)', drawing)
    natural = f' style="--natural: {box[1]}px"' if box else ""
    return f'<div class="wide" tabindex="0"{natural}>{drawing}</div>'


def accuracy_over_epsilon(results: Results, dataset: str) -> str | None:
    """Accuracy over ε, one drawing per corruption of the paper; None if nothing was run."""
    columns = _columns(results, dataset)
    drawings: list[str] = []
    keys: dict[str, LegendKey] = {}
    for corrupt in _corruptions(dataset):
        lines = [
            DrawnLine(key, _curve(results, dataset, corrupt, column), marker)
            for column, (key, marker) in columns.items()
        ]
        lines = [line for line in lines if line.points]
        keys |= {line.key.name: line.key for line in lines}
        if lines:
            crosses = _printed(dataset, corrupt)
            title, limits = display_names.corruption(corrupt), _limits(lines, crosses)
            panel = _panel(title, lines, "ε", "accuracy, %", crosses=crosses, limits=limits)
            drawings.append(plots.inline(panel, f"curve-{dataset}-{len(drawings)}"))
    if not drawings:
        return None
    cross = LegendKey("× the paper's TSGD+PTR", "", "")
    return _group(display_names.dataset(dataset), drawings, [*keys.values(), cross])


def passing_over_time(results: Results, dataset: str) -> str | None:
    """Pass rate and F over the steps of TSGD+PTR, paper and tuned; None if nothing was run."""
    drawings: list[str] = []
    keys: dict[str, LegendKey] = {}
    for column in ("ptr", best_setting(results, dataset)):
        if column is None:
            continue
        passed, trims = [], []
        for corrupt in _corruptions(dataset):
            readings = _longest(results, dataset, corrupt, column)
            kind, _, ratio = corrupt.partition(":")
            key = LegendKey(
                display_names.corruption(corrupt), _KIND_COLOURS[kind], _RATIO_DASHES[ratio]
            )
            passed.append(DrawnLine(key, _over_steps(readings, "pass_rate")))
            trims.append(DrawnLine(key, _over_steps(readings, "trim")))
        title = display_names.method(column)
        for quantity, lines, limits in (
            ("share of tests passed", passed, (0.0, 1.0)),
            ("F, in records", trims, None),
        ):
            known = [line for line in lines if line.points]
            if known:
                keys |= {line.key.name: line.key for line in known}
                panel = _panel(f"{title}: {quantity}", known, "steps", "", limits=limits)
                drawings.append(plots.inline(panel, f"test-{dataset}-{len(drawings)}"))
    if not drawings:
        return None
    return _group(display_names.dataset(dataset), drawings, list(keys.values()))


def _group(title: str, drawings: Sequence[str], keys: Sequence[LegendKey]) -> str:
    """Drawings under one title and legend."""
    legend, shown = "".join(map(_key, keys)), "\n".join(drawings)
    return (
        f'<h3>{inline(title)}</h3>\n<div class="legend">{legend}</div>\n'
        f'<div class="plots">\n{shown}\n</div>'
    )


def _key(key: LegendKey) -> str:
    if not key.colour:
        return f"<span>{inline(key.name)}</span>"
    dashes = f' stroke-dasharray="{" ".join(str(2 * float(d)) for d in key.dashes.split())}"'
    stroke = f'style="stroke: {plots.page_colour(key.colour)}" stroke-width="3"'
    line = f'<line x1="0" y1="6" x2="32" y2="6" {stroke}{dashes if key.dashes else ""}/>'
    return (
        f'<span><svg viewBox="0 0 32 12" aria-hidden="true">{line}</svg>{inline(key.name)}</span>'
    )


def _columns(results: Results, dataset: str) -> dict[str, tuple[LegendKey, str]]:
    """The columns to draw, with the legend entry and marker of each."""
    found = {
        "ptr": (LegendKey(display_names.method("ptr"), "#0072B2", ""), ""),
        "trimmed": (LegendKey(display_names.method("trimmed"), "#E69F00", "4 2"), ""),
        "dpsgd": (LegendKey(display_names.method("dpsgd"), "#8c8c8c", "1.5 1.5"), ""),
    }
    setting = best_setting(results, dataset)
    if setting is not None:
        rival = tuned_dpsgd(results, dataset, setting)
        title = f"tuned: {display_names.method(setting)}"
        found[setting] = LegendKey(title, "#009E73", ""), "o"
        found[rival] = LegendKey("DP-SGD, same tuning", "#CC79A7", "4 2"), "s"
    return found


def _corruptions(dataset: str) -> list[str]:
    return list(dict.fromkeys(cell.corrupt for cell in published() if cell.dataset == dataset))


def _printed(dataset: str, corrupt: str) -> list[tuple[float, float]]:
    place = dataset, corrupt, "ptr"
    cells = (c for c in published() if (c.dataset, c.corrupt, c.method) == place)
    return sorted({(cell.epsilon, cell.accuracy) for cell in cells})


def _limits(
    lines: Sequence[DrawnLine], crosses: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """The range of accuracies at the paper's ε and above, where methods differ by little.

    None if nothing reaches these ε.
    """
    first = min(epsilon for epsilon, _ in crosses)
    ends = [
        cell.mean + sign * (cell.deviation or 0.0)
        for line in lines
        for epsilon, cell in line.points
        for sign in (-1, 1)
        if epsilon >= first
    ]
    if not ends:
        return None
    values = [*ends, *(accuracy for _, accuracy in crosses)]
    middle, half = (max(values) + min(values)) / 2, max(max(values) - min(values), 1.0) / 2
    return middle - half, middle + half


def _curve(
    results: Results, dataset: str, corrupt: str, column: str
) -> tuple[tuple[float, Estimate], ...]:
    epsilons = sorted({reading.epsilon for reading in results.of(dataset, corrupt, column)})
    cells = ((e, results.cell(dataset, corrupt, column, e)) for e in epsilons)
    return tuple((epsilon, cell) for epsilon, cell in cells if cell is not None)


def _longest(results: Results, dataset: str, corrupt: str, column: str) -> list[Reading]:
    """The rows of the runs with the largest ε, with each step of a run once."""
    here = results.of(dataset, corrupt, column)
    target = max((reading.target or 0.0 for reading in here), default=0.0)
    longest = [reading for reading in here if (reading.target or 0.0) == target]
    return list({(each.seed, each.steps): each for each in reversed(longest)}.values())


def _over_steps(readings: Iterable[Reading], name: str) -> tuple[tuple[float, Estimate], ...]:
    """The mean over seeds of one quantity, without a band because many lines share the axes."""
    values: dict[int, list[float]] = defaultdict(list)
    for reading in readings:
        value = getattr(reading, name)
        if value is not None:
            values[reading.steps].append(value)
    means = {step: statistics.fmean(values[step]) for step in sorted(values)}
    return tuple((float(step), Estimate(mean, None, 1)) for step, mean in means.items())


def _panel(
    title: str,
    lines: Sequence[DrawnLine],
    x: str,
    y: str,
    *,
    crosses: Sequence[tuple[float, float]] = (),
    limits: tuple[float, float] | None = None,
) -> Callable[[], Canvas]:
    """A function that draws one panel; bands show one standard deviation over seeds."""

    def draw() -> Canvas:
        canvas, axes = plots.single_axes(3.4, 2.5)
        for line in lines:
            _draw_line(axes, line)
        if crosses:
            axes.plot(*zip(*crosses, strict=True), "x", color="#000000", markersize=6, zorder=5)
        axes.set_title(title, loc="left")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if limits is not None:
            low, high = limits
            axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        return canvas

    return draw


def _draw_line(axes: Any, line: DrawnLine) -> None:
    x = [point for point, _ in line.points]
    mean = [cell.mean for _, cell in line.points]
    spread = [cell.deviation or 0.0 for _, cell in line.points]
    dashes = tuple(float(part) for part in line.key.dashes.split())
    marker = line.marker or ("." if len(x) == 1 else "")
    axes.plot(
        x,
        mean,
        color=line.key.colour,
        linestyle=(0, dashes) if dashes else "-",
        linewidth=1.6,
        marker=marker,
        markersize=4,
    )
    if any(spread):
        low, high = ([m + s * k for m, s in zip(mean, spread, strict=True)] for k in (-1, 1))
        axes.fill_between(x, low, high, color=line.key.colour, alpha=0.15, linewidth=0)
