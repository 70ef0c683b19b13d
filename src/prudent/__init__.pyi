# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent import audit as audit
from prudent import tune as tune
from prudent._validate import ArgumentError as ArgumentError
from prudent.accounting import DiscreteGaussianTest as DiscreteGaussianTest
from prudent.accounting import DiscreteLaplaceTest as DiscreteLaplaceTest
from prudent.accounting import GaussianTest as GaussianTest
from prudent.accounting import LaplaceTest as LaplaceTest
from prudent.accounting import PldAccountant as PldAccountant
from prudent.accounting import ProposeTestReleaseDpEvent as ProposeTestReleaseDpEvent
from prudent.accounting import RdpAccountant as RdpAccountant
from prudent.release import Ledger as Ledger
from prudent.release import Refused as Refused
from prudent.release import Released as Released
from prudent.release import count as count
from prudent.release import describe as describe
from prudent.release import iqr as iqr
from prudent.release import mean as mean
from prudent.release import median as median
from prudent.release import mode as mode
from prudent.release import quantile as quantile
from prudent.release import quantiles as quantiles
from prudent.release import trimmed_mean as trimmed_mean
from prudent.training import AdaptiveTrim as AdaptiveTrim
from prudent.training import Execution as Execution
from prudent.training import FixedTrim as FixedTrim
from prudent.training import Plan as Plan
from prudent.training import ProposeTestRelease as ProposeTestRelease
from prudent.training import Reporting as Reporting
from prudent.training import Step as Step
from prudent.training import Sum as Sum
from prudent.training import TrimmedSum as TrimmedSum
from prudent.training import check as check
from prudent.training import fit as fit
from prudent.training import make_private as make_private

__version__: str
