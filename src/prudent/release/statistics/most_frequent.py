"""The private mode: the most frequent number or category."""

from collections.abc import Hashable, Sequence
from typing import Any, Unpack

from prudent import _validate
from prudent.release import request
from prudent.release.certificates import MARGIN_CAP
from prudent.release.columns.column import Column, Kind, in_order
from prudent.release.lattice import Lattice
from prudent.release.margins import mode as modes
from prudent.release.margins.quantile import RobustValue
from prudent.release.request import Answer, Certification, Options, Prepared, statistic
from prudent.release.statistics import tested

_OF_CATEGORIES = (
    "Spend a larger ε, merge categories that mean the same, or release the count of each "
    "category instead: two of them may be equally frequent."
)
_OF_NUMBERS = (
    "Propose more, spend a larger ε, or leave the proposal out: the most frequent number is then "
    "released as a category."
)


@statistic(Options, kind=lambda given: _kind(given.get("propose")))
def mode(
    data: Any = None,
    column: str | None = None,
    *,
    propose: Any = None,
    categories: Sequence[Hashable] | None = None,
    **options: Unpack[Options],
) -> Answer:
    """Release the most frequent value.

    Args:
        data: See `median`.
        column: See `median`.
        propose: For numbers: the proposal τ, how far one record may move the mode; noise is added.
            None: the most frequent category is released without noise, or refused.
        categories: The public list of possible categories; records with any other value are
            ignored. None: any category is possible.
        **options: See `Budget` and `TableOptions`.
    """
    if propose is not None:
        if categories is not None:
            raise ValueError("Expected categories or propose, got both. Numbers have no list.")
    elif options.get("bounds") is not None or options.get("fallback"):
        raise ValueError("Expected no bounds and no fallback for the mode of categories, got some.")

    def measure(records: Column, lattice: Lattice, propose: int, cap: int) -> RobustValue:
        return modes.lattice_mode(records, lattice, propose=propose, cap=cap)

    def measure_category(records: Column, _: Lattice, __: int, cap: int) -> RobustValue:
        return modes.category_mode(records, categories, cap=cap)

    def prepare(records: Column) -> Prepared:
        price, certifies = request.without_certificate(options)
        if categories is not None:
            _check_categories(categories, records)
        if propose is None:
            mechanism = tested.calibrate(price, None)
            certification = None
            if certifies is not None:
                certification = Certification(mechanism=certifies, distance=distance)
            return tested.prepared(
                "mode",
                mechanism,
                measure_category,
                price,
                records,
                certification=certification,
                advice=_OF_CATEGORIES,
            )
        mechanism = tested.calibrate(price, propose, scale=records.scale)
        certification = tested.certification(
            certifies, options.get("certify"), mechanism, measure, records.scale
        )
        return tested.prepared(
            "mode",
            mechanism,
            measure,
            price,
            records,
            certification=certification,
            advice=_OF_NUMBERS,
        )

    def distance(records: Column, value: Any) -> tuple[int, Any, Any]:
        """The changes until another category is the mode: one more than the margin."""
        found = modes.category_mode(records, categories, cap=MARGIN_CAP)
        top = found.value[0].read() if isinstance(found.value[0], modes.Unread) else found.value[0]
        return (found.margin + 1 if top == value else 0), value, value

    return request.release(prepare, data, column, options, kind=_kind(propose))


def _kind(propose: Any) -> Kind:
    return "categories" if propose is None else "numbers"


def _check_categories(categories: Sequence[Hashable], records: Column) -> None:
    """Reject, before anything is charged, categories that the column's type cannot hold."""
    try:
        ordered = sorted(set(map(in_order, categories)))
    except TypeError:
        ordered = []
    if isinstance(categories, str) or not ordered:
        raise _validate.ArgumentError(
            "categories", "a list of one or more texts, numbers or dates", got=categories
        )
    if hasattr(records, "typed") and records.typed(categories) != list(categories):
        raise _validate.ArgumentError(
            "categories",
            "of the type of the column",
            got=categories,
            why="an order of texts is not that of numbers",
        )
