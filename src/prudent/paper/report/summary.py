"""What all cells come to: how often ours is as good as the paper's, and where it is not."""

from collections.abc import Iterable

import attrs

from prudent.paper.report.cells import Group, every_group
from prudent.paper.results import Estimate, Results

SMALL_IMAGES = ("mnist", "emnist")


@attrs.frozen
class Comparison:
    """Two accuracies of one cell; one that was not run is None.

    Attributes:
        group: Which cell.
        ours: In percent.
        other: What it is held against.
    """

    group: Group
    ours: float | None
    other: float | None

    @property
    def difference(self) -> float | None:
        """Ours less the other."""
        return None if self.ours is None or self.other is None else self.ours - self.other


@attrs.frozen
class Count:
    """How many comparisons are won.

    Attributes:
        won: Those that are.
        lost: Those that are not: the exceptions.
        missing: Those that could not be made.
    """

    won: tuple[Comparison, ...]
    lost: tuple[Comparison, ...]
    missing: tuple[Comparison, ...]

    @classmethod
    def of(cls, comparisons: Iterable[Comparison], *, ties: bool) -> "Count":
        """Counts; `ties` says whether equal is enough."""
        won, lost, missing = [], [], []
        for comparison in comparisons:
            difference = comparison.difference
            if difference is None:
                missing.append(comparison)
            elif difference > 0 or (ties and difference == 0):
                won.append(comparison)
            else:
                lost.append(comparison)
        return cls(tuple(won), tuple(lost), tuple(missing))

    @property
    def made(self) -> int:
        """How many could be made."""
        return len(self.won) + len(self.lost)

    def on(self, *datasets: str) -> "Count":
        """Those on some data sets."""
        parts = (self.won, self.lost, self.missing)
        return Count(*(tuple(c for c in part if c.group.dataset in datasets) for part in parts))


@attrs.frozen
class Summary:
    """The counts a reader asks for first.

    Attributes:
        paper: For each accountant, PTR with the paper's settings against the paper's number.
        gain: For each accountant, PTR against TSGD+Gaussian, on every data set.
        best: Our best setting against the paper's PTR, on every data set.
        rival: Our best setting against DP-SGD with the same tuning.
    """

    paper: dict[str, Count]
    gain: dict[str, Count]
    best: Count
    rival: Count


def summarise(results: Results) -> Summary:
    """Counts over every cell of the paper, each once."""
    every = every_group(results)
    return Summary(
        paper={name: against_paper(every, name) for name in ("rdp", "pld")},
        gain={name: gains(every, name) for name in ("rdp", "pld")},
        best=Count.of(
            (Comparison(g, _mean(g.best), g.line("ptr").paper.accuracy) for g in every),
            ties=True,
        ),
        rival=Count.of((Comparison(g, _mean(g.best), _mean(g.rival)) for g in every), ties=False),
    )


def against_paper(every: Iterable[Group], accountant: str) -> Count:
    """PTR as the paper set it, against the number the paper printed."""
    return Count.of(
        (
            Comparison(g, _mean(g.line("ptr").by(accountant)), g.line("ptr").paper.accuracy)
            for g in every
        ),
        ties=True,
    )


def gains(every: Iterable[Group], accountant: str) -> Count:
    """PTR against TSGD+Gaussian, both run here with the paper's settings."""
    return Count.of(
        (
            Comparison(g, *(_mean(g.line(m).by(accountant)) for m in ("ptr", "trimmed")))
            for g in every
        ),
        ties=False,
    )


def _mean(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.mean
