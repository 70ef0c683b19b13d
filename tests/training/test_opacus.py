"""Opacus's loop under a plan: the same release as `Step`, and nothing it cannot pay for."""

import copy
import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from prudent.accounting.events import GaussianTest
from prudent.training import (
    AdaptiveTrim,
    Aggregation,
    Chunk,
    FixedTrim,
    Plan,
    ProposeTestRelease,
    Step,
    Sum,
    TrimmedSum,
)
from prudent.training.keystream import Key

pytest.importorskip("opacus")

from opacus import GradSampleModule
from opacus.accountants import PRVAccountant
from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleHooks, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)

from prudent.training.opacus import PrivateOptimizer, realised_rate

# The first layer's input needs no gradient; torch mentions it at every backward pass.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")

RECORDS, RATE = 64, 0.25
SILENT = 1e-6

AGGREGATIONS = {
    "sum": Sum(clip=0.5, noise_multiplier=SILENT),
    "trimmed": TrimmedSum(clip=0.5, noise_multiplier=SILENT, trim=FixedTrim(0.25)),
    "passes": ProposeTestRelease(
        clip=100.0, propose=0.9, noise_multiplier=SILENT, failure=0.1, test=GaussianTest(0.5)
    ),
    "fails": ProposeTestRelease(
        clip=0.1,
        propose=0.01,
        noise_multiplier=SILENT,
        test=GaussianTest(0.5),
        trim=AdaptiveTrim(first=0.1),
    ),
}


def images() -> TensorDataset:
    """Ten classes of small blurry images, separable enough to learn."""
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 10, (RECORDS,), generator=draw)
    centres = torch.randn(10, 1, 8, 8, generator=draw)
    return TensorDataset(
        centres[targets] + 0.3 * torch.randn(RECORDS, 1, 8, 8, generator=draw), targets
    )


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 10)
    )


def loader(data: TensorDataset | None = None, rate: float = RATE, **options: Any) -> DPDataLoader:
    generator = torch.Generator().manual_seed(3)
    data = images() if data is None else data
    return DPDataLoader(data, sample_rate=rate, generator=generator, **options)


def plan(aggregation: Aggregation, **changes: Any) -> Plan:
    return Plan(**{"sampling_rate": RATE, "steps": 100, "aggregation": aggregation, **changes})


def private(
    model: nn.Module,
    aggregation: Aggregation,
    wrap: Callable[[nn.Module], Any] = GradSampleModule,
    lr: float = 1.0,
    seed: int = 0,
) -> tuple[Any, PrivateOptimizer]:
    module = wrap(model)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr),
        plan(aggregation),
        module,
        loader(),
        key=Key.from_seed(seed),
    )
    return module, optimizer


