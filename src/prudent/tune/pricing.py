"""The price of a search, and the noise of a candidate for a given price."""

from collections.abc import Callable
from functools import lru_cache

import dp_accounting as dp

from prudent import _validate
from prudent.accounting.calibration import Search, solve
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.losses.trial_counts import TrialCount
from prudent.accounting.relations import ADD_REMOVE, Relation
from prudent.accounting.serialisation import from_json, to_json


def price(
    candidate: dp.DpEvent, trials: TrialCount, delta: float, relation: Relation = ADD_REMOVE
) -> float:
    """The ε at which releasing the best candidate is (ε, δ)-DP.

    Args:
        candidate: The event of one candidate, its score included.
        trials: The law of the number of candidates.
        delta: δ.
        relation: The neighbouring relation.
    """
    _validate.instance(TrialCount, "a law such as Geometric(30)", trials=trials)
    return epsilon_of_json(to_json(trials.event(candidate)), delta, relation)


@lru_cache(maxsize=64)
def epsilon_of_json(event: str, delta: float, relation: Relation) -> float:
    """The ε of an event given as JSON; a search that is repeated or resumed is priced once."""
    return epsilon_of(from_json(event), delta, relation)


def calibrate(
    candidate_of: Callable[[float], dp.DpEvent],
    trials: TrialCount,
    *,
    epsilon: float,
    delta: float,
    relation: Relation = ADD_REMOVE,
    least: float = 1e-2,
    most: float = 1e4,
) -> float:
    """The least noise with which the whole search is (ε, δ)-DP, rounded up.

    Args:
        candidate_of: The event of one candidate, its score included, as a function of its noise;
            more noise must not cost more.
        trials: The law of the number of candidates.
        epsilon: The ε of the whole search.
        delta: The δ of the whole search.
        relation: The neighbouring relation.
        least: The least noise allowed.
        most: The largest noise allowed.

    Raises:
        UnreachableTargetError: If no allowed noise meets the target.
    """
    _validate.instance(TrialCount, "a law such as Geometric(30)", trials=trials)
    return solve(
        lambda noise: trials.event(candidate_of(noise)),
        Search(safe=most, unsafe=least, guess=min(max(1.0, least), most)),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        name="noise",
    )
