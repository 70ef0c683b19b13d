"""The recipes for digits: rows that depend on one image alone, and settings that can be changed."""

import attrs
import numpy as np
import pytest
import torch

from prudent._validate import ArgumentError
from prudent_lab.datasets import Dataset
from prudent_lab.experiment import run
from prudent_lab.recipes import RECIPES, recipe_named
from prudent_lab.recipes.digits import (
    glyph_rows,
    joined_rows,
    scattering_rows,
    shifted,
    views,
)
from prudent_lab.scattering import scattering
from prudent_lab.settings import Method

GLYPHS_LINEAR = RECIPES["glyphs-linear"]


@pytest.fixture(scope="module")
def digits():
    """Strokes at ten places, with noise."""
    generator, labels = torch.Generator().manual_seed(1), torch.arange(400) % 10
    images = 0.3 * torch.rand(400, 1, 28, 28, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 4 + 2 * label : 7 + 2 * label, 5:23] = 1
    return Dataset("strokes", images[:300], labels[:300], images[300:], labels[300:], 10, "")


@pytest.mark.unhurried
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


def test_codes_of_the_glyph_network_do_not_depend_on_the_batch(digits, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    images = digits.train_features[:40].clone()
    images[20:] = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    images[3, 0, 2, 2] = torch.nan
    images[4] *= 3
    alone = torch.cat([glyph_rows(image[None]) for image in images])
    last = images.contiguous(memory_format=torch.channels_last)
    for same in (images, last, images.permute(2, 3, 0, 1).clone().permute(2, 3, 0, 1)):
        assert torch.equal(glyph_rows(same).nan_to_num(9), alone.nan_to_num(9))


def test_scattering_of_tensors_is_that_of_arrays(digits):
    images = digits.train_features[:8, 0]
    found = scattering(images)
    assert found.shape == (8, 81, 49)
    np.testing.assert_allclose(found.numpy(), scattering(images.numpy()), atol=2e-6)


def test_a_small_run_of_a_recipe(digits):
    settings = GLYPHS_LINEAR.settings(steps=4, batch=300, lr=100.0, seed=1)
    result = run(settings, setup=GLYPHS_LINEAR.setup, dataset=digits, evaluations=1)
    assert result.epsilon <= 3.0
    assert result.accuracy > 0.3


def test_views_of_training_images_are_those_of_shifted_ones(digits):
    prepared = views(glyph_rows, 3)(digits, torch.device("cpu"))
    assert prepared.train_features.shape == (300, 3, 256)
    assert torch.equal(prepared.train_features[:, 0], glyph_rows(digits.train_features))
    moved = glyph_rows(shifted(digits.train_features, (-1, 0)))
    assert torch.equal(prepared.train_features[:, 2], moved)
    assert torch.equal(prepared.test_features, glyph_rows(digits.test_features))


def test_a_method_brings_its_own_settings():
    recipe = attrs.evolve(GLYPHS_LINEAR, others={Method.PTR: {"clip": 7.0, "propose": 0.25}})
    plain, ptr = recipe.settings(seed=2), recipe.settings(method="ptr", propose=0.5)
    assert (plain.rule, plain.seed) == (recipe.experiment.rule, 2)
    assert plain.rule.method is Method.DPSGD
    assert (ptr.rule.method, ptr.rule.clip, ptr.rule.propose) == (Method.PTR, 7.0, 0.5)
    assert recipe.settings(method="dpsgd").rule == recipe.experiment.rule


def test_recipes_by_name():
    for name, recipe in RECIPES.items():
        assert recipe_named(name).name == name
        assert recipe.summary
        assert recipe.experiment.privacy.epsilon is not None
    with pytest.raises(ArgumentError, match="glyphs-linear"):
        recipe_named("glyph")