def backward(module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    nn.functional.cross_entropy(module(inputs), targets).backward()


def record_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def assert_close(model: nn.Module, other: nn.Module) -> None:
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


def stepped(aggregation: Aggregation, batches: list[Any], seed: int = 0) -> tuple[nn.Module, Step]:
    """What `Step` makes of the same batches."""
    model = network()
    step = Step(
        plan(aggregation),
        model,
        record_losses,
        expected_batch=RATE * RECORDS,
        key=Key.from_seed(seed),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for inputs, targets in batches:
        step([Chunk(inputs, targets)])
        optimizer.step()
    return model, step


@pytest.mark.parametrize("mode", ["hooks", "functorch", "attached"])
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_takes_the_steps_of_prudent_step(name: str, mode: str) -> None:
    wrap = {
        "hooks": GradSampleModule,
        "functorch": lambda model: GradSampleModule(model, force_functorch=True),
        "attached": GradSampleHooks,
    }[mode]
    batches = [batch for batch, _ in zip(loader(), range(3), strict=False)]
    model = network()
    module, optimizer = private(model, AGGREGATIONS[name], wrap)
    for inputs, targets in batches:
        backward(model if mode == "attached" else module, inputs, targets)
        optimizer.step()
        optimizer.zero_grad()
    expected, step = stepped(AGGREGATIONS[name], batches)
    assert_close(model, expected)
    assert optimizer.steps == 3
    assert optimizer.outcome is not None
    assert bool(optimizer.outcome.passed) == (name in ("passes", "trimmed"))
    assert optimizer.state_dict()["trim"] == step.trim


def test_the_comparison_with_step_can_fail() -> None:
    batches = [next(iter(loader()))]
    trimmed, _ = stepped(AGGREGATIONS["trimmed"], batches)
    summed, _ = stepped(AGGREGATIONS["sum"], batches)
    with pytest.raises(AssertionError):
        assert_close(trimmed, summed)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_physical_batches_make_the_logical_one(name: str) -> None:
    model = network()
    module, optimizer = private(model, AGGREGATIONS[name])
    manager = BatchMemoryManager(
        data_loader=loader(), max_physical_batch_size=3, optimizer=optimizer
    )
    physical = 0
    with manager as parts:
        for inputs, targets in parts:
            optimizer.zero_grad()
            assert len(inputs) <= 3
            physical += 1
            backward(module, inputs, targets)
            optimizer.step()
    batches = list(loader())
    assert optimizer.steps == len(batches) < physical
    assert_close(model, stepped(AGGREGATIONS[name], batches)[0])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_empty_batch_releases_noise_alone(reduction: str) -> None:
    rate, model = 1e-9, network()
    before = copy.deepcopy(model)
    module = GradSampleModule(model, loss_reduction=reduction)
    empty = loader(rate=rate)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan(Sum(clip=2.0, noise_multiplier=3.0), sampling_rate=rate, expected_batch=10.0),
        module,
        empty,
    )
    inputs, targets = next(iter(empty))
    assert len(inputs) == 0
    nn.functional.cross_entropy(module(inputs), targets, reduction=reduction).backward()
    optimizer.step()
    moved = torch.cat(
        [(p - q).flatten() for p, q in zip(model.parameters(), before.parameters(), strict=True)]
    )
    assert optimizer.steps == 1
    # 6 deviations of a sample deviation of 482 normals; half or twice the noise would be outside.
    assert moved.std().item() == pytest.approx(2.0 * 3.0 / 10.0, rel=6 / math.sqrt(2 * len(moved)))


def test_noise_is_drawn_as_by_step() -> None:
    aggregation = Sum(clip=0.5, noise_multiplier=1.0)
    batches = list(loader())
    model = network()
    module, optimizer = private(model, aggregation, seed=7)
    for inputs, targets in batches:
        backward(module, inputs, targets)
        optimizer.step()
    assert_close(model, stepped(aggregation, batches, seed=7)[0])
    with pytest.raises(AssertionError):
        assert_close(model, stepped(aggregation, batches, seed=8)[0])


def test_nan_gradient_counts_as_zero() -> None:
    inputs, targets = images()[:6]
    broken = inputs.clone()
    broken[2] = math.nan
    model = network()
    module, optimizer = private(model, AGGREGATIONS["sum"])
    backward(module, broken, targets)
    optimizer.step()
    others = [0, 1, 3, 4, 5]
    assert_close(model, stepped(AGGREGATIONS["sum"], [(inputs[others], targets[others])])[0])


def test_unclipped_sum_never_reaches_the_optimizer() -> None:
    """A frozen parameter keeps no gradient of autograd's that the optimizer could use."""
    model = network()
    module, optimizer = private(model, AGGREGATIONS["sum"])
    backward(module, *images()[:6])
    frozen = model[4].weight
    frozen.requires_grad_(False)
    before = frozen.clone()
    assert frozen.grad is not None
    optimizer.step()
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("rate", [0.25, 1 / 3])
def test_sampler_is_poisson_in_ascending_order(rate: float) -> None:
    """The law and the order of ties this package relies on, of Opacus's sampler as installed."""
    records, draws = 20, 4000
    sampler = UniformWithReplacementSampler(
        num_samples=records,
        sample_rate=rate,
        steps=draws,
        generator=torch.Generator().manual_seed(0),
    )
    counts = torch.zeros(records, records, dtype=torch.float64)
    for ids in sampler:
        assert ids == sorted(set(ids))
        drawn = torch.zeros(records, dtype=torch.float64)
        drawn[ids] = 1
        counts += drawn[:, None] * drawn
    alone, pairs = counts.diag() / draws, counts[~torch.eye(records, dtype=torch.bool)] / draws
    spread = 5 / math.sqrt(draws)
    assert (alone - rate).abs().max() < spread * math.sqrt(rate * (1 - rate))
    assert (pairs - rate**2).abs().max() < spread * math.sqrt(rate**2 * (1 - rate**2))


@pytest.mark.parametrize("rate", [1 / 235, 0.25, 1 / 3, 0.1, 2**-25, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_realised_rate_bounds_the_share_of_uniforms_below(rate: float, dtype: torch.dtype) -> None:
    """Against the exact count of the multiples of 2^-bits that the sampler would accept."""
    bits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        bound = realised_rate(rate)
        below = min(2**bits, int(rate * 2**bits) + 2)
        near = torch.arange(max(0, below - 4), below, dtype=torch.float64) / 2**bits
        accepted = max(0, below - 4) + int((near.to(dtype) < rate).sum())
    finally:
        torch.set_default_dtype(before)
    assert accepted / 2**bits <= bound <= min(1.0, rate + 2.0 ** (2 - bits))


def test_epsilon_is_that_of_opacus_for_dp_sgd() -> None:
    aggregation = Sum(clip=1.0, noise_multiplier=1.1)
    _, optimizer = private(network(), aggregation)
    assert optimizer.epsilon(1e-5) == 0
    optimizer._release.state.move_to(40)
    theirs = PRVAccountant()
    for _ in range(40):
        theirs.step(noise_multiplier=1.1, sample_rate=RATE)
    assert optimizer.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.02)
    assert optimizer.epsilon(1e-5) >= plan(aggregation, steps=40).epsilon(1e-5)


def test_release_is_that_of_opacus_for_dp_sgd() -> None:
    """Same clipped sum as DPOptimizer, up to the 1e-6 it adds to norms."""
    model = network()
    theirs = GradSampleModule(model)
    their_optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        expected_batch_size=int(RATE * RECORDS),
    )
    batch = next(iter(loader()))
    backward(theirs, *batch)
    their_optimizer.step()
    ours = network()
    module, optimizer = private(ours, AGGREGATIONS["sum"])
    backward(module, *batch)
    optimizer.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_learns_with_a_scheduler_and_resumes() -> None:
    aggregation = ProposeTestRelease(
        clip=1.0, propose=0.5, noise_multiplier=0.3, failure=1e-3, test=GaussianTest(1.0)
    )
    model, data = network(), loader()
    module, optimizer = private(model, aggregation, lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.9)
    for _ in range(15):
        for inputs, targets in data:
            optimizer.zero_grad()
            backward(module, inputs, targets)
            optimizer.step()
            schedule.step()
    inputs, targets = images().tensors
    assert (model(inputs).argmax(1) == targets).float().mean() > 0.8
    assert optimizer.steps == 60
    assert optimizer.original_optimizer.param_groups[0]["lr"] == pytest.approx(0.9**6)

    _, resumed = private(copy.deepcopy(network()), aggregation)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.steps == 60
    assert resumed.param_groups[0]["lr"] == pytest.approx(0.9**6)
    assert resumed.state_dict()["trim"] == optimizer.state_dict()["trim"]
    other = attrs.evolve(aggregation, noise_multiplier=9.0)
    with pytest.raises(ValueError, match="Expected the state of a run of this plan"):
        private(network(), other)[1].load_state_dict(optimizer.state_dict())


def test_going_back_to_a_saved_state_takes_back_no_step() -> None:
    """A model of the steps since then was there to be seen, and nobody can forget it."""
    module, optimizer = private(network(), Sum(clip=1.0, noise_multiplier=1.0))
    saved = copy.deepcopy(optimizer.state_dict())
    for inputs, targets in loader():
        optimizer.zero_grad()
        backward(module, inputs, targets)
        optimizer.step()
    taken, price = optimizer.steps, optimizer.epsilon(1e-5)
    assert taken > 1
    optimizer.load_state_dict(saved)
    assert (optimizer.steps, optimizer.epsilon(1e-5)) == (taken, price)

    _, other = private(network(), Sum(clip=1.0, noise_multiplier=1.0))
    other._release.state.move_to(2)  # of a run of its own, which the state knows nothing of
    other.load_state_dict(optimizer.state_dict())
    assert other.steps == taken + 2
    other.load_state_dict(optimizer.state_dict())
    assert other.steps == taken + 2


def test_step_after_the_last_is_refused() -> None:
    model = network()
    module = GradSampleModule(model)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        plan(AGGREGATIONS["sum"], steps=1),
        module,
        loader(),
    )
    backward(module, *images()[:4])
    optimizer.step()
    before = copy.deepcopy(model)
    backward(module, *images()[:4])
    with pytest.raises(ValueError, match=r"at most plan\.steps = 1"):
        optimizer.step()
    assert_close(model, before)


