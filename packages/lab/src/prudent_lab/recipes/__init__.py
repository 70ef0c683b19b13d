"""Recipes: tuned experiments, each reproduced by `prudent train --recipe NAME`.

    recipe = recipe_named("scattering-linear")
    result = run(recipe.settings(seed=1), setup=recipe.setup)

A recipe maps every record by a public function of that record alone, and trains a small model on
what it returns; `RECIPES` holds them by name.
"""

from types import MappingProxyType

from prudent._validate import ArgumentError
from prudent_lab.experiment import Recipe
from prudent_lab.recipes.colour import RANDOM_IMAGES
from prudent_lab.recipes.digits import DIGITS

__all__ = ["RECIPES", "Recipe", "recipe_named"]

_ALL = (*DIGITS, *RANDOM_IMAGES)

RECIPES = MappingProxyType({recipe.name: recipe for recipe in _ALL})
"""Every recipe, by name."""


def recipe_named(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise ArgumentError("recipe", f"one of {', '.join(RECIPES)}", got=name)
    return RECIPES[name]
