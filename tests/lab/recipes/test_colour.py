"""Features of colour images: public functions of one record, of length 1, cached as a network."""

import attrs
import pytest
import torch

from prudent.accounting import GaussianTest
from prudent_lab.datasets import Dataset
from prudent_lab.experiment import run
from prudent_lab.recipes import colour, recipe_named
from prudent_lab.recipes.colour import (
    CELLS,
    colour_features,
    linear_head,
    pretrained,
    whitening_of,
)
from prudent_lab.recipes.pretraining import Pretraining

TINY = Pretraining(
    widths=(4, 4, 4, 8), images=8, side=32, mixture=(("noise", 1.0),), batch=8, steps=1
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("networks"))


@pytest.fixture(scope="module")
def features(cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        patch.setattr(colour, "_REFERENCES", 64)
        patch.setattr(colour, "_AT_ONCE", 32)
        colour_features.cache_clear()
        yield colour_features(TINY)
        colour_features.cache_clear()


@pytest.fixture(scope="module")
def images():
    return torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def test_features_have_length_one_and_ignore_reflections(features, images):
    found = features(images)
    assert found.shape == (40, sum(TINY.widths[stage] * side**2 for stage, side in CELLS))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(40))
    torch.testing.assert_close(features(images.flip(3)), found, atol=1e-4, rtol=1e-3)


def test_features_of_a_record_do_not_depend_on_the_records_beside_it(features, images):
    odd = images.clone()
    odd[1:] = torch.nan
    odd[5] = 1e30
    found = features(odd)
    torch.testing.assert_close(found[:1], features(images)[:1], atol=1e-4, rtol=1e-3)
    assert not found[1:5].any()  # an image that is not finite has no gradient
    assert found.isfinite().all()
    torch.testing.assert_close(features(images[:1]), features(images)[:1], atol=1e-4, rtol=1e-3)


def test_a_network_is_pretrained_once(features, cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setattr(colour, "pretrain", lambda *_, **__: pytest.fail("pretrained again"))
    again = pretrained(TINY).state_dict()
    assert all(torch.equal(again[name], v) for name, v in features.encoder.state_dict().items())
    with pytest.raises(pytest.fail.Exception):  # another setting is another network
        pretrained(attrs.evolve(TINY, seed=1))


def test_whitening_gives_uncorrelated_features_of_equal_variance_above_the_floor():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4000, 6, generator=generator) @ torch.randn(6, 6, generator=generator)
    rows = rows - rows.mean(0)
    white = rows @ whitening_of(rows, [2, 4], floor=1e-7)
    covariance = white.T @ white / len(rows)
    torch.testing.assert_close(covariance / covariance[0, 0], torch.eye(6), atol=1e-2, rtol=0)
    floored = rows @ whitening_of(rows, [2, 4], floor=10.0)  # far above: hardly any whitening
    covariance = floored.T @ floored
    assert (covariance / covariance[0, 0] - torch.eye(6)).abs().max() > 0.1


def test_a_data_set_is_prepared_with_its_labels_unchanged(features, images, monkeypatch):
    monkeypatch.setattr(colour, "colour_features", lambda *_: features)
    labels = torch.arange(40) % 10
    data = Dataset("toy", images, labels, images[:7], labels[:7], 10, "")
    prepared = colour.prepare(data, torch.device("cpu"))
    assert torch.equal(prepared.train_features, features(images))
    assert prepared.test_features.shape[0] == 7
    assert torch.equal(prepared.train_labels, labels)
    head = linear_head(prepared, 0)
    assert [(name, bool(p.any())) for name, p in head.named_parameters()] == [("weight", False)]
    assert head(prepared.train_features).shape == (40, 10)


def test_other_images_are_refused(images):
    labels = torch.arange(40) % 10
    data = Dataset("grey", images[:, :1], labels, images[:7, :1], labels[:7], 10, "")
    with pytest.raises(ValueError, match="colour images of 32 × 32 pixels, got 'grey'"):
        colour.prepare(data, torch.device("cpu"))


def test_a_large_network_is_not_pretrained_on_a_cpu():
    with pytest.raises(ValueError, match="once with --device cuda"):
        pretrained(colour.NETWORK)


def test_recipes_are_named_by_their_budgets():
    for epsilon in (1, 3, 8):
        settings = recipe_named(f"random-images-{epsilon}").settings()
        privacy = settings.privacy
        assert (privacy.epsilon, privacy.delta, settings.dataset) == (epsilon, 1e-5, "cifar10")


@pytest.mark.parametrize("method", ["dpsgd", "ptr"])
def test_a_recipe_trains_a_head_on_the_features(features, images, method, monkeypatch):
    monkeypatch.setattr(colour, "colour_features", lambda *_: features)
    recipe = recipe_named("random-images-3")
    settings = recipe.settings(
        method=method, steps=2, epsilon=None, noise_multiplier=1.0, test=GaussianTest(1.0)
    )
    labels = torch.arange(40) % 10
    data = Dataset("toy", images, labels, images[:7], labels[:7], 10, "")
    result = run(settings, dataset=data, setup=recipe.setup, evaluations=1)
    assert result.fitted.plan.sampling_rate == 1.0
    assert result.fitted.model.weight.any()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpsgd", "ptr"])
def test_the_price_of_a_recipe_is_what_its_name_says(method):
    settings = recipe_named("random-images-1").settings(method=method)
    assert 0.99 < settings.plan(50_000).epsilon(1e-5) <= 1.0
