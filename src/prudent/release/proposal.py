"""Where a proposal comes from: public knowledge, or a private search that is paid for.

A proposal must not come from a look at the data. It can come from a rehearsal on made-up data of
the expected size and shape, or from a short list of proposals that are tested one after another.
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
from prudent.accounting import DiscreteLaplaceTest
from prudent.accounting.calibration import Search, solve
from prudent.release.columns.column import Column
from prudent.release.failures import withheld
from prudent.release.lattice import least_proposal
from prudent.release.margins import quantile as margin
from prudent.release.mechanism import Outcome, ProposeTestRelease, Refused, Released
from prudent.release.noise import Noise, ReproducibleNoise
from prudent.release.statistics import Budget, Options, charge, check_names, open_records

_STEP = 2**0.25  # proposals are found to within a fifth; a little too large is the safe side
_STRIDE = 16  # steps at once, until the answer lies between two proposals
_FARTHEST = 400  # steps up before giving up: thirty orders of magnitude
_INVISIBLE = 1e-3  # of the least difference between two values: noise below it helps nobody


class Shape(Protocol):
    """A frozen distribution of scipy.stats, or anything that draws like one."""

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        """Draws `size` values."""
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
    """A proposal that passes every rehearsal on made-up data, and is not much larger than that.

    Nothing here reads private data, so it costs nothing; it is as good as the guess. Where values
    repeat, any proposal may pass: then one whose noise no longer shows between two values is taken.

    Args:
        statistic: Of `prudent.release`: `median`, `iqr`, or `partial(trimmed_mean, trim=100)`.
        count: How many records are expected.
        shape: What the data are thought to look like: `scipy.stats.lognorm(0.5, scale=50_000)`.
        rehearsals: How many data sets are made up; all must pass.
        seed: Of the made-up data.
        **budget: As for the release itself.

    Raises:
        ValueError: If no proposal passes: too few records for this ε and δ.
    """
    _validate.count(1, count=count)
    _validate.count(1, rehearsals=rehearsals)
    generator = np.random.default_rng(seed)
    samples = [
        np.asarray(shape.rvs(count, random_state=generator), np.float64) for _ in range(rehearsals)
    ]
    finest = least_proposal(budget.get("bounds"))
    start = max(finest, _spread(samples[0]))
    asked: dict[str, Any] = {**budget, "fallback": False, "ledger": None}

    def noise_at(place: int) -> float | None:
        """The noise at a proposal so many steps above the start; None if it is refused."""
        asked["noise"] = ReproducibleNoise(seed)
        for sample in samples:
            outcome = statistic(sample, propose=start * _STEP**place, **asked)
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
    proposed = start * _STEP**high
    least = max(finest, _INVISIBLE * _gap(samples[0]) / noise * proposed)
    lowest = math.ceil(math.log(least / start, _STEP))
    low = high - _STRIDE
    while low >= lowest and noise_at(low) is not None:
        high, low = low, low - _STRIDE
    low = max(low, lowest - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if noise_at(middle) is None else (low, middle)
    return start * _STEP**high


def _spread(sample: npt.NDArray[np.float64]) -> float:
    """The interquartile range; if that is 0 the range, and if that is 0 too, 1."""
    spread = float(np.subtract(*np.quantile(sample, [0.75, 0.25])))
    return spread if spread > 0 else float(np.ptp(sample)) or 1.0


def _gap(sample: npt.NDArray[np.float64]) -> float:
    """The least difference between two values; of a single value, its size."""
    values = np.unique(sample)
    return float(np.min(np.diff(values))) if len(values) > 1 else abs(float(values[0])) or 1.0


@attrs.frozen(kw_only=True)
class ProposalSearch:
    """Several proposals, tested from the smallest on; the first that passes is released.

    All tests are charged, and one release: a run that stops early has spent the same. If an
    accident lets a wrong proposal pass, its test has already been charged for revealing everything,
    so the noise that follows is charged once, as enough (see `ProposeTestRelease.event`).

    Attributes:
        mechanisms: One for each proposal, with one test and one noise multiplier.
    """

    mechanisms: tuple[ProposeTestRelease, ...]

    @property
    def event(self) -> dp.DpEvent:
        """What the whole search costs."""
        test, value = self.mechanisms[0].event.events
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(test, len(self.mechanisms)), value])

    @classmethod
    def calibrated(
        cls,
        proposals: Sequence[float],
        *,
        epsilon: float,
        delta: float,
        bounds: tuple[float, float] | None = None,
    ) -> "ProposalSearch":
        """The search whose whole is (epsilon, delta)-DP: half of ε for all tests, half to release.

        Args:
            proposals: In the unit of the data; a public list. Each one makes every test dearer.
            epsilon: Of the whole search.
            delta: Of the whole search.
            bounds: Public bounds on the data, if there are any.
        """
        ordered = sorted({_validate.positive(proposals=propose) for propose in proposals})
        if not ordered:
            raise ValueError("Expected at least one proposal, got none.")
        _validate.between(1e-3, 50, epsilon=epsilon)
        _validate.between(1e-18, 0.5, ends="[)", delta=delta)

        def with_scale(scale: float) -> "ProposalSearch":
            return cls(
                mechanisms=tuple(
                    ProposeTestRelease(
                        propose=propose,
                        robust_noise_multiplier=math.nextafter(2 / epsilon, math.inf),
                        test=DiscreteLaplaceTest(scale),
                        failure=delta / (2 * len(ordered)),
                        bounds=bounds,
                    )
                    for propose in ordered
                )
            )

        pure = 2 * len(ordered) / epsilon  # by adding up; composing exactly can only be better
        scale = solve(
            lambda scale: with_scale(scale).event,
            Search(safe=1.01 * pure, unsafe=pure / len(ordered), guess=pure),
            epsilon=epsilon,
            delta=delta,
            name="scale",
        )
        return with_scale(scale)

    def release(
        self,
        records: Column,
        measure: Callable[[ProposeTestRelease, Column], margin.RobustValue],
        *,
        noise: Noise | None = None,
    ) -> Outcome:
        """Tests each proposal in turn and releases at the first that passes."""
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


def search_quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any = 0.5,
    proposals: Sequence[float],
    **options: Unpack[Options],
) -> Outcome:
    """A quantile at the smallest proposal that passes; see `ProposalSearch`.

    Args:
        data: See `prudent.release.statistics.median`.
        column: See `prudent.release.statistics.median`.
        p: In (0, 1], exact.
        proposals: A public list of proposals.
        **options: As for `prudent.release.statistics.quantile`, without groups and fallback.
    """
    check_names(options, Options)
    exact = margin.rational(p)
    for name in ("by", "groups", "fallback", "test", "failure", "law"):
        if options.get(name) not in (None, False):
            raise ValueError(f"Expected no {name} in a search, got {options.get(name)!r}.")
    search = ProposalSearch.calibrated(
        proposals,
        epsilon=options["epsilon"],
        delta=options["delta"],
        bounds=options.get("bounds"),
    )
    records = open_records(data, column, options, "numbers")
    assert not isinstance(records, dict)
    charge(options, search.event, f"search for a {exact}-quantile")

    def measure(mechanism: ProposeTestRelease, records: Column) -> margin.RobustValue:
        return margin.quantile(
            records, mechanism.lattice, exact, propose=mechanism.steps, cap=mechanism.cap
        )

    return withheld(search.release, records, measure, noise=options.get("noise"))
