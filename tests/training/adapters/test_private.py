"""`make_private`: the loop stays, the release is that of `Step`, and no step is beyond the plan."""

import copy
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import prudent
from prudent import ArgumentError, Ledger
from prudent._warning import PredictableNoiseWarning
from prudent.accounting.relations import ADD_REMOVE, ZERO_OUT
from prudent.budget.ledger import OverBudgetError
from prudent.training import (
    AdaptiveTrim,
    Aggregation,
    Chunk,
    FixedTrim,
    Key,
    Plan,
    PoissonSampler,
    ProposeTestRelease,
    Step,
    Sum,
    TrimmedSum,
    make_private,
)
from prudent.training.adapters.private import _RELEASED
from prudent.training.gradients.output_guard import Computed
from prudent.training.sampling import Drawn

RECORDS, BATCH = 48, 12
SILENT = 1e-6

AGGREGATIONS = {
    "sum": Sum(clip=0.5, noise_multiplier=SILENT),
    "trimmed": TrimmedSum(clip=0.5, noise_multiplier=SILENT, trim=FixedTrim(0.25)),
    "passes": ProposeTestRelease(
        clip=100.0,
        propose=0.9,
        noise_multiplier=SILENT,
        failure=0.1,
        test=prudent.GaussianTest(scale=0.5),
    ),
    "fails": ProposeTestRelease(
        clip=0.1,
        propose=0.01,
        noise_multiplier=SILENT,
        test=prudent.GaussianTest(scale=0.5),
        trim=AdaptiveTrim(first=0.1),
    ),
}


