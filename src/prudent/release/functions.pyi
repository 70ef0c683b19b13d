# Derived from the methods of `Table` by tests/release/test_functions.py.

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

from prudent.accounting import MarginTest
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview
from prudent.release.columns.column import PerUnit
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Groups, Outcome, Released
from prudent.release.questions.tables import Questions, ReleasedTable
from prudent.release.request import By, Condition, GroupNames
from prudent.release.statistics.histograms import Histogram
from prudent.release.statistics.summaries import PROBABILITIES, Description

Bounds: TypeAlias = tuple[Any, Any]

@overload
def median(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    propose: None = None,
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
    receipt: ReceiptTarget | None = None,
    dry_run: Literal[False] = False,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
    other_bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
    other_bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
    other_bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    epsilon: float,
    delta: float | None = None,
    bounds: Bounds | None = None,
    largest_weight: float | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    bounds: Bounds | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
    noise: Noise | None = None,
) -> Groups[Released] | Preview: ...
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
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
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
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    where: Condition | None = None,
    read_as: str | Mapping[str, str] | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | str | os.PathLike[str] | None = None,
    noise: Noise | None = None,
    by: By | None = None,
    groups: GroupNames | None = None,
) -> ReleasedTable | Preview: ...
