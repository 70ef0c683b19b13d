"""Groups of rows: how a column of groups is stored in an engine, and how a group is named."""

import datetime
import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import attrs
import ibis.expr.datatypes as dt
import ibis.expr.types as ir

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.dialects import INTEGERS, PublicValue, typed
from prudent.release.columns.row_values import periods
from prudent.release.columns.scales import Scale

NO_DATE = "no date"
"""The group of texts that are no date, beside the periods of those that are: none is left out
without a word, and a record in it is in no other group, so that it costs nothing."""

_MOST = 100_000  # groups of a public list


@attrs.frozen
class GroupKey:
    """One column of groups."""

    value: ir.Value  # the group of a row, as it is stored
    dtype: dt.DataType  # the type in which groups are named
    scale: Scale | None = None  # of dates and times, which are stored as numbers; None for others
    # The period that dates and times are put in; None for dates as they are.
    period: str | None = None
    unread: bool = False  # whether texts that are no date are a group of their own

    def shown(self, stored: PublicValue) -> Hashable:
        """The name of a group, by how it is stored."""
        if self.scale is None:
            return stored
        return NO_DATE if stored == periods.UNREAD else self.scale.value(float(stored))

    def stored(self, group: Hashable) -> PublicValue:
        """A public group as it is stored.

        Raises:
            ArgumentError: if it is not of the type of the column.
        """
        if self.scale is None:
            return typed(group, self.dtype, "groups")
        if self.unread and group == NO_DATE:
            return periods.UNREAD
        try:
            if self.period is None:
                return self.scale.number(group)
            return periods.start_of(group, self.period, self.scale)
        except ArgumentError:
            what = "as the column has" if self.period is None else f"each in one {self.period}"
            raise ArgumentError("groups", f"dates such as 2024-05-31, {what}", got=group) from None

    def name(self, member: Any, codec: str) -> Hashable | None:
        """The name of a stored group; None if it cannot be given back as a public value.

        Bytes that no text encodes to have no name either, so that names differ.
        """
        if self.unread and member == periods.UNREAD:
            return NO_DATE
        if self.scale is not None:
            moment: datetime.date = self.scale.value(member)
            return moment if self.scale.record(moment) == member else None
        if not isinstance(member, bytes):
            return member if not isinstance(member, int) or member in INTEGERS else None
        try:
            name = member.decode(codec)
        except (UnicodeDecodeError, LookupError):
            return None
        return None if "\0" in name else name


def public_groups(groups: Any, by: str | Sequence[str], keys: Sequence[GroupKey]) -> list[Hashable]:
    """The groups of a public list, or of one list for each column: all their combinations.

    Raises:
        ArgumentError: if the list is missing, empty or repeats a group.
    """
    names = [by] if isinstance(by, str) else list(by)
    if groups is None:
        raise ArgumentError(
            "groups",
            "a list that is public knowledge",
            got=None,
            hint=f"Which values of {', '.join(map(repr, names))} occur depends on single records, "
            "so a list read from the data is private: name the groups yourself, also those that "
            "may be empty; or give groups='private' and delta.",
        )
    if isinstance(groups, Mapping):
        if set(groups) != set(names):
            raise ArgumentError(
                "groups", f"a list for each of {', '.join(names)}", got=list(groups)
            )
        lists = [
            _expanded(_validate.values(groups=groups[name]), key)
            for name, key in zip(names, keys, strict=True)
        ]
        found = [each[0] if isinstance(by, str) else each for each in itertools.product(*lists)]
    else:
        found = list(_validate.values(groups=groups))
        if isinstance(by, str):
            found = _expanded(found, keys[0])
        else:
            found = [tuple(each) if isinstance(each, list) else each for each in found]
    distinct = all(isinstance(each, Hashable) for each in found) and len(set(found))
    if not found or distinct < len(found):
        raise ArgumentError("groups", "one or more distinct values", got=groups)
    if len(found) > _MOST:
        raise ArgumentError("groups", f"at most {_MOST:,}", shown=f"{len(found):,}")
    return found


def _expanded(groups: Sequence[Any], key: GroupKey) -> list[Any]:
    if key.period is None or key.scale is None:
        return list(groups)
    listed = [each for each in groups if each != NO_DATE]
    return periods.expanded(listed, key.period, key.scale) + [NO_DATE] * key.unread
