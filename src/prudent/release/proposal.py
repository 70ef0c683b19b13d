"""Choosing a proposal: from public knowledge, or by a private search that is charged.

A proposal must not be chosen by looking at the data. It can come from a rehearsal on synthetic data
of the expected size and shape, or from a short public list of proposals that are tested one after
another.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Unpack

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._rounding import rounded_up
from prudent.accounting import DiscreteLaplaceTest
from prudent.accounting.calibration import Search, solve
from prudent.release.charging import charge
from prudent.release.columns.column import Column
from prudent.release.failures import withheld
from prudent.release.lattice import least_proposal
from prudent.release.margins import quantile as margin
from prudent.release.mechanism import ProposeTestReleaseMechanism
from prudent.release.noise import Noise, ReproducibleNoise, source_of
from prudent.release.outcome import Outcome, Refused, Released
from prudent.release.preview import Preview
from prudent.release.request import Budget, Options, check_names, open_records
from prudent.release.statistics.tested import required_delta

MOST_SYNTHETIC = 10**8
"""Most records of a synthetic data set, which is held in memory."""

_STEP = 2**0.25  # ratio of neighbouring proposals: the result is at most a fifth too large
_STRIDE = 16  # steps taken at once until the answer is bracketed
_FARTHEST = 400  # steps up before giving up: thirty orders of magnitude
_INVISIBLE = 1e-3  # noise below this fraction of the least gap between values need not shrink


class Shape(Protocol):
    """A frozen distribution of scipy.stats, or any object with the same `rvs` method."""

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        """Draw `size` values."""
        ...


def suggest_proposal(
    statistic: Callable[..., Any],
    *,
    count: int,
    shape: Shape,
    rehearsals: int = 10,
    seed: int = 0,
    **budget: Unpack[Budget],
) -> float:
    """Return a proposal that passes every rehearsal on synthetic data, and is not much larger.

    No private data is read, so the suggestion costs nothing; it is as good as the assumed count and
    shape. It has three digits. Where values repeat, arbitrarily small proposals may pass; then the
    result is one whose noise is small compared with the least gap between two values.

    Args:
        statistic: A statistic of `prudent.release`, such as `median`, `iqr` or
            `partial(trimmed_mean, trim=100)`.
        count: The expected number of records.
        shape: The assumed distribution of the data, such as
            `scipy.stats.lognorm(0.5, scale=50_000)`.
        rehearsals: The number of synthetic data sets; all must pass.
        seed: Seed of the synthetic data.
        **budget: The options of the release itself.

    Raises:
        ValueError: If no proposal passes: too few records for this ε and δ.
    """
    _validate.count(1, MOST_SYNTHETIC, count=count)
    _validate.count(1, rehearsals=rehearsals)
    _validate.function(statistic=statistic)
    if not callable(getattr(shape, "rvs", None)):
        raise _validate.ArgumentError(
            "shape", "a distribution, as those of scipy.stats", shown=type(shape).__name__
        )
    generator = np.random.default_rng(_validate.count(seed=seed))
    samples = [
        np.asarray(shape.rvs(count, random_state=generator), np.float64) for _ in range(rehearsals)
    ]
    finest = least_proposal(budget.get("bounds"))
    start = max(finest, _spread(samples[0]))
    asked: dict[str, Any] = {**budget, "fallback": False, "ledger": None}

    def proposal_at(place: int) -> float:
        return _readable(start * _STEP**place)

    def noise_at(place: int) -> float | None:
        """The noise at the proposal `place` steps above the start; None if it is refused."""
        asked["noise"] = ReproducibleNoise(seed)
        for sample in samples:
            outcome = statistic(sample, propose=proposal_at(place), **asked)
            if not isinstance(outcome, Released):
                return None
        return float(outcome.noise_scale)

    high = 0
    while (noise := noise_at(high)) is None:
        high += _STRIDE
        if high > _FARTHEST:
            raise ValueError(
                f"No proposal passes with {count} records of this shape at epsilon = "
                f"{budget['epsilon']:g}, delta = {budget['delta']:g}. Spend more, expect more "
                "records, or trim more."
            )
    proposed = proposal_at(high)
    least = max(finest, _INVISIBLE * _gap(samples[0]) / noise * proposed)
    lowest = math.ceil(math.log(least / start, _STEP))
    low = high - _STRIDE
    while low >= lowest and noise_at(low) is not None:
        high, low = low, low - _STRIDE
    low = max(low, lowest - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if noise_at(middle) is None else (low, middle)
    return proposal_at(high)


def _readable(proposal: float) -> float:
    """The proposal rounded up to three digits, to be read and typed."""
    return float(rounded_up(proposal, 3))


def _spread(sample: npt.NDArray[np.float64]) -> float:
    """The interquartile range; the range if that is 0; and 1 if the range is 0 as well."""
    spread = float(np.subtract(*np.quantile(sample, [0.75, 0.25])))
    return spread if spread > 0 else float(np.ptp(sample)) or 1.0


def _gap(sample: npt.NDArray[np.float64]) -> float:
    """The least gap between distinct values; for a single value its magnitude, or 1 if it is 0."""
    values = np.unique(sample)
    return float(np.min(np.diff(values))) if len(values) > 1 else abs(float(values[0])) or 1.0


@attrs.frozen(kw_only=True)
class ProposalSearch:
    """A search that tests several proposals in ascending order and releases at the first pass.

    The charge covers all tests and one release, even if the search stops early. If a wrong proposal
    passes by accident, its test has already been charged as revealing everything, so the noise that
    follows is charged once, as sufficient (see `ProposeTestReleaseMechanism.event`).

    Attributes:
        mechanisms: One mechanism for each proposal; all have the same test and noise multiplier.
    """

    mechanisms: tuple[ProposeTestReleaseMechanism, ...]

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of the whole search."""
        test, value = self.mechanisms[0].event.events
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(test, len(self.mechanisms)), value])

    @classmethod
    def calibrate(
        cls,
        proposals: Sequence[float],
        *,
        epsilon: float,
        delta: float,
        bounds: tuple[float, float] | None = None,
    ) -> "ProposalSearch":
        """Return a search that is (epsilon, delta)-DP: half of ε for all tests, half to release.

        Args:
            proposals: A public list of proposals, in the unit of the data. Each additional one
                needs more noise in every test.
            epsilon: ε of the whole search.
            delta: δ of the whole search.
            bounds: Public bounds on the data, or None.
        """
        ordered = sorted(
            {
                _validate.positive(proposals=propose)
                for propose in _validate.values(proposals=proposals)
            }
        )
        if not ordered:
            raise ValueError("Expected at least one proposal, got none.")
        _validate.between(1e-3, 50, epsilon=epsilon)
        _validate.between(1e-18, 0.5, ends="[)", delta=delta)
        scale = _least_scale(len(ordered), epsilon, delta)
        return cls._with_scale(scale, ordered, epsilon, delta, bounds)

    @classmethod
    def _with_scale(
        cls,
        scale: float,
        proposals: Sequence[float],
        epsilon: float,
        delta: float,
        bounds: tuple[float, float] | None,
    ) -> "ProposalSearch":
        return cls(
            mechanisms=tuple(
                ProposeTestReleaseMechanism(
                    propose=propose,
                    robust_noise_multiplier=math.nextafter(2 / epsilon, math.inf),
                    test=DiscreteLaplaceTest(scale),
                    failure=delta / (2 * len(proposals)),
                    bounds=bounds,
                )
                for propose in proposals
            )
        )

    def release(
        self,
        records: Column,
        measure: Callable[[ProposeTestReleaseMechanism, Column], margin.RobustValue],
        *,
        noise: Noise | None = None,
    ) -> Outcome:
        """Test each proposal in turn and release at the first that passes."""
        for mechanism in self.mechanisms:
            measured = functools.partial(measure, mechanism)
            outcome = mechanism.release(records, measured, noise=noise)
            if isinstance(outcome, Released):
                return attrs.evolve(outcome, event=self.event)
        return Refused(
            "No proposal passed its noisy test. Propose more, spend more, or release from more "
            "data; asking again costs again.",
            self.event,
        )


