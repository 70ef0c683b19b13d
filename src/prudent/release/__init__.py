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
    from prudent.release.description import Description
    from prudent.release.explanation import Question, explain
    from prudent.release.histogram import Histogram
    from prudent.release.lattice import Lattice
    from prudent.release.margins.checking import UnsafeMarginError, check_margin, on_lattice
    from prudent.release.margins.quantile import RobustValue
    from prudent.release.mechanism import ProposeTestReleaseMechanism
    from prudent.release.noise import Law, ReproducibleNoise, SecureNoise
    from prudent.release.outcome import Branch, Outcome, Refused, Released
    from prudent.release.partitions import PartitionSelection
    from prudent.release.preview import Preview
    from prudent.release.proposal import ProposalSearch, search_quantile, suggest_proposal
    from prudent.release.statistics import (
        count,
        describe,
        histogram,
        iqr,
        mean,
        median,
        mode,
        quantile,
        sum,
        trimmed_mean,
        trimmed_sum,
        variance,
    )

_HOMES = {
    "ArrayColumn": "columns.column",
    "Branch": "outcome",
    "Column": "columns.column",
    "Description": "description",
    "Histogram": "histogram",
    "Lattice": "lattice",
    "Law": "noise",
    "Ledger": "budget.ledger",
    "Outcome": "outcome",
    "OverBudgetError": "budget.ledger",
    "PartitionSelection": "partitions",
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
    "count": "statistics",
    "describe": "statistics",
    "explain": "explanation",
    "exponential_quantile": "baseline",
    "histogram": "statistics",
    "iqr": "statistics",
    "mean": "statistics",
    "median": "statistics",
    "mode": "statistics",
    "on_lattice": "margins.checking",
    "open_column": "columns.opening",
    "open_groups": "columns.opening",
    "quantile": "statistics",
    "search_quantile": "proposal",
    "suggest_proposal": "proposal",
    "sum": "statistics",
    "trimmed_mean": "statistics",
    "trimmed_sum": "statistics",
    "variance": "statistics",
}

__all__ = [
    "ArrayColumn",
    "Branch",
    "Column",
    "Description",
    "Histogram",
    "Lattice",
    "Law",
    "Ledger",
    "Outcome",
    "OverBudgetError",
    "PartitionSelection",
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
    "count",
    "describe",
    "explain",
    "exponential_quantile",
    "histogram",
    "iqr",
    "mean",
    "median",
    "mode",
    "on_lattice",
    "open_column",
    "open_groups",
    "quantile",
    "search_quantile",
    "suggest_proposal",
    "sum",
    "trimmed_mean",
    "trimmed_sum",
    "variance",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'prudent.release' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prudent.release.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