class Digits(nn.Module):
    """The shape of Opacus's MNIST example, for smaller images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 2, padding=1)
        self.conv2 = nn.Conv2d(4, 8, 2, 1)
        self.fc1 = nn.Linear(8 * 2 * 2, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(x, 2, 1)
        x = functional.relu(self.conv2(x))
        x = x.view(-1, 8 * 2 * 2)
        x = functional.relu(self.fc1(x))
        return functional.log_softmax(self.fc2(x), dim=1)


def images(records: int = RECORDS) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 10, (records,), generator=draw)
    centres = torch.randn(10, 1, 8, 8, generator=draw)
    noise = torch.randn(records, 1, 8, 8, generator=draw)
    return TensorDataset(centres[targets] + 0.3 * noise, targets)


def digits() -> Digits:
    torch.manual_seed(1)
    return Digits()


def plan(aggregation: Aggregation | None = None, **changes: Any) -> Plan:
    aggregation = AGGREGATIONS["sum"] if aggregation is None else aggregation
    chosen = {"sampling_rate": BATCH / RECORDS, "steps": 20, "aggregation": aggregation}
    return Plan(**chosen | changes)


def private(model: nn.Module, lr: float = 1.0, data: Any = None, **options: Any) -> Any:
    loader = DataLoader(images() if data is None else data, batch_size=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    options = {"plan": plan(), "key": Key.from_seed(0)} | options
    return make_private(model, optimizer, loader, **options)


def take(model: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = functional.nll_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def assert_close(model: nn.Module, other: nn.Module) -> None:
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


def record_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.nll_loss(outputs, targets, reduction="none")


@pytest.mark.unhurried
@pytest.mark.parametrize("physical", [None, 5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_takes_the_steps_of_prudent_step(name: str, reduction: str, physical: int | None) -> None:
    model = digits()
    other = copy.deepcopy(model)
    key = Key.from_seed(0)
    step = Step(plan(AGGREGATIONS[name]), other, record_losses, expected_batch=BATCH, key=key)
    model, optimizer, loader = private(
        model,
        plan=plan(AGGREGATIONS[name]),
        loss_reduction=reduction,
        max_physical_batch=physical,
    )
    sizes = []
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.nll_loss(model(inputs), targets, reduction=reduction).backward()
        optimizer.step()
        outcome = step([Chunk(inputs, targets)])
        with torch.no_grad():
            for parameter in other.parameters():
                assert parameter.grad is not None
                parameter -= parameter.grad
        assert optimizer.outcome.passed == outcome.passed
        assert optimizer.outcome.trim == outcome.trim
        sizes.append(len(targets))
    assert_close(model, other)
    assert len(set(sizes)) > 1  # or a mean that is not undone would go unnoticed


def test_noise_is_that_of_step() -> None:
    loud = plan(Sum(clip=0.5, noise_multiplier=3.0))
    model = digits()
    other = copy.deepcopy(model)
    model, optimizer, loader = private(model, plan=loud)
    batch = next(iter(loader))
    take(model, optimizer, *batch)
    step = Step(loud, other, record_losses, expected_batch=BATCH, key=Key.from_seed(0))
    step([Chunk(*batch)])
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert_close(model, other)


@pytest.mark.thorough
def test_the_mnist_example_runs_and_learns() -> None:
    torch.manual_seed(2)
    model, data = Digits(), images(400)
    names = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0)
    loader = DataLoader(data, batch_size=50, shuffle=True)
    given = model
    model, optimizer, loader = prudent.make_private(  # the only new lines
        model, optimizer, loader, epsilon=50.0, delta=1e-5, epochs=12
    )
    assert model is given
    assert list(model.state_dict()) == names
    criterion = nn.CrossEntropyLoss()
    for _ in range(12):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            output = model(inputs)
            loss = criterion(output, targets)
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = (model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean()
    assert correct > 0.8
    assert optimizer.steps == optimizer.plan.steps == 96
    assert optimizer.epsilon(1e-5) == optimizer.plan.epsilon(1e-5) <= 50
    assert optimizer.plan.relation == ZERO_OUT
    assert optimizer.plan.expected_batch == 50
    assert optimizer.plan.sampling_rate == loader.sample_rate == 50 / 400


def test_outputs_behave_like_tensors() -> None:
    model, optimizer, loader = private(digits())
    inputs, targets = next(iter(loader))
    outputs = model(inputs)
    assert isinstance(outputs, Tensor)
    assert all(isinstance(each, Tensor) for each in (outputs + 1, outputs.detach()))
    assert not any(isinstance(each, Computed) for each in (outputs[0], next(iter(outputs))))
    assert float((outputs.argmax(1) == targets).float().mean()) <= 1
    weighted = nn.NLLLoss(weight=torch.arange(1.0, 11.0), reduction="none")
    loss = weighted(outputs, targets).mean()
    assert outputs.detach().numpy().shape == (len(targets), 10)
    loss.backward()
    optimizer.step()
    assert optimizer.steps == 1


def test_evaluation_is_untouched() -> None:
    model, inputs = digits(), images().tensors[0]
    expected = model(inputs)
    model, _, _ = private(model)
    model.eval()
    outputs = model(inputs)
    assert torch.equal(outputs, expected)
    outputs.sum().backward()  # saliency maps and the like
    assert model.fc2.weight.grad is not None
    model.train()
    with torch.no_grad():
        assert not model(inputs).requires_grad
    torch.testing.assert_close(model(inputs), expected)


def test_copies_and_pickles_are_ordinary_models() -> None:
    model, _, _ = private(digits())
    twin = copy.deepcopy(model)
    assert type(twin) is Digits
    assert isinstance(model, Digits)
    assert repr(model) == repr(twin)
    assert type(pickle.loads(pickle.dumps(model))) is Digits
    file = io.BytesIO()
    torch.save(model, file)
    twin(images().tensors[0]).sum().backward()
    assert twin.fc2.weight.grad is not None
    twin.load_state_dict(model.state_dict())
    assert_close(model, twin)


def test_empty_batch_releases_noise_alone() -> None:
    rate = 1e-6
    model = digits()
    before = copy.deepcopy(model)
    model, optimizer, loader = private(
        model,
        plan=plan(Sum(clip=0.5, noise_multiplier=1.0), sampling_rate=rate, expected_batch=1.0),
        data=images(2),
    )
    inputs, targets = next(iter(loader))
    assert inputs.shape == (0, 1, 8, 8)
    assert targets.shape == (0,)
    take(model, optimizer, inputs, targets)
    assert optimizer.steps == 1
    assert int(optimizer.outcome.drawn) == 0
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    moved = torch.cat([(a - b).detach().flatten() for a, b in pairs])
    assert 0.4 < float(moved.std()) < 0.6


def test_nan_record_counts_as_zero() -> None:
    data = images()
    model, optimizer, loader = private(digits())
    inputs, targets = next(iter(loader))
    twin, other, same = private(digits())
    next(iter(same))
    inputs = inputs.clone()
    inputs[3] = torch.nan
    take(model, optimizer, inputs, targets)
    kept = torch.arange(len(targets)) != 3
    same._outstanding[0] = Drawn(torch.nonzero(kept)[:, 0], None)
    take(twin, other, inputs[kept], targets[kept])
    assert_close(model, twin)
    assert len(data) == RECORDS


@pytest.mark.parametrize("physical", [None, 4])
def test_record_that_a_kernel_refuses_counts_as_zero(physical: int | None) -> None:
    class Inverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.linalg.inv(x).flatten(1))

    torch.manual_seed(0)
    matrices = torch.randn(RECORDS, 2, 2)
    matrices[::5] = 0
    data = TensorDataset(matrices, torch.zeros(RECORDS, dtype=torch.int64))
    model, optimizer, loader = private(
        Inverse(), data=data, max_physical_batch=physical, plan=plan(sampling_rate=1.0)
    )
    other = copy.deepcopy(model)
    inputs, targets = next(iter(loader))
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    fine = torch.arange(RECORDS) % 5 != 0
    step = Step(
        plan(sampling_rate=1.0),
        other,
        lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
        expected_batch=RECORDS,
    )
    step([Chunk(inputs[fine], targets[fine])])
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert_close(model, other)


class TestRefusals:
    def test_two_backward_passes(self) -> None:
        model, _, loader = private(digits())
        inputs, targets = next(iter(loader))
        loss = functional.nll_loss(model(inputs), targets)
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="one backward pass"):
            loss.backward()

    @pytest.mark.parametrize(("batches", "shown"), [(0, "got none"), (3, "got 3")])
    def test_other_than_one_backward_pass_in_a_step(self, batches: int, shown: str) -> None:
        model, optimizer, loader = private(digits())
        for place, (inputs, targets) in enumerate(loader):
            loss = functional.nll_loss(model(inputs), targets)
            if place < batches:
                loss.backward()
        with pytest.raises(ValueError, match=shown):
            optimizer.step()
        assert optimizer.steps == 0

    def test_two_steps_on_a_batch(self) -> None:
        model, optimizer, loader = private(digits())
        batch = next(iter(loader))
        take(model, optimizer, *batch)
        with pytest.raises(ValueError, match="already been used"):
            take(model, optimizer, *batch)
        assert optimizer.steps == 1

    def test_several_rows_for_a_record(self) -> None:
        model, optimizer, loader = private(digits())
        inputs, targets = next(iter(loader))
        with pytest.raises(ValueError, match="one row per record") as error:
            take(model, optimizer, inputs.repeat(2, 1, 1, 1), targets.repeat(2))
        assert str(len(targets)) not in str(error.value)

    def test_step_after_the_last(self) -> None:
        model, optimizer, loader = private(digits(), plan=plan(steps=2))
        batches = iter(loader)
        for _ in range(2):
            take(model, optimizer, *next(batches))
        with pytest.raises(ValueError, match=r"at most plan\.steps = 2"):
            take(model, optimizer, *next(batches))

    @pytest.mark.parametrize("taken", [0, 1])
    def test_penalty_in_the_loss(self, taken: int) -> None:
        """Also on top of a released gradient, without zero_grad."""
        model, optimizer, loader = private(digits())
        batches = iter(loader)
        for _ in range(taken):
            take(model, optimizer, *next(batches))
        inputs, targets = next(batches)
        loss = functional.nll_loss(model(inputs), targets) + model.fc1.weight.square().sum()
        loss.backward()
        with pytest.raises(ValueError, match=r"'fc1.weight'.*(weight_decay|another way)"):
            optimizer.step()

    def test_a_part_of_the_model(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        model, optimizer, loader = private(model)
        inputs, targets = next(iter(loader))
        functional.cross_entropy(model[1](inputs.flatten(1)), targets).backward()
        with pytest.raises(ValueError, match="a call of a part"):
            optimizer.step()

    @pytest.mark.parametrize(
        "loss",
        [
            nn.NLLLoss(weight=torch.ones(10)),
            nn.CrossEntropyLoss(weight=torch.ones(10), ignore_index=3),
            lambda outputs, targets: functional.cross_entropy(outputs, targets, torch.ones(10)),
            lambda outputs, targets: functional.nll_loss(
                functional.log_softmax(outputs * 1.0, 1).view(-1, 10), targets, torch.ones(10)
            ),
        ],
        ids=["weights", "ignored", "positional", "computed"],
    )
    def test_means_that_are_divided_by_weights(self, loss: Any) -> None:
        model, _, loader = private(digits())
        inputs, targets = next(iter(loader))
        with pytest.raises(ArgumentError, match="reduction='none'"):
            loss(model(inputs), targets)

    def test_names_of_opacus_are_answered_with_ours(self) -> None:
        named = {"module": digits(), "target_epsilon": 3.0, "max_grad_norm": 1.0}
        with pytest.raises(TypeError) as error:
            make_private(**named, data_loader=None, poisson_sampling=True, epochs=2)  # type: ignore[call-arg]
        for answer in ("module: model", "target_epsilon: epsilon", "max_grad_norm: clip",
                       "data_loader: loader", "poisson_sampling: nothing"):  # fmt: skip
            assert f"instead of {answer}" in str(error.value)
        assert "epochs" not in str(error.value)

    @pytest.mark.parametrize(
        ("forward", "named"),
        [
            (lambda self, x: self.head(x.flatten(1)[:, 1:]), r"fits Linear.*=64.*got .*\(1, 63\)"),
            (lambda self, x: setattr(self, "last", self.head(x.flatten(1))) or self.last,
             "keeps nothing of a record"),
            (lambda self, x: self.head(x.flatten(1)).T, "first axis"),
            (lambda self, x: self.norm(self.head(x.flatten(1))), "BatchNorm1d"),
        ],
        ids=["width", "kept", "axis", "normalisation"],
    )  # fmt: skip
    def test_models_that_fail_on_a_batch(self, forward: Any, named: str) -> None:
        made = nn.Module()
        made.head, made.norm = nn.Linear(64, 10), nn.BatchNorm1d(10).eval()
        kind = type("Made", (nn.Module,), {"forward": forward})
        made.__class__ = kind
        if named != "BatchNorm1d":
            del made.norm
        model, _, loader = private(made)
        model.train()
        with pytest.raises(ValueError, match=named):
            model(next(iter(loader))[0])

    def test_a_private_model_or_loader(self) -> None:
        model, optimizer, loader = private(digits())
        ordinary = DataLoader(images(), batch_size=4)
        with pytest.raises(ArgumentError, match="already private"):
            make_private(model, optimizer.original_optimizer, ordinary, plan=plan())
        model = digits()
        with pytest.raises(ArgumentError, match="already private"):
            make_private(model, torch.optim.SGD(model.parameters()), loader, plan=plan())

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
    @pytest.mark.parametrize(
        ("changed", "made", "named"),
        [
            (nn.DataParallel, torch.optim.SGD, "got DataParallel"),
            (torch.compile, torch.optim.SGD, "before torch.compile"),
            (lambda model: model.requires_grad_(False), torch.optim.SGD, "a gradient, got none"),
            (lambda model: model, torch.optim.LBFGS, "no closure.* got LBFGS"),
            (
                lambda model: model,
                lambda own: torch.optim.SGD([*own, nn.Parameter(torch.zeros(2))]),
                "the model alone",
            ),
        ],
    )
    def test_other_models_and_optimizers(self, changed: Any, made: Any, named: str) -> None:
        model = changed(digits())
        with pytest.raises(ValueError, match=named):
            make_private(
                model, made(model.parameters()), DataLoader(images(), batch_size=4), plan=plan()
            )

    def test_a_model_that_rejects_made_up_records(self) -> None:
        """Before its first batch, whatever that holds: they replace records that it rejects."""

        class Factored(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(torch.linalg.cholesky(x))

        model, data = Factored(2, 2), TensorDataset(torch.eye(2).expand(8, 2, 2))
        model, _, loader = make_private(
            model, torch.optim.SGD(model.parameters()), DataLoader(data, batch_size=4), plan=plan()
        )
        with pytest.raises(RuntimeError, match="positive-definite") as error:
            model(next(iter(loader))[0])
        assert "made-up records, of zeros" in error.value.__notes__[0]

    def test_a_mode_that_stops_at_one_record(self) -> None:
        model, _, loader = private(digits())
        with torch.autograd.set_detect_anomaly(True):
            with pytest.raises(ArgumentError, match="detect_anomaly"):
                private(digits())
            with pytest.raises(ArgumentError, match="detect_anomaly"):
                model(next(iter(loader))[0])

    def test_a_copy_of_the_optimizer(self) -> None:
        optimizer = private(digits())[1]
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="never copied or pickled"):
                copied(optimizer)

    @pytest.mark.parametrize(
        ("loader", "options", "named"),
        [
            ({"dataset": images(0)}, {}, "one batch of records, got none"),
            ({"dataset": images(3), "drop_last": True}, {}, "one batch of records"),
            ({"sampler": WeightedRandomSampler([1.0] * RECORDS, 9)}, {}, "Weighted"),
            ({"batch_size": None}, {}, "batch_size"),
            ({}, {"delta": 0.5}, r"delta in \(0, 0\.5\), got 0\.5"),
            ({}, {"loss_reduction": "avg"}, "loss_reduction one of mean, sum, got 'avg'"),
            ({}, {"epsilon": None}, "epsilon to be given"),
            ({}, {"epochs": None}, "epochs to be given"),
            ({}, {"epochs": 0}, "epochs"),
            ({}, {"plan": plan()}, "None with a plan"),
            ({}, {"max_physical_batch": 0}, "max_physical_batch"),
            ({}, {"clip": 1.0, "aggregation": AGGREGATIONS["sum"]}, "clip None with an aggr"),
        ],
    )
    def test_other_loaders_and_arguments(
        self, loader: dict[str, Any], options: dict[str, Any], named: str
    ) -> None:
        model = digits()
        given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "epochs": 1} | options
        made = DataLoader(**{"dataset": images(), "batch_size": 4} | loader)
        with pytest.raises(ArgumentError, match=named):
            make_private(model, torch.optim.SGD(model.parameters()), made, **given)
        assert type(model) is Digits


@pytest.mark.parametrize("ignored", [-100, 3, 10, -1])
@pytest.mark.parametrize(
    "shaped", ["as it is", "flattened", "old arguments", "by position", "each"]
)
def test_an_ignored_label_changes_no_other_record(shaped: str, ignored: int) -> None:
    """A mean is divided by the number of all labels, whatever they are; so it is of wrong ones."""

    def released(labels: Tensor) -> Tensor:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.Unflatten(1, (3, 10)))
        data = TensorDataset(images().tensors[0].double(), labels)
        model, optimizer, loader = private(
            model.double(),
            data=data,
            plan=plan(Sum(clip=1.0, noise_multiplier=SILENT), sampling_rate=1.0, steps=1),
        )
        inputs, targets = next(iter(loader))
        outputs = model(inputs)
        options: dict[str, Any] = {} if ignored in (10, -1) else {"ignore_index": ignored}
        if shaped == "each":
            loss = functional.cross_entropy(
                outputs.transpose(1, 2), targets, reduction="none", **options
            ).mean()
        elif shaped == "old arguments":
            loss = functional.cross_entropy(
                outputs.transpose(1, 2), targets, size_average=True, **options
            )
        elif shaped == "by position":
            loss = sum(
                nn.CrossEntropyLoss(**options)(one, each)
                for one, each in zip(outputs.transpose(0, 1), targets.T, strict=True)
            )
        elif shaped == "flattened":
            loss = nn.CrossEntropyLoss(**options)(outputs.view(-1, 10), targets.view(-1))
        else:
            loss = nn.CrossEntropyLoss(**options)(outputs.permute(0, 2, 1), targets)
        loss.backward()
        optimizer.step()
        return torch.cat([p.grad.flatten() for p in model.parameters()]) * RECORDS

    labels = torch.arange(RECORDS * 3).reshape(-1, 3) % 3
    partly, wholly = labels.clone(), labels.clone()
    partly[7, 1] = ignored
    wholly[7] = ignored
    whole, some, none = map(released, (labels, partly, wholly))
    assert float((whole - none).norm()) <= 1 + 1e-6
    assert float((some - none).norm()) <= 1 + 1e-6
    assert float((whole - none).norm()) > 0.1


@pytest.mark.unhurried
def test_scheduler_acts_and_a_saved_state_resumes() -> None:
    model, optimizer, loader = private(digits(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    batches = iter(loader)
    take(model, optimizer, *next(batches))
    scheduler.step()
    assert optimizer.original_optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    saved = copy.deepcopy(optimizer.state_dict())
    take(model, optimizer, *next(batches))
    optimizer.load_state_dict(saved)
    assert optimizer.steps == 2  # going back takes back no step
    _, again, _ = private(digits(), key=Key.from_seed(1))
    again.load_state_dict(saved)
    assert again.steps == 2  # those of the other are released
    assert again.param_groups[0]["lr"] == pytest.approx(0.05)
    assert again.epsilon(1e-5) == plan().epsilon_after(2, 1e-5)
    model, latest, batches = private(digits(), key=Key.from_seed(2))
    latest.load_state_dict(saved)
    take(model, latest, *next(iter(batches)))
    assert latest.steps == 3
    with pytest.raises(ValueError, match="Expected"):
        optimizer.step()
    assert optimizer.steps == 3  # one counter for all that go on with one run
    _, other, _ = private(digits(), plan=plan(steps=21))
    with pytest.raises(ValueError, match="of this plan"):
        other.load_state_dict(saved)
    with pytest.raises(ValueError, match="before make_private"):
        other.load_state_dict(torch.optim.SGD([torch.zeros(1)], lr=0.1).state_dict())


@pytest.mark.unhurried
@pytest.mark.parametrize(("num_bands", "steps"), [(1, 4), (2, 6)])
def test_each_step_of_every_optimizer_counts_whichever_state_is_loaded(
    num_bands: int, steps: int
) -> None:
    def continued(seed: int, *states: Any) -> tuple[Any, Any]:
        prescribed = plan(num_bands=num_bands, sampling_rate=0.25)
        model, optimizer, loader = private(digits(), plan=prescribed, key=Key.from_seed(seed))
        for state in states:
            optimizer.load_state_dict(state)
        return optimizer, lambda: take(model, optimizer, *next(iter(loader)))

    first, go_on = continued(0)
    go_on()
    early = copy.deepcopy(first.state_dict())
    go_on()
    go_on()
    late = copy.deepcopy(first.state_dict())
    _RELEASED.clear()  # another process
    second, go_on = continued(1, early)
    go_on()
    assert second.steps == -(-1 // num_bands) * num_bands + 1
    second.load_state_dict(late)  # of what it has gone on from, later: 3 steps, and its own
    assert second.steps == -(-3 // num_bands) * num_bands + 1
    second.load_state_dict(copy.deepcopy(second.state_dict()))
    assert second.steps == -(-3 // num_bands) * num_bands + 1
    merged = copy.deepcopy(second.state_dict())
    _RELEASED.clear()
    third, _ = continued(2, late, merged)
    assert third.steps == steps


def test_the_key_leaves_with_no_copy() -> None:
    _, optimizer, loader = private(digits())
    for holder in (loader, optimizer._release, loader.batch_sampler):
        for copied in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="holds the key of a run"):
                copied(holder)


def test_a_seeded_key_is_warned_of() -> None:
    with pytest.warns(PredictableNoiseWarning, match="The noise is predictable") as caught:
        private(digits(), key=Key.from_seed(0))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private(digits(), key=None)


def test_reprs_say_what_a_run_costs_and_how_far_it_is() -> None:
    model, optimizer, loader = private(digits(), plan=plan(Sum(clip=0.5, noise_multiplier=2.0)))
    take(model, optimizer, *next(iter(loader)))
    price = prudent._rounding.rounded_up(optimizer.plan.epsilon(1e-5))
    for shown in (repr(optimizer), repr(loader)):
        assert "(1 taken, 19 left)" in shown
        assert f"ε ≤ {price} at δ = 1e-05 for zeroing out one record" in shown
    assert f"20 batches at rate 0.25: ε ≤ {price} at δ" in str(optimizer.plan)


def test_closure_runs_forward_and_backward() -> None:
    model, optimizer, loader = private(digits())
    inputs, targets = next(iter(loader))

    def closure() -> Tensor:
        loss = functional.nll_loss(model(inputs), targets)
        optimizer.zero_grad()  # after forward, as Lightning does
        loss.backward()
        return loss

    assert optimizer.step(closure).ndim == 0
    assert optimizer.steps == 1


class Named(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index}


def collate(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {"ids": torch.tensor([record["index"] for record in records], dtype=torch.int64)}


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_draws_the_batches_of_the_sampler(workers: int) -> None:
    model = nn.Linear(1, 1)
    loader = DataLoader(Named(), batch_size=2, collate_fn=collate, num_workers=workers)
    _, _, loader = make_private(
        model,
        torch.optim.SGD(model.parameters()),
        loader,
        plan=plan(sampling_rate=2 / RECORDS, steps=100),
        example=Named()[0],
        key=Key.from_seed(5),
    )
    sampler = PoissonSampler(RECORDS, 2 / RECORDS, key=Key.from_seed(5))
    assert len(loader) == 24
    assert isinstance(loader.dataset, Named)
    number, empty = 0, 0
    for _ in range(2):
        for batch in loader:
            drawn = sampler.batch(number)
            assert torch.equal(batch["ids"], drawn.ids[drawn.valid])
            empty += not len(batch["ids"])
            number += 1
    assert number == 48
    assert empty > 0


def test_records_and_size_are_secret_with_a_plan_that_says_so() -> None:
    _, optimizer, loader = private(
        digits(), plan=plan(sampling_rate=0.1, expected_batch=5.0, relation=ADD_REMOVE)
    )
    assert optimizer.plan.relation == ADD_REMOVE
    assert len(loader) == 10


class Scored(nn.Module):
    """Outputs of several kinds, one of them a loss, and a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.drop = nn.Dropout(0.2)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        hidden = self.drop(self.embed(tokens)) * self.frozen
        logits = hidden @ self.embed.weight.T
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits, "best": logits.argmax(-1), "cache": object()}


