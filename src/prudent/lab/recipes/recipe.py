"""A recipe: a public map of records, a model on what it returns, and tuned settings."""

from collections.abc import Mapping
from typing import Any

import attrs

from prudent.lab.experiment import Setup
from prudent.lab.settings import Experiment, Method


@attrs.frozen(kw_only=True)
class Recipe:
    """A tuned experiment: `run(recipe.settings(seed=1), setup=recipe.setup)` runs it.

    Attributes:
        name: Name for `--recipe`.
        summary: What it does, in one line.
        anchor: The published result it is compared with.
        experiment: The settings of the method that does best.
        others: The settings that other methods change, by method.
        setup: The public map of records, the model and the loss.
    """

    name: str
    summary: str
    anchor: str
    experiment: Experiment
    others: Mapping[Method, Mapping[str, Any]] = attrs.field(factory=dict)
    setup: Setup

    def settings(self, **changes: Any) -> Experiment:
        """The recipe's experiment with these changes; `method` brings that method's settings."""
        method = Method(changes.pop("method", self.experiment.rule.method))
        own = {} if method is self.experiment.rule.method else self.others.get(method, {})
        return self.experiment.changed(method=method, **{**own, **changes})
