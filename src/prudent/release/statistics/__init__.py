"""Private statistics of a column.

    median("salaries.parquet", "salary", epsilon=0.3, ledger=ledger)

Each call calibrates a mechanism to (ε, δ), checks that the column exists, charges the ledger, and
only then reads the data. The result, `Released` or `Refused`, may be published.
"""

from prudent.release.statistics.histograms import histogram
from prudent.release.statistics.moments import count, mean, sum, variance
from prudent.release.statistics.most_frequent import mode
from prudent.release.statistics.quantiles import certify_quantile, iqr, median, quantile, quantiles
from prudent.release.statistics.summaries import describe
from prudent.release.statistics.trimmed import trimmed_mean, trimmed_sum

__all__ = [
    "certify_quantile",
    "count",
    "describe",
    "histogram",
    "iqr",
    "mean",
    "median",
    "mode",
    "quantile",
    "quantiles",
    "sum",
    "trimmed_mean",
    "trimmed_sum",
    "variance",
]
