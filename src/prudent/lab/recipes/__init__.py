"""Recipes: tuned experiments, each reproduced by `prudent train --recipe NAME`.

    recipe = recipe_named("scattering-linear")
    result = run(recipe.settings(seed=1), setup=recipe.setup)

A recipe maps every record by a public function of that record alone, and trains a small model on
what it returns; `RECIPES` holds them by name.
"""

from prudent.lab.recipes.recipe import Recipe
from prudent.lab.recipes.registry import RECIPES, recipe_named

__all__ = ["RECIPES", "Recipe", "recipe_named"]