@functools.lru_cache(maxsize=256)
def _least_scale(count: int, epsilon: float, delta: float) -> float:
    """The least scale of the tests of a search: it depends on the number of proposals alone."""

    def event_of(scale: float) -> dp.DpEvent:
        return ProposalSearch._with_scale(scale, [1.0] * count, epsilon, delta, None).event

    pure = 2 * count / epsilon  # by basic composition; exact composition is no worse
    search = Search(safe=1.01 * pure, unsafe=pure / count, guess=pure)
    return solve(event_of, search, epsilon=epsilon, delta=delta, name="scale")


def search_quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any = 0.5,
    proposals: Sequence[float],
    **options: Unpack[Options],
) -> Outcome:
    """Release a quantile at the smallest proposal that passes its test; see `ProposalSearch`.

    Args:
        data: See `prudent.release.median`.
        column: See `prudent.release.median`.
        p: The probability, in (0, 1]; see `prudent.release.quantile`.
        proposals: A public list of proposals.
        **options: As for `prudent.release.quantile`, but without groups, fallback,
            `test`, `failure` and `distribution`.
    """
    check_names(options, Options)
    exact = margin.rational(p)
    for name in ("by", "groups", "fallback", "test", "failure", "distribution"):
        if options.get(name) not in (None, False):
            raise ValueError(f"Expected no {name} in a search, got {options.get(name)!r}.")
    search = ProposalSearch.calibrate(
        proposals,
        epsilon=options["epsilon"],
        delta=required_delta(options),
        bounds=options.get("bounds"),
    )
    records = open_records(data, column, options, "numbers")
    assert not isinstance(records, dict)
    preview = Preview(
        statistic=f"search for a {exact}-quantile",
        mechanism="propose-test-release",
        epsilon=options["epsilon"],
        delta=required_delta(options),
        event=search.event,
    )
    noise = source_of(options.get("noise"))
    note = charge(options.get("ledger"), preview, data, column, options)

    def measure(mechanism: ProposeTestReleaseMechanism, records: Column) -> margin.RobustValue:
        return margin.quantile(
            records, mechanism.lattice, exact, propose=mechanism.steps, cap=mechanism.cap
        )

    found = withheld(search.release, records, measure, noise=noise)
    note([found])
    return attrs.evolve(found, epsilon=preview.epsilon, delta=preview.delta)
