"""The recipes by name."""

from types import MappingProxyType

from prudent._validate import ArgumentError
from prudent.lab.recipes.colour import RANDOM_IMAGES
from prudent.lab.recipes.digits import DIGITS
from prudent.lab.recipes.recipe import Recipe

_ALL = (*DIGITS, *RANDOM_IMAGES)

RECIPES = MappingProxyType({recipe.name: recipe for recipe in _ALL})
"""Every recipe, by name."""


def recipe_named(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise ArgumentError("recipe", f"one of {', '.join(RECIPES)}", got=name)
    return RECIPES[name]
