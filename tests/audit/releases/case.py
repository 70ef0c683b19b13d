"""A worst-case pair as a value: two neighbours, how to release from them, and what is known."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent.audit import lower_bounds
from prudent.audit.auditing import CONFIDENCE, AuditResult, fair_coins, judge, run_all
from prudent.audit.lower_bounds import BoolArray, FloatArray, clopper_pearson
from prudent.release.noise import Noise, ReproducibleNoise, SecureNoise

Run: TypeAlias = Callable[[], Any]
Make: TypeAlias = Callable[[float, float], "Case"]
"""Makes a case of the ε and δ of a claim."""

_NEARLY = 0.97  # of the largest loss of a pair


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """Two neighbouring data sets, and the release that is audited on them.

    Attributes:
        epsilon: ε of the claim.
        delta: δ of the claim; 0 for a release that needs none.
        pair: The data with the record, and without it.
        prepare: Reads data once and returns a function that releases from them, given a source of
            noise.
        call: The public function that the runs stand for, on data and a source of noise; None for a
            mechanism that is not public by itself. The same noise gives the same answer.
        score: The exact log-likelihood ratio of an output; None if it is not known.
        exact: The exact ε of this pair at δ; None if it is not known.
        delta_at: A second point (ε′, δ′) of the claim, at which δ is measured; None for none. For
            pairs about accidents of probability δ, and for Gaussian noise, whose ε at a small δ
            shows in rare events only.
    """

    epsilon: float
    delta: float = 0.0
    pair: tuple[Any, Any]
    prepare: Callable[[Any, Noise], Run]
    call: Callable[[Any, Noise], Any] | None = None
    score: Callable[[Any], float] | None = None
    exact: float | None = None
    delta_at: tuple[float, float] | None = None

    def audit(
        self, *, runs: int, confidence: float = CONFIDENCE, seed: int | None = None
    ) -> "CaseResult":
        """Run the release on both data sets and return what the runs refute; see `audit_case`.

        The exact score competes with learned ones, so that a fault which the distribution does not
        foresee is found as well. A second point of the claim has half of the false alarms.
        """
        noise: Noise = SecureNoise() if seed is None else ReproducibleNoise(seed)
        coins = fair_coins(runs, seed)
        more, fewer = (self.prepare(data, noise) for data in self.pair)
        outputs = run_all(_call, (fewer, more), coins)
        each = (1 + confidence) / 2 if self.delta_at else confidence
        found = judge(
            outputs,
            coins,
            name="case",
            epsilon=self.epsilon,
            delta=self.delta,
            confidence=each,
            scores=() if self.score is None else (lower_bounds.each(self._rounded), self._extremes),
        )
        if self.delta_at is None:
            return CaseResult(found)
        losses = lower_bounds.each(self._rounded)(lower_bounds.Outputs(outputs))
        epsilon, claimed = self.delta_at
        lower = delta_of_scores(losses, coins, epsilon=epsilon, confidence=each)
        return CaseResult(found, lower_delta=lower, delta=claimed)

    def _rounded(self, output: Any) -> float:
        """The score without its last digits, so that outputs of equal loss have equal scores."""
        assert self.score is not None
        return round(self.score(output), 9)

    def _extremes(self, outputs: lower_bounds.Outputs) -> FloatArray:
        """1 or -1 where the loss is nearly the largest of the pair, else 0.

        Fewer values to choose thresholds from leave less to chance.
        """
        losses = lower_bounds.each(self._rounded)(outputs)
        least = _NEARLY * (self.exact or math.inf)
        return np.where(losses >= least, 1.0, np.where(losses <= -least, -1.0, 0.0))


def _call(run: Run) -> Any:
    return run()


@attrs.frozen
class CaseResult:
    """What the runs of a case refute: an ε, and a δ if the case has a second point of the claim."""

    result: AuditResult
    lower_delta: float | None = None  # the largest δ refuted at the second point
    delta: float = 0.0  # δ of the claim there

    @property
    def lower(self) -> float:
        """The largest ε refuted."""
        return self.result.lower

    @property
    def refuted(self) -> bool:
        """Whether the runs contradict the claim, at this confidence."""
        exceeded = self.lower_delta is not None and self.lower_delta > self.delta
        return self.result.refuted or exceeded


def delta_of_scores(
    losses: FloatArray, present: BoolArray, *, epsilon: float, confidence: float
) -> float:
    """The largest δ refuted at this ε, by the best test on the first quarter of the runs."""
    first = math.ceil(len(losses) / 4)
    values = np.unique(losses[:first])
    hits, alarms = (
        1 - np.searchsorted(np.sort(losses[:first][group]), values) / max(1, int(np.sum(group)))
        for group in (present[:first], ~present[:first])
    )
    says = losses[first:] >= values[np.argmax(hits - math.exp(epsilon) * alarms)]
    seen = present[first:]
    groups = (int(np.sum(says & seen)), int(np.sum(seen)))
    others = (int(np.sum(says & ~seen)), int(np.sum(~seen)))
    return delta_of_errors(*groups, *others, epsilon=epsilon, confidence=confidence)


def delta_of_errors(
    true_positives: int,
    with_runs: int,
    false_positives: int,
    without_runs: int,
    *,
    epsilon: float,
    confidence: float,
) -> float:
    """Return the largest δ that the errors of one test refute at this ε.

    It is the bound to look at where a claim is about rare outputs that reveal everything. Positives
    are runs that the test says had the record.

    Guarantee:
        If the mechanism is (ε, δ)-DP for this pair of data sets, the bound exceeds δ with a
        probability of at most 1 - confidence, whatever the numbers of runs: each of the two
        one-sided intervals fails with probability (1 - confidence)/2.
    """
    share = (1 - confidence) / 2
    hit = float(clopper_pearson(true_positives, with_runs, share)[0])
    alarm = float(clopper_pearson(false_positives, without_runs, share)[1])
    factor = math.exp(epsilon)
    return max(0.0, hit - factor * alarm, 1 - alarm - factor * (1 - hit))


def exact_epsilon(laws: Sequence[npt.ArrayLike], delta: float) -> float:
    """Return the least ε for which two distributions on the same outcomes are (ε, δ)-close.

    `laws` are the probabilities of all outcomes with the record, and without it.
    """
    _validate.between(0, 1, ends="[)", delta=delta)
    more, fewer = (np.asarray(law, np.float64) for law in laws)
    return max(_one_direction(more, fewer, delta), _one_direction(fewer, more, delta))


def _one_direction(above: FloatArray, below: FloatArray, delta: float) -> float:
    """The ε at which Σ max(0, above - e^ε below) falls to δ, found on its linear pieces in e^ε."""
    seen = above > 0
    above, below = above[seen], below[seen]
    with np.errstate(divide="ignore"):
        ratios = above / below
    order = np.argsort(-ratios)
    # With the first k outcomes counted, the sum is A_k - e^ε B_k; it is at most δ for every k.
    sums = np.cumsum(above[order]), np.cumsum(below[order])
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(sums[0] > delta, (sums[0] - delta) / sums[1], 0.0)
    return float(np.log(max(1.0, float(np.max(factors, initial=1.0)))))


def discrete_laplace(values: npt.ArrayLike, centre: float, scale: float) -> FloatArray:
    """The probabilities of whole numbers under discrete Laplace noise around a centre."""
    distance = np.abs(np.asarray(values, np.float64) - centre)
    return np.asarray(np.exp(-distance / scale) * np.tanh(0.5 / scale))


class Silent:
    """A source of noise that adds none: it shows where a release is centred."""

    def of_test(self, test: Any) -> int:
        """See `Noise`."""
        return 0

    def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        return [0] * size

    def integer(self, bound: int) -> int:
        """See `Noise`."""
        return bound // 2


def laplace_case(
    prepare: Callable[[Any, Noise], Run],
    pair: tuple[Any, Any],
    epsilon: float,
    *,
    rate: float | None = None,
    call: Callable[[Any, Noise], Any] | None = None,
) -> Case:
    """A case of Laplace noise on one number or several, which a record moves.

    The loss of one number is at most `rate` per unit; by default ε.
    """
    rate = epsilon if rate is None else rate
    more, fewer = (np.array(prepare(data, Silent())(), np.float64) for data in pair)

    def score(output: Any) -> float:
        values = np.array(output, np.float64)
        return rate * float(np.sum(np.abs(values - fewer) - np.abs(values - more)))

    return Case(
        epsilon=epsilon,
        pair=pair,
        prepare=prepare,
        call=call,
        score=score,
        exact=min(epsilon, rate * float(np.sum(np.abs(more - fewer)))),
    )
