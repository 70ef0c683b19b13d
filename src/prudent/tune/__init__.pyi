# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.accounting.losses.repeated_selection import Binomial as Binomial
from prudent.accounting.losses.repeated_selection import Geometric as Geometric
from prudent.accounting.losses.repeated_selection import NegativeBinomial as NegativeBinomial
from prudent.accounting.losses.repeated_selection import Poisson as Poisson
from prudent.accounting.losses.repeated_selection import TrialCount as TrialCount
from prudent.tune.candidate import Candidate as Candidate
from prudent.tune.candidate import Scored as Scored
from prudent.tune.candidate import Trial as Trial
from prudent.tune.fitting import HeldOutScore as HeldOutScore
from prudent.tune.fitting import calibrate_plan as calibrate_plan
from prudent.tune.fitting import search as search
from prudent.tune.fitting import training as training
from prudent.tune.tuning import Tuned as Tuned
from prudent.tune.tuning import calibrate as calibrate
from prudent.tune.tuning import price as price
from prudent.tune.tuning import tune as tune
