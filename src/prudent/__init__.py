"""Differentially private releases that test before they trust.

Names are imported when they are first used, so that `import prudent` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prudent._validate import ArgumentError
    from prudent.accounting import (
        ADD_REMOVE,
        REPLACE_ONE,
        ZERO_OUT,
        DiscreteGaussianTest,
        DiscreteLaplaceTest,
        GaussianTest,
        LaplaceTest,
        PldAccountant,
        ProposeTestReleaseDpEvent,
        RdpAccountant,
        Relation,
        Reveals,
        Run,
        best_test,
        calibrate,
    )
    from prudent.release import (
        Ledger,
        Refused,
        Released,
        iqr,
        median,
        mode,
        quantile,
        trimmed_mean,
    )
    from prudent.training import (
        AdaptiveTrim,
        Execution,
        FixedTrim,
        Plan,
        ProposeTestRelease,
        Step,
        Sum,
        TrimmedSum,
        fit,
    )

__version__ = "0.1.0"

_HOMES = {
    "ArgumentError": "prudent._validate",
    "ADD_REMOVE": "prudent.accounting",
    "REPLACE_ONE": "prudent.accounting",
    "ZERO_OUT": "prudent.accounting",
    "DiscreteGaussianTest": "prudent.accounting",
    "DiscreteLaplaceTest": "prudent.accounting",
    "GaussianTest": "prudent.accounting",
    "LaplaceTest": "prudent.accounting",
    "PldAccountant": "prudent.accounting",
    "ProposeTestReleaseDpEvent": "prudent.accounting",
    "RdpAccountant": "prudent.accounting",
    "Relation": "prudent.accounting",
    "Reveals": "prudent.accounting",
    "Run": "prudent.accounting",
    "best_test": "prudent.accounting",
    "calibrate": "prudent.accounting",
    "AdaptiveTrim": "prudent.training",
    "Execution": "prudent.training",
    "FixedTrim": "prudent.training",
    "Plan": "prudent.training",
    "ProposeTestRelease": "prudent.training",
    "Step": "prudent.training",
    "Sum": "prudent.training",
    "TrimmedSum": "prudent.training",
    "fit": "prudent.training",
    "Ledger": "prudent.release",
    "Refused": "prudent.release",
    "Released": "prudent.release",
    "iqr": "prudent.release",
    "median": "prudent.release",
    "mode": "prudent.release",
    "quantile": "prudent.release",
    "trimmed_mean": "prudent.release",
}

__all__ = [
    "ADD_REMOVE",
    "REPLACE_ONE",
    "ZERO_OUT",
    "AdaptiveTrim",
    "ArgumentError",
    "DiscreteGaussianTest",
    "DiscreteLaplaceTest",
    "Execution",
    "FixedTrim",
    "GaussianTest",
    "LaplaceTest",
    "Ledger",
    "Plan",
    "PldAccountant",
    "ProposeTestRelease",
    "ProposeTestReleaseDpEvent",
    "RdpAccountant",
    "Refused",
    "Relation",
    "Released",
    "Reveals",
    "Run",
    "Step",
    "Sum",
    "TrimmedSum",
    "best_test",
    "calibrate",
    "fit",
    "iqr",
    "median",
    "mode",
    "quantile",
    "trimmed_mean",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'prudent' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
