"""The price of private selection, ours beside dp_accounting's: the table of benchmarks/README.md.

    python -m benchmarks.tune_prices

Base mechanisms are calibrated to (ε, δ) by themselves: a Gaussian release, and 2,000 steps of
DP-SGD at a sampling rate of 0.01. The peer is dp_accounting's Rényi accountant, with its default
orders and some more between and beyond them.
"""

import math

import dp_accounting as dp
from dp_accounting.rdp import RdpAccountant as PeerAccountant

from prudent.accounting import Geometric, PldAccountant, Poisson, TrialCount
from prudent.accounting.calibration import Search, solve

MEANS = (10, 30, 100)
ORDERS = [1 + x / 20 for x in range(1, 200)] + [float(x) for x in range(11, 300)] + [512.0, 1024.0]
LAWS: dict[str, type[Geometric] | type[Poisson]] = {"geometric": Geometric, "Poisson": Poisson}


def gaussian(noise: float) -> dp.DpEvent:
    """One Gaussian release."""
    return dp.GaussianDpEvent(noise)


def training(noise: float) -> dp.DpEvent:
    """2,000 steps of DP-SGD."""
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(noise))
    return dp.SelfComposedDpEvent(step, 2000)


def row(base: dp.DpEvent, law: type[Geometric] | type[Poisson], delta: float) -> list[str]:
    """Ours and the peer's ε for each expected number of candidates."""
    cells = []
    for mean in MEANS:
        count: TrialCount = law(mean)
        event = count.event(base)
        ours = PldAccountant().compose(event).get_epsilon(delta)
        peer = PeerAccountant(ORDERS).compose(event).get_epsilon(delta)
        cells.append(f"{math.ceil(ours * 100) / 100:.2f} ({peer:.2f})")
    return cells


def main() -> None:
    """Print the table."""
    print("| candidate | ε | δ | number | " + " | ".join(f"{mean}" for mean in MEANS) + " |")
    print("|---|---|---|---|" + "---|" * len(MEANS))
    for name, make in (("Gaussian", gaussian), ("DP-SGD", training)):
        for epsilon, delta in ((0.1, 1e-6), (0.5, 1e-5), (0.5, 1e-8), (1.0, 1e-6), (3.0, 1e-5)):
            search = Search(safe=1e4, unsafe=1e-2, guess=1.0)
            noise = solve(make, search, epsilon=epsilon, delta=delta)
            for law, kind in LAWS.items():
                cells = row(make(noise), kind, delta)
                start = f"| {name} | {epsilon:g} | {delta:g} | {law} | "
                print(start + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
