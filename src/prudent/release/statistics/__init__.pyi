# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.release.questions.tables import describe as describe
from prudent.release.statistics.always_tested import mode as mode
from prudent.release.statistics.always_tested import trimmed_mean as trimmed_mean
from prudent.release.statistics.always_tested import trimmed_sum as trimmed_sum
from prudent.release.statistics.extremes import maximum as maximum
from prudent.release.statistics.extremes import minimum as minimum
from prudent.release.statistics.histograms import histogram as histogram
from prudent.release.statistics.histograms import top_k as top_k
from prudent.release.statistics.moments import count as count
from prudent.release.statistics.moments import count_distinct as count_distinct
from prudent.release.statistics.moments import deviation as deviation
from prudent.release.statistics.moments import mean as mean
from prudent.release.statistics.moments import proportion as proportion
from prudent.release.statistics.moments import sum as sum
from prudent.release.statistics.moments import variance as variance
from prudent.release.statistics.pairs import correlation as correlation
from prudent.release.statistics.pairs import covariance as covariance
from prudent.release.statistics.pairs import ratio as ratio
from prudent.release.statistics.pairs import weighted_mean as weighted_mean
from prudent.release.statistics.quantiles import certify_quantile as certify_quantile
from prudent.release.statistics.quantiles import iqr as iqr
from prudent.release.statistics.quantiles import median as median
from prudent.release.statistics.quantiles import quantile as quantile
from prudent.release.statistics.quantiles import quantiles as quantiles