def test_two_batches_in_one_step_are_refused() -> None:
    module, optimizer = private(network(), AGGREGATIONS["sum"])
    backward(module, *images()[:4])
    backward(module, *images()[4:8])
    with pytest.raises(ValueError, match="one backward pass"):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="call backward"):
        optimizer.step()


def test_closure_runs_forward_and_backward() -> None:
    batch = images()[:6]
    model = network()
    module, optimizer = private(model, AGGREGATIONS["sum"])

    def closure() -> float:
        backward(module, *batch)
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert_close(model, stepped(AGGREGATIONS["sum"], [batch])[0])


def test_foreign_parameters_are_refused() -> None:
    model = network()
    foreign = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="parameters of the model alone"):
        PrivateOptimizer(
            torch.optim.SGD([*model.parameters(), foreign], lr=0.1),
            plan(AGGREGATIONS["sum"]),
            GradSampleModule(model),
            loader(),
        )
    module, optimizer = private(network(), AGGREGATIONS["sum"])
    optimizer.add_param_group({"params": [foreign]})
    backward(module, *images()[:4])
    with pytest.raises(ValueError, match="parameters of the model alone"):
        optimizer.step()


def test_layers_that_mix_records_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False), nn.Linear(64, 10))
    module, optimizer = private(
        model, AGGREGATIONS["sum"], lambda m: GradSampleModule(m, strict=False)
    )
    backward(module, *images()[:4])
    with pytest.raises(ValueError, match="keep records apart"):
        optimizer.step()


