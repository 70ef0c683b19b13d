"""Private statistics of categories: the most frequent ones, and how many there are."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import attrs
from typing_extensions import override

from prudent import _validate
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview
from prudent.release.columns.column import Column, Kind, PerUnit
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Branch, CountSpread, Groups, NoiseSpread, Released
from prudent.release.request import (
    By,
    Condition,
    GroupNames,
    Priced,
    Request,
    Statistic,
    answers,
    release,
)
from prudent.release.statistics.moments import Count, additive, preview

_MOST = 100_000


def top_k(
    data: Any = None,
    column: str | None = None,
    k: int = 10,
    *,
    categories: Sequence[Hashable] | Literal["private"] = "private",
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    where: Condition | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Groups[Released] | Preview:
    """Release the most frequent categories of a column, with how often each occurs.

    A record is in one category, so noise for one count pays for all of them, and the largest ones
    cost nothing more.

    Args:
        k: How many categories.
        categories: All that can occur, from public knowledge; or "private": those with enough
            records are found privately, which needs `delta`.

    The other arguments are those of `median`.

    Returns:
        The noisy counts of the categories, the largest first.
    """
    k = _validate.count(1, _MOST, k=k)
    found = release_counts(TopCount(), locals(), categories)
    if isinstance(found, Preview):
        return found
    counts: Groups[Released] = found.only(list(most_frequent(found, k)))
    return counts


def most_frequent(counts: Mapping[Hashable, Released], k: int) -> dict[Hashable, Released]:
    """The largest of released counts, the largest first."""
    ranked = sorted(counts.items(), key=lambda item: -item[1].value)
    return dict(ranked[:k])


def release_counts(statistic: Statistic, given: dict[str, Any], categories: Any) -> Any:
    """Release the count of each category of a column, beside other groups.

    A column is grouped by itself; what is wrong with it is said of the argument that was given.
    """
    try:
        return release(statistic, _counted_by(given, categories))
    except _validate.ArgumentError as error:
        names = {"by": "column", "groups": "categories"}
        if given.get("by") is not None or error.argument not in names:
            raise
        hint = "" if error.argument == "groups" else "Of numbers, ask for a histogram or a median."
        fault = _validate.ArgumentError(
            names[error.argument], error.allowed, shown=str(error.value), hint=hint
        )
    raise fault


def _counted_by(given: dict[str, Any], categories: Any) -> Request:
    """The request that counts the rows of each category of a column, beside other groups."""
    request = Request.of(given)
    if request.column is None:
        hint = "Give a series, or the name of a column with its frame or file."
        raise _validate.ArgumentError("column", "the name of a column", shown="nothing", hint=hint)
    if request.by is None:
        return attrs.evolve(request, column=None, by=request.column, groups=categories)
    groups: Any = "private"
    if "private" not in (categories, request.groups):
        first: Any = request.groups
        if not isinstance(first, dict) and len(request.group_columns) == 1:
            first = {request.group_columns[0]: first}
        groups = {**first, request.column: categories} if isinstance(first, dict) else None
    by = (*request.group_columns, request.column)
    return attrs.evolve(request, column=None, by=by, groups=groups)


@attrs.frozen
class TopCount(Count):
    """The count of one of the most frequent categories."""

    @override
    def price(self, request: Request, records: Column) -> Priced:
        priced = super().price(request, records)
        return attrs.evolve(priced, preview=attrs.evolve(priced.preview, statistic="top k"))


@answers
def count_distinct(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    by: By | None = None,
    groups: GroupNames | None = None,
    where: Condition | None = None,
    read_as: str | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Released:
    """Release how many different values a column has.

    Without `unit`, a row changes the number by at most 1. A person with many rows could change it
    by many. So with `unit`, a value counts if it can be given to a person who has it, such that no
    person is given more than `per_unit` values: the largest number of values for which that is
    possible (a maximum matching) changes by at most `per_unit` with a person, and is as near to the
    number of all values as such a bound allows (Knop and Steinke 2023).

    Args:
        per_unit: With `unit`: how many values of one person count. More count more values, with
            more noise.

    The other arguments are those of `median`. With `unit`, pairs of persons and values are read
    into memory.
    """
    if unit is not None and (isinstance(per_unit, bool) or not isinstance(per_unit, int)):
        raise _validate.ArgumentError(
            "per_unit",
            "how many values of one person count, with unit",
            got=per_unit,
            hint="Give per_unit=3, for example.",
        )
    return release(Distinct(), Request.of(locals()))  # type: ignore[no-any-return]


@attrs.frozen
class Distinct(Statistic):
    """The number of different values."""

    @override
    def kind(self, request: Request) -> Kind:
        return "sets"

    @override
    def price(self, request: Request, records: Column) -> Priced:
        mechanism = additive(request)
        spread = NoiseSpread(
            mechanism.distribution, mechanism.scale(records.contribution.records), 1.0
        )
        public = preview("count of distinct values", mechanism, request, mechanism.event, spread)
        return Priced(preview=public, mechanism=mechanism)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        mechanism, most = priced.mechanism, records.contribution.records
        spread = NoiseSpread(mechanism.distribution, mechanism.scale(most), 1.0)
        (noisy,) = mechanism.noisy([records.distinct()], most, noise)
        return Released(
            max(0, noisy),
            Branch.ROBUST,
            spread.deviation,
            1.0,
            mechanism.event,
            mechanism.distribution.value,
            CountSpread(noisy, spread),
        )
