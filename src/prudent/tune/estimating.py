"""The private counterpart of a grid search: the best settings of a private estimator, at one price.

A grid search that fits every setting pays for every fit. Here a random number of settings is
fitted, each is scored on held-out records with noise, and only the best is released
(`prudent.tune.tuning`).
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.losses.trial_counts import TrialCount
from prudent.accounting.serialisation import to_json
from prudent.tune.candidate import Candidate, Scored, ScoreNoise, check_score_noise, scored_event
from prudent.tune.space import Setting, Trial
from prudent.tune.tuning import Tuned, tune

if TYPE_CHECKING:
    from prudent.estimators import PrivateEstimator

_MODEL = "model.json"
_MOST = 1000  # settings of a grid


def search(
    estimator: "PrivateEstimator",
    grid: Mapping[str, Sequence[Any]],
    data: tuple[Any, Any],
    *,
    held_out: tuple[Any, Any],
    trials: TrialCount,
    delta: float,
    score_noise: ScoreNoise | None,
    tolerance: float | None = None,
    disjoint: bool = False,
    epsilon: float | None = None,
    ledger: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Tuned:
    """Fit a random number of settings of an estimator, and release the best one.

    Args:
        estimator: A classifier or a regressor of `prudent.estimators`.
        grid: For each argument of the estimator, the values it may take, as in scikit-learn's
            `GridSearchCV`. Each setting is drawn with the same probability.
        data: The features, as an array or a frame, and the targets, as an array.
        held_out: Features and targets of the records that fitted models are scored on: the score
            is the number of those that are predicted correctly.
        trials: The distribution of the number of fits, such as `Geometric(10)`.
        delta: The δ at which the search is priced.
        score_noise: The noise of a score, such as `DiscreteLaplaceTest(20)`, in records; None: the
            held-out records are public.
        tolerance: How far a predicted number may be off to be correct; None for labels.
        disjoint: Whether no person has records both in `data` and among the held-out ones. Then a
            candidate costs the worse of fit and score instead of both.
        epsilon: The largest ε allowed; a search that costs more is not begun.
        ledger: Charged for the whole search before the first fit; that of the estimator is not.
        out: See `tune`.
        resume: See `tune`.

    Returns:
        The best candidate; `Tuned.value` is the fitted estimator.

    Guarantee:
        That of `tune`: the fitted estimator, its setting and its score together are (ε, δ)-DP at
        `Tuned.epsilon`.
    """
    check_score_noise(score_noise=score_noise)
    from prudent.estimators.base import PrivateEstimator

    _validate.instance(PrivateEstimator, "one of prudent.estimators", estimator=estimator)
    _validate.instance(Mapping, "a mapping of arguments to their values", grid=grid)
    for name, pair in (("data", data), ("held_out", held_out)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentError(name, "(features, targets)", shown=type(pair).__name__)
    if tolerance is not None:
        tolerance = _validate.non_negative(tolerance=tolerance)
    known = {name: _validate.values(**{name: each}) for name, each in grid.items()}
    settings = [
        dict(zip(known, values, strict=True))
        for values in itertools.islice(itertools.product(*known.values()), _MOST + 1)
    ]
    if not 1 <= len(settings) <= _MOST:
        raise ArgumentError("grid", f"of 1 to {_MOST:,} settings", shown=f"{len(settings):,}")
    work = _Fit(estimator, data, held_out, score_noise, tolerance)
    columns = work.estimator.columns_of(*data)
    fits = [work.model(each).event_for(*columns) for each in settings]
    different = list({to_json(each): each for each in fits}.values())
    event = scored_event(different, score_noise, disjoint=_validate.flag(disjoint=disjoint))

    def space(trial: Trial) -> None:
        for name, values in known.items():
            trial.choice(name, values)

    return tune(
        Candidate(work, event, load=work.load),
        space,
        trials=trials,
        delta=delta,
        epsilon=epsilon,
        ledger=ledger,
        out=out,
        resume=resume,
    )


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class _Fit:
    """What a candidate of `search` does."""

    estimator: Any
    data: tuple[Any, Any]
    held_out: tuple[Any, Any]
    score_noise: ScoreNoise | None
    tolerance: float | None

    def model(self, setting: Setting) -> Any:
        """An estimator with a setting that charges nobody."""
        from sklearn.base import clone

        return clone(self.estimator).set_params(**{"ledger": None, **setting})

    def __call__(self, setting: Setting, folder: Path) -> Scored:
        """Fit, score, and keep the model."""
        from prudent.estimators import saving
        from prudent.release.noise import source_of

        model = self.model(setting).fit(*self.data)
        score = float(self._right(model))
        if self.score_noise is not None:
            score += source_of(model.noise).of_test(self.score_noise)
        saving.write(folder / _MODEL, model)
        return Scored(score)

    def _right(self, model: Any) -> int:
        """The number of held-out records that are predicted correctly, each by itself.

        One on which the model raises an error counts as wrong.
        """
        features, targets = self.held_out
        rows = features.iloc if hasattr(features, "iloc") else features
        known = targets.tolist() if hasattr(targets, "tolist") else list(targets)
        total = 0
        for place, target in enumerate(known):
            with contextlib.suppress(Exception):
                (found,) = model.predict(rows[place : place + 1]).tolist()
                if self.tolerance is None:
                    total += bool(found == target)
                else:
                    total += bool(abs(found - target) <= self.tolerance)
        return total

    def load(self, setting: Setting, folder: Path) -> Any:
        """The fitted estimator."""
        from prudent.estimators import saving

        model = self.model(setting).set_params(noise=None)
        saving.read(folder / _MODEL, model)
        return model
