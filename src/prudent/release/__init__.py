"""Private statistics by Propose-Test-Release: propose a sensitivity, test it, release or refuse.

Names are imported on first use, so that releasing from arrays needs no database packages, and
keeping a budget needs no noise samplers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prudent.release.baseline import exponential_quantile
    from prudent.release.budget.ledger import Ledger, OverBudgetError
    from prudent.release.columns.column import ArrayColumn, Column
    from prudent.release.columns.opening import open_column, open_groups
    from prudent.release.explanation import Question, explain
    from prudent.release.lattice import Lattice
    from prudent.release.margins.checking import UnsafeMarginError, check_margin, on_lattice
    from prudent.release.margins.quantile import RobustValue
    from prudent.release.mechanism import ProposeTestReleaseMechanism
    from prudent.release.noise import Law, ReproducibleNoise, SecureNoise
    from prudent.release.outcome import Branch, Outcome, Refused, Released
    from prudent.release.preview import Preview
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
    "Branch": "outcome",
    "Column": "columns.column",
    "Lattice": "lattice",
    "Law": "noise",
    "Ledger": "budget.ledger",
    "Outcome": "outcome",
    "OverBudgetError": "budget.ledger",
    "Preview": "preview",
    "ProposalSearch": "proposal",
    "ProposeTestReleaseMechanism": "mechanism",
    "Question": "explanation",
    "Refused": "outcome",
    "Released": "outcome",
    "ReproducibleNoise": "noise",
    "RobustValue": "margins.quantile",
    "SecureNoise": "noise",
    "UnsafeMarginError": "margins.checking",
    "check_margin": "margins.checking",
    "explain": "explanation",
    "exponential_quantile": "baseline",
    "iqr": "statistics",
    "median": "statistics",
    "mode": "statistics",
    "on_lattice": "margins.checking",
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
    "Preview",
    "ProposalSearch",
    "ProposeTestReleaseMechanism",
    "Question",
    "Refused",
    "Released",
    "ReproducibleNoise",
    "RobustValue",
    "SecureNoise",
    "UnsafeMarginError",
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
