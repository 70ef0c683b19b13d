"""How most models begin: a noisy count, a refusal if it is too small, standardised columns."""

import numpy as np
import numpy.typing as npt

from prudent.estimators.base import TooFewRecordsError
from prudent.estimators.engine import SumEngine
from prudent.estimators.features import StandardFeatures, standardise
from prudent.release.lattice import FloatArray

_ENOUGH = 15.0  # records, times ε of a quantile, below which it is no better than a guess


def refusal(engine: SumEngine, count: float, part: str = "columns") -> TooFewRecordsError | None:
    """The refusal that a noisy count leads to, if quantiles of this part would be guesses.

    Where all columns have bounds there are none; then the count need only exceed its noise.
    """
    asked = part in engine.prices.parts
    needed = _ENOUGH / engine.prices.choice_epsilon(part) if asked else engine.deviation("count")
    return TooFewRecordsError(count, needed) if count < needed else None


def standardised(engine: SumEngine, columns: int, count: float) -> StandardFeatures:
    """Released locations and scales of the first columns, which the part `columns` pays for."""
    return StandardFeatures(*standardise(engine, "columns", range(columns), count))


def one_hot(places: FloatArray | npt.NDArray[np.int64], kinds: int) -> FloatArray:
    """A row with a one at each place, which is a whole number."""
    return np.asarray(places[:, None] == np.arange(kinds), np.float64)
