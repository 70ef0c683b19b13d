"""Privacy accounting: events, accountants, calibration, and event serialisation."""

from prudent.accounting.calibration import (
    Run,
    TestChoice,
    UnreachableTargetError,
    best_test,
    calibrate,
)
from prudent.accounting.events import (
    ApproximateDpEvent,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    ExponentialMechanismDpEvent,
    GaussianTest,
    LaplaceTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    Reveals,
)
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.rdp_accountant import RdpAccountant
from prudent.accounting.relations import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZERO_OUT,
    Adjacency,
    Relation,
)
from prudent.accounting.serialisation import describe, from_json, to_json

__all__ = [
    "ADD_REMOVE",
    "REPLACE_ONE",
    "ZERO_OUT",
    "Adjacency",
    "ApproximateDpEvent",
    "DiscreteGaussianTest",
    "DiscreteLaplaceTest",
    "ExponentialMechanismDpEvent",
    "GaussianTest",
    "LaplaceTest",
    "MarginTest",
    "PldAccountant",
    "ProposeTestReleaseDpEvent",
    "RdpAccountant",
    "Relation",
    "Reveals",
    "Run",
    "TestChoice",
    "UnreachableTargetError",
    "best_test",
    "calibrate",
    "describe",
    "epsilon_of",
    "from_json",
    "to_json",
]
