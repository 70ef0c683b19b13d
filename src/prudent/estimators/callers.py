"""What scikit-learn does around a private model that its price does not cover.

A guarantee is about the records that `fit` gets. Whoever chooses these records, fits again and
again, fits other steps to them or compares predictions with targets spends or reveals more, and
nothing of it passes through the model. What is on the stack when `fit` or `predict` is called tells
who it is. It does not show what a program does by itself: fits in a loop, `sklearn.utils.resample`
or a scaler outside of a pipeline, a metric that is called with predictions.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from prudent._rounding import exact
from prudent._validate import ArgumentError
from prudent._warning import PrivacyWarning, warn_once

# Parts of scikit-learn that hand records on as they are; steps of pipelines are looked at.
_PLAIN = (
    "sklearn.base",
    "sklearn.pipeline",
    "sklearn.utils",
    "sklearn.compose._column_transformer",
)
_ALL = ((float, 1.0), (type(None), None))  # values of `max_samples`; a whole 1 is one record
_CONTAINERS = ("sklearn.pipeline", "sklearn.compose._column_transformer")


def check_fit(model: Any) -> None:
    """Refuse resampled records, and warn of what else is not part of the price of a fit."""
    outermost = ""
    for frame in _frames():
        name, local = frame.f_globals.get("__name__", ""), frame.f_locals
        if name == "sklearn.ensemble._bagging" and _repeats(
            local.get("ensemble", local.get("self"))
        ):
            _refuse("an ensemble with bootstrap=False and max_samples=1.0", "BaggingRegressor")
        if name == "sklearn.ensemble._weight_boosting":
            _refuse("an ensemble that does not resample records", "AdaBoostRegressor")
        if isinstance(pipeline := local.get("self"), Pipeline):
            _check_steps(pipeline)
        if name.startswith("sklearn.") and not name.startswith(_PLAIN):
            owner = frame.f_code.co_name if pipeline is None else type(pipeline).__name__
            outermost = name.rpartition(".")[0] if owner.startswith("_") else owner
    if outermost:
        budget = (
            "is charged to no budget, as no ledger was given"
            if model.ledger is None
            else "is charged to the ledger"
        )
        warn_once(
            f"{outermost} of scikit-learn fits {type(model).__name__} to records that it chooses. "
            f"Each of its fits costs (ε = {exact(model.epsilon)}, δ = {exact(model.delta)}) for "
            f"the records of that fit and {budget}; scores, and all else that {outermost} computes "
            "from records, are exact and not private.",
            PrivacyWarning,
        )


def check_query(model: Any) -> None:
    """Warn that a score is exact, if predictions are asked for by one."""
    for frame in _frames():
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        own = name == "sklearn.base" or name.startswith("prudent.estimators.")
        if name == "sklearn.metrics._scorer" or (own and function == "score"):
            warn_once(
                f"The score of {type(model).__name__} is an exact function of the records that it "
                "is computed from: publish it only if they are public. A regression with r2=True "
                "releases a private R².",
                PrivacyWarning,
            )
            return


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _repeats(ensemble: Any) -> bool:
    """Whether a record may occur several times in a fit, or decide which others are in it."""
    most = getattr(ensemble, "max_samples", None)
    return bool(getattr(ensemble, "bootstrap", False)) or (type(most), most) not in _ALL


def _refuse(allowed: str, shown: str) -> None:
    raise ArgumentError(
        "X",
        f"records as they are: {allowed}",
        shown=f"a sample that {shown} drew",
        why="one record may be in it several times, and decide which others are",
    )


def _check_steps(pipeline: Pipeline) -> None:
    steps = pipeline.get_params(deep=True).values()  # also those of steps that consist of steps
    exact = dict.fromkeys(type(each).__name__ for each in steps if _is_exact(each))
    if exact:
        warn_once(
            f"Steps of a pipeline with a private model are fitted to the same records without "
            f"noise: {', '.join(exact)}. What they learn is not private, and the model's guarantee "
            "does not cover it. Use public constants, such as a FunctionTransformer's.",
            PrivacyWarning,
        )


def _is_exact(step: Any) -> bool:
    """Whether a step of a pipeline keeps what it computes from records, as far as can be told."""
    if isinstance(step, type) or not hasattr(step, "fit"):
        return False
    if type(step).__module__.startswith(("prudent.", *_CONTAINERS)):
        return False
    if type(step).__name__ == "PolynomialFeatures" or getattr(step, "strategy", "") == "constant":
        return False  # the first reads shapes alone
    if not isinstance(getattr(step, "categories", ""), str):
        return False  # an encoder of public categories
    return not hasattr(step, "__sklearn_tags__") or bool(get_tags(step).requires_fit)
