"""Every statistic, declared once: `prudent.median(data, "cost", …)`, and the methods of a `Table`.

A declaration takes the arguments that are the statistic's own, and names the options of a `Request`
that have a meaning for it. Made of it are a function of any data, for one question; the method of
`Table` of that name, which leaves out what the table says; and what an `Ask` may ask for.

Type checkers and editors read the signatures in `functions.pyi`, which
`tests/release/test_functions.py` derives from the declarations.
"""

import builtins
import functools
import inspect
import os
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from prudent import _validate
from prudent.release import margins
from prudent.release.charging import Preview
from prudent.release.joins import Join
from prudent.release.outcome import Groups, Outcome, Released
from prudent.release.request import Request, Statistic, release
from prudent.release.statistics import moments, pairs, summaries, tested
from prudent.release.statistics import quantile_statistics as ranks
from prudent.release.statistics.summaries import PROBABILITIES, Description, Histogram, Summary

if TYPE_CHECKING:
    from prudent.release.questions.tables import Questions

Asked: TypeAlias = Statistic | tuple[Statistic, dict[str, Any]] | Callable[[Request], Any]
"""A statistic, perhaps with options that follow from its own; or a function that answers."""

NOISY = ("epsilon", "delta", "distribution", "receipt", "dry_run")
CLIPPED = ("epsilon", "delta", "bounds", "distribution", "receipt", "dry_run")
CHOSEN = ("epsilon", "delta", "bounds", "receipt", "dry_run")
OF_PAIRS = (*CLIPPED[:3], "other_bounds", *CLIPPED[3:])
SEVERAL = ("epsilon", "delta", "distribution", "confidence", "receipt", "dry_run")
TESTED = (
    *("epsilon", "delta", "propose", "bounds", "fallback", "distribution", "certify"),
    *("confidence", "receipt", "dry_run"),
)

_OF_TABLE = (
    *("unit", "per_unit", "groups_per_unit", "where", "read_as", "connect", "table"),
    *("ledger", "noise", "by", "groups"),
)
_REQUESTED = inspect.signature(Request).parameters


class StatisticMethods:
    """The statistics as methods of a table."""

    __slots__ = ()

    def _answer(self, answer: Callable[[Request], Any], own: Mapping[str, Any]) -> Any:
        """Answer a request with the arguments of a method, of this table."""
        raise NotImplementedError


