"""The recipes for digits: rows that depend on one image alone, and settings that can be changed."""

import attrs
import numpy as np
import pytest
import torch

from prudent._validate import ArgumentError
from prudent.experiments.datasets import load
from prudent.experiments.experiment import Method, run
from prudent.experiments.recipes import RECIPES, recipe_named
from prudent.experiments.recipes.digits import GLYPHS_LINEAR, on_rows
from prudent.experiments.recipes.features import glyph_rows, joined_rows, scattering_rows
from prudent.experiments.scattering import scattering
from prudent.experiments.whole_network import codes_of, glyph_network


@pytest.fixture(scope="module")
def digits():
    data = load("mnist")
    return attrs.evolve(
        data,
        train_features=data.train_features[:300],
        train_labels=data.train_labels[:300],
        test_features=data.test_features[:100],
        test_labels=data.test_labels[:100],
    )


@pytest.mark.parametrize("rows", [scattering_rows, glyph_rows, joined_rows])
def test_a_row_depends_on_its_image_alone(digits, rows):
    images = digits.train_features[:70].clone()
    found = rows(images)
    assert found.dtype == torch.float16
    lengths = found.float().norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(70), atol=2e-3, rtol=0)
    images[1:] = torch.rand(69, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    images[5] = torch.nan
    assert torch.equal(rows(images)[0], found[0])
    assert not torch.equal(rows(images)[1], found[1])


def test_codes_of_the_glyph_network_are_the_same_bits_in_torch(digits):
    images = digits.train_features[:40].clone()
    images[3, 0, 2, 2] = torch.nan
    images[4] *= 3
    wanted = glyph_network()(images.numpy())
    assert np.array_equal(
        codes_of(glyph_network(), images).double().numpy(), wanted, equal_nan=True
    )


def test_scattering_of_tensors_is_that_of_arrays(digits):
    images = digits.train_features[:8, 0]
    found = scattering(images)
    assert found.shape == (8, 81, 49)
    np.testing.assert_allclose(found.numpy(), scattering(images.numpy()), atol=2e-6)


def test_a_small_run_of_a_recipe(digits):
    settings = GLYPHS_LINEAR.settings(steps=4, batch=300, lr=100.0, seed=1)
    result = run(settings, setup=GLYPHS_LINEAR.setup, dataset=digits, progress=False, evaluations=1)
    assert result.epsilon <= 3.0
    assert result.accuracy > 0.3
    again = on_rows(glyph_rows, copies=3, whitening=4.0)
    other = run(settings, setup=again, dataset=digits, progress=False, evaluations=1)
    assert other.epsilon <= 3.0
    assert other.accuracy > 0.3
    assert other.fitted.plan.before is not None


def test_a_method_brings_its_own_settings():
    recipe = attrs.evolve(GLYPHS_LINEAR, others={Method.PTR: {"clip": 7.0, "propose": 0.25}})
    plain, ptr = recipe.settings(seed=2), recipe.settings(method="ptr", propose=0.5)
    assert (plain.method, plain.clip, plain.seed) == (Method.DPSGD, recipe.experiment.clip, 2)
    assert (ptr.method, ptr.clip, ptr.propose) == (Method.PTR, 7.0, 0.5)
    assert recipe.settings(method="dpsgd").clip == recipe.experiment.clip


def test_recipes_by_name():
    for name, recipe in RECIPES.items():
        assert recipe_named(name).name == name
        assert recipe.summary
        assert recipe.experiment.epsilon is not None
    with pytest.raises(ArgumentError, match="glyphs-linear"):
        recipe_named("glyph")
