"""Several uses of one parameter as few contributions.

A cell that is called at every time step uses its weights at one position each time. The norm of the
sum takes the inner product of every pair of uses; as one contribution with many positions it takes
one matrix product.
"""

from collections.abc import Iterable, Iterator
from functools import partial

import torch

from prudent.training.gradients.contributions import Contribution, Dense, Form, Outer, forms


def merged(contributions: Iterable[Contribution]) -> list[Contribution]:
    """The same sum in no more contributions than given."""
    groups: dict[tuple[object, ...], list[Contribution]] = {}  # in order, so that rounding repeats
    for contribution in contributions:
        groups.setdefault(_kind(contribution), []).append(contribution)
    return [part for group in groups.values() for part in _joined(group)]


def _kind(contribution: Contribution) -> tuple[object, ...]:
    """Equal for contributions that can be joined."""
    match contribution:
        case Dense():
            return Dense, _name(contribution.form), contribution.values.dtype
        case Outer() if contribution.unfold is None:
            rows, columns = contribution.rows, contribution.columns
            sizes = rows.shape[0], rows.shape[3], columns.shape[3]
            types = rows.dtype, columns.dtype
            return Outer, _name(contribution.form), contribution.product, *sizes, *types
        case _:
            return (id(contribution),)


def _name(form: Form) -> tuple[object, ...]:
    """Equal for forms that do the same."""
    return (form.func, *form.args) if isinstance(form, partial) else (form,)


def _joined(group: list[Contribution]) -> Iterator[Contribution]:
    first = group[0]
    if len(group) == 1:
        yield first
    elif isinstance(first, Dense):
        total = first.values
        for other in group[1:]:
            assert isinstance(other, Dense)
            total = total + other.values
        yield Dense(total, first.form)
    else:
        yield from _joined_factors([each for each in group if isinstance(each, Outer)])


def _joined_factors(group: list[Outer]) -> Iterator[Contribution]:
    """One after another along the positions, unless inner products would take more memory."""
    first = group[0]
    positions = sum(each.rows.shape[2] for each in group)
    sizes = first.rows.shape[3], first.columns.shape[3]
    if positions > sum(sizes):
        yield from group
        return
    rows, columns = (
        torch.cat([getattr(each, side) for each in group], 2) for side in ("rows", "columns")
    )
    joined = Outer(rows, columns, first.form, first.product)
    yield joined.formed() if forms(positions, *sizes) else joined
