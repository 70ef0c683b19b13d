"""The private mode: the most frequent number or category."""

from collections.abc import Hashable, Sequence
from typing import Any, Unpack

from prudent import _validate
from prudent.release import request
from prudent.release.columns.column import Column, Kind, in_order
from prudent.release.margins import mode as modes
from prudent.release.margins.quantile import RobustValue
from prudent.release.mechanism import ProposeTestReleaseMechanism
from prudent.release.request import Answer, Options, Prepared, statistic
from prudent.release.statistics import tested


@statistic(Options, kind=lambda given: _kind(given.get("propose")))
def mode(
    data: Any = None,
    column: str | None = None,
    *,
    propose: float | None = None,
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
    mechanism = tested.calibrate(options, propose)

    def measure(mechanism: ProposeTestReleaseMechanism, records: Column) -> RobustValue:
        if propose is None:
            return modes.category_mode(records, categories, cap=mechanism.cap)
        return modes.lattice_mode(
            records, mechanism.lattice, propose=mechanism.steps, cap=mechanism.cap
        )

    def prepare(records: Column) -> Prepared:
        if categories is not None:
            _check_categories(categories, records)
        return tested.prepared("mode", mechanism, measure, options)

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
