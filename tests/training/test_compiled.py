"""A compiled step releases what the eager step releases."""

import copy
import warnings
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from prudent._torch_private import TorchDispatchMode, _near_fusions, is_intercepted
from prudent.accounting import DiscreteGaussianTest, GaussianTest
from prudent.training import (
    AdaptiveTrim,
    Chunk,
    Plan,
    ProposeTestRelease,
    Step,
    Sum,
)
from prudent.training.compiled import Compiled, PlacedNumbers
from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.keystream import Key
from tests.training.gradients.oracle import cross_entropy

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def network():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.LayerNorm(5),
        nn.Linear(5, 3),
    ).double()


def batch(seed, size=12):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 1, 8, 8, generator=generator, dtype=torch.float64)
    return Chunk(inputs, torch.arange(size) % 3, torch.arange(size) < size - 2)


def propose(test):
    return ProposeTestRelease(
        clip=1.0, propose=0.5, noise_multiplier=0.8, test=test, trim=AdaptiveTrim(first=0.5)
    )


RULES = {
    "sum": Sum(clip=1.0, noise_multiplier=0.8),
    "gaussian": propose(GaussianTest(2.0)),
    "discrete": propose(DiscreteGaussianTest(2.0)),
}


def step_of(model, rule, **options):
    plan = Plan(sampling_rate=0.1, steps=9, aggregation=rule)
    key = Key.from_seed(5)
    return Step(plan, model, cross_entropy, expected_batch=10.0, key=key, **options)


def traced(step):
    """The step as the compiler sees it, without the compiler, and the graphs it saw."""
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph

    step._run = Compiled(step._release, backend)
    return graphs


def assert_same_releases(one, other, batches):
    for number in batches:
        first, second = one([batch(number)]), other([batch(number)])
        for mine, expected in zip(first, second, strict=True):
            torch.testing.assert_close(mine, expected, equal_nan=True)
        for mine, expected in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad)
            with torch.no_grad():  # the parameters move, so they must not be baked in
                mine -= 0.1 * mine.grad
                expected -= 0.1 * expected.grad
    torch.testing.assert_close(one.trim, other.trim)


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("rule", "engine"),
    [
        *(("sum", Materialised), ("gaussian", Materialised), ("discrete", BookKeeping)),
        pytest.param("sum", BookKeeping, marks=pytest.mark.slow),
        pytest.param("gaussian", BookKeeping, marks=pytest.mark.slow),
        pytest.param("discrete", Materialised, marks=pytest.mark.slow),
    ],
)
def test_the_traced_step_is_the_eager_one(rule, engine):
    models = network(), network()
    one, other = (
        step_of(model, RULES[rule], engine=engine(model, cross_entropy)) for model in models
    )
    graphs = traced(one)
    assert_same_releases(one, other, range(5))
    assert len(graphs) == 1


@pytest.mark.unhurried
def test_every_call_draws_noise_of_its_own():
    step = step_of(network(), RULES["gaussian"])
    traced(step)
    gradients, margins = [], []
    for _ in range(4):
        margins.append(float(step([batch(0)]).noisy_margin))
        gradients.append(step.model[0].weight.grad.clone())
        step.trim.fill_(5.0)
    assert len(set(margins)) == 4
    assert not any(torch.equal(gradients[i], gradients[j]) for i in range(4) for j in range(i))


@pytest.mark.thorough
def test_shapes_have_programs_of_their_own():
    one, other = (step_of(network(), RULES["sum"]) for _ in range(2))
    graphs = traced(one)
    for size in (12, 7, 12, 7):
        one([batch(1, size)])
        other([batch(1, size)])
        torch.testing.assert_close(one.model[0].weight.grad, other.model[0].weight.grad)
    assert len(graphs) == 2


def test_buffers_are_not_baked_in():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 3).double()
            self.register_buffer("scale", torch.ones((), dtype=torch.float64))

        def forward(self, x):
            return self.layer(x.flatten(1) * self.scale)

    torch.manual_seed(0)
    model = Scaled()
    one, other = step_of(model, RULES["sum"]), step_of(copy.deepcopy(model), RULES["sum"])
    traced(one)
    for factor in (1.0, 1.0, 3.0):
        for step in (one, other):
            step.model.scale.fill_(factor)
            step([batch(2)])
        torch.testing.assert_close(one.model.layer.weight.grad, other.model.layer.weight.grad)


