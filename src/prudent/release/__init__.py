"""Private statistics by Propose-Test-Release: propose a sensitivity, test it, release or refuse.

Names are imported on first use, so that releasing from arrays needs no database packages, and
keeping a budget needs no noise samplers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prudent.release.baseline import exponential_quantile
    from prudent.release.budget.ledger import Ledger, OverBudgetError
    from prudent.release.calibration import calibrated
    from prudent.release.columns.column import ArrayColumn, Column
    from prudent.release.columns.opening import open_column, open_groups
    from prudent.release.explanation import Question, explain
    from prudent.release.lattice import Lattice
    from prudent.release.margins.quantile import RobustValue
    from prudent.release.mechanism import (
        Branch,
        Outcome,
        ProposeTestRelease,
        Refused,
        Released,
        UnsafeMarginError,
        check_margin,
        on_lattice,
    )
    from prudent.release.noise import Law, ReproducibleNoise, SecureNoise
    from prudent.release.proposal import ProposalSearch, search_quantile, suggest_proposal
    from prudent.release.statistics import (
        iqr,
        median,
        mode,
        quantile,
        trimmed_mean,
        trimmed_sum,
    )

_HOMES = {
    "ArrayColumn": "columns.column",
    "Branch": "mechanism",
    "Column": "columns.column",
    "Lattice": "lattice",
    "Law": "noise",
    "Ledger": "budget.ledger",
    "Outcome": "mechanism",
    "OverBudgetError": "budget.ledger",
    "ProposalSearch": "proposal",
    "ProposeTestRelease": "mechanism",
    "Question": "explanation",
    "Refused": "mechanism",
    "Released": "mechanism",
    "ReproducibleNoise": "noise",
    "RobustValue": "margins.quantile",
    "SecureNoise": "noise",
    "UnsafeMarginError": "mechanism",
    "calibrated": "calibration",
    "check_margin": "mechanism",
    "explain": "explanation",
    "exponential_quantile": "baseline",
    "iqr": "statistics",
    "median": "statistics",
    "mode": "statistics",
    "on_lattice": "mechanism",
    "open_column": "columns.opening",
    "open_groups": "columns.opening",
    "quantile": "statistics",
    "search_quantile": "proposal",
    "suggest_proposal": "proposal",
    "trimmed_mean": "statistics",
    "trimmed_sum": "statistics",
}

__all__ = [
    "ArrayColumn",
    "Branch",
    "Column",
    "Lattice",
    "Law",
    "Ledger",
    "Outcome",
    "OverBudgetError",
    "ProposalSearch",
    "ProposeTestRelease",
    "Question",
    "Refused",
    "Released",
    "ReproducibleNoise",
    "RobustValue",
    "SecureNoise",
    "UnsafeMarginError",
    "calibrated",
    "check_margin",
    "explain",
    "exponential_quantile",
    "iqr",
    "median",
    "mode",
    "on_lattice",
    "open_column",
    "open_groups",
    "quantile",
    "search_quantile",
    "suggest_proposal",
    "trimmed_mean",
    "trimmed_sum",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'prudent.release' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prudent.release.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
