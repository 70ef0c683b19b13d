"""What to expect before anything is spent: errors of a median on public or made-up data.

Propose-Test-Release beside the exponential mechanism, at equal ε. Neither is better everywhere:
the first needs a proposal and may refuse, the second needs bounds and pays for how wide they are.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent.release.baseline import exponential_quantile
from prudent.release.columns.column import ArrayColumn
from prudent.release.lattice import FloatArray
from prudent.release.mechanism import Released
from prudent.release.proposal import suggest_proposal
from prudent.release.statistics import median

CANDIDATES = 2**12
"""Of the exponential mechanism, evenly spaced between its bounds."""

Draw = Callable[[np.random.Generator, int], FloatArray]


@attrs.frozen
class Shape:
    """Data of a certain shape, and bounds that somebody who knows the shape might dare to give.

    Attributes:
        draw: Makes up so many values.
        bounds: For the mechanism that needs some.
    """

    draw: Draw
    bounds: tuple[float, float]

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        """Draws `size` values; see `prudent.release.proposal.Shape`."""
        return self.draw(random_state, size)

    @classmethod
    def of(cls, values: FloatArray, bounds: tuple[float, float]) -> "Shape":
        """The shape of public values: they are drawn from, with replacement."""
        return cls(lambda generator, size: generator.choice(values, size), bounds)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "normal": Shape(lambda generator, size: generator.normal(50, 10, size), (0, 1_000)),
        "lognormal": Shape(lambda generator, size: generator.lognormal(3, 1, size), (0, 10_000)),
        "ties": Shape(lambda generator, size: generator.poisson(3, size).astype(float), (0, 1_000)),
        "unbounded": Shape(lambda generator, size: generator.standard_cauchy(size), (-1e6, 1e6)),
    }
)


@attrs.frozen
class Row:
    """Errors at one ε: medians over the trials of |answer - true median|, in the data's unit.

    Attributes:
        epsilon: Of either mechanism.
        propose: τ of Propose-Test-Release.
        tested: Error of what Propose-Test-Release released; None if it released nothing.
        refused: Share of its trials that were refused.
        exponential: Error of the exponential mechanism.
    """

    epsilon: float
    propose: float
    tested: float | None
    refused: float
    exponential: float


def compare(
    shape: Shape,
    *,
    records: int,
    epsilons: Sequence[float],
    delta: float,
    propose: float | None = None,
    trials: int = 50,
    seed: int = 0,
) -> list[Row]:
    """Errors of the private median of made-up data by both mechanisms, at each ε.

    Args:
        shape: What the data are thought to look like.
        records: How many there are thought to be.
        epsilons: Prices to compare at.
        delta: δ of Propose-Test-Release; the exponential mechanism has none.
        propose: τ; None: for each ε what a rehearsal on data of this shape suggests.
        trials: Releases by each mechanism, of one made-up data set. Their noise is not seeded.
        seed: Of the data.
    """
    _validate.count(1, records=records)
    _validate.count(1, trials=trials)
    if propose is not None:
        _validate.positive(propose=propose)
    values = np.asarray(shape.rvs(records, np.random.default_rng(seed)), np.float64)
    column = ArrayColumn(values)
    truth = float(column.order_statistics((records + 1) // 2, (records + 1) // 2)[0])
    candidates = np.linspace(*shape.bounds, CANDIDATES).tolist()
    rows = []
    for epsilon in epsilons:
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
        chosen = [
            exponential_quantile(column, epsilon=epsilon, candidates=candidates).value
            for _ in range(trials)
        ]
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
