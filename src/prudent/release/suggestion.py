"""What to ask for, from public knowledge: a proposal, and the error to expect of each mechanism.

The release is rehearsed on synthetic data of the size and shape that the analyst believes in. No
private data is read and nothing is charged; the answer is as good as the belief.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._progress import part, track
from prudent._rounding import nearest, rounded_up
from prudent.release import statistics
from prudent.release.lattice import FloatArray
from prudent.release.margins.quantile import rational
from prudent.release.outcome import Refused
from prudent.release.proposal import MOST_SYNTHETIC, Shape, suggest_proposal

_CENTRE = 5.0  # of a shape that only a spread is known of, in spreads: not at zero


@attrs.frozen
class Believed:
    """A distribution given by a few of its quantiles, straight between them.

    Attributes:
        quantiles: Values by probability, at least two. Below the first and above the last one the
            distribution goes on as between its two nearest.
    """

    quantiles: Mapping[float, float]

    def __attrs_post_init__(self) -> None:
        ps, values = self._sorted()
        if len(ps) < 2 or not (ps[0] >= 0 and ps[-1] <= 1) or np.any(np.diff(values) < 0):
            raise _validate.ArgumentError(
                "quantiles",
                "two or more values that do not fall, by probability in [0, 1]",
                got=dict(self.quantiles),
            )

    def _sorted(self) -> tuple[FloatArray, FloatArray]:
        ps = np.array(sorted(self.quantiles), np.float64)
        return ps, np.array([self.quantiles[p] for p in sorted(self.quantiles)], np.float64)

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        """Draw `size` values."""
        ps, values = self._sorted()
        drawn = random_state.random(size)
        inside = np.interp(drawn, ps, values)
        first = (values[1] - values[0]) / (ps[1] - ps[0])
        last = (values[-1] - values[-2]) / (ps[-1] - ps[-2])
        below = np.minimum(0.0, drawn - ps[0]) * first
        above = np.maximum(0.0, drawn - ps[-1]) * last
        return np.asarray(inside + below + above)


@attrs.frozen
class _Normal:
    centre: float
    spread: float

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        return random_state.normal(self.centre, self.spread, size)


@attrs.frozen
class Expectation:
    """What one mechanism is expected to do.

    Attributes:
        error: Median of |answer - true statistic| over the rehearsals that answered; None if none
            did.
        refused: Fraction of rehearsals that were refused.
        options: The options to ask it with.
    """

    error: float | None
    refused: float
    options: Mapping[str, Any]


@attrs.frozen
class Suggestion:
    """The mechanism to use, and what to expect of each.

    Attributes:
        statistic: Its name.
        epsilon: ε of each release.
        delta: δ of those that need one.
        proposal: The smallest proposal whose test passes in rehearsals; None if there is none.
        expected: What each mechanism is expected to do, by its name.
    """

    statistic: str
    epsilon: float
    delta: float
    proposal: float | None
    expected: Mapping[str, Expectation]

    @property
    def best(self) -> str:
        """The mechanism with the least expected error, among those that are hardly ever refused."""
        known = {
            name: each.error
            for name, each in self.expected.items()
            if each.error is not None and each.refused <= 0.05
        }
        return min(known, key=known.__getitem__)

    def lines(self) -> list[str]:
        """The suggestion in words."""
        found = [f"{self.statistic} at ε = {rounded_up(self.epsilon, 6)}: use {self.best}."]
        for name, each in self.expected.items():
            error = "no answer" if each.error is None else f"error {nearest(each.error)}"
            asked = ", ".join(f"{key} = {nearest(value)}" for key, value in each.options.items())
            refused = f", refused in {each.refused:.0%}" if each.refused else ""
            found.append(f"{name}: {error}{refused}{' (' + asked + ')' if asked else ''}")
        return found


STATISTICS = ("median", "quantile", "iqr", "mean")


def suggest(
    statistic: str,
    *,
    count: int,
    epsilon: float,
    delta: float = 1e-6,
    spread: float | None = None,
    centre: float | None = None,
    quantiles: Mapping[float, float] | None = None,
    shape: Shape | None = None,
    p: Any = 0.5,
    trials: int = 30,
    seed: int = 0,
) -> Suggestion:
    """Return which mechanism to use, with which proposal, and the error to expect.

    Args:
        statistic: "median", "quantile", "iqr" or "mean".
        count: The number of records you expect.
        epsilon: ε of the release.
        delta: δ of a release that is tested; the others need none.
        spread: The standard deviation you believe in; a normal shape is then assumed.
        centre: The middle you believe in; used with `spread`.
        quantiles: Instead, values you believe in by probability: {0.1: 3, 0.5: 10, 0.9: 40}.
        shape: Instead, any distribution, such as one of scipy.stats.
        p: The probability, for "quantile".
        trials: The number of rehearsals.
        seed: Seed of the synthetic data.
    """
    _validate.one_of(STATISTICS, statistic=statistic)
    _validate.count(1, MOST_SYNTHETIC, count=count)
    _validate.count(1, trials=trials)
    believed = _shape(spread, centre, quantiles, shape)
    generator = np.random.default_rng(_validate.count(seed=seed))
    values = np.asarray(believed.rvs(count, random_state=generator), np.float64)
    ask, truth = _asked(statistic, p, values)
    expected: dict[str, Expectation] = {}
    if statistic == "mean":
        expected["laplace"] = _rehearsed(ask, values, truth, trials, {}, epsilon=epsilon)
        return Suggestion(statistic, epsilon, delta, None, MappingProxyType(expected))
    expected["exponential"] = _rehearsed(ask, values, truth, trials, {}, epsilon=epsilon)
    try:
        with part("search for a proposal that passes"):
            proposal = suggest_proposal(
                ask, count=count, shape=believed, seed=seed, epsilon=epsilon, delta=delta
            )
    except ValueError:  # no proposal passes: too few records
        proposal = None
    if proposal is not None:
        options = {"propose": proposal, "delta": delta}
        found = _rehearsed(ask, values, truth, trials, options, epsilon=epsilon)
        expected["propose-test-release"] = found
    return Suggestion(statistic, epsilon, delta, proposal, MappingProxyType(expected))


def _shape(
    spread: float | None,
    centre: float | None,
    quantiles: Mapping[float, float] | None,
    shape: Shape | None,
) -> Shape:
    given = [each for each in (spread, quantiles, shape) if each is not None]
    if len(given) != 1:
        raise _validate.ArgumentError(
            "spread",
            "unless quantiles or shape is given",
            shown=f"{len(given) or 'none'} of the three",
        )
    if shape is not None:
        return shape
    if quantiles is not None:
        return Believed(quantiles)
    assert spread is not None
    width = _validate.positive(spread=spread)
    return _Normal(_CENTRE * width if centre is None else _validate.real(centre=centre), width)


def _asked(statistic: str, p: Any, values: FloatArray) -> tuple[Callable[..., Any], float]:
    """The statistic to ask for, and its true value."""
    ordered = np.sort(values)

    def rank(exact: Any) -> float:
        return float(ordered[max(0, -(-exact.numerator * len(ordered) // exact.denominator) - 1)])

    if statistic == "mean":
        return statistics.mean, float(np.mean(values))
    if statistic == "iqr":
        return statistics.iqr, rank(rational("3/4")) - rank(rational("1/4"))
    exact = rational(p if statistic == "quantile" else "1/2")
    return functools.partial(statistics.quantile, p=exact), rank(exact)


def _rehearsed(
    ask: Callable[..., Any],
    values: FloatArray,
    truth: float,
    trials: int,
    options: Mapping[str, Any],
    *,
    epsilon: float,
) -> Expectation:
    rehearsals = track(range(trials), "rehearsals")
    outcomes = [ask(values, epsilon=epsilon, **options) for _ in rehearsals]
    errors = [abs(float(each) - truth) for each in outcomes if not isinstance(each, Refused)]
    return Expectation(
        error=float(np.median(errors)) if errors else None,
        refused=1 - len(errors) / trials,
        options=MappingProxyType(dict(options)),
    )
