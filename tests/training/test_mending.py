"""`fix=True`: layers that mix records are replaced, and the optimizer stays that of the model."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prudent.training import Plan, Sum, make_private
from prudent.training.checking import replace_unsupported_layers

PLAN = Plan(sampling_rate=0.5, steps=4, aggregation=Sum(clip=1.0, noise_multiplier=1e-6))


def mixed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.RReLU(),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 6),
        nn.BatchNorm1d(6),
        nn.Linear(6, 3),
    )


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(12, 1, 6, 6), torch.arange(12) % 3), batch_size=6)


@pytest.mark.parametrize("training", [True, False])
def test_batch_normalisation_is_refused_at_once_and_mended(training, capsys):
    model = mixed().train(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(ValueError, match=r"BatchNorm2d.* at '1'.*fix=True"):
        make_private(model, optimizer, loader(), plan=PLAN)
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    model, optimizer, batches = make_private(model, optimizer, loader(), plan=PLAN, fix=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("(")[0] for line in lines] == [
        "Replaced BatchNorm2d", "Replaced RReLU", "Replaced InstanceNorm2d", "Replaced BatchNorm1d",
    ]  # fmt: skip
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.train()
    for inputs, targets in batches:
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert all(not torch.equal(p, start[name]) for name, p in model.named_parameters())


def test_what_takes_the_place_keeps_records_apart_and_something_of_each():
    model = mixed()
    replace_unsupported_layers(model)
    inputs = torch.randn(4, 1, 6, 6)
    whole = model(inputs)
    assert torch.allclose(whole[:1], model(inputs[:1]), atol=1e-6)
    assert whole.std(0).min() > 1e-3


def test_other_mends():
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=1.0, scale_grad_by_freq=True)).bfloat16()
    assert len(replace_unsupported_layers(model)) == 2
    layer = model[0]
    assert (layer.max_norm, layer.scale_grad_by_freq) == (None, False)
    assert layer.weight.dtype == torch.float32
    assert replace_unsupported_layers(model) == []


def test_a_normalisation_that_is_meant_to_be_frozen_stays():
    model = mixed()
    model[1].eval(), model[6].eval()
    frozen = model[1]
    replace_unsupported_layers(model)
    assert model[1] is frozen
    assert replace_unsupported_layers(nn.Sequential(nn.BatchNorm1d(1))) == []


def test_one_layer_in_two_places_stays_one():
    shared = nn.BatchNorm2d(8)
    model = nn.ModuleDict({"one": nn.Sequential(shared), "two": nn.Sequential(shared)})
    assert len(replace_unsupported_layers(model)) == 2
    assert model["one"][0] is model["two"][0]
