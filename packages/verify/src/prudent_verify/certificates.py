"""Certificates computed again from the released numbers that they follow from."""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from flint import arb, ctx

from prudent_verify.events import Event
from prudent_verify.pairs import BITS, fewest, positive

_ROUNDED = 1e-9  # of floating point, in what the program computed
_DISTANCE = {"low", "high", "needed", "withstands", "confidence", "epsilon", "basis"}
_SLOPES = {"kind", "records", "tolerance", "confidence", "basis"}
_SLOPE_BASIS = {"kind", "gradient", "curvature", "count", "multipliers", "root"}
_SLOPE_BASIS |= {"reach", "bound", "slope", "hidden"}


def problem_of(
    certificate: Mapping[str, Any],
    event: Event,
    beside: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
) -> str | None:
    """What is wrong with a certificate; None if it follows from the released numbers."""
    basis = certificate["basis"]
    about_slopes = basis["kind"] == "SlopeBasis"
    known = (_SLOPES, _SLOPE_BASIS) if about_slopes else (_DISTANCE, {"kind", "noisy"})
    if (set(certificate), set(basis)) != known:
        return "it has other fields than a certificate."
    needed = certificate["records" if about_slopes else "needed"]
    confidence = certificate["confidence"]
    sound = type(needed) is int and needed >= 0 and type(confidence) is float
    if not (sound and 0 < confidence < 1):
        return "its numbers are no numbers of a certificate."
    if not needs_of(certificate) <= paid_noises(event):
        return "no noise of its scale is in the event."
    with ctx.workprec(BITS):
        if about_slopes:
            if needed == 0 or _slopes_withstand(needed, certificate, basis):
                return None
            return f"the released numbers do not show {needed} records."
        if basis["kind"] != "distance":
            return "what it follows from is not known here."
        most = _by_distance(certificate, basis["noisy"])
    if certificate["withstands"] != max(0, needed - 1):
        return "the records it withstands do not follow from those that are needed."
    if needed > most:
        return f"the released numbers show {most} records, not {needed}."
    return _problem_of_interval(certificate, beside or {}, asked or {})


def _problem_of_interval(
    certificate: Mapping[str, Any], answer: Mapping[str, Any], asked: Mapping[str, Any]
) -> str | None:
    """An interval is as wide as was asked for, and has the answer that it is about in its middle.

    One that was asked for by its ends has no answer in it: there the certificate is the answer.
    """
    low, high, value = certificate["low"], certificate["high"], answer.get("value")
    if str(asked.get("statistic")).startswith("certificate of "):
        sound = value == certificate["needed"] and (low, high) != (None, None)
        return None if sound else "the answer is not what it certifies."
    widths = [one.get("certify") for one in asked.get("parts", ()) if isinstance(one, Mapping)]
    if not any(widths):
        return "none was asked for."
    lengths: list[Any] = [each for each in widths if type(each) in (int, float)]
    if not lengths and type(low) is type(high) is type(value) in (str, bool):
        return None if low == high == value else "its interval is not that of the answer."
    rounded = _DAY if isinstance(low, str) and len(low) == len("2020-01-01") else 0
    first, last, at = _place(low), _place(high), _place(value)
    if not first <= last:
        return "its interval is empty."
    off = 1e-9 * max(abs(first), abs(last)) + _OFF * (last - first) + rounded
    if not first <= at <= last or abs((first + last) / 2 - at) > off:
        return "its interval is not about the answer."
    if lengths and all(abs((last - first) / 2 - each) > off for each in lengths):
        return "its interval is not as wide as what was asked."
    return None


_DAY = 86_400  # seconds, to which dates are rounded
_OFF = 1e-6  # of the width of an interval, by which rounding may move its middle


def _place(value: Any) -> float:
    """A number, or the seconds to a date or time."""
    if type(value) in (int, float):
        return float(value)
    found = datetime.datetime.fromisoformat(value)
    return found.replace(tzinfo=found.tzinfo or datetime.UTC).timestamp()


def needs_of(certificate: Mapping[str, Any]) -> Counter[tuple[str, float]]:
    """The noises that a certificate must have paid for: kind and one over the scale."""
    basis = certificate["basis"]
    if basis["kind"] == "SlopeBasis":
        if len(basis["multipliers"]) != 3:
            raise ValueError("The basis of slopes is three released values.")
        return Counter(("gaussian", 1 / each) for each in basis["multipliers"])
    return Counter([("laplace", certificate["epsilon"])])


