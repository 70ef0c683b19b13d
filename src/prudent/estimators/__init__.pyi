# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.estimators.base import PrivateEstimator as PrivateEstimator
from prudent.estimators.base import TooFewRecordsError as TooFewRecordsError
from prudent.estimators.linear import LinearRegression as LinearRegression
from prudent.estimators.linear import QuantileRegressor as QuantileRegressor
from prudent.estimators.linear import Ridge as Ridge
from prudent.estimators.models.classifiers import GaussianNB as GaussianNB
from prudent.estimators.models.logistic import LogisticRegression as LogisticRegression
from prudent.estimators.models.trees import GradientBoostingClassifier as GradientBoostingClassifier
from prudent.estimators.models.trees import GradientBoostingRegressor as GradientBoostingRegressor
from prudent.estimators.models.unsupervised import PCA as PCA
from prudent.estimators.models.unsupervised import KMeans as KMeans
