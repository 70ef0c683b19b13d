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

The public names are listed in `__init__.pyi`. Each is imported when it is first used.
"""

from prudent import _lazy

__all__, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
