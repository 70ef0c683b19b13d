"""The recipes by name."""

from types import MappingProxyType

from prudent._validate import ArgumentError
from prudent.experiments.recipes.digits import DIGITS
from prudent.experiments.recipes.recipe import Recipe

_ALL = (*DIGITS,)

RECIPES = MappingProxyType({recipe.name: recipe for recipe in _ALL})
"""Every recipe, by name."""


def recipe_named(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise ArgumentError("recipe", f"one of {', '.join(RECIPES)}", got=name)
    return RECIPES[name]
