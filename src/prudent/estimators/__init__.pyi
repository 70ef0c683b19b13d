# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.estimators.base import PrivateEstimator as PrivateEstimator
from prudent.estimators.base import TooFewRecordsError as TooFewRecordsError
from prudent.estimators.classifiers import GaussianNB as GaussianNB
from prudent.estimators.classifiers import LogisticRegression as LogisticRegression
from prudent.estimators.linear import LinearRegression as LinearRegression
from prudent.estimators.linear import QuantileRegressor as QuantileRegressor
from prudent.estimators.linear import Ridge as Ridge
from prudent.estimators.trees import GradientBoostingClassifier as GradientBoostingClassifier
from prudent.estimators.trees import GradientBoostingRegressor as GradientBoostingRegressor
from prudent.estimators.unsupervised import PCA as PCA
from prudent.estimators.unsupervised import KMeans as KMeans
