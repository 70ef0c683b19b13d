"""Private tuning: run a random number of candidates, release the best one, and pay for one price.

    def space(trial):
        trial.float("lr", 1e-3, 1.0, log=True)
        trial.choice("clip", [0.5, 1.0, 2.0])

    best = tune(candidate, space, trials=Geometric(30), delta=1e-5, ledger=ledger, out="run")
    best.setting, best.score, best.epsilon

Guarantee:
    The released setting, score and output are together (ε, δ)-DP at the printed price, which is
    that of the whole search (see `prudent.accounting.losses.repeated_selection`), if

    * every candidate, its score included, has the event that is declared for it;
    * the search space does not depend on the data;
    * nothing else leaves the owner of the data: not the number of candidates, which the running
      time reveals too, nor the other candidates.
"""

from prudent.accounting.losses.trial_counts import (
    Binomial,
    Geometric,
    NegativeBinomial,
    Poisson,
    TrialCount,
)
from prudent.tune.candidate import Candidate, Scored
from prudent.tune.fitting import HeldOutScore, calibrate_plan, search, training
from prudent.tune.space import Trial
from prudent.tune.tuning import Tuned, calibrate, price, tune

__all__ = [
    "Binomial",
    "Candidate",
    "Geometric",
    "HeldOutScore",
    "NegativeBinomial",
    "Poisson",
    "Scored",
    "Trial",
    "TrialCount",
    "Tuned",
    "calibrate",
    "calibrate_plan",
    "price",
    "search",
    "training",
    "tune",
]