@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("inside", [True, False])
def test_loss_of_the_model_itself_and_other_outputs(inside: bool, physical: int | None) -> None:
    torch.manual_seed(3)
    tokens = torch.randint(0, 7, (RECORDS, 5))
    labels = torch.where(torch.rand(tokens.shape) < 0.3, -100, tokens)
    labels[:, 0] = tokens[:, 0]
    model = Scored()
    model.drop.p = 0.0
    other = copy.deepcopy(model)
    model, optimizer, loader = private(
        model, data=TensorDataset(tokens, labels), max_physical_batch=physical
    )
    tokens, labels = next(iter(loader))
    optimizer.zero_grad()
    outputs = model(tokens, labels=labels)
    assert outputs["logits"].shape == (len(tokens), 5, 7)
    assert outputs["best"].shape == (len(tokens), 5)
    assert outputs["cache"] is None
    if inside:
        outputs["loss"].backward()
    else:
        terms = [
            functional.cross_entropy(logits, each)
            for logits, each in zip(outputs["logits"], labels, strict=True)
        ]
        torch.stack(terms).mean().backward()
    optimizer.step()
    step = Step(plan(), other, lambda outputs, _: outputs["loss"].reshape(1), expected_batch=BATCH)
    step([Chunk({"tokens": tokens, "labels": labels}, labels)])
    torch.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=1.0).step()
    assert_close(model, other)


