"""`Table`: a source of records, what is protected in it, and every statistic of it as a method.

    visits = prudent.Table("visits.parquet", unit="patient", ledger="budget.db")
    visits.median("cost", epsilon=0.3)
    visits.where("year = 2024").by("ward", groups="private").mean("cost", epsilon=0.5, delta=1e-6)

What belongs to the table is said once, and a statistic takes its own arguments alone. A table is an
immutable value: `where` and `by` return another one, and nothing is opened before a statistic asks.
The statistics are declared in `prudent.release.functions`, as functions for one question.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from prudent import _validate
from prudent._validate import redacted
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview, opened_ledger
from prudent.release.columns.column import PerUnit
from prudent.release.functions import StatisticMethods
from prudent.release.noise import Noise
from prudent.release.questions.tables import ReleasedTable, conjunction
from prudent.release.request import By, Condition, GroupNames, Request

if TYPE_CHECKING:
    from prudent.release.questions.text import Node
    from prudent.synth import Synthetic


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class Table(StatisticMethods):
    """A table with what is protected in it, which budget pays, and which rows are asked.

    Attributes:
        source: An array, a series, a path, a frame, an ibis table, a `join`, or a `Column`.
        unit: The column that identifies the privacy unit of a row. All rows of a unit are then
            protected together; without it, every row by itself.
        per_unit: What a unit with several rows counts as: "mean" (the default), "median", "min",
            "max", "sum", "count", or a number of rows to keep of each; see `Contribution`.
        groups_per_unit: In how many groups a unit may count, k: chosen at random among its own,
            with its rows there. What a group costs is then paid k times. None: in the one group
            that holds most of its rows.
        where: Which rows to keep: a function of one row, or a condition such as "year = 2024".
        read_as: The type of a column of text, as in a CSV file: "number" (the default), "integer",
            "decimal(2)", "date", "timestamp" or "duration"; or an example that shows how the
            file writes 1234.56 or the date 2024-12-31: "number($1,234.56)", "date(31.12.2024)".
            Also a dictionary, with the type of each of several columns.
        connect: The address of a database, instead of `source`.
        table: The name of the table in that database.
        ledger: The ledger to charge before any data is read; or its location.
        noise: Source of randomness; None uses the operating system's.
    """

    source: Any = None
    unit: str | None = attrs.field(default=None, kw_only=True)
    per_unit: PerUnit | None = attrs.field(default=None, kw_only=True)
    groups_per_unit: int | None = attrs.field(default=None, kw_only=True)
    _where: Condition | None = attrs.field(default=None, kw_only=True)
    read_as: str | Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    connect: str | None = attrs.field(default=None, kw_only=True)
    table: str | None = attrs.field(default=None, kw_only=True)
    ledger: LedgerLike | str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    noise: Noise | None = attrs.field(default=None, kw_only=True)

    def where(self, condition: Condition) -> "Table":
        """The rows for which a condition holds, and those of earlier ones."""
        return attrs.evolve(self, where=conjunction(self._where, condition))

    def by(self, column: By, groups: GroupNames | None = None) -> "GroupedTable":
        """The same table by groups: a statistic is released for each, at the price of one.

        Args:
            column: The column to group by, or several. A date counts by its period: "joined:month".
            groups: The public list of groups; or "private": the groups are those that a private
                choice finds to have enough records, which needs `delta`, and costs a third of ε.
        """
        return GroupedTable(by=column, groups=groups, **self._options())

    @property
    def columns(self) -> dict[str, str]:
        """The names of the columns with their declared types; no record is read for it.

        A type that is not declared, as in a CSV file, is "undeclared": see `read_as`.
        """
        from prudent.release.columns.joining import open_source  # needs ibis

        opened = open_source(self.source, connect=self.connect, table=self.table, unit=self.unit)
        schema = opened.table.schema().items()
        return {name: "undeclared" if name in opened.text else str(of) for name, of in schema}

    def _options(self) -> dict[str, Any]:
        """The arguments that it was made of."""
        fields = attrs.fields(type(self))
        return {each.alias: getattr(self, each.name) for each in fields}

    def __repr__(self) -> str:
        """The public facts: of data in memory the type alone."""
        given = {name: value for name, value in self._options().items() if value is not None}
        source = given.pop("source", None)
        shown = (
            []
            if source is None
            else [_shown(source) if _is_path(source) else f"<{type(source).__name__}>"]
        )
        shown += [f"{name}={_shown(value)}" for name, value in given.items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    @override
    def _answer(self, answer: Callable[[Request], Any], own: Mapping[str, Any]) -> Any:
        given = self._options()
        return answer(Request.of({"data": given.pop("source"), **given, **own}))

    def sql(
        self,
        query: "str | Node",
        *,
        epsilon: float,
        delta: float | None = None,
        groups: GroupNames | None = None,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> ReleasedTable | Preview:
        """Answer a query in SQL privately; whatever the query calls its table, it is this one.

        The condition of this table holds as well. See `prudent.sql` for the arguments.
        """
        if isinstance(self, GroupedTable):
            raise _validate.ArgumentError("by", "GROUP BY in the query", got=self._by)
        if self.read_as is not None:
            raise _validate.ArgumentError("read_as", "a cast in the query", got=self.read_as)
        from prudent.release.questions.sql import sql  # needs sqlglot

        given = self._options()
        del given["read_as"], given["table"]
        return sql(
            query,
            data=given.pop("source"),
            **given,
            epsilon=epsilon,
            delta=delta,
            groups=groups,
            receipt=receipt,
            dry_run=dry_run,
        )

    def synthesize(self, *, epsilon: float, delta: float, **own: Any) -> "Synthetic":
        """Make a synthetic table from one private release; see `prudent.synthesize`.

        Args:
            epsilon: ε of the whole table.
            delta: δ of the whole table.
            **own: Whatever else it takes: `columns`, `constraints` and so on.
        """
        for name in ("per_unit", "groups_per_unit", "read_as"):
            if getattr(self, name) is not None:
                hint = "Declare types by columns, and rows of a unit by most_rows."
                raise _validate.ArgumentError(
                    name, "left out for a synthetic table", got=getattr(self, name), hint=hint
                )
        if isinstance(self, GroupedTable):
            raise _validate.ArgumentError("by", "no groups for a synthetic table", got=self._by)
        from prudent.synth import synthesize  # a room above, for which this is another way in

        own |= {"unit": self.unit, "where": self._where, "noise": self.noise}
        own |= {"connect": self.connect, "table": self.table}
        with opened_ledger(self.ledger) as ledger:
            return synthesize(self.source, epsilon=epsilon, delta=delta, ledger=ledger, **own)


@attrs.frozen(eq=False, repr=False)
class GroupedTable(Table):
    """A table by groups; see `Table.by`."""

    _by: By | None = attrs.field(default=None, kw_only=True)
    _groups: GroupNames | None = attrs.field(default=None, kw_only=True)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _shown(value: Any) -> str:
    """A public fact in words; of data, a function or a ledger the type alone."""
    if _is_path(value):
        return redacted(repr(os.fspath(value)), value)
    if isinstance(value, int | Mapping) or (
        isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    ):
        return repr(value)
    return f"<{type(value).__name__}>"
