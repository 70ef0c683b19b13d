# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.release.functions import certify_quantile as certify_quantile
from prudent.release.functions import correlation as correlation
from prudent.release.functions import count as count
from prudent.release.functions import count_distinct as count_distinct
from prudent.release.functions import covariance as covariance
from prudent.release.functions import describe as describe
from prudent.release.functions import deviation as deviation
from prudent.release.functions import histogram as histogram
from prudent.release.functions import iqr as iqr
from prudent.release.functions import maximum as maximum
from prudent.release.functions import mean as mean
from prudent.release.functions import median as median
from prudent.release.functions import minimum as minimum
from prudent.release.functions import mode as mode
from prudent.release.functions import proportion as proportion
from prudent.release.functions import quantile as quantile
from prudent.release.functions import quantiles as quantiles
from prudent.release.functions import ratio as ratio
from prudent.release.functions import sum as sum
from prudent.release.functions import top_k as top_k
from prudent.release.functions import trimmed_mean as trimmed_mean
from prudent.release.functions import variance as variance
from prudent.release.functions import weighted_mean as weighted_mean