def test_parts_repeat_their_dropout() -> None:
    tokens = torch.randint(0, 7, (RECORDS, 5), generator=torch.Generator().manual_seed(0))
    model, optimizer, loader = private(
        Scored(), data=TensorDataset(tokens, tokens), max_physical_batch=3
    )
    tokens, labels = next(iter(loader))
    state = torch.get_rng_state()
    model(tokens, labels=labels)["loss"].backward()
    optimizer.step()  # a second run with other masks has other losses, and is refused
    assert torch.equal(torch.get_rng_state(), state)


def test_only_the_parameters_of_the_optimizer_are_trained() -> None:
    model = digits()
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.fc2.parameters(), lr=1.0)
    loader = DataLoader(images(), batch_size=BATCH)
    model, optimizer, loader = make_private(model, optimizer, loader, plan=plan())
    batch = next(iter(loader))
    take(model, optimizer, *batch)
    assert model.fc1.weight.grad is None
    other.requires_grad_(False)
    other.fc2.requires_grad_(True)
    step = Step(plan(), other, record_losses, expected_batch=BATCH)
    step([Chunk(*batch)])
    torch.optim.SGD(other.fc2.parameters(), lr=1.0).step()
    assert_close(model, other)


def test_autocast_of_the_caller_is_the_models_alone() -> None:
    model, optimizer, loader = private(digits())
    inputs, targets = next(iter(loader))
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = functional.nll_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def ledger_of(folder: Path, epsilon: float = 50.0) -> Ledger:
    return Ledger(folder / "budget.db", epsilon=epsilon, delta=1e-4, relation=ZERO_OUT)