def test_what_cannot_be_traced_runs_as_it_is():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 3).double()

        def forward(self, x):
            # A look at a parameter's value, which a straight line of operations has no place for.
            sign = 1.0 if float(self.layer.bias.detach().sum()) > 0 else -1.0
            return sign * self.layer(x.flatten(1))

    torch.manual_seed(0)
    model = Branching()
    one, other = (step_of(copy.deepcopy(model), RULES["gaussian"]) for _ in range(2))
    traced(one)
    with pytest.warns(RuntimeWarning, match="could not be compiled and runs as it is"):
        assert_same_releases(one, other, [0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_releases(one, other, range(1, 4))


def test_a_corruption_is_not_compiled_on_the_host():
    with pytest.raises(ValueError, match="Expected corrupt or compile on the CPU, got both"):
        step_of(network(), RULES["sum"], corrupt=lambda values, *rest: values, compile=True)


@pytest.mark.thorough
def test_a_corruption_is_part_of_the_trace():
    def flip(values, chunk, generator):
        noise = {
            name: torch.randn(value.shape, dtype=value.dtype, generator=generator)
            for name, value in values.items()
        }
        return {name: noise[name] - value for name, value in values.items()}

    one, other = (step_of(network(), RULES["sum"], corrupt=flip) for _ in range(2))
    graphs = traced(one)
    assert_same_releases(one, other, range(4))
    assert len(graphs) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_no_result_is_held_while_a_program_is_made(fails):
    """A gradient is as large as the model; the first result is computed again, from its draws."""
    results = []

    def function(values):
        drawn = torch.rand(3, generator=generator)
        result = values + drawn
        results.append(weakref.ref(result))
        return result

    def backend(graph, examples):
        assert results[0]() is None
        if fails:
            raise RuntimeError("no compiler")
        return graph

    generator = torch.Generator().manual_seed(0)
    compiled = Compiled(function, backend)
    told = pytest.warns(RuntimeWarning, match=r"runs as it is.*\(RuntimeError\)\.$")
    with told if fails else nullcontext():  # the text of the error, of a batch perhaps, stays out
        first = compiled(torch.ones(3))
    second = compiled(torch.ones(3))
    eager = torch.Generator().manual_seed(0)
    for found in (first, second):
        assert torch.equal(found, 1 + torch.rand(3, generator=eager))


@pytest.mark.slow
def test_only_what_is_near_is_fused_on_a_device():
    """Otherwise the forward pass would compute and keep what the backward pass needs."""
    from torch._inductor.virtualized import V

    class Scheduler:
        @staticmethod
        def are_long_distant_nodes(one, other):
            return abs(one - other) > 64

    with _near_fusions():
        assert V.choices.can_fuse_vertical(Scheduler, 1, 9, 0)
        assert not V.choices.can_fuse_vertical(Scheduler, 1, 99, 0)
        assert V.choices.can_fuse_vertical(object(), 1, 99, 0)
    assert V.choices.can_fuse_vertical(Scheduler, 1, 99, 0)


class _Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def three_of(x):
    return torch.tensor(3).type_as(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numbers_of_torchscript_are_placed_by_kernels():
    """As DeBERTa's scripted functions make them; a graph can repeat a kernel, but no copy."""
    scripted = torch.jit.script(three_of)
    with _Calls() as before:
        scripted(torch.ones(2, device="meta"))
    with _Calls() as calls, PlacedNumbers():
        placed = scripted(torch.ones(2, device="meta"))
    assert "aten._to_copy.default" in before.names
    assert "aten._to_copy.default" not in calls.names
    assert "aten.full.default" in calls.names
    assert (placed.device.type, placed.dtype, placed.ndim) == ("meta", torch.float32, 0)
    with PlacedNumbers():
        assert not is_intercepted(), "kernels of our own would not run while a step is captured"
