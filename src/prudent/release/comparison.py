"""Compare the expected errors of two private medians on public or synthetic data.

Propose-Test-Release is compared with the exponential mechanism at equal ε, without spending any
budget. The first needs a proposal and may refuse; the second needs nothing and always answers.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._progress import track
from prudent.release.columns.column import ArrayColumn
from prudent.release.lattice import FloatArray
from prudent.release.outcome import Released
from prudent.release.proposal import MOST_SYNTHETIC, suggest_proposal
from prudent.release.statistics import median

Draw = Callable[[np.random.Generator, int], FloatArray]


@attrs.frozen
class Shape:
    """A distribution of synthetic data.

    Attributes:
        draw: Draws a given number of values.
    """

    draw: Draw

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        """Draw `size` values; see `prudent.release.proposal.Shape`."""
        return self.draw(random_state, size)

    @classmethod
    def of(cls, values: FloatArray) -> "Shape":
        """The empirical distribution of public values: draws are with replacement."""
        return cls(lambda generator, size: generator.choice(values, size))


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "normal": Shape(lambda generator, size: generator.normal(50, 10, size)),
        "lognormal": Shape(lambda generator, size: generator.lognormal(3, 1, size)),
        "ties": Shape(lambda generator, size: generator.poisson(3, size).astype(float)),
        "unbounded": Shape(lambda generator, size: generator.standard_cauchy(size)),
    }
)


@attrs.frozen
class Row:
    """Errors at one ε: the median over trials of |answer - true median|, in the unit of the data.

    Attributes:
        epsilon: ε of each mechanism.
        propose: τ of Propose-Test-Release.
        tested: Error of the values that Propose-Test-Release released; None if it released none.
        refused: Fraction of its trials that were refused.
        exponential: Error of the exponential mechanism.
    """

    epsilon: float
    propose: float
    tested: float | None
    refused: float
    exponential: float


def compare_mechanisms(
    shape: Shape,
    *,
    records: int,
    epsilons: Sequence[float],
    delta: float,
    propose: float | None = None,
    trials: int = 50,
    seed: int = 0,
) -> list[Row]:
    """Return the errors of the private median of synthetic data by both mechanisms, at each ε.

    Args:
        shape: The assumed distribution of the data.
        records: The assumed number of records.
        epsilons: The values of ε to compare at.
        delta: δ of Propose-Test-Release; the exponential mechanism has none.
        propose: τ; None uses, for each ε, the suggestion of a rehearsal on data of this shape.
        trials: The number of releases by each mechanism, all of one synthetic data set. Their noise
            is not seeded.
        seed: Seed of the data.
    """
    _validate.count(1, MOST_SYNTHETIC, records=records)
    _validate.count(1, trials=trials)
    if propose is not None:
        _validate.positive(propose=propose)
    generator = np.random.default_rng(_validate.count(seed=seed))
    values = np.asarray(shape.rvs(records, generator), np.float64)
    column = ArrayColumn(values)
    truth = float(column.order_statistics((records + 1) // 2, (records + 1) // 2)[0])
    rows = []
    for epsilon in track(epsilons, "releases at each ε"):
        tau = (
            propose
            if propose is not None
            else suggest_proposal(
                median, count=records, shape=shape, epsilon=epsilon, delta=delta, seed=seed + 1
            )
        )
        tested = functools.partial(median, column, propose=tau, epsilon=epsilon, delta=delta)
        outcomes = [tested() for _ in range(trials)]
        released = [each.value for each in outcomes if isinstance(each, Released)]
        chosen = [float(median(column, epsilon=epsilon)) for _ in range(trials)]  # type: ignore[arg-type]
        rows.append(
            Row(
                epsilon=epsilon,
                propose=tau,
                tested=_error(released, truth) if released else None,
                refused=1 - len(released) / trials,
                exponential=_error(chosen, truth),
            )
        )
    return rows


def _error(answers: Sequence[float], truth: float) -> float:
    return float(np.median(np.abs(np.asarray(answers) - truth)))
