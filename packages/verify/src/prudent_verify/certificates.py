"""Certificates computed again from the released numbers that they follow from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flint import arb, ctx

from prudent_verify.pairs import BITS, positive

_MOST = 1 << 60  # records
_ROUNDED = 1e-9  # of floating point, in what the program computed


def problem_of(certificate: Mapping[str, Any], event: Mapping[str, Any]) -> str | None:
    """What is wrong with a certificate; None if it follows from the released numbers."""
    basis = certificate["basis"]
    about_slopes = basis["kind"] == "SlopeBasis"
    needed, confidence = (
        certificate["records" if about_slopes else "needed"],
        certificate["confidence"],
    )
    if type(needed) is not int or type(confidence) is not float or not 0 < confidence < 1:
        return "its numbers are no numbers of a certificate."
    if not about_slopes and certificate["withstands"] != max(0, needed - 1):
        return "the records it withstands do not follow from those that are needed."
    noises = list(_noises(event))
    with ctx.workprec(BITS):
        match basis["kind"]:
            case "SlopeBasis":
                own = [("gaussian", 1 / each) for each in basis["multipliers"]]
                if len(own) != 3 or not set(own) <= set(noises):
                    return "no noise of its scale is in the event."
                if needed == 0 or _slopes_withstand(needed, certificate, basis):
                    return None
                return f"the released numbers do not show {needed} records."
            case "distance":
                if ("laplace", certificate["epsilon"]) not in noises:
                    return "no noise of its ε is in the event."
                most = _by_distance(certificate, basis["noisy"])
            case _:
                return "what it follows from is not known here."
    return None if needed <= most else f"the released numbers show {most} records, not {needed}."


def _noises(event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The kind of each noise for a change of one that an event has, and one over its scale."""
    if event["kind"] == "DiscreteLaplaceDpEvent" and event["sensitivity"] == 1:
        yield "laplace", event["noise_parameter"]
    if event["kind"] == "GaussianDpEvent":
        yield "gaussian", 1 / event["noise_multiplier"]
    for inner in [*event.get("events", ()), *filter(None, [event.get("event")])]:
        yield from _noises(inner)


def _by_distance(certificate: Mapping[str, Any], noisy: int) -> int:
    """A lower bound on a distance that was released with discrete Laplace noise.

    Noise of decay ε exceeds a whole number t with probability r^(t+1)/(1 + r), r = e^-ε.
    """
    ratio = (-positive(certificate["epsilon"])).exp()
    wrong = 1 - arb(certificate["confidence"])
    if type(noisy) is not int:
        raise ValueError("A noisy distance is a whole number.")
    return max(0, noisy - _fewest(lambda t: ratio ** (t + 1) / (1 + ratio) <= wrong))


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
    hidden = positive(basis["hidden"])
    if (
        hidden
        < (arb(width).sqrt() * (1 + arb(width).sqrt() * longest / reach) + 2) / 2**16 - _ROUNDED
    ):
        return False
    by_gradient, by_curvature, by_count = map(positive, basis["multipliers"])
    beyond = (2 * (3 / (1 - arb(certificate["confidence"]))).log()).sqrt()
    most = arb(basis["count"]) + beyond * by_count
    size = _length(gradient)
    size += reach * bound * (by_gradient * (arb(width).sqrt() + beyond) + most * hidden)
    least = (size + records * (reach * bound + reach**2 * slope * radius)) / (slope * radius)
    least += reach**2 * (by_curvature * (arb(2 * width).sqrt() + beyond) + most * hidden)
    return _is_positive(curvature, least * (1 - _ROUNDED))


def _length(vector: Sequence[float]) -> arb:
    return sum((arb(each) ** 2 for each in vector), arb(0)).sqrt()


def _is_positive(matrix: Sequence[Sequence[float]], less: arb) -> bool:
    """Whether a symmetric matrix less a multiple of the identity is positive, by elimination."""
    rows = [
        [arb(each) - less * (i == j) for j, each in enumerate(row)] for i, row in enumerate(matrix)
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


def _fewest(holds: Callable[[int], bool]) -> int:
    """The least whole number from which on a condition holds."""
    low, high = -1, 0
    while not holds(high):
        low, high = high, 2 * high + 1
        if high > _MOST:
            raise ValueError("A certificate of this confidence cannot be.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def problem_of_counts(released: Any) -> str | None:
    """What is wrong with the counts of a classifier; None if scores can be computed from them."""
    try:
        cells, totals, classes = (released[name] for name in ("cells", "totals", "classes"))
        whole = all(type(each) is int for row in [*cells, totals] for each in row)
        shaped = len(cells) == len(totals) == len(classes) and len({*map(len, cells)}) == 1
    except (KeyError, TypeError):
        return "the released counts cannot be read."
    return None if whole and shaped else "the released counts are not a table of whole numbers."
