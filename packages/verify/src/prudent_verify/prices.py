"""The ε of an event at a δ, proved again: exact sums of rationals, closed forms, laws on a grid."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any

import attrs
from flint import arb, ctx

from prudent_verify.composites import Selection, sampled_group
from prudent_verify.events import (
    ALLOCATED,
    SAMPLED,
    SELECTIONS,
    WORST,
    Event,
    Relation,
    UnknownEventError,
)
from prudent_verify.laws import CoarseGridError, Law, composed, upper
from prudent_verify.pairs import (
    BITS,
    FAR,
    THRESHOLD_ERROR,
    VAST,
    BoundedRange,
    Laplace,
    Mixture,
    Worst,
    additive,
    alone,
    largest,
    leaves,
    positive,
    sampled,
    worst_of,
)

ROUNDING = 1e-9  # how much more than the claim a proof may need, as a fraction: that of doubles
_GRID = 1e-5  # the same on a grid: both the claim and the proof have errors of this size
_NEAR = 1e-3  # how much above the claim a bound may be for a finer grid to be tried
_MARGIN = 1e-5  # by how much a lower bound is lowered: pairs may be a millionth above the truth
_ACCURACIES = (0.06, 0.02, 0.013)  # of grids, relative to the deviation of a loss
_TAIL = 1e-4  # of δ, which the ends of a grid may cost
_TILTS = [k / 20 for k in range(16)]  # of the shares of ε in a chain


class NoPurePriceError(UnknownEventError):
    """An event of which a part has no ε at δ = 0."""


@attrs.frozen
class Found:
    """What could be shown of a claimed ε."""

    epsilon: float  # an ε at which the event is (ε, δ)-DP: proved
    method: str  # how, in words
    least: float = 0.0  # below this ε its pairs are not (ε, δ)-DP: proved; 0 if nothing is
    rounding: float = 0.0  # what a claim may be below this ε, as a fraction


@lru_cache(maxsize=128)  # the same row is asked for more than once, by receipts of one ledger too
def prove(event: Event, relation: Relation, epsilon: float, delta: float) -> Found:
    """Prove an ε of an event at δ, at most the claimed one if that can be shown."""
    distance = relation.distance
    if relation.records > _MOST_RECORDS:
        raise UnknownEventError("So many records of a privacy unit are not counted here.")
    with ctx.workprec(BITS):
        added = _added_up(event)
    if added is not None and added[1] <= delta and (added[1] == 0 or distance == 1):
        total = float_above(added[0] * distance)
        if total <= epsilon or delta == 0:
            parts = (one for one in event.walk() if one.kind != SAMPLED or one[_RATE] != 1)
            sharp = not any(one.kind in _COARSE for one in parts)
            method = "exact sums of rational numbers" if sharp else "a sum of bounds on all parts"
            return Found(total, method, total if sharp else 0.0)
    if delta == 0:
        raise NoPurePriceError("No pure ε of this event can be shown.")
    with ctx.workprec(BITS):
        if any(each.kind == "ZCDpEvent" for each in event.walk()):
            return _concentrated(event, distance, delta)
        return _approximate(event, relation, epsilon, delta)


def _concentrated(event: Event, distance: int, delta: float) -> Found:
    """The ε of ρ-zCDP at δ (Canonne, Kamath and Steinke 2020, proposition 12), at the best order.

    What else is composed with it must be Gaussian noise, of which ρ is 1/(2σ²).
    """
    rho = Fraction(0)
    for leaf, count in leaves(event):
        if leaf.kind not in ("ZCDpEvent", "GaussianDpEvent"):
            raise UnknownEventError("Zero-concentrated DP is composed with Gaussian noise alone.")
        gaussian = leaf.kind == "GaussianDpEvent"
        own = 1 / (2 * Fraction(leaf["noise_multiplier"]) ** 2) if gaussian else leaf["rho"]
        rho += count * distance**2 * Fraction(own)
    exact, log = arb(rho.numerator) / rho.denominator, arb(delta).log()

    def bound(order: float) -> float:
        more = arb(order) - 1
        return upper(exact * order + (-log - arb(order).log()) / more + (1 - 1 / arb(order)).log())

    best = 1 + math.sqrt(-math.log(delta) / float(rho))
    orders = [1 + (best - 1) * 1.01**k for k in range(-300, 100)]
    # Of an order that rounds to 1 nothing is known, and a maximum with NaN may be 0.
    known = [each for each in map(bound, orders) if math.isfinite(each)]
    if not known:
        raise UnknownEventError("No order shows an ε of so large a ρ.")
    return Found(max(0.0, min(known)), "zero-concentrated DP in ball arithmetic")


def float_above(value: Fraction) -> float:
    """The least double that is not below a rational number."""
    found = float(value)
    return math.nextafter(found, math.inf) if Fraction(found) < value else found


_ONE = Relation("add-remove", 1)
_RATE = "sampling_probability"
_COARSE = (*SELECTIONS, ALLOCATED, WORST, SAMPLED)  # of which more may be proved than a sum
_MOST_RECORDS = 10**4
_MOST_SAMPLED = 256  # records of a privacy unit; of more, only a chain is shown
_MOST_KINDS = 1000  # of releases
_MOST_NESTED, _MOST_OUTCOMES = 16, 1 << 14  # that are summed one by one


def _added_up(event: Event) -> tuple[Fraction, Fraction] | None:
    """Sums of the ε and the δ of all releases, exactly; None if one has neither by itself."""
    epsilon, delta = Fraction(0), Fraction(0)
    for leaf, count in leaves(event):
        own = _of_leaf(leaf)
        if own is None:
            return None
        epsilon, delta = epsilon + count * own[0], delta + count * own[1]
    return epsilon, delta


def _of_leaf(leaf: Event) -> tuple[Fraction, Fraction] | None:
    def exact(name: str) -> Fraction:
        return Fraction(leaf[name])

    zero = Fraction(0)
    match leaf.kind:
        case "LaplaceDpEvent":
            return 1 / exact("noise_multiplier"), zero
        case "DiscreteLaplaceDpEvent":
            return exact("noise_parameter") * exact("sensitivity"), zero
        case "ExponentialMechanismDpEvent":
            return exact("epsilon"), zero
        case "ApproximateDpEvent":
            return exact("epsilon"), exact("delta")
        case "PoissonSampledDpEvent":  # a sample reveals no more than all of it
            return _added_up(leaf["event"])
        case "WorstOfDpEvent":
            each = [_added_up(one) for one in leaf["events"]]
            known = [one for one in each if one is not None]
            whole = len(known) == len(each)
            return (max(e for e, _ in known), max(d for _, d in known)) if whole else None
        case kind if kind in SELECTIONS:
            own = _added_up(leaf["event"])
            if own is None or own[1] > 0:
                return None
            return Selection.of(leaf).pure(_candidate(leaf.inside), own[0]), zero
        case _:
            return None


def _approximate(event: Event, relation: Relation, epsilon: float, delta: float) -> Found:
    distance = relation.distance
    known = list(leaves(event))
    if distance == 1 and [(leaf.kind, times) for leaf, times in known] == [(WORST, 1)]:
        # Alone, it has the largest ε of them, each of which is shown to its own accuracy.
        each = [_approximate(one, relation, epsilon, delta) for one in known[0][0]["events"]]
        least = max(found.least for found in each)
        return attrs.evolve(max(each, key=lambda found: found.epsilon), least=least)
    at_distance = Parts.of(event, relation)
    if distance == 1 or at_distance is not None:
        assert at_distance is not None
        # Of selections and allocations there are sharper bounds; the worst of several is a bound.
        coarse = any(each.kind in (*SELECTIONS, ALLOCATED, WORST) for each in event.walk())
        return _least(at_distance, epsilon, delta, tight=not coarse)
    # a chain of single records. What a link adds to δ weighs e^ε of all links before it, so those
    # at the end may get more of ε; each way to divide it is a proof.
    one = Parts.of(event, _ONE)
    assert one is not None
    single = one.prepared(_TAIL * delta, _ACCURACIES[0])

    def bound(total: float) -> float:
        return min(_chained(single, total, distance, tilt) for tilt in _TILTS)

    found = epsilon if bound(epsilon) <= delta else _solved(bound, epsilon, delta)
    return Found(found, f"a chain of {distance} records", rounding=ROUNDING)


def _chained(single: Callable[[float], float], total: float, distance: int, tilt: float) -> float:
    """A bound on δ of a chain whose links share ε, the last (1 + tilt) times the mean."""
    before, found, mean = arb(0), arb(0), total * (1 - 1e-12) / distance
    for k in range(distance):
        own = mean * (1 + tilt * (2 * k - distance + 1) / (distance - 1))
        found += before.exp() * single(own)
        before += arb(own)
    return upper(found) if before <= total else math.inf


@attrs.frozen(slots=False)
class Parts:
    """All releases of an event: profiles in both directions, and the number of runs of each."""

    laws: tuple[tuple[Callable[..., arb], int], ...]
    releases: int  # those inside others counted

    @classmethod
    def of(cls, event: Event, relation: Relation) -> "Parts | None":
        """The releases for neighbours of a relation; None if one is known for one record only."""
        precision = arb(0)
        known: dict[Event | None, tuple[Callable[..., arb], int]] = {}
        distance = relation.distance
        for leaf, count in leaves(event) if distance > 1 else _for_one(event):
            if leaf.kind == "GaussianDpEvent":  # in closed form together
                precision += count * (distance / positive(leaf["noise_multiplier"])) ** 2
                continue
            if len(known) > _MOST_KINDS:
                raise UnknownEventError("The event has more kinds of releases than are summed.")
            before = known.get(leaf)
            profile = _profile(leaf, relation) if before is None else before[0]
            if profile is None:
                return None
            known[leaf] = profile, count + (0 if before is None else before[1])
        if precision > 0:
            known[None] = Worst((alone(1 / precision.sqrt()),), arb(1), arb(0)), 1
        return cls(tuple(known.values()), _releases(event))

    @cached_property
    def split(self) -> tuple[list[Worst], tuple[tuple[Callable[..., arb], int], ...]]:
        """Releases of few outcomes, which are summed one by one, and the others."""
        apart, total, rest = list[Worst](), 1.0, Counter(dict(self.laws))
        finite = [law for law, _ in self.laws if isinstance(law, Worst)]
        for law in sorted(finite, key=lambda each: each.outcomes):
            for _ in range(min(rest[law], _MOST_NESTED)):
                if (total := total * law.outcomes) <= _MOST_OUTCOMES:
                    apart.append(law)
                    rest[law] -= 1
        if not +rest:
            rest[apart.pop()] = 1
        return apart, tuple((+rest).items())

    @property
    def closed(self) -> bool:
        """Whether no grid is needed."""
        return sum(count for _, count in self.split[1]) == 1

    def prepared(
        self, tail: float, accuracy: float, *, below: bool = False
    ) -> Callable[[float], float]:
        """Proved bounds on δ, from above or from below."""
        ways = [self.way(tail, accuracy, adding=adding, below=below) for adding in (False, True)]
        # Probabilities that are off by a factor in each run are off by their product in all.
        error = THRESHOLD_ERROR * self.releases

        def bound(epsilon: float) -> float:
            if below:  # vast noise before another release is not summed to the last digit
                far = error + len(self.split[0]) * FAR / VAST
                found = (1 - error) * largest([way(arb(epsilon) + far) for way in ways])
                return float(found.lower()) * (1 - 1e-12)
            return upper((1 + error) * largest([way(arb(epsilon) - error) for way in ways]))

        return bound

    def way(
        self, tail: float, accuracy: float, *, adding: bool, below: bool = False
    ) -> Callable[[arb], arb]:
        """The profile of one direction, by the law of the sum of all losses."""
        apart, rest = self.split
        found = rest[0][0]
        if not self.closed:
            found = _on_grid(rest, tail, accuracy, adding=adding, below=below)
        for law in reversed(apart):
            found = law.before(found)
        return partial(found, adding=adding)


def _on_grid(
    laws: Sequence[tuple[Callable[..., arb], int]],
    tail: float,
    accuracy: float,
    *,
    adding: bool,
    below: bool,
) -> Callable[..., arb]:
    runs = sum(count for _, count in laws)
    variance = 0.0
    for profile, count in laws:  # of a Gaussian the deviation is 2.5 times this
        variance += count * (2.5 * upper(profile(arb(0), adding=adding))) ** 2
    # a window of some standard deviations of the sum has about as many points for few runs.
    spacing = min(accuracy, max(accuracy / 30, accuracy * math.sqrt(runs) / 30))
    interval = max(spacing * math.sqrt(variance / runs), 1e-9)
    growth = spacing / 2 if runs > 30 else accuracy / 8
    own = []
    for profile, count in laws:
        forward, back = (partial(profile, adding=each) for each in (adding, not adding))
        law = (Law.below if below else Law.of)(forward, back, interval, growth, tail / runs)
        own.append((law, count))
    law = composed(own, tail, below=below)
    return lambda epsilon, *, adding: law.delta(epsilon)


def _releases(event: Event) -> int:
    """The number of releases in an event, at most: of those that it may be, all are counted."""
    found = 0
    for leaf, count in leaves(event):
        found += count * max(1, sum(map(_releases, leaf.inside)))
    return found


def _for_one(event: Event) -> Iterator[tuple[Event, int]]:
    """The releases of an event for one record, for which the worst of one event is that event."""
    for leaf, count in leaves(event):
        if leaf.kind == "WorstOfDpEvent" and len(leaf["events"]) == 1:
            yield from ((each, count * times) for each, times in _for_one(leaf["events"][0]))
        else:
            yield leaf, count


def _profile(leaf: Event, relation: Relation) -> Callable[..., arb] | None:
    """The profile of one release for neighbours of a relation; None if it is not known."""
    distance = relation.distance
    inner, rate = leaf, arb(1)
    while inner.kind == SAMPLED:
        rate *= arb(inner["sampling_probability"])
        inner = inner["event"]
    if inner.kind in (*SELECTIONS, WORST):  # a sample reveals no more than all of it
        if distance > 1:
            return None
        found = _candidate(inner.inside)
        return Selection.of(inner).profile(found) if inner.kind in SELECTIONS else found
    if distance > 1:
        return _at_distance(inner, rate, relation)
    if inner.kind in ("ComposedDpEvent", "SelfComposedDpEvent") and additive(inner) is None:
        return sampled(_candidate([inner]), rate)
    return worst_of(inner, rate)


def _candidate(events: Sequence[Event]) -> Callable[..., arb]:
    """The profile of the worst of several events."""
    each = [parts for inner in events if (parts := Parts.of(inner, _ONE)) is not None]
    ways = {
        adding: [parts.way(1e-16, _ACCURACIES[0], adding=adding) for parts in each]
        for adding in (False, True)
    }

    def profile(epsilon: arb, *, adding: bool) -> arb:
        return largest([way(epsilon) for way in ways[adding]])

    return profile


def _at_distance(inner: Event, rate: arb, relation: Relation) -> Callable[..., arb] | None:
    """The profile for several records, of noise whose scale stands for all of them."""
    distance = relation.distance
    worst = worst_of(inner, arb(1))
    pair = worst.pairs[0]
    if len(worst.pairs) > 1:
        return None
    if isinstance(pair, Mixture) and len(pair.parts) == 1 and pair.parts[0][2] is not None:
        if rate < 1 and relation.records > _MOST_SAMPLED:
            return None
        if rate < 1:
            return sampled_group(pair.parts[0][2], rate, relation)
        scaled: Any = alone(pair.parts[0][2] / distance)
    elif isinstance(pair, BoundedRange) and not rate < 1:
        scaled = BoundedRange(pair.reach * distance)
    elif isinstance(pair, Laplace) and pair.sigma is None and not rate < 1:
        scaled = Laplace(pair.reach * distance, None)
    else:
        return None
    return Worst((scaled,), arb(1), arb(0))


def _least(parts: Parts, epsilon: float, delta: float, *, tight: bool) -> Found:
    """The claimed ε, or the least that can be shown; of `tight` profiles also a lower bound."""
    closed, tail = parts.closed, _TAIL * delta
    method = f"{'closed forms' if closed else 'laws of the loss'} in ball arithmetic"
    rounding = ROUNDING if closed else _GRID
    # Losses with atoms between points need a finer grid, and are not proved to the last digit.
    few = sum(count for _, count in parts.laws) <= 30
    most, short, used = math.inf, None, 0.0
    for accuracy in (*_ACCURACIES, *((0.004,) if few else ())):
        try:
            bound = parts.prepared(tail, accuracy)
        except CoarseGridError:
            break
        for claim in (epsilon, epsilon * (1 + rounding)):
            if bound(claim) <= delta:
                return Found(claim, method, rounding=rounding)
        most, used, short = min(most, _solved(bound, epsilon, delta)), accuracy, None
        if most > epsilon * (1 + _NEAR) and tight:
            short = parts.prepared(tail, accuracy, below=True)
        if closed or (short and short(epsilon) > delta):
            break
    if math.isinf(most):
        raise UnknownEventError("The composition is too long for the grids of this check.")
    if tight and short is None:
        short = parts.prepared(tail, used, below=True)
    low, high = 0.0, most
    while short and high - low > _MARGIN / 2 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) > delta else (low, middle)
    return Found(most, method, low * (1 - _MARGIN), rounding)


def _solved(bound: Callable[[float], float], epsilon: float, delta: float) -> float:
    """The least ε above the claimed one at which the bound is at most δ; infinite if none is."""
    low, high = epsilon, max(2 * epsilon, 0.01)
    while not bound(high) <= delta:
        low, high = high, 2 * high
        if high > 1e3:
            return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if bound(middle) <= delta else (middle, high)
    return high