@attrs.frozen(eq=False)
class Declared:
    """A statistic as it is declared."""

    make: Callable[..., Asked]  # what is asked, made of its own arguments
    options: tuple[str, ...]  # the options of a request that have a meaning for it
    columns: tuple[str, ...]  # what it calls the column, and the other one
    need: float | Callable[..., float] | None  # as one of several, see `STATISTICS`; None: alone
    whole: bool  # whether it is asked of every column where none is named
    grouped: bool  # whether it may be asked by groups
    returns: Any  # the type of its answer

    def signature(self, first: str, *more: str) -> Signature:
        """Its arguments, after one that says what is asked, and further options of a request."""
        given = inspect.signature(self.make).parameters
        either = Parameter.POSITIONAL_OR_KEYWORD
        own = [each for name, each in given.items() if name not in self.options]
        options = [given.get(name, _REQUESTED[name]) for name in (*self.options, *more)]
        columns = [
            Parameter(name, either, default=None, annotation=str | None) for name in self.columns
        ]
        data = Parameter(first, either)
        if first == "data":
            data = data.replace(default=None, annotation=Any)
        return Signature([data, *columns, *own, *options], return_annotation=self.returns)

    def answer(self, given: Mapping[str, Any], request: Request) -> Any:
        """Answer a request with these arguments, some of which are those of the declaration."""
        asked = self.make(**{name: value for name, value in given.items() if name in self.own})
        if self.whole and request.column is None:
            data, schema = request.data, ("columns", "column_names", "schema")
            named = request.connect is not None or isinstance(data, str | os.PathLike | Join)
            if named or any(hasattr(data, name) for name in schema):  # no column by itself
                return _tables().described(request)
        if isinstance(asked, tuple):
            asked, more = asked
            request = attrs.evolve(request, **more)
        return release(asked, request) if isinstance(asked, Statistic) else asked(request)

    @property
    def own(self) -> Set[str]:
        """The names of the arguments that are its own."""
        return inspect.signature(self.make).parameters.keys()

    def named(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by the names that a request has for them."""
        names = dict(zip(self.columns, ("column", "other"), strict=False))
        return {names.get(name, name): value for name, value in given.items()}

    def function(self, name: str, doc: str, *, method: bool = False) -> Callable[..., Any]:
        """The function of any data, or the method of a table."""
        more = () if method else _OF_TABLE if self.grouped else _OF_TABLE[:-2]
        signature = self.signature("self" if method else "data", *more)

        def ask(*arguments: Any, **options: Any) -> Any:
            try:
                given = self.named(signature.bind(*arguments, **options).arguments)
            except TypeError as error:
                raise TypeError(f"{name}() {error}") from None
            if not method:
                return self.answer(given, Request.of(given))
            table: StatisticMethods = given.pop("self")
            return table._answer(functools.partial(self.answer, given), given)

        ask.__name__ = ask.__qualname__ = name
        ask.__doc__, ask.__signature__ = doc, signature  # type: ignore[attr-defined]
        return ask


STATISTICS: dict[str, Declared] = {}
"""The statistics, by the names of their methods.

What one of several needs is its part of ε. The relative error of an answer is about a/(nε). With
the same number of records and ε in all, the sum of these errors is least if each gets a share
proportional to √a, its need. The a are those of rehearsals on normal and lognormal data, in units
of the standard deviation or, of counts, sums and variances, of the answer itself; that of a count
is 1. `benchmarks/table_division.py` compares this division with equal shares. Nothing of the table
enters: a share is public.
"""


def declared(
    *options: str,
    columns: tuple[str, ...] = ("column",),
    need: float | Callable[..., float] | None = None,
    method: str | None = None,
    whole: bool = False,
    grouped: bool = True,
    returns: Any = Released,
) -> Callable[[Callable[..., Asked]], Callable[..., Any]]:
    """Declare a statistic with these options; see `Declared`. It becomes a function of data."""

    def declare(make: Callable[..., Asked]) -> Callable[..., Any]:
        each = Declared(make, options, columns, need, whole, grouped, returns)
        name, doc = method or make.__name__, inspect.cleandoc(make.__doc__ or "")
        STATISTICS[name] = each
        others = "" if name == "median" else "\n\nThe other arguments are those of `median`."
        setattr(StatisticMethods, name, each.function(name, doc + others, method=True))
        table = "\n\nThe other arguments are those of `Table`."
        return each.function(make.__name__, doc + table)

    return declare


@declared(*TESTED, need=1.3)
def median() -> Asked:
    """Release the lower median: the value of rank ceil(m/2) among m records.

    Args:
        column: The name of the column, or an expression of one row; None if the source is an
            array, a series or a `Column`.
        epsilon: ε of this release, between 0.001 and 50.
        delta: δ of this release. A mechanism that needs none ignores it.
        propose: The proposal τ: how far one record may move the median, in the unit of the data.
            It is tested, and `delta` pays for the test. None: the median is chosen by the
            exponential mechanism, which needs no proposal, no bounds and no δ, and never refuses.
        bounds: Public bounds (low, high) on the data, or None. Values outside are clipped to them.
        fallback: Whether a failed test releases the statistic with noise calibrated to `bounds`
            instead of refusing.
        distribution: Distribution of the noise added to a number: Laplace, or Gaussian when very
            many releases share a budget. Gaussian noise needs `delta`.
        certify: A tolerance, in the unit of the data: a fifth of ε then buys a proof of how many
            records must be added or removed before the statistic is further than that from the
            released value; see `Released.withstands`.
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
    return ranks.Quantile(margins.HALF)


def _need_of_quantile(p: Any) -> float:
    """What a quantile needs: more, if fewer records lie beyond it, down to one in a hundred."""
    exact = margins.rational(p)
    beyond = max(0.01, float(min(exact, 1 - exact)))
    return float(1.3 * (0.5 / beyond) ** 0.7)


@declared(*TESTED, need=_need_of_quantile)
def quantile(*, p: Any) -> Asked:
    """Release the p-quantile: the value of rank ceil(p m) among m records.

    Args:
        p: The probability, in (0, 1]. It is taken as an exact fraction: 0.9 means 9/10. A
            `Fraction` or a string such as "1/3" is accepted as well.
    """
    return ranks.Quantile(margins.rational(p))


@declared(
    *("epsilon", "delta", "bounds", "confidence", "receipt", "dry_run"),
    need=lambda ps: builtins.sum(map(_need_of_quantile, ps)) ** 0.5 * 2,
)
def quantiles(*, ps: Sequence[Any]) -> Asked:
    """Release several quantiles in one release, in ascending order.

    Args:
        ps: The probabilities; see `quantile`.

    Returns:
        `Released`, whose value is a tuple with one value for each of `ps`.
    """
    return ranks.Quantiles(tuple(margins.rational(p, "ps") for p in _validate.values(ps=ps)))


@declared(*TESTED, need=4.0)
def iqr() -> Asked:
    """Release the interquartile range Q(3/4) - Q(1/4)."""
    return ranks.Range()


@declared("epsilon", "delta", "confidence", "receipt", "dry_run")
def certify_quantile(*, p: Any = 0.5, low: Any = None, high: Any = None) -> Asked:
    """Release how many records must be added or removed before a quantile leaves an interval.

    Nothing else is released: not the quantile, and whether it is in the interval only as far as
    the noisy count tells.

    Args:
        p: See `quantile`.
        low: Lower end of the interval, a value of the column's type; None: no lower end.
        high: Upper end; None: no upper end.

    Returns:
        `Released`, whose value is the bound `needed` of its `certificate`.
    """
    return ranks.QuantileRobustness(margins.rational(p), low, high)


@declared(*CHOSEN, need=4.0)
def maximum() -> Asked:
    """Release a value that few records lie above: an extreme quantile.

    The largest value is that of one record, so no private answer can be near it on all data. This
    is the quantile beyond which about as many records lie as the rank of a private answer is off
    by; the notes of the answer say which one that is. A noisy count, for a tenth of ε, tells it.
    """
    return ranks.Extreme(lowest=False)


@declared(*CHOSEN, need=4.0)
def minimum() -> Asked:
    """Release a value that few records lie below: an extreme quantile; see `maximum`."""
    return ranks.Extreme(lowest=True)


@declared(*NOISY, need=1.0)
def count() -> Asked:
    """Release the number of records that have a value, of any type.

    Args:
        column: The column whose values are counted; None counts rows, and with `unit` units.

    Returns:
        `Released` with a whole number of at least 0; with groups, one for each.
    """
    return moments.Count()


@declared(*NOISY, need=2.0)
def count_distinct() -> Asked:
    """Release how many different values a column has.

    Without `unit`, a row changes the number by at most 1. A unit with many rows could change it by
    many. So with `unit`, a value counts if it can be given to a unit that has it, such that no unit
    is given more than `per_unit` values: the largest number of values for which that is possible (a
    maximum matching) changes by at most `per_unit` with a unit, and is as near to the number of all
    values as such a bound allows (Knop and Steinke 2023). A larger `per_unit` counts more values,
    with more noise; pairs of units and values are read into memory.
    """
    return moments.Distinct()


@declared(*NOISY, need=1.1)
def proportion() -> Asked:
    """Release the share of records for which a condition is true.

    The column is one of booleans, or a condition such as "age >= 18" in the syntax of SQL. Records
    for which it is neither true nor false (NULL) are left out. In a pandas frame or a text file, 0
    and 1 are booleans as well. The mean of a column of booleans is the same.
    """
    return moments.Proportion()


@declared(*CLIPPED, need=3.2)
def mean() -> Asked:
    """Release the mean of the clipped values.

    Without bounds, values are clipped to a private interval that few of them lie outside of; see
    `prudent.release.exponential.interval`.
    """
    return moments.OneMoment("mean", 1)


@declared(*CLIPPED, need=2.4)
def sum() -> Asked:
    """Release the sum of the clipped values.

    Without bounds, values are clipped to a private interval around zero: one record adds at most
    the bound that is farther from zero, so the other one costs nothing.
    """
    return moments.Total()


@declared(*CLIPPED, need=9.0)
def variance() -> Asked:
    """Release the variance of the clipped values: their mean square distance from their mean.

    Without bounds, values are clipped as for the `mean`.
    """
    return moments.OneMoment("variance", 2)


@declared(*CLIPPED, need=6.0)
def deviation() -> Asked:
    """Release the standard deviation of the clipped values: the root of their `variance`."""
    return moments.OneMoment("deviation", 2)


@declared(*OF_PAIRS, columns=("column", "other"), need=5.0)
def ratio() -> Asked:
    """Release the sum of one column divided by the sum of another.

    Each sum costs half of ε; see `sum`.

    Args:
        column: The column above the line; see `median`.
        other: The column below the line.
        bounds: Public bounds on the first column; without, private ones are part of its price.
        other_bounds: Public bounds on the second one.
    """
    return pairs.Ratio()


@declared(*OF_PAIRS, columns=("column", "other"), need=9.0)
def covariance() -> Asked:
    """Release the covariance of two columns: the mean product of distances from their means.

    Without bounds, private ones cost a part of ε; see `ratio`.
    """
    return pairs.Pairs("covariance")


@declared(*OF_PAIRS, columns=("column", "other"), need=9.0)
def correlation() -> Asked:
    """Release Pearson's correlation of two columns, between -1 and 1; see `covariance`."""
    return pairs.Pairs("correlation")


@declared(*CLIPPED, columns=("column", "weights"), need=4.0)
def weighted_mean(*, largest_weight: float | None = None) -> Asked:
    """Release the mean of a column, each value weighted by that of another column in its row.

    Args:
        column: The column of values; see `median`.
        weights: The column of weights; one below zero counts as zero.
        bounds: Public bounds on the values; see `mean`.
        largest_weight: A public bound on the weights, to which larger ones are cut; without, a
            private one is found.
    """
    if largest_weight is None:
        return pairs.Pairs("weighted")
    bounds = 0.0, _validate.positive(largest_weight=largest_weight)
    return pairs.Pairs("weighted"), {"other_bounds": bounds}


@declared(
    "epsilon", "delta", "certify", "confidence", "receipt", "dry_run", need=2.0, returns=Outcome
)
def mode(*, categories: Sequence[Hashable] | None = None) -> Asked:
    """Release the most frequent value, without noise, or refuse.

    Args:
        categories: The public list of possible categories; records with any other value are
            ignored. None: any category is possible.
        certify: True: a proof of how many records must change before another value is the most
            frequent; see `median`.
    """
    return tested.Mode(categories)


@declared(*TESTED, returns=Outcome)
def trimmed_mean(*, trim: int, default: Any = None, propose: Any) -> Asked:
    """Release the mean without the `trim` smallest and the `trim` largest records.

    Args:
        trim: The number of records to trim at each end. It is public: choose it from the expected
            number of records, not from the data.
        default: The value when trimming leaves no record; None means the midpoint of the bounds, or
            0 without bounds.
    """
    return tested.TrimmedMean(_validate.count(0, tested.MOST_TRIMMED, trim=trim), default)


@declared(*NOISY, need=4.0, returns=Histogram)
def histogram(*, edges: Sequence[Any] | None = None, bins: int = 20) -> Asked:
    """Release how many records lie in each bin.

    A record is in one bin, so the noise of each count is that of a single count, however many bins
    there are.

    Args:
        edges: Public edges of the bins, in ascending order; records outside are counted below and
            above. None: private quantiles of all groups together, so that bins hold about as many
            records each; they cost 30 % of ε.
        bins: The number of bins to aim at, without edges; few records have fewer.

    Returns:
        `Histogram`; with groups, one for each. Of categories ask for a count by group, or `top_k`.
    """
    return summaries.Bins(edges, _validate.count(1, summaries.MOST_BINS, bins=bins))


@declared(*NOISY, grouped=False, returns=Groups[Released])
def top_k(k: int = 10, *, categories: Sequence[Hashable] | Literal["private"] = "private") -> Asked:
    """Release the most frequent categories of a column, with how often each occurs.

    A record is in one category, so noise for one count pays for all of them, and the largest ones
    cost nothing more.

    Args:
        k: How many categories.
        categories: All that can occur, from public knowledge; or "private": those with enough
            records are found privately, which needs `delta`.

    Returns:
        The noisy counts of the categories, the largest first.
    """
    k = _validate.count(1, summaries.MOST_CATEGORIES, k=k)

    def answer(request: Request) -> Any:
        found = summaries.release_counts(categories, request)
        if isinstance(found, Preview):
            return found
        return found.only(sorted(found, key=lambda group: -found[group].value)[:k])

    return answer


def _tables() -> Any:
    from prudent.release.questions import tables  # whose questions are of what is declared here

    return tables


@declared(*SEVERAL, need=9.0, whole=True, returns=Description)
def describe(*, ps: Sequence[Any] = PROBABILITIES) -> Asked:
    """Release a summary of a column: count, mean, deviation, quartiles and tails.

    First comes an interval that few records lie outside of, for 14 % of ε; then the quantiles, for
    35 %, by halving among some ten thousand points of that interval, and theirs, for 15 %; then a
    part of it to which values are clipped, for 6 %, and the share of those outside, for 3 %; and
    the sums of the clipped values, for 27 %, from which count, mean and deviation follow.

    Args:
        column: The column; None describes every column of a table, at one charge: a
            `prudent.release.ReleasedTable`.
        ps: The probabilities of the quantiles, in ascending order; the median is always released.
        epsilon: ε of all of it, at least 0.01.
        distribution: Of the noise of the sums; see `median`.
        confidence: Of the intervals of the quantiles, at least 0.95; 0: they have none, and are
            more accurate.

    Returns:
        `Description`; with groups, one for each.
    """
    return Summary(ps)


@declared(*SEVERAL, columns=(), method="ask", returns="ReleasedTable")
def table(questions: "Questions | None" = None) -> Asked:
    """Release several statistics of several columns, in one request and at one charge.

    ε is divided between the questions by what each needs: the shares make the sum of the expected
    relative errors least, and follow from the statistics alone, so that a count gets less than a
    mean, and a median less than a variance. With groups, every question is answered in every group;
    private groups are chosen once.

    Args:
        questions: Statistics by column, {"salary": ["median", "mean"], "age": "mean"}; or a list of
            `Ask`, or of texts such as "median(salary)" and "count(*)", in the syntax of SQL. None:
            a description of every column.
        epsilon: ε of all of it.
    """
    tables = _tables()
    if questions is None:
        return tables.described  # type: ignore[no-any-return]
    return functools.partial(tables.answered, tables.asked(questions))
