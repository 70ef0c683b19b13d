# What stands below the line is derived from the declarations in `functions.py`.

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload

from typing_extensions import Unpack

from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import AnyLedger, Preview
from prudent.release.columns.column import PerUnit
from prudent.release.data_table import GroupedTable, Table
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Groups, Outcome, Released
from prudent.release.questions.tables import Questions, ReleasedTable
from prudent.release.request import By, Condition, Request
from prudent.release.statistics.summaries import PROBABILITIES, Description, Histogram

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T", covariant=True)
V = TypeVar("V")

class _Methods(Protocol):
    def _answer(self, answer: Callable[[Request], Any], own: Mapping[str, Any]) -> Any: ...

class Declared:
    make: Callable[..., Any]
    options: tuple[str, ...]
    columns: tuple[str, ...]
    need: float | Callable[..., float] | None
    grouped: bool
    @property
    def own(self) -> set[str]: ...
    def named(self, given: Mapping[str, Any]) -> dict[str, Any]: ...

STATISTICS: dict[str, Declared]

class _OfTable(TypedDict, total=False):  # the options that `Table` has; `by` is said below
    unit: str | None
    per_unit: PerUnit | None
    groups_per_unit: int | None
    where: Condition | None
    read_as: str | Mapping[str, str] | None
    connect: str | None
    table: str | None
    ledger: AnyLedger | None
    noise: Noise | None

class _Statistic(Protocol[P, R]):  # a preview has a type of its own
    @overload
    def __call__(self, *args: Any, dry_run: Literal[True], **options: Any) -> Preview: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

class _TestedStatistic(Protocol[P, R, T]):  # with a proposal, the answer may also be a refusal
    @overload
    def __call__(self, *args: Any, dry_run: Literal[True], **options: Any) -> Preview: ...
    @overload
    def __call__(self, *args: Any, propose: object, **options: Any) -> T: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

class _Function(Protocol[P, V]):  # by groups, it returns one answer for each
    @overload
    def __call__(self, *args: Any, dry_run: Literal[True], **options: Any) -> Preview: ...
    @overload
    def __call__(self, *args: Any, by: By, **options: Any) -> Groups[V]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V: ...

class _TestedFunction(Protocol[P, V]):
    @overload
    def __call__(self, *args: Any, dry_run: Literal[True], **options: Any) -> Preview: ...
    @overload
    def __call__(self, *args: Any, by: By, propose: object, **options: Any) -> Groups[Outcome]: ...
    @overload
    def __call__(self, *args: Any, propose: object, **options: Any) -> Outcome: ...
    @overload
    def __call__(self, *args: Any, by: By, **options: Any) -> Groups[V]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V: ...

class _Method(Protocol[P, V]):
    @overload
    def __get__(self, table: GroupedTable, owner: Any = ...) -> _Statistic[P, Groups[V]]: ...
    @overload
    def __get__(self, table: Table, owner: Any = ...) -> _Statistic[P, V]: ...
    @overload
    def __get__(self, table: None, owner: Any = ...) -> Callable[..., Any]: ...

class _TestedMethod(Protocol[P, V]):
    @overload
    def __get__(
        self, table: GroupedTable, owner: Any = ...
    ) -> _TestedStatistic[P, Groups[V], Groups[Outcome]]: ...
    @overload
    def __get__(self, table: Table, owner: Any = ...) -> _TestedStatistic[P, V, Outcome]: ...
    @overload
    def __get__(self, table: None, owner: Any = ...) -> Callable[..., Any]: ...

class _UngroupedMethod(Protocol[P, R]):
    @overload
    def __get__(self, table: Table, owner: Any = ...) -> _Statistic[P, R]: ...
    @overload
    def __get__(self, table: None, owner: Any = ...) -> Callable[..., Any]: ...

def _answers_of_any(function: Callable[P, V]) -> _Function[P, V]: ...
def _tested_of_any(function: Callable[P, V]) -> _TestedFunction[P, V]: ...
def _ungrouped_of_any(function: Callable[P, V]) -> _Statistic[P, V]: ...
def _answers(method: Callable[Concatenate[Any, P], V]) -> _Method[P, V]: ...
def _tested(method: Callable[Concatenate[Any, P], V]) -> _TestedMethod[P, V]: ...
def _ungrouped(method: Callable[Concatenate[Any, P], V]) -> _UngroupedMethod[P, V]: ...