def paid_noises(event: Event) -> Counter[tuple[str, float]]:
    """How often an event has each noise for a change of one, on all records and in every run.

    Of several events of which one happens, what each of them has.
    """
    inside = list(map(paid_noises, event.inside))
    match event.kind:
        case "DiscreteLaplaceDpEvent" if event["sensitivity"] == 1:
            return Counter([("laplace", event["noise_parameter"])])
        case "GaussianDpEvent":
            return Counter([("gaussian", 1 / event["noise_multiplier"])])
        case "SelfComposedDpEvent":
            return Counter({noise: times * event["count"] for noise, times in inside[0].items()})
        case "ComposedDpEvent":
            return sum(inside, Counter())
        case "WorstOfDpEvent":
            return reduce(and_, inside)
    return Counter()  # of samples and selections: their noise was not paid for in full


def _by_distance(certificate: Mapping[str, Any], noisy: int) -> int:
    """A lower bound on a distance that was released with discrete Laplace noise.

    Noise of decay ε exceeds a whole number t with probability r^(t+1)/(1 + r), r = e^-ε.
    """
    ratio = (-positive(certificate["epsilon"])).exp()
    wrong = 1 - arb(certificate["confidence"])
    if type(noisy) is not int:
        raise ValueError("A noisy distance is a whole number.")
    return max(0, noisy - fewest(lambda t: ratio ** (t + 1) / (1 + ratio) <= wrong))


def _slopes_withstand(
    records: int, certificate: Mapping[str, Any], basis: Mapping[str, Any]
) -> bool:
    """Whether the theorem of `estimators.certificate` holds for so many records.

    It needs a least eigenvalue of the curvature, so that without it a matrix is still positive.
    """
    gradient, curvature, root = (basis[name] for name in ("gradient", "curvature", "root"))
    reach, bound, slope = (positive(basis[name]) for name in ("reach", "bound", "slope"))
    width = len(gradient)
    if not len(root) == len(curvature) == width or any(
        len(row) != width for row in [*root, *curvature]
    ):
        raise ValueError("The basis of a certificate is a vector and two matrices.")
    longest = max(_length(row) for row in (root[1:] or root))
    radius = positive(certificate["tolerance"]) / longest
    hidden, wide = positive(basis["hidden"]), arb(width).sqrt()
    if hidden < (wide * (1 + wide * longest / reach) + 2) / 2**16 - _ROUNDED:
        return False
    by_gradient, by_curvature, by_count = map(positive, basis["multipliers"])
    beyond = (2 * (3 / (1 - arb(certificate["confidence"]))).log()).sqrt()
    most = positive(basis["count"]) + beyond * by_count
    size = _length(gradient)
    size += reach * bound * (by_gradient * (arb(width).sqrt() + beyond) + most * hidden)
    least = (size + records * (reach * bound + reach**2 * slope * radius)) / (slope * radius)
    least += reach**2 * (by_curvature * (arb(2 * width).sqrt() + beyond) + most * hidden)
    return _is_positive(curvature, least * (1 - _ROUNDED))


def _exact(value: Any) -> arb:
    if type(value) not in (int, float):
        raise ValueError("The basis of a certificate is made of numbers.")
    return arb(value)


def _length(vector: Sequence[float]) -> arb:
    return sum((_exact(each) ** 2 for each in vector), arb(0)).sqrt()


def _is_positive(matrix: Sequence[Sequence[float]], less: arb) -> bool:
    """Whether a symmetric matrix less a multiple of the identity is positive, by elimination."""
    rows = [
        [_exact(each) - less * (i == j) for j, each in enumerate(row)]
        for i, row in enumerate(matrix)
    ]
    if any(matrix[i][j] != matrix[j][i] for i in range(len(rows)) for j in range(i)):
        raise ValueError("A curvature is symmetric.")
    for k, pivot in enumerate(rows):
        if not pivot[k] > 0:
            return False
        for row in rows[k + 1 :]:
            share = row[k] / pivot[k]
            row[:] = [a - share * b for a, b in zip(row, pivot, strict=True)]
    return True


def problem_of_counts(released: Any) -> str | None:
    """What is wrong with the counts of a classifier; None if scores can be computed from them."""
    try:
        cells, totals, classes = (released[name] for name in ("cells", "totals", "classes"))
        whole = all(type(each) is int for row in [*cells, totals] for each in row)
        shaped = len(cells) == len(totals) == len(classes) and len({*map(len, cells)}) == 1
    except (KeyError, TypeError):
        return "the released counts cannot be read."
    return None if whole and shaped else "the released counts are not a table of whole numbers."
