"""Any statistic or model of a table, by the private median or vote of its values on disjoint parts.

`aggregate` divides the records into parts (`aggregation.parts`), calls a function of the
caller's on each, and releases the median of the numbers it returns, chosen by the exponential
mechanism without bounds, or the label that most parts vote for.

**Privacy.** One record is in one part, so adding or removing it replaces the value of one part. A
replaced value is one removed and one added. Each changes the distance of every number from the
median by a range of length 1 (see `release.exponential.quantile`), so together the range is 2: a
median of c per record costs 2c. Of a vote, one count falls by 1 and another rises by 1: the counts
of k votes change by at most 2k in the sum and by sqrt(2k) in length. The key of the division is
drawn independently of the data; for each key this holds, so it holds for all of them.

**Certificate.** Every bad record spoils one part. The median of m values is above an end if more
than half of them are, so with B values up to that end at least ceil((2B - m + 1)/2) parts must be
spoiled; below an end it is ceil((m - 2A)/2), with A values below. A part that is spoiled may also
fall silent or begin to speak, which moves m by 1 and gains less than a changed value. This
distance is a distance in parts; one record changes it by at most 1, so it is released as any other
(`release.certificates`). The gap of a vote closes by at most 2 with each part. Noisy counts are
released, so a lower bound on the exact gap costs nothing.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs

from prudent import _validate
from prudent.budget import LedgerLike
from prudent.estimators.aggregation.answers import MOST_PARTS, AggregateRequest, Medians, Votes
from prudent.estimators.aggregation.parts import open_records
from prudent.receipts.making import ReceiptTarget
from prudent.records import Seeds, generators_kept, seed_generators
from prudent.release.charging import charge
from prudent.release.failures import withheld
from prudent.release.noise import Noise, source_of
from prudent.release.outcome import Released
from prudent.release.sums.additive import LARGEST_EPSILON, SMALLEST_EPSILON

_LARGEST_SIZE = 10**6


def aggregate(
    fit_one: Callable[[Any], Any],
    data: Any = None,
    epsilon: float | None = None,
    *,
    delta: float | None = None,
    size: int | None = None,
    labels: Sequence[Hashable] | None = None,
    parts: int | None = None,
    certify: float | None = None,
    confidence: float | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Any:
    """Release what a function computes from records: the private median, or vote, over parts.

    Args:
        fit_one: A function of the records of one part, in the container that `data` is: any
            statistic, or any model's coefficients or predictions at public points. It must depend
            on nothing else that depends on the data. Its random numbers are seeded for each part.
            Where it raises an error or returns something else than was asked for, the part counts
            as absent, and nothing says so: try it on public records first.
        data: An array, a list, a frame, a tuple of these such as `(X, y)`, or a path, an ibis
            table or a Spark frame, which are read as a pandas frame.
        epsilon: ε of this release, at least 0.001.
        delta: δ of this release. With it, many numbers or votes cost less than without.
        size: How many numbers, or labels, the function returns, a public fact; None: one, and
            not in a list.
        labels: The public list of labels, if it returns labels: then parts vote.
        parts: The public number of parts; None chooses one by ε. More parts withstand more bad
            records and more noise; fewer leave more records to each.
        certify: A tolerance: a fifth of ε then buys a proof of how many records must be added or
            removed before the exact median of the parts is further than that from a released
            number. A vote comes with its proof at no price.
        confidence: Probability with which intervals and certificates hold. Giving it asks for an
            interval for the exact median of the parts, at two fifths of ε, which needs more parts.
        connect: The address of a database, instead of `data`.
        table: The name of the table in that database.
        ledger: The ledger to charge before any record is read.
        receipt: Where to write the receipt; see `prudent.median`.
        noise: Source of randomness; None uses the operating system's.
        dry_run: Whether to return a `Preview` instead of releasing: nothing is charged or read.

    Guarantee:
        The answer is (ε, δ)-DP for adding or removing one record, whatever the function does on
        each part, if what it does depends on the part alone.

    Returns:
        `Released`, whose value is a number or a label, or with `size` a tuple of them.
    """
    _validate.function(fit_one=fit_one)
    epsilon = _validate.between(SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=epsilon)
    if delta is not None:
        delta = _validate.small_delta(1e-18, ends="[)", delta=delta)
    asked = AggregateRequest(
        epsilon=epsilon,
        delta=delta,
        size=1 if size is None else _validate.count(1, _LARGEST_SIZE, size=size),
        single=size is None,
        parts=None if parts is None else _validate.count(2, MOST_PARTS, parts=parts),
        tolerance=None if certify is None else _validate.non_negative(certify=certify),
        confidence=(
            None
            if confidence is None
            else _validate.between(0.5, 1, ends="[)", confidence=confidence)
        ),
    )
    way = Medians.priced(asked) if labels is None else Votes.priced(asked, labels)
    read = open_records(data, connect, table)
    if dry_run:
        return way.preview
    source = source_of(noise)
    paid = charge(ledger, way.preview, table if connect else data, receipt=receipt)
    answer = withheld(_answer, way, fit_one, read, source)
    paid.note([answer], answer)
    return answer


def _answer(
    way: "Medians | Votes", fit_one: Callable[[Any], Any], read: Any, noise: Noise
) -> Released:
    secret = noise.integer(2**256).to_bytes(32, "little")
    parts, seeds = read().divided(way.parts, secret), Seeds(secret)
    with generators_kept():
        values = [_value_of(way, fit_one, part, seeds.of(j)) for j, part in enumerate(parts)]
    released = way.release([each for each in values if each is not None], noise)
    preview = way.preview
    return attrs.evolve(
        released,
        event=preview.event,
        epsilon=preview.epsilon,
        delta=preview.delta,
        notes=preview.notes,
    )


def _value_of(way: "Medians | Votes", fit_one: Any, part: Any, seed: int) -> Any:
    """What the function returns for a part; None if that is not what was asked for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they may quote records
            seed_generators(seed)
            return way.read(fit_one(part))
    except KeyboardInterrupt:  # whoever waits for the answer wants to stop
        raise
    except BaseException:  # SystemExit, too
        return None