# --- derived by tests/release/test_functions.py: what stands below is written there ---

@_tested_of_any
def median(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    propose: Any = None,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_tested_of_any
def quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any,
    epsilon: float,
    delta: float | None = None,
    propose: Any = None,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def quantiles(
    data: Any = None,
    column: str | None = None,
    *,
    ps: Sequence[Any],
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_tested_of_any
def iqr(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    propose: Any = None,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def certify_quantile(
    data: Any = None,
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
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def maximum(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def minimum(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def count(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def count_distinct(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def proportion(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def mean(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def sum(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def variance(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def deviation(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def ratio(
    data: Any = None,
    column: str | None = None,
    other: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    other_bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def covariance(
    data: Any = None,
    column: str | None = None,
    other: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    other_bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def correlation(
    data: Any = None,
    column: str | None = None,
    other: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    other_bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def weighted_mean(
    data: Any = None,
    column: str | None = None,
    weights: str | None = None,
    *,
    largest_weight: float | None = None,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Released: ...
@_answers_of_any
def mode(
    data: Any = None,
    column: str | None = None,
    *,
    categories: Sequence[Hashable] | None = None,
    epsilon: float,
    delta: float | None = None,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Outcome: ...
@_answers_of_any
def trimmed_mean(
    data: Any = None,
    column: str | None = None,
    *,
    trim: int,
    default: Any = None,
    epsilon: float,
    delta: float | None = None,
    propose: Any,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Outcome: ...
@_answers_of_any
def histogram(
    data: Any = None,
    column: str | None = None,
    *,
    edges: Sequence[Any] | None = None,
    bins: int = 20,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Histogram: ...
@_ungrouped_of_any
def top_k(
    data: Any = None,
    column: str | None = None,
    k: int = 10,
    *,
    categories: Sequence[Hashable] | Literal["private"] = "private",
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Groups[Released]: ...
@_answers_of_any
def describe(
    data: Any = None,
    column: str | None = None,
    *,
    ps: Sequence[Any] = PROBABILITIES,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> Description: ...
@_ungrouped_of_any
def table(
    data: Any = None,
    questions: Questions | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: bool = False,
    **table: Unpack[_OfTable],
) -> ReleasedTable: ...

class StatisticMethods(_Methods):
    @_tested
    def median(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        propose: Any = None,
        bounds: tuple[Any, Any] | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_tested
    def quantile(
        self,
        column: str | None = None,
        *,
        p: Any,
        epsilon: float,
        delta: float | None = None,
        propose: Any = None,
        bounds: tuple[Any, Any] | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def quantiles(
        self,
        column: str | None = None,
        *,
        ps: Sequence[Any],
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_tested
    def iqr(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        propose: Any = None,
        bounds: tuple[Any, Any] | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
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
    ) -> Released: ...
    @_answers
    def maximum(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def minimum(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
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
    ) -> Released: ...
    @_answers
    def count_distinct(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def proportion(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def mean(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def sum(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def variance(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def deviation(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def ratio(
        self,
        column: str | None = None,
        other: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        other_bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def covariance(
        self,
        column: str | None = None,
        other: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        other_bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def correlation(
        self,
        column: str | None = None,
        other: str | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        other_bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def weighted_mean(
        self,
        column: str | None = None,
        weights: str | None = None,
        *,
        largest_weight: float | None = None,
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def mode(
        self,
        column: str | None = None,
        *,
        categories: Sequence[Hashable] | None = None,
        epsilon: float,
        delta: float | None = None,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Outcome: ...
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
        bounds: tuple[Any, Any] | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Outcome: ...
    @_answers
    def histogram(
        self,
        column: str | None = None,
        *,
        edges: Sequence[Any] | None = None,
        bins: int = 20,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Histogram: ...
    @_ungrouped
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
    ) -> Groups[Released]: ...
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
    ) -> Description: ...
    @_ungrouped
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
    ) -> ReleasedTable: ...
