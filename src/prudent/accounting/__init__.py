"""Privacy accounting: events, accountants, calibration, and event serialisation."""

from prudent.accounting.attack_bounds import AttackBounds, Price, price_list
from prudent.accounting.calibration import UnreachableTargetError
from prudent.accounting.cheapest_test import TestChoice, best_test
from prudent.accounting.events import (
    ApproximateDpEvent,
    BinomialSelectionDpEvent,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    ExponentialMechanismDpEvent,
    GaussianTest,
    LaplaceTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    Reveals,
    WorstOfDpEvent,
)
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.infinite_epsilon import InfiniteEpsilon, why_infinite
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.rdp_accountant import RdpAccountant
from prudent.accounting.relations import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZERO_OUT,
    Adjacency,
    Relation,
)
from prudent.accounting.robustness import Certificate, Certifier
from prudent.accounting.run import Run
from prudent.accounting.serialisation import describe, from_json, to_json
from prudent.accounting.trial_counts import (
    Binomial,
    Geometric,
    NegativeBinomial,
    Poisson,
    TrialCount,
)

__all__ = [
    "ADD_REMOVE",
    "REPLACE_ONE",
    "ZERO_OUT",
    "Adjacency",
    "ApproximateDpEvent",
    "AttackBounds",
    "Binomial",
    "BinomialSelectionDpEvent",
    "Certificate",
    "Certifier",
    "DiscreteGaussianTest",
    "DiscreteLaplaceTest",
    "ExponentialMechanismDpEvent",
    "GaussianTest",
    "Geometric",
    "InfiniteEpsilon",
    "LaplaceTest",
    "MarginTest",
    "NegativeBinomial",
    "PldAccountant",
    "Poisson",
    "Price",
    "ProposeTestReleaseDpEvent",
    "RdpAccountant",
    "Relation",
    "Reveals",
    "Run",
    "TestChoice",
    "TrialCount",
    "UnreachableTargetError",
    "WorstOfDpEvent",
    "best_test",
    "describe",
    "epsilon_of",
    "from_json",
    "price_list",
    "to_json",
    "why_infinite",
]
