"""One statistic in each of several groups: groups that are private, or with their own proposals.

A unit is in one group only. So what is released from all groups together costs as much as the most
expensive of them (parallel composition), and for private groups also their choice.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._rounding import rounded_up
from prudent.release import request
from prudent.release.charging import charge
from prudent.release.columns.column import Column, Kind
from prudent.release.failures import withheld
from prudent.release.noise import source_of
from prudent.release.outcome import Groups
from prudent.release.partitions import PartitionSelection
from prudent.release.sums.additive import shares_of

SELECTION_SHARE = 1 / 3
"""The fraction of ε that the choice of private groups costs; the rest is for each statistic.

A group is kept if it has about ln(1/δ)/(ε/3) records. A larger share would keep smaller groups, in
which the statistic itself is hardly better than its noise.
"""

_RESERVE = 1e-6  # fraction of δ that accountants need for their own rounding

Bound = inspect.BoundArguments


def private_groups(function: Callable[..., Any], bound: Bound, kind: Kind) -> Any:
    """Choose the groups that have enough records, and release the statistic in each of them.

    Guarantee:
        The answer, with its keys, is (ε, δ)-DP: the choice has the privacy of
        `PartitionSelection`, and a statistic in a chosen group spends what is left of ε and δ.

    Args:
        function: The statistic.
        bound: Its arguments; `groups` is "private".
        kind: Whether it needs numbers or categories.
    """
    from prudent.release.columns.private_groups import open_private_groups  # needs ibis

    data, column, given = _taken_apart(bound)
    table = _table_options(given)
    if table.pop("by", None) is None:
        raise _missing("by", "the name of the column that says which group a row is in")
    delta = given.get("delta")
    if delta is None:
        raise _missing("delta", "for private groups")
    choosing, rest = shares_of(_validate.positive(epsilon=given["epsilon"]), SELECTION_SHARE)
    given |= {
        "epsilon": rest,
        "delta": delta / 2,
    }  # a test may need one; what is left is for groups
    opened = open_private_groups(data, column, by=bound.arguments["by"], kind=kind, **table)
    ledger, dry_run = given.pop("ledger", None), given.pop("dry_run", False)
    preview = function(opened.whole(), dry_run=True, **given)
    selection = PartitionSelection(
        epsilon=choosing,
        delta=(delta - preview.delta) * (1 - _RESERVE),
        records=opened.contribution.records,
    )
    whole = attrs.evolve(
        preview,
        epsilon=bound.arguments["epsilon"],
        delta=delta,
        event=dp.ComposedDpEvent([selection.event, preview.event]),
        notes=(*preview.notes, _needed(selection)),
    )
    if dry_run:
        return whole
    noise = source_of(given.get("noise"))
    note = charge(ledger, whole, data, column, bound.arguments)
    kept = withheld(lambda: selection.select(opened.counts(), noise))
    price = {"epsilon": whole.epsilon, "delta": whole.delta, "event": whole.event}
    answers = Groups(
        {
            group: attrs.evolve(function(records, **given), **price)
            for group, records in withheld(opened.columns, kept).items()
        }
    )
    note(answers.values())
    return answers


def proposal_per_group(function: Callable[..., Any], bound: Bound, kind: Kind) -> Any:
    """Release the statistic in each of a public list of groups, with a proposal of its own.

    Guarantee:
        All groups have the same event, which does not depend on the proposal, and are charged once.

    Args:
        function: The statistic.
        bound: Its arguments; `propose` is a mapping from group to proposal.
        kind: Whether it needs numbers or categories.
    """
    data, column, given = _taken_apart(bound)
    table = _table_options(given)
    proposals: Mapping[Hashable, float] = given.pop("propose")
    groups = table.setdefault("groups", list(proposals))
    if table.get("by") is None:
        raise _missing("by", "the name of the column that says which group a row is in")
    if missing := [group for group in groups if group not in proposals]:
        raise _validate.ArgumentError(
            "propose", "one for each group", shown=f"none for {missing[0]!r}"
        )
    opened = request.open_records(data, column, table, kind)
    assert isinstance(opened, dict)
    ledger, dry_run = given.pop("ledger", None), given.pop("dry_run", False)

    def ask(group: Hashable, records: Column, **more: Any) -> Any:
        return function(records, propose=proposals[group], **given, **more)

    previews = [ask(group, records, dry_run=True) for group, records in opened.items()]
    if any(each.event != previews[0].event for each in previews):
        raise ValueError("Expected proposals that cost the same, got groups of different events.")
    preview = previews[0]
    if dry_run:
        return preview
    note = charge(ledger, preview, data, column, table)
    answers = Groups({group: ask(group, records) for group, records in opened.items()})
    note(answers.values())
    return answers


def _taken_apart(bound: Bound) -> tuple[Any, str | None, dict[str, Any]]:
    """Return the data, the column and all other arguments."""
    given = dict(bound.arguments)
    return given.pop("data", None), given.pop("column", None), given


def _table_options(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of the table from the others, and return those that were given."""
    names = request.TableOptions.__optional_keys__
    found = {name: given.pop(name) for name in names if name in given}
    return {
        name: value
        for name, value in found.items()
        if value is not None and not (name == "groups" and value == "private")
    }


def _needed(selection: PartitionSelection) -> str:
    half, surely = selection.needed(0.5), selection.needed(0.95)
    return (
        f"A group is kept with probability 1/2 if it has {half:,} records, and with probability "
        f"0.95 if it has {surely:,}; the choice costs ε = {rounded_up(selection.epsilon)}."
    )


def _missing(argument: str, what: str) -> _validate.ArgumentError:
    return _validate.ArgumentError(argument, what, shown="nothing")
