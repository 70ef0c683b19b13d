"""`Table`: a source of records, what is protected in it, and every statistic of it as a method.

    visits = prudent.Table("visits.parquet", unit="patient", ledger="budget.db")
    visits.median("cost", epsilon=0.3)
    visits.where("year = 2024").by("ward", groups="private").mean("cost", epsilon=0.5, delta=1e-6)

What belongs to the table is said once, and a statistic takes its own arguments alone. A table is an
immutable value: `where` and `by` return another one, and nothing is opened before a statistic asks.
`prudent.median(data, "cost", …)` and its kin are made of these methods, for one question
(`prudent.release.functions`).
"""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import attrs

from prudent import _validate
from prudent._redaction import redacted
from prudent.accounting import MarginTest
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview
from prudent.release.columns.column import PerUnit
from prudent.release.joins import Join
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Groups, Outcome, Released
from prudent.release.ptr import margins
from prudent.release.questions import tables
from prudent.release.questions.tables import Questions, ReleasedTable
from prudent.release.request import By, Condition, GroupNames, Request, Statistic, release
from prudent.release.statistics import histograms, moments, pairs, tested
from prudent.release.statistics import quantile_statistics as ranks
from prudent.release.statistics.histograms import Histogram
from prudent.release.statistics.summaries import PROBABILITIES, Description, Summary

if TYPE_CHECKING:
    from prudent.release.questions.text import Node
    from prudent.synth import Synthetic

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T", covariant=True)
V = TypeVar("V")
Bounds: TypeAlias = tuple[Any, Any]


class StatisticFunction(Protocol[P, R]):
    """A statistic as type checkers see it: a preview has a type of its own."""

    @overload
    def __call__(
        self, column: str | None = ..., *, dry_run: Literal[True], **options: Any
    ) -> Preview: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class TestedFunction(Protocol[P, R, T]):
    """See `StatisticFunction`; with a proposal, the answer may also be a refusal."""

    @overload
    def __call__(
        self, column: str | None = ..., *, dry_run: Literal[True], **options: Any
    ) -> Preview: ...
    @overload
    def __call__(self, column: str | None = ..., *, propose: object, **options: Any) -> T: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class StatisticMethod(Protocol[P, V]):
    """A statistic as a method: of a table by groups, it returns one answer for each."""

    @overload
    def __get__(
        self, table: "GroupedTable", owner: Any = ...
    ) -> StatisticFunction[P, Groups[V]]: ...
    @overload
    def __get__(self, table: "Table", owner: Any = ...) -> StatisticFunction[P, V]: ...
    @overload
    def __get__(self, table: None, owner: Any = ...) -> Callable[..., Any]: ...


class TestedMethod(Protocol[P, V]):
    """See `StatisticMethod`, for a statistic that is tested if there is a proposal."""

    @overload
    def __get__(
        self, table: "GroupedTable", owner: Any = ...
    ) -> TestedFunction[P, Groups[V], Groups[Outcome]]: ...
    @overload
    def __get__(self, table: "Table", owner: Any = ...) -> TestedFunction[P, V, Outcome]: ...
    @overload
    def __get__(self, table: None, owner: Any = ...) -> Callable[..., Any]: ...


def _answers(method: Callable[Concatenate[Any, P], V]) -> StatisticMethod[P, V]:
    """Declare the types that a statistic returns by groups and with `dry_run`."""
    return cast(StatisticMethod[P, V], method)


def _tested(method: Callable[Concatenate[Any, P], V]) -> TestedMethod[P, V]:
    """Declare them for a statistic that is tested if, and only if, there is a proposal."""
    return cast(TestedMethod[P, V], method)


Model = TypeVar("Model")