class TestLoader:
    def refused(self, data_loader: DataLoader[Any], reason: str) -> None:
        model = network()
        with pytest.raises(ValueError, match=reason):
            PrivateOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                plan(AGGREGATIONS["sum"]),
                GradSampleModule(model),
                data_loader,
            )

    @pytest.mark.parametrize("rate", [RATE / 2, RATE * 1.0001])
    def test_another_rate_is_refused(self, rate: float) -> None:
        self.refused(loader(rate=rate), "Expected plan.sampling_rate equal")

    def test_shuffled_batches_are_refused(self) -> None:
        self.refused(DataLoader(images(), batch_size=16, shuffle=True), "got BatchSampler")

    def test_made_up_records_are_refused(self) -> None:
        self.refused(loader(rand_on_empty=True), "rand_on_empty=False")

    def test_several_processes_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        distributed = loader(distributed=True)
        assert isinstance(distributed.batch_sampler, DistributedUniformWithReplacementSampler)
        self.refused(distributed, "got DistributedUniformWithReplacementSampler")

    def test_loader_made_from_a_batch_size_is_accepted(self) -> None:
        data = DPDataLoader.from_data_loader(DataLoader(images(), batch_size=10))
        model = network()
        optimizer = PrivateOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            plan(AGGREGATIONS["sum"], sampling_rate=data.sample_rate),
            GradSampleModule(model),
            data,
        )
        assert optimizer.plan.sampling_rate == pytest.approx(1 / 7, rel=1e-5)
        assert optimizer.plan.sampling_rate > 1 / 7


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [
        (GradSampleModuleFastGradientClipping, "Ghost clipping"),
        (lambda model: model, "Expected module a GradSampleModule"),
    ],
)
def test_module_without_formed_gradients_is_refused(
    wrap: Callable[[nn.Module], nn.Module], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        private(network(), AGGREGATIONS["sum"], wrap)


def test_batches_are_nobodys_to_know() -> None:
    """torch's default generator has drawn the initial model, which is public."""
    drawn = []
    for _ in range(2):
        model = network()  # seeds the default generator
        batches = DPDataLoader(images(), sample_rate=RATE)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        aggregation = Sum(clip=1.0, noise_multiplier=1.0)
        PrivateOptimizer(optimizer, plan(aggregation), GradSampleModule(model), batches)
        drawn.append([ids for ids, _ in zip(batches.batch_sampler, range(3), strict=False)])
    assert drawn[0] != drawn[1]
    sizes = [len(ids) for batch in drawn for ids in batch]
    assert 0.5 * RATE * RECORDS < sum(sizes) / len(sizes) < 1.5 * RATE * RECORDS


def test_a_generator_of_ones_own_is_kept() -> None:
    batches = loader()
    given = batches.batch_sampler.generator
    model = network()
    PrivateOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan(Sum(clip=1.0, noise_multiplier=1.0)),
        GradSampleModule(model),
        batches,
    )
    assert batches.batch_sampler.generator is given
