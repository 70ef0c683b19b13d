"""Private training: plans, aggregations, engines, and the training loop."""

from prudent.training.adapters.private import make_private
from prudent.training.aggregation import (
    AdaptiveTrim,
    Aggregation,
    Fallback,
    FixedTrim,
    Mean,
    ProposeTestRelease,
    Sum,
    TrimmedSum,
)
from prudent.training.checking.check import CheckReport, check
from prudent.training.checking.suggestion import gradient_norms, suggest_aggregation
from prudent.training.chunk import Chunk
from prudent.training.keystream import Key
from prudent.training.plan import HeldOut, Plan, Watch
from prudent.training.run.execution import EngineChoice, Execution, Reporting, accuracy
from prudent.training.run.fit import Fitted, fit
from prudent.training.run.metrics import Metrics
from prudent.training.sampling import PoissonSampler
from prudent.training.step import Step, StepOutcome

__all__ = [
    "AdaptiveTrim",
    "Aggregation",
    "CheckReport",
    "Chunk",
    "EngineChoice",
    "Execution",
    "Fallback",
    "Fitted",
    "FixedTrim",
    "HeldOut",
    "Key",
    "Mean",
    "Metrics",
    "Plan",
    "PoissonSampler",
    "ProposeTestRelease",
    "Reporting",
    "Step",
    "StepOutcome",
    "Sum",
    "TrimmedSum",
    "Watch",
    "accuracy",
    "check",
    "fit",
    "gradient_norms",
    "make_private",
    "suggest_aggregation",
]
