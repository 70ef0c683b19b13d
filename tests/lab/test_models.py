import math

import pytest
import torch
from torch import nn

from prudent_lab import models
from tests.raising import refused


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("shape", "classes", "parameters"),
    [((1, 28, 28), 10, 26_010), ((1, 28, 28), 26, 26_538), ((3, 32, 32), 10, 37_274)],
)
def test_the_tutorial_network_has_the_published_size(shape, classes, parameters):
    model = models.tutorial_cnn(shape, classes)
    assert size(model) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("height", [20, 22, 28, 32, 46])
def test_every_even_size_runs_and_is_padded_as_tensorflow_does(height):
    model = models.tutorial_cnn((1, height, 20))
    assert model(torch.zeros(1, 1, height, 20)).shape == (1, 10)
    # "same" gives ceil(side / stride) outputs, its padding split evenly with the rest at the end.
    outputs = math.ceil(height / 2)
    padding = (outputs - 1) * 2 + 8 - height
    assert (padding // 2, padding - padding // 2) == (3, 3)
    assert model.conv1(torch.zeros(1, 1, height, 20)).shape[2] == outputs


@pytest.mark.parametrize(
    "shape", [(1, 27, 28), (1, 18, 28), (0, 28, 28), (2**13, 28, 28), (28, 28)]
)
def test_sizes_that_do_not_fit_are_refused(shape):
    with refused("shape"):
        models.tutorial_cnn(shape)


@pytest.mark.parametrize(
    "model",
    [
        models.tutorial_cnn(),
        models.multilayer_perceptron((4, 5), 3, (50, 60)),
    ],
)
def test_weights_are_glorot_uniform_and_biases_zero(model):
    for layer in model.requires_grad_(False):
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        receptive = layer.weight[0, 0].numel()
        fans = layer.weight.shape[0] + layer.weight.shape[1]
        bound = math.sqrt(6 / (receptive * fans))
        assert layer.weight.abs().max() <= bound
        assert layer.weight.abs().max() > 0.9 * bound
        # A uniform variable has a deviation of bound / sqrt(3); five standard errors of it.
        tolerance = 5 * 0.45 / math.sqrt(layer.weight.numel())
        assert float(layer.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=tolerance)
        assert not layer.bias.any()


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(1)
    first = models.tutorial_cnn(seed=3).state_dict()
    torch.manual_seed(2)
    again, other = (
        models.tutorial_cnn(seed=3).state_dict(),
        models.tutorial_cnn(seed=4).state_dict(),
    )
    assert all(first[name].equal(again[name]) for name in first)
    assert not first["conv1.weight"].equal(other["conv1.weight"])


def test_there_is_a_relu_between_all_layers_and_none_at_the_end():
    for model in (models.tutorial_cnn(), models.multilayer_perceptron((3,), 2, (4, 5))):
        kinds = [type(layer) for layer in model]
        assert kinds.count(nn.ReLU) == kinds.count(nn.Conv2d) + kinds.count(nn.Linear) - 1
        assert kinds[-1] is nn.Linear


def test_a_perceptron_flattens_its_input():
    model = models.multilayer_perceptron((2, 3), classes=4, hidden=(7,))
    assert size(model) == 6 * 7 + 7 + 7 * 4 + 4
    assert model(torch.zeros(5, 2, 3)).shape == (5, 4)


def test_logistic_regression_starts_at_zero():
    model = models.logistic_regression((256,), 10)
    assert size(model) == 2570
    assert not model(torch.randn(3, 256)).any()
