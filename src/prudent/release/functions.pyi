# What stands below the line is derived from the declarations in `functions.py`.

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from prudent.accounting import MarginTest
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import AnyLedger, Preview
from prudent.release.columns.column import PerUnit
from prudent.release.data_table import GroupedTable, Table
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Groups, Outcome, Released
from prudent.release.questions.tables import Questions, ReleasedTable
from prudent.release.request import By, Condition, GroupNames, Request
from prudent.release.statistics.histograms import Histogram
from prudent.release.statistics.summaries import PROBABILITIES, Description

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

class _Statistic(Protocol[P, R]):  # a preview has a type of its own
    @overload
    def __call__(
        self, column: str | None = ..., *, dry_run: Literal[True], **options: Any
    ) -> Preview: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

class _TestedStatistic(Protocol[P, R, T]):  # with a proposal, the answer may also be a refusal
    @overload
    def __call__(
        self, column: str | None = ..., *, dry_run: Literal[True], **options: Any
    ) -> Preview: ...
    @overload
    def __call__(self, column: str | None = ..., *, propose: object, **options: Any) -> T: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

class _Method(Protocol[P, V]):  # of a table by groups, it returns one answer for each
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

def _answers(method: Callable[Concatenate[Any, P], V]) -> _Method[P, V]: ...
def _tested(method: Callable[Concatenate[Any, P], V]) -> _TestedMethod[P, V]: ...
def _ungrouped(method: Callable[Concatenate[Any, P], V]) -> _UngroupedMethod[P, V]: ...

# --- derived by tests/release/test_functions.py: what stands below is written there ---

@overload
def median(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    propose: None = None,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    test: MarginTest | None = None,
    failure: float | None = None,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def median(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def median(
    data: Any = None, column: str | None = None, *, by: By, propose: object, **options: Any
) -> Groups[Outcome]: ...
@overload
def median(
    data: Any = None, column: str | None = None, *, propose: object, **options: Any
) -> Outcome: ...
@overload
def median(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any,
    epsilon: float,
    delta: float | None = None,
    propose: None = None,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    test: MarginTest | None = None,
    failure: float | None = None,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def quantile(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def quantile(
    data: Any = None, column: str | None = None, *, by: By, propose: object, **options: Any
) -> Groups[Outcome]: ...
@overload
def quantile(
    data: Any = None, column: str | None = None, *, propose: object, **options: Any
) -> Outcome: ...
@overload
def quantile(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def quantiles(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def quantiles(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def iqr(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    propose: None = None,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    test: MarginTest | None = None,
    failure: float | None = None,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def iqr(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def iqr(
    data: Any = None, column: str | None = None, *, by: By, propose: object, **options: Any
) -> Groups[Outcome]: ...
@overload
def iqr(
    data: Any = None, column: str | None = None, *, propose: object, **options: Any
) -> Outcome: ...
@overload
def iqr(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def search_quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any = 0.5,
    proposals: Sequence[Any],
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Outcome: ...
@overload
def search_quantile(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def search_quantile(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Outcome]: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def certify_quantile(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def certify_quantile(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def maximum(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def maximum(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def maximum(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def minimum(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def minimum(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def minimum(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def count(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def count(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def count(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def count_distinct(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def count_distinct(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def count_distinct(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def proportion(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def proportion(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def proportion(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def mean(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def mean(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def mean(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def sum(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def sum(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def sum(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def variance(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def variance(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def variance(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
def deviation(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def deviation(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def deviation(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def ratio(
    data: Any = None,
    column: str | None = None,
    other: str | None = None,
    *,
    dry_run: Literal[True],
    **options: Any,
) -> Preview: ...
@overload
def ratio(
    data: Any = None, column: str | None = None, other: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def covariance(
    data: Any = None,
    column: str | None = None,
    other: str | None = None,
    *,
    dry_run: Literal[True],
    **options: Any,
) -> Preview: ...
@overload
def covariance(
    data: Any = None, column: str | None = None, other: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def correlation(
    data: Any = None,
    column: str | None = None,
    other: str | None = None,
    *,
    dry_run: Literal[True],
    **options: Any,
) -> Preview: ...
@overload
def correlation(
    data: Any = None, column: str | None = None, other: str | None = None, *, by: By, **options: Any
) -> Groups[Released]: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Released: ...
@overload
def weighted_mean(
    data: Any = None,
    column: str | None = None,
    weights: str | None = None,
    *,
    dry_run: Literal[True],
    **options: Any,
) -> Preview: ...
@overload
def weighted_mean(
    data: Any = None,
    column: str | None = None,
    weights: str | None = None,
    *,
    by: By,
    **options: Any,
) -> Groups[Released]: ...
@overload
def mode(
    data: Any = None,
    column: str | None = None,
    *,
    categories: Sequence[Hashable] | None = None,
    epsilon: float,
    delta: float | None = None,
    propose: Any = None,
    bounds: tuple[Any, Any] | None = None,
    fallback: bool = False,
    distribution: Distribution = Distribution.LAPLACE,
    test: MarginTest | None = None,
    failure: float | None = None,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Outcome: ...
@overload
def mode(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def mode(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Outcome]: ...
@overload
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
    test: MarginTest | None = None,
    failure: float | None = None,
    certify: Any = None,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Outcome: ...
@overload
def trimmed_mean(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def trimmed_mean(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Outcome]: ...
@overload
def histogram(
    data: Any = None,
    column: str | None = None,
    *,
    edges: Sequence[Any] | None = None,
    bins: int = 20,
    categories: Sequence[Hashable] | Literal["private"] | None = None,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Histogram: ...
@overload
def histogram(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def histogram(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Histogram]: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
) -> Groups[Released]: ...
@overload
def top_k(
    data: Any = None,
    column: str | None = None,
    k: int = 10,
    *,
    dry_run: Literal[True],
    **options: Any,
) -> Preview: ...
@overload
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
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: None = None,
    groups: GroupNames | None = None,
) -> Description: ...
@overload
def describe(
    data: Any = None, column: str | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...
@overload
def describe(
    data: Any = None, column: str | None = None, *, by: By, **options: Any
) -> Groups[Description]: ...
@overload
def table(
    data: Any = None,
    questions: Questions | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    confidence: float = 0.95,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: AnyLedger | None = None,
    noise: Noise | None = None,
    by: By | None = None,
    groups: GroupNames | None = None,
) -> ReleasedTable: ...
@overload
def table(
    data: Any = None, questions: Questions | None = None, *, dry_run: Literal[True], **options: Any
) -> Preview: ...

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
        test: MarginTest | None = None,
        failure: float | None = None,
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
        test: MarginTest | None = None,
        failure: float | None = None,
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
        test: MarginTest | None = None,
        failure: float | None = None,
        certify: Any = None,
        confidence: float = 0.95,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Released: ...
    @_answers
    def search_quantile(
        self,
        column: str | None = None,
        *,
        p: Any = 0.5,
        proposals: Sequence[Any],
        epsilon: float,
        delta: float | None = None,
        bounds: tuple[Any, Any] | None = None,
        receipt: ReceiptTarget | None = None,
        dry_run: bool = False,
    ) -> Outcome: ...
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
        propose: Any = None,
        bounds: tuple[Any, Any] | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        test: MarginTest | None = None,
        failure: float | None = None,
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
        test: MarginTest | None = None,
        failure: float | None = None,
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
        categories: Sequence[Hashable] | Literal["private"] | None = None,
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
