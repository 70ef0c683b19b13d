"""Summary of all cells: how often our result is as good as the paper's, and where it is not."""

from collections.abc import Iterable

import attrs

from prudent.lab.paper.report.cells import Group, every_group
from prudent.lab.paper.results import Estimate, Results


@attrs.frozen
class Comparison:
    """Two accuracies of one cell; None if not run.

    Attributes:
        group: The cell.
        ours: Our accuracy in percent.
        other: The accuracy to compare with.
    """

    group: Group
    ours: float | None
    other: float | None

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the other."""
        return None if self.ours is None or self.other is None else self.ours - self.other


@attrs.frozen
class Count:
    """The outcomes of a set of comparisons.

    Attributes:
        won: Comparisons that our result wins.
        lost: Comparisons that it does not win: the exceptions.
        missing: Comparisons for which a result is missing.
    """

    won: tuple[Comparison, ...]
    lost: tuple[Comparison, ...]
    missing: tuple[Comparison, ...]

    @classmethod
    def of(cls, comparisons: Iterable[Comparison], *, ties: bool) -> "Count":
        """Count comparisons; with `ties`, equal accuracies count as won."""
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
        """The number of comparisons with both results."""
        return len(self.won) + len(self.lost)

    def on(self, *datasets: str) -> "Count":
        """The count restricted to some data sets."""
        parts = (self.won, self.lost, self.missing)
        return Count(*(tuple(c for c in part if c.group.dataset in datasets) for part in parts))


@attrs.frozen
class Summary:
    """The main counts of the report.

    Attributes:
        paper: By accountant: TSGD+PTR with the paper's settings against the paper's number.
        gain: By accountant: TSGD+PTR against TSGD+Gaussian, on every data set.
        best: The tuned setting against the paper's TSGD+PTR, on every data set.
        rival: The tuned setting against DP-SGD with the same tuning.
    """

    paper: dict[str, Count]
    gain: dict[str, Count]
    best: Count
    rival: Count


def summarise(results: Results) -> Summary:
    """The counts over every cell of the paper, each once."""
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
    """TSGD+PTR with the paper's settings against the number printed in the paper."""
    return Count.of(
        (
            Comparison(g, _mean(g.line("ptr").by(accountant)), g.line("ptr").paper.accuracy)
            for g in every
        ),
        ties=True,
    )


def gains(every: Iterable[Group], accountant: str) -> Count:
    """TSGD+PTR against TSGD+Gaussian, both run here with the paper's settings."""
    return Count.of(
        (
            Comparison(g, *(_mean(g.line(m).by(accountant)) for m in ("ptr", "trimmed")))
            for g in every
        ),
        ties=False,
    )


def _mean(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.mean
