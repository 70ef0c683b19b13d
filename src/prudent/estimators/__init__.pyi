# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.estimators.base import PrivateEstimator as PrivateEstimator
from prudent.estimators.base import TooFewRecordsError as TooFewRecordsError
from prudent.estimators.linear import LinearRegression as LinearRegression
