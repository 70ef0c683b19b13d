"""What a release costs: events, accountants, calibration, and the paper's own bounds."""

from prudent.accounting.calibration import (
    Run,
    TestChoice,
    UnreachableTargetError,
    best_test,
    calibrate,
)
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    Reveals,
)
from prudent.accounting.loss import PldAccountant
from prudent.accounting.records import describe, from_json, to_json
from prudent.accounting.renyi import RdpAccountant

__all__ = [
    "DiscreteGaussianTest",
    "DiscreteLaplaceTest",
    "GaussianTest",
    "LaplaceTest",
    "MarginTest",
    "PldAccountant",
    "ProposeTestReleaseDpEvent",
    "RdpAccountant",
    "Reveals",
    "Run",
    "TestChoice",
    "UnreachableTargetError",
    "best_test",
    "calibrate",
    "describe",
    "from_json",
    "to_json",
]
