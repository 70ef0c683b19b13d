"""Check a margin of your own on small data sets, and put a statistic on the lattice."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prudent import _validate
from prudent.release.ptr.margins import RobustValue
from prudent.release.ptr.mechanism import ProposeTestReleaseMechanism

Data = TypeVar("Data")


def on_lattice(
    mechanism: ProposeTestReleaseMechanism,
    statistic: Callable[[Data], float],
    margin: Callable[[Data], int],
) -> Callable[[Data], RobustValue]:
    """Combine a numeric statistic, in the unit of the data, and its margin into a measure.

    The result of `statistic` is clipped to the bounds and rounded to the lattice: numbers within τ
    of each other stay within `steps` steps. NaN is moved to the lower end. This does not work for
    vectors, which must be rounded record by record before they are summed, because rounding the sum
    moves every coordinate.

    Args:
        mechanism: The mechanism that will release the number.
        statistic: The number, as a function of the data.
        margin: Its margin for `mechanism.propose`, as a function of the data.

    Returns:
        A function to pass to `ProposeTestReleaseMechanism.release` as `measure`.
    """
    _validate.instance(ProposeTestReleaseMechanism, "a mechanism", mechanism=mechanism)
    _validate.function(statistic=statistic)
    _validate.function(margin=margin)
    _validate.positive(propose=mechanism.propose)  # the proposal sets the spacing of the lattice

    def measure(data: Data) -> RobustValue:
        lattice, value = mechanism.lattice, statistic(data)
        step = lattice.low if math.isnan(value) else int(lattice.steps(value))
        return RobustValue((step,), margin(data), mechanism.steps)

    return measure


_MOST_RECORDS = 10**7  # of all data sets together; the check then takes seconds


class UnsafeMarginError(ValueError):
    """A margin is not safe; the message shows a counterexample."""


def check_margin(
    statistic: Callable[[list[Any]], float | Sequence[float]],
    margin: Callable[[list[Any]], int],
    *,
    propose: float,
    domain: Sequence[Any],
    size: int,
) -> int:
    """Check a margin on every data set of at most `size` records from a small domain.

    Args:
        statistic: f₂, as a function of a list of records in any order.
        margin: Its margin for `propose`.
        propose: The proposal τ.
        domain: Values a record may take; extreme values make the check stronger.
        size: The number of records of the largest data set.

    Returns:
        The number of checked pairs of data sets that differ in one record.

    Raises:
        UnsafeMarginError: If the margin jumps by more than 1, or is positive where one record
            moves the statistic by more than τ.
    """
    _validate.function(statistic=statistic)
    _validate.function(margin=margin)
    propose = _validate.non_negative(propose=propose)
    domain, size = _validate.values(domain=domain), _validate.count(size=size)
    if size * math.comb(size + len(domain), size) > _MOST_RECORDS:
        raise _validate.ArgumentError(
            "size", f"small: {_MOST_RECORDS:,} records in all data sets together", got=size
        )
    checked = 0
    for count in range(size):
        for data in itertools.combinations_with_replacement(domain, count):
            for added in domain:
                _check_pair(statistic, margin, propose, list(data), [*data, added])
                checked += 1
    return checked


def _check_pair(
    statistic: Callable[[list[Any]], float | Sequence[float]],
    margin: Callable[[list[Any]], int],
    propose: float,
    fewer: list[Any],
    more: list[Any],
) -> None:
    margins = margin(fewer), margin(more)
    if abs(margins[0] - margins[1]) > 1:
        raise UnsafeMarginError(
            f"The margin changes by more than 1, from {margins[0]} at {fewer!r} to {margins[1]} at "
            f"{more!r}. A safe margin counts records, so one record changes it by 1 at most."
        )
    change = _distance(statistic(fewer), statistic(more))
    if not change <= propose and max(margins) > 0:  # written so that a change of NaN is unsafe
        raise UnsafeMarginError(
            f"The statistic changes by {change:g} > {propose:g} from {fewer!r} to {more!r}, where "
            f"the margins are {margins[0]} and {margins[1]}. Both must be 0 there."
        )


def _distance(one: float | Sequence[float], other: float | Sequence[float]) -> float:
    if one == other:  # also for infinities, whose difference is NaN
        return 0.0
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other)
    return math.dist(one, other)  # type: ignore[arg-type]