class TestLedger:
    NOISY = plan(Sum(clip=0.5, noise_multiplier=4.0))

    def test_the_whole_plan_is_charged_before_the_first_batch(self, tmp_path: Path) -> None:
        with ledger_of(tmp_path) as ledger:
            model, optimizer, loader = private(digits(), plan=self.NOISY, ledger=ledger)
            assert ledger.history() == []
            batch = next(iter(loader))
            (charge,) = ledger.history()
            assert (charge.event, charge.outcome) == (self.NOISY.event, {})
            for _ in range(2):
                take(model, optimizer, *batch)
                batch = next(iter(loader))
            (charge,) = ledger.history()
            assert charge.outcome == {"released": 1}

    def test_what_does_not_fit_is_not_trained(self, tmp_path: Path) -> None:
        model = digits()
        before = copy.deepcopy(model.state_dict())
        with ledger_of(tmp_path, epsilon=0.01) as ledger:
            _, optimizer, loader = private(model, plan=self.NOISY, ledger=ledger)
            for act in (lambda: next(iter(loader)), optimizer.step):
                with pytest.raises(OverBudgetError):
                    act()
            assert ledger.history() == []
        assert optimizer.steps == 0
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)

    def test_a_run_that_goes_on_is_not_charged_again(self, tmp_path: Path) -> None:
        with ledger_of(tmp_path) as ledger:
            model, optimizer, loader = private(digits(), plan=self.NOISY, ledger=ledger)
            take(model, optimizer, *next(iter(loader)))
            saved = optimizer.state_dict()
            model, again, loader = private(
                digits(), plan=self.NOISY, ledger=ledger, key=Key.from_seed(1)
            )
            again.load_state_dict(saved)
            take(model, again, *next(iter(loader)))
            assert len(ledger.history()) == 1
            model, other, loader = private(
                digits(), plan=self.NOISY, ledger=ledger, key=Key.from_seed(2)
            )
            take(model, other, *next(iter(loader)))
            assert len(ledger.history()) == 2

    def test_its_relation_must_cover_the_plan(self, tmp_path: Path) -> None:
        with (
            Ledger(tmp_path / "a.db", epsilon=9.0, delta=1e-4, relation=ADD_REMOVE) as ledger,
            pytest.raises(ArgumentError, match="the number of records is public"),
        ):
            private(digits(), plan=None, epsilon=3.0, delta=1e-5, epochs=2, ledger=ledger)