def _same_signature(model: Model) -> Callable[[Callable[["Table"], Statistic]], Model]:
    """Declare that a method has the arguments of another; its body returns what to release."""
    signature = inspect.signature(cast(Any, model))

    def declare(statistic: Callable[["Table"], Statistic]) -> Model:
        @functools.wraps(statistic)
        def ask(self: "Table", *arguments: Any, **named: Any) -> Any:
            try:
                given = signature.bind(self, *arguments, **named)
            except TypeError as error:
                raise TypeError(f"{statistic.__name__}() {error}") from None
            return self._release(statistic(self), given.arguments)

        ask.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Model, ask)

    return declare


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class Table:
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
        return attrs.evolve(self, where=tables.conjunction(self._where, condition))

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
        try:
            schema = opened.table.schema().items()
            return {name: "undeclared" if name in opened.text else str(of) for name, of in schema}
        finally:
            if opened is not self.source:
                opened.close()

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

    def _release(self, statistic: Statistic, own: Mapping[str, Any]) -> Any:
        """Release a statistic with the arguments of its method, of which some are its own."""
        return self._ask(functools.partial(release, statistic), own)

    def _ask(self, answer: Callable[[Request], Any], own: Mapping[str, Any]) -> Any:
        table = self._options()
        with _opened(table.pop("ledger"), dry_run=own.get("dry_run") is True) as ledger:
            given = {"data": table.pop("source"), "ledger": ledger, **table, **own}
            return answer(Request.of(given))

    @_tested
    def median(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        propose: Any = None,
        bounds: Bounds | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        test: MarginTest | None = None,
        failure: float | None = None,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release the lower median: the value of rank ceil(m/2) among m records.

        Args:
            column: The name of the column, or an expression of one row; None if the source is an
                array, a series or a `Column`.
            epsilon: ε of this release, between 0.001 and 50.
            delta: δ of this release. A mechanism that needs none ignores it.
            propose: The proposal τ: how far one record may move the median, in the unit of the
                data. It is tested, and `delta` pays for the test. None: the median is chosen by the
                exponential mechanism, which needs no proposal, no bounds and no δ, and never
                refuses. With groups, a dictionary with a proposal for each is accepted as well.
            bounds: Public bounds (low, high) on the data, or None. Values outside are clipped to
                them.
            fallback: Whether a failed test releases the statistic with noise calibrated to `bounds`
                instead of refusing.
            distribution: Distribution of the noise added to a number: Laplace, or Gaussian when
                very many releases share a budget. Gaussian noise needs `delta`.
            test: A discrete test of the margin; None selects the one with the smaller error.
            failure: Largest probability with which a margin of 0 passes, in (0, delta]; None means
                delta/2.
            certify: A tolerance, in the unit of the data: a fifth of ε then buys a proof of how
                many records must be added or removed before the statistic is further than that from
                the released value; see `Released.withstands`.
            confidence: Probability with which an interval or a certificate holds. 0: a quantile or
                range is released without an interval, and the part of ε that it costs goes to it.
            receipt: Where to write a receipt that `prudent verify` checks: a path, or a
                `prudent.ReceiptFile` that is signed.
            dry_run: Whether to return a `Preview` instead of releasing: nothing is charged, and no
                record is read.

        Returns:
            `Released`, or `Refused` if a test failed; with groups, `Groups`: a dictionary with one
            for each group.
        """
        return self._release(ranks.Quantile(margins.HALF), locals())  # type: ignore[no-any-return]

    @_tested
    def quantile(
        self,
        column: str | None = None,
        *,
        p: Any,
        epsilon: float,
        delta: float | None = None,
        propose: Any = None,
        bounds: Bounds | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        test: MarginTest | None = None,
        failure: float | None = None,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release the p-quantile: the value of rank ceil(p m) among m records.

        Args:
            p: The probability, in (0, 1]. It is taken as an exact fraction: 0.9 means 9/10. A
                `Fraction` or a string such as "1/3" is accepted as well.

        The other arguments are those of `median`.
        """
        return self._release(ranks.Quantile(margins.rational(p)), locals())  # type: ignore[no-any-return]

    @_answers
    def quantiles(
        self,
        column: str | None = None,
        *,
        ps: Sequence[Any],
        epsilon: float,
        delta: float | None = None,
        bounds: Bounds | None = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release several quantiles in one release, in ascending order.

        Args:
            ps: The probabilities; see `quantile`.

        The other arguments are those of `median`.

        Returns:
            `Released`, whose value is a tuple with one value for each of `ps`.
        """
        fractions = tuple(margins.rational(p, "ps") for p in _validate.values(ps=ps))
        return self._release(ranks.Quantiles(fractions), locals())  # type: ignore[no-any-return]

    @_same_signature(median)
    def iqr(self) -> Statistic:
        """Release the interquartile range Q(3/4) - Q(1/4); see `median` for the arguments."""
        return ranks.Range()

    @_answers
    def search_quantile(
        self,
        column: str | None = None,
        *,
        p: Any = 0.5,
        proposals: Sequence[Any],
        epsilon: float,
        delta: float | None = None,
        bounds: Bounds | None = None,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Outcome:
        """Release a quantile at the smallest proposal that passes its test; see `ProposalSearch`.

        Args:
            p: The probability, in (0, 1]; see `quantile`.
            proposals: A public list of proposals.

        The other arguments are those of `median`.
        """
        return self._release(tested.SearchedQuantile(margins.rational(p), proposals), locals())  # type: ignore[no-any-return]

    @_answers
    def certify_quantile(
        self,
        column: str | None = None,
        *,
        p: Any = 0.5,
        low: Any = None,
        high: Any = None,
        epsilon: float,
        delta: float | None = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release how many records must be added or removed before a quantile leaves an interval.

        Nothing else is released: not the quantile, and whether it is in the interval only as far as
        the noisy count tells.

        Args:
            p: See `quantile`.
            low: Lower end of the interval, a value of the column's type; None: no lower end.
            high: Upper end; None: no upper end.

        The other arguments are those of `median`.

        Returns:
            `Released`, whose value is the bound `needed` of its `certificate`.
        """
        return self._release(ranks.QuantileRobustness(margins.rational(p), low, high), locals())  # type: ignore[no-any-return]

    @_answers
    def maximum(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: Bounds | None = None,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release a value that few records lie above: an extreme quantile.

        The largest value is that of one record, so no private answer can be near it on all data.
        This is the quantile beyond which about as many records lie as the rank of a private answer
        is off by; the notes of the answer say which one that is. A noisy count, for a tenth of ε,
        tells it.

        The arguments are those of `median`.
        """
        return self._release(ranks.Extreme(lowest=False), locals())  # type: ignore[no-any-return]

    @_same_signature(maximum)
    def minimum(self) -> Statistic:
        """Release a value that few records lie below: an extreme quantile; see `maximum`."""
        return ranks.Extreme(lowest=True)

    @_answers
    def count(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release the number of records that have a value, of any type.

        Args:
            column: The column whose values are counted; None counts rows, and with `unit` persons.

        The other arguments are those of `median`.

        Returns:
            `Released` with a whole number of at least 0; with groups, one for each.
        """
        return self._release(moments.Count(), locals())  # type: ignore[no-any-return]

    @_same_signature(count)
    def count_distinct(self) -> Statistic:
        """Release how many different values a column has.

        Without `unit`, a row changes the number by at most 1. A person with many rows could change
        it by many. So with `unit`, a value counts if it can be given to a person who has it, such
        that no person is given more than `per_unit` values: the largest number of values for which
        that is possible (a maximum matching) changes by at most `per_unit` with a person, and is as
        near to the number of all values as such a bound allows (Knop and Steinke 2023). A larger
        `per_unit` counts more values, with more noise; pairs of persons and values are read into
        memory.

        The arguments are those of `count`.
        """
        rows = self.per_unit
        if self.unit is not None and (isinstance(rows, bool) or not isinstance(rows, int)):
            raise _validate.ArgumentError(
                "per_unit",
                "how many values of one person count, with unit",
                got=rows,
                hint="Give per_unit=3, for example.",
            )
        return moments.Distinct()

    @_same_signature(count)
    def proportion(self) -> Statistic:
        """Release the share of records for which a condition is true.

        The column is one of booleans, or a condition such as "age >= 18" in the syntax of SQL.
        Records for which it is neither true nor false (no value) are left out. In a pandas frame or
        a text file, 0 and 1 are booleans as well. The mean of a column of booleans is the
        same. The arguments are those of `count`.
        """
        return moments.Proportion()

    @_answers
    def mean(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: Bounds | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release the mean of the clipped values; see `median` for the arguments.

        Without bounds, values are clipped to a private interval that few of them lie outside of;
        see `prudent.release.exponential.interval`.
        """
        return self._release(moments.OneMoment("mean", 1), locals())  # type: ignore[no-any-return]

    @_same_signature(mean)
    def sum(self) -> Statistic:
        """Release the sum of the clipped values; see `median` for the arguments.

        Without bounds, values are clipped to a private interval around zero: one record adds at
        most the bound that is farther from zero, so the other one costs nothing.
        """
        return moments.Total()

    @_same_signature(mean)
    def variance(self) -> Statistic:
        """Release the variance of the clipped values: their mean square distance from their mean.

        Without bounds, values are clipped as for the `mean`; see `median` for the arguments.
        """
        return moments.OneMoment("variance", 2)

    @_same_signature(mean)
    def deviation(self) -> Statistic:
        """Release the standard deviation of the clipped values: the root of their `variance`."""
        return moments.OneMoment("deviation", 2)

    @_answers
    def ratio(
        self,
        column: str | None = None,
        other: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: Bounds | None = None,
        other_bounds: Bounds | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release the sum of one column divided by the sum of another.

        Each sum costs half of ε; see `sum`.

        Args:
            column: The column above the line; see `median`.
            other: The column below the line.
            bounds: Public bounds on the first column; without, private ones are part of its price.
            other_bounds: Public bounds on the second one.

        The other arguments are those of `median`.
        """
        return self._release(pairs.Ratio(), locals())  # type: ignore[no-any-return]

    @_same_signature(ratio)
    def covariance(self) -> Statistic:
        """Release the covariance of two columns: the mean product of distances from their means.

        Without bounds, private ones cost a part of ε. The arguments are those of `ratio`.
        """
        return pairs.Pairs("covariance")

    @_same_signature(ratio)
    def correlation(self) -> Statistic:
        """Release Pearson's correlation of two columns, between -1 and 1; see `covariance`."""
        return pairs.Pairs("correlation")

    @_answers
    def weighted_mean(
        self,
        column: str | None = None,
        weights: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: Bounds | None = None,
        largest_weight: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released:
        """Release the mean of a column, each value weighted by that of another column in its row.

        Args:
            column: The column of values; see `median`.
            weights: The column of weights; one below zero counts as zero.
            bounds: Public bounds on the values; see `mean`.
            largest_weight: A public bound on the weights, to which larger ones are cut; without, a
                private one is found.

        The other arguments are those of `median`.
        """
        given = locals() | {"other": weights}
        if largest_weight is not None:
            given["other_bounds"] = (0.0, _validate.positive(largest_weight=largest_weight))
        return self._release(pairs.Pairs("weighted"), given)  # type: ignore[no-any-return]

    @_answers
    def mode(
        self,
        column: str | None = None,
        *,
        categories: Sequence[Hashable] | None = None,
        epsilon: float,
        delta: float | None = None,
        propose: Any = None,
        bounds: Bounds | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        test: MarginTest | None = None,
        failure: float | None = None,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Outcome:
        """Release the most frequent value.

        Args:
            categories: The public list of possible categories; records with any other value are
                ignored. None: any category is possible.
            propose: For numbers: the proposal τ, how far one record may move the mode; noise is
                added. None: the most frequent category is released without noise, or refused.
            certify: As for `median`; True for categories, which have no tolerance.

        The other arguments are those of `median`.
        """
        if propose is not None:
            if categories is not None:
                raise ValueError("Expected categories or propose, got both. Numbers have no list.")
            return self._release(tested.ModeOfNumbers(), locals())  # type: ignore[no-any-return]
        if bounds is not None or fallback:
            raise ValueError(
                "Expected no bounds and no fallback for the mode of categories, got some."
            )
        return self._release(tested.Mode(categories), locals())  # type: ignore[no-any-return]

    @_answers
    def trimmed_mean(
        self,
        column: str | None = None,
        *,
        trim: int,
        default: Any = None,
        epsilon: float,
        delta: float | None = None,
        propose: Any,
        bounds: Bounds | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        test: MarginTest | None = None,
        failure: float | None = None,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Outcome:
        """Release the mean without the `trim` smallest and the `trim` largest records.

        Args:
            trim: The number of records to trim at each end. It is public: choose it from the
                expected number of records, not from the data.
            default: The value when trimming leaves no record; None means the midpoint of the
                bounds, or 0 without bounds.

        The other arguments are those of `median`.
        """
        statistic = tested.TrimmedMean(_validate.count(0, tested.MOST_TRIMMED, trim=trim), default)
        return self._release(statistic, locals())  # type: ignore[no-any-return]

    @_answers
    def histogram(
        self,
        column: str | None = None,
        *,
        edges: Sequence[Any] | None = None,
        bins: int = 20,
        categories: Sequence[Hashable] | Literal["private"] | None = None,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Histogram:
        """Release how many records lie in each bin.

        A record is in one bin, so the noise of each count is that of a single count, however many
        bins there are.

        Args:
            edges: Public edges of the bins, in ascending order; records outside are counted below
                and above. None: private quantiles of all groups together, so that bins hold about
                as many records each; they cost 30 % of ε.
            bins: The number of bins to aim at, without edges; few records have fewer.
            categories: Instead of bins, the values of a column of texts or other categories, from
                public knowledge; or "private": those with enough records are found privately, which
                needs `delta`.

        The other arguments are those of `median`.

        Returns:
            `Histogram`; with groups, one for each. With `categories`, the count of each of them, as
            of `count` with groups.
        """
        if categories is not None:
            counted = functools.partial(histograms.release_counts, moments.Count(), categories)
            return self._ask(counted, locals())  # type: ignore[no-any-return]
        statistic = histograms.Bins(
            edges, _validate.count(1, histograms.MOST_BINS, bins=bins), column
        )
        return self._release(statistic, locals())  # type: ignore[no-any-return]

    def top_k(
        self,
        column: str | None = None,
        k: int = 10,
        *,
        categories: Sequence[Hashable] | Literal["private"] = "private",
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Groups[Released] | Preview:
        """Release the most frequent categories of a column, with how often each occurs.

        A record is in one category, so noise for one count pays for all of them, and the largest
        ones cost nothing more.

        Args:
            k: How many categories.
            categories: All that can occur, from public knowledge; or "private": those with enough
                records are found privately, which needs `delta`.

        The other arguments are those of `median`.

        Returns:
            The noisy counts of the categories, the largest first.
        """
        if isinstance(self, GroupedTable):
            raise _validate.ArgumentError("by", "None for top_k", got=self._by)
        k = _validate.count(1, histograms.MOST_CATEGORIES, k=k)
        counted = functools.partial(histograms.release_counts, histograms.TopCount(), categories)
        found = self._ask(counted, locals())
        if isinstance(found, Preview):
            return found
        counts: Groups[Released] = found.only(list(histograms.most_frequent(found, k)))
        return counts

    @_answers
    def describe(
        self,
        column: str | None = None,
        *,
        ps: Sequence[Any] = PROBABILITIES,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Description:
        """Release a summary of a column: count, mean, deviation, quartiles and tails.

        First comes an interval that few records lie outside of, for 14 % of ε; then the quantiles,
        for 35 %, by halving among some ten thousand points of that interval, and theirs, for 15 %;
        then a part of it to which values are clipped, for 6 %, and the share of those outside, for
        3 %; and the sums of the clipped values, for 27 %, from which count, mean and deviation
        follow.

        Args:
            column: The column; None describes every column of a table, at one charge: a
                `prudent.release.ReleasedTable`.
            ps: The probabilities of the quantiles, in ascending order; the median is always
                released.
            epsilon: ε of all of it, at least 0.01.
            distribution: Of the noise of the sums; see `median`.
            confidence: Of the intervals of the quantiles, at least 0.95; 0: they have none, and are
                more accurate.

        The other arguments are those of `median`.

        Returns:
            `Description`; with groups, one for each.
        """
        if column is None and self._has_columns():
            return self._ask(tables.described, locals())  # type: ignore[no-any-return]
        return self._release(Summary(ps), locals())  # type: ignore[no-any-return]

    def _has_columns(self) -> bool:
        """Whether the source has columns with names, and is not one column by itself."""
        if self.connect is not None or isinstance(self.source, str | os.PathLike | Join):
            return True
        return any(hasattr(self.source, name) for name in ("columns", "column_names", "schema"))

    def ask(
        self,
        questions: Questions | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> ReleasedTable | Preview:
        """Release several statistics of several columns, in one request and at one charge.

        ε is divided between the questions by what each needs: the shares make the sum of the
        expected relative errors least, and follow from the statistics alone, so that a count gets
        less than a mean, and a median less than a variance. With groups, every question is answered
        in every group; private groups are chosen once.

        Args:
            questions: Statistics by column, {"salary": ["median", "mean"], "age": "mean"}; or a
                list of `Ask`, or of texts such as "median(salary)" and "count(*)", in the syntax of
                SQL. None: a description of every column.
            epsilon: ε of all of it.

        The other arguments are those of `median`.
        """

        def answer(request: Request) -> Any:
            if questions is None:
                return tables.described(request)
            return tables.answered(tables.asked(questions), request)

        return self._ask(answer, locals())  # type: ignore[no-any-return]

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

        with _opened(self.ledger, dry_run=dry_run) as ledger:
            return sql(
                query,
                data=self.source,
                unit=self.unit,
                per_unit=self.per_unit,
                groups_per_unit=self.groups_per_unit,
                where=self._where,
                connect=self.connect,
                epsilon=epsilon,
                delta=delta,
                groups=groups,
                ledger=ledger,
                receipt=receipt,
                noise=self.noise,
                dry_run=dry_run,
            )

    def synthesize(self, *, epsilon: float, delta: float, **own: Any) -> "Synthetic":
        """Make a synthetic table from one private release; see `prudent.synthesize`.

        Args:
            epsilon: ε of the whole table.
            delta: δ of the whole table.
            **own: Whatever else it takes: `columns`, `constraints`, `identifiers` and so on.
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
        with _opened(self.ledger, dry_run=False) as ledger:
            return synthesize(self.source, epsilon=epsilon, delta=delta, ledger=ledger, **own)


@attrs.frozen(eq=False, repr=False)
class GroupedTable(Table):
    """A table by groups; see `Table.by`."""

    _by: By | None = attrs.field(default=None, kw_only=True)
    _groups: GroupNames | None = attrs.field(default=None, kw_only=True)


@contextlib.contextmanager
def _opened(ledger: Any, *, dry_run: bool) -> Iterator[Any]:
    """The ledger to charge; one that is given by its location is opened for this release alone."""
    if dry_run or not _is_path(ledger):
        yield ledger
        return
    from prudent.budget.ledger import Ledger  # whoever keeps no count needs none of it

    with Ledger(ledger) as opened:
        yield opened


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
