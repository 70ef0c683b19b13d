"""Recipes: tuned experiments, each reproduced by `prudent train --recipe NAME`.

    recipe = recipe_named("scattering-linear")
    result = run(recipe.settings(seed=1), setup=recipe.setup)

A recipe maps every record by a public function of that record alone, and trains a small model on
what it returns; `RECIPES` holds them by name.
"""

from types import MappingProxyType
from typing import Any

from prudent._validate import ArgumentError
from prudent.accounting import GaussianTest
from prudent_lab import declared
from prudent_lab.experiment import Recipe
from prudent_lab.recipes import colour, digits
from prudent_lab.settings import Experiment, Method

__all__ = ["RECIPES", "Recipe", "recipe_named"]

_DECLARED = declared("prudent_lab.recipes", "recipes.toml")


def _recipe(name: str, family: str, summary: str, anchor: str, **own: dict[str, Any]) -> Recipe:
    """The recipe that a table of the file declares."""

    def settings(of: str) -> dict[str, Any]:
        found: dict[str, Any] = _DECLARED["families"][family][of] | own.get(of, {})
        return found | ({"test": GaussianTest(found["test"])} if "test" in found else {})

    return Recipe(
        name=name,
        summary=summary,
        anchor=anchor,
        experiment=Experiment.of(**settings("experiment")),
        others={Method.PTR: settings("ptr")},
        setup=colour.SETUP if family == "colour" else digits.on_rows(**own["setup"]),
    )


RECIPES = MappingProxyType({n: _recipe(n, **told) for n, told in _DECLARED["recipes"].items()})
"""Every recipe, by name."""


def recipe_named(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise ArgumentError("recipe", f"one of {', '.join(RECIPES)}", got=name)
    return RECIPES[name]
