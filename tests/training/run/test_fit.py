"""Training from end to end: optimizers, data of every form, budgets, what is not finite."""

import copy
import math
import re
import types
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from prudent import ArgumentError
from prudent.accounting import GaussianTest
from prudent.budget.ledger import Ledger
from prudent.training import (
    AdaptiveTrim,
    EngineChoice,
    Execution,
    Mean,
    Plan,
    PoissonSampler,
    ProposeTestRelease,
    Reporting,
    Step,
    Sum,
    accuracy,
    fit,
)
from prudent.training.chunk import Chunk
from prudent.training.keystream import Key
from prudent.training.noise import HostNoise
from prudent.training.run import charging
from prudent.training.run.checkpoint import charged
from prudent.training.run.reading import _gather
from prudent.training.run.run import Run
from prudent_lab.corruption import GradientNoise, GradientSignFlip, Mimic, corrupted_mask
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered
from tests.training.run.files import read_metrics

RECORDS, RATE = 120, 0.15


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def records():
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(RECORDS) % 3
    return torch.randn(RECORDS, 4, generator=generator) + 2 * nn.functional.one_hot(
        labels, 4
    ), labels


def plan_of(steps=20, rule=None):
    rule = Sum(clip=1.0, noise_multiplier=0.8) if rule is None else rule
    return Plan(sampling_rate=RATE, steps=steps, aggregation=rule)


PTR = ProposeTestRelease(
    clip=1.0, propose=0.5, noise_multiplier=0.8, test=GaussianTest(2.0), trim=AdaptiveTrim()
)


def train(plan=None, data=None, model=None, **options):
    settings = {"execution": Execution(seed=3), "lr": 0.1}
    return fit(
        plan_of() if plan is None else plan,
        network() if model is None else model,
        cross_entropy,
        records() if data is None else data,
        **gathered(settings | options),
    )


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"lr": 0.2}),
        (torch.optim.SGD, {"lr": 0.2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 0.05}),
    ],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("rule", [Sum(clip=1.0, noise_multiplier=0.8), PTR], ids=["sum", "ptr"])
def test_fit_is_a_loop_over_steps(optimizer, options, rule):
    """What one writes with `Step`, a sampler and an optimizer of one's own."""
    plan, (inputs, targets), model = plan_of(rule=rule), records(), network()
    key = Key.from_seed(3)
    step = Step(plan, model, cross_entropy, expected_batch=RATE * RECORDS, key=key)
    sampler = PoissonSampler(RECORDS, RATE, key=key)
    update = optimizer(model.parameters(), **options)
    for number in range(plan.steps):
        batch = sampler.batch(number)
        step([Chunk(inputs[i], targets[i], v) for i, v in zip(batch.ids, batch.valid, strict=True)])
        update.step()
    assert torch.equal(weights(train(plan, optimizer=optimizer, **options).model), weights(model))


class Items(Dataset):
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], int(self.targets[index])


class Named(nn.Module):
    """Takes its features by name."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, left, right):
        return self.inner(torch.cat([left, right], -1))


class Stream(IterableDataset):
    """Has no items that could be sampled."""

    def __iter__(self):
        return iter([])


class TestData:
    @pytest.mark.unhurried
    def test_every_form_gives_the_same_model(self):
        inputs, targets = records()
        expected = weights(train().model)
        for data in (TensorDataset(inputs, targets), [inputs, targets]):
            assert torch.equal(weights(train(data=data).model), expected)
        items = train(data=Items(inputs, targets), example=(inputs[0], targets[0]))
        assert torch.equal(weights(items.model), expected)
        parts = {"left": inputs[:, :1], "right": inputs[:, 1:]}
        named = train(data=(parts, targets), model=Named(network()))
        torch.testing.assert_close(weights(named.model), expected)

    @pytest.mark.parametrize("capturable", [True, False])
    def test_no_graph_is_made_of_what_is_read_on_the_host(self, monkeypatch, capturable):
        """Be it records or noise."""
        monkeypatch.setattr(HostNoise, "capturable", capturable)
        execution, items = Execution(cuda_graph=True), Items(*records())
        for data, example, captures in ((records(), None, capturable), (items, items[0], False)):
            settings = {"options": {"lr": 0.1}, "execution": execution, "example": example}
            run = Run(plan_of(), network(), cross_entropy, data, **settings)
            assert run.captures is captures


class TestExecution:
    @pytest.mark.unhurried
    @pytest.mark.parametrize(
        "options",
        [
            {"physical_batch": 5},
            {"physical_batch": 64},
            {"engine": EngineChoice.MATERIALISED},
            {"engine": "bookkeeping", "recompute": True, "physical_batch": 7},
            {"engine": "materialised", "recompute": True, "physical_batch": 7},
            {"recompute": True, "physical_batch": 3},
        ],
        ids=str,
    )
    @pytest.mark.parametrize(
        "rule",
        [
            pytest.param(Sum(clip=1.0, noise_multiplier=0.8), id="sum", marks=pytest.mark.slow),
            pytest.param(PTR, id="ptr"),  # uses all that a sum uses, and the norms as well
        ],
    )
    def test_how_it_is_carried_out_changes_no_number(self, rule, options):
        plan, model = plan_of(8, rule), network().double()
        inputs, targets = records()
        data = inputs.double(), targets
        plain, other = (
            train(plan, data, copy.deepcopy(model), execution=Execution(seed=3, **chosen))
            for chosen in ({}, options)
        )
        torch.testing.assert_close(weights(plain.model), weights(other.model), rtol=1e-9, atol=1e-9)
        assert plain.pass_rate == other.pass_rate

    def test_half_precision_is_for_the_model_alone(self):
        single, half = (
            train(execution=Execution(seed=3, precision=precision)).model
            for precision in ("full", "bf16")
        )
        assert all(parameter.dtype == torch.float32 for parameter in half.parameters())
        difference = (weights(single) - weights(half)).norm() / weights(single).norm()
        assert 0 < difference < 0.05

    def test_chunks_run_twice_are_read_twice_and_held_one_at_a_time(self, monkeypatch):
        batches: list[weakref.ref] = []
        alive: list[int] = []

        def watching(*arguments):
            gather = _gather(*arguments)

            def watched(ids):
                alive.append(sum(batch() is not None for batch in batches))
                inputs, targets = gather(ids)
                batches.append(weakref.ref(inputs))
                return inputs, targets

            return watched

        monkeypatch.setattr("prudent.training.run.reading._gather", watching)
        found = []
        for recompute in (False, True):
            batches.clear()
            alive.clear()
            execution = Execution(seed=3, recompute=recompute, physical_batch=3)
            train(plan_of(steps=2), execution=execution)
            found.append((len(batches), max(alive)))
        (once, many), (twice, one) = found
        assert twice - 1 == 2 * (once - 1)  # the form of a batch is looked at as well
        assert one <= 1 < 4 <= many

    def test_running_twice_makes_no_graph(self):
        assert Execution(device="cuda").captures
        assert not Execution(device="cuda", recompute=True).captures

    @pytest.mark.unhurried
    def test_seeds(self):
        first, again, other, secret, secret_too = (
            weights(train(execution=Execution(seed=seed)).model) for seed in (3, 3, 4, None, None)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert not torch.equal(secret, secret_too)

    @pytest.mark.parametrize("seed", [3, None])
    @pytest.mark.parametrize("progress", [False, True])
    def test_a_seeded_run_says_that_its_noise_is_predictable(self, tmp_path, seed, progress):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted = train(execution=Execution(seed=seed), progress=progress, out=tmp_path)
        assert fitted.predictable_noise is (seed is not None)
        said = any("The noise is predictable" in str(one.message) for one in caught)
        assert said is (seed is not None)
        resumed = train(execution=Execution(), out=tmp_path, resume=True)
        assert resumed.predictable_noise is fitted.predictable_noise  # the key is the old one

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"physical_batch": 0}, "Expected physical_batch a whole number >= 1"),
            ({"seed": -1}, "Expected seed a whole number >= 0"),
            ({"precision": "fp8"}, "Expected precision one of 'full', 'bf16'"),
            ({"engine": "ghost"}, "Expected engine one of 'bookkeeping', 'materialised'"),
        ],
    )
    def test_what_is_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            Execution(**options)

    def test_a_device_that_is_absent(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match="Expected device 'cpu', because no CUDA device is"):
            train(execution=Execution(device="cuda"))


class TestGuarantee:
    def test_no_steps(self, tmp_path):
        model = network()
        before = weights(model).clone()
        fitted = train(plan_of(steps=0), model=model, out=tmp_path, delta=1e-5)
        assert torch.equal(weights(fitted.model), before)
        assert (fitted.history, fitted.pass_rate, fitted.plan.epsilon(1e-5)) == ([], None, 0.0)

    def test_a_run_within_a_budget_ends_before_it_is_overdrawn(self):
        plan = plan_of(steps=400).within(epsilon=6.0, delta=1e-5)
        assert 0 < plan.steps < 400
        assert plan.epsilon(1e-5) <= 6.0 < plan.epsilon_after(plan.steps + 1, 1e-5)
        last = train(plan, delta=1e-5).history[-1]
        assert last.step == plan.steps
        assert last.epsilon <= 6.0

    def test_a_budget_that_is_large_enough_changes_nothing(self):
        assert plan_of().within(epsilon=500.0, delta=1e-5) == plan_of()

    def test_a_budget_too_small_for_one_step_is_refused(self):
        with pytest.raises(ValueError, match="No steps"):
            plan_of().within(epsilon=1e-3, delta=1e-9)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
    @pytest.mark.parametrize("rule", [Sum(clip=1.0, noise_multiplier=0.8), PTR], ids=["sum", "ptr"])
    def test_records_that_are_not_finite_are_harmless_and_unnamed(self, rule, bad, capfd):
        inputs, targets = records()
        inputs[::4] = bad
        fitted = train(plan_of(rule=rule), (inputs, targets), delta=1e-5)
        assert weights(fitted.model).isfinite().all()
        assert all(math.isfinite(entry.noise) for entry in fitted.history)
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("wrong", [{"optimizer": "sgd"}, {"device": "cpu"}, {"epochs": 3}])
    def test_an_option_that_nobody_knows_is_explained(self, wrong):
        with pytest.raises(
            TypeError, match=r"Expected optimizer to be a class.*prudent\.Execution"
        ):
            train(**wrong)

    def test_the_expected_batch_can_be_public_knowledge(self):
        """Given in the plan, it and not the size of the data divides the sum and makes the trim."""
        rule = Sum(clip=1.0, noise_multiplier=1e-6)
        half = Plan(sampling_rate=RATE, steps=1, aggregation=rule, expected_batch=9.0)
        start = weights(network())
        moves = [weights(train(p).model) - start for p in (plan_of(1, rule), half)]
        torch.testing.assert_close(moves[0] * 2, moves[1], rtol=1e-3, atol=1e-6)


class TestEvaluation:
    def test_the_hook_is_called_at_every_stop(self):
        seen = []

        def evaluate(model):
            seen.append(weights(model).clone())
            return {"calls": len(seen)}

        fitted = train(plan_of(steps=10), evaluate=evaluate, evaluate_every=4)
        assert [entry.step for entry in fitted.history] == [4, 8, 10]
        assert [entry.evaluation for entry in fitted.history] == [{"calls": i} for i in (2, 3, 4)]
        assert torch.equal(seen[0], weights(network()))  # the rehearsal
        assert torch.equal(seen[-1], weights(fitted.model))

    @pytest.mark.unhurried
    def test_accuracy_is_a_share_and_leaves_the_mode_alone(self):
        inputs, targets = records()
        model = train(plan_of(steps=150, rule=Mean()), lr=0.5).model
        model.train()
        share = accuracy(inputs, targets, batch=7)(model)["accuracy"]
        assert model.training
        assert share == float((model(inputs).argmax(1) == targets).double().mean())
        assert share > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 2.0}, r"Expected delta in \(0, 0.5\), got 2.0"),
        ({"delta": "1e-5"}, "Expected delta in"),
        ({"evaluate_every": 2.5}, "Expected evaluate_every a whole number"),
        ({"evaluate_every": 0}, "Expected evaluate_every a whole number >= 1"),
        ({"data": (np.zeros((9, 4)), np.zeros(9))}, "Expected train_set .* ndarray"),
        ({"data": (torch.zeros(9, 4).double(), torch.zeros(9).long())},
         r"fits Linear.* at '0', got .* torch.float64. Convert records"),
        ({"data": (torch.zeros(9, 4).long(), torch.zeros(9).long())}, r"torch.int64. Convert"),
        ({"data": (torch.zeros(9, 4), torch.zeros(9))}, r"that the loss takes. .* \.long\(\)"),
        ({"data": (torch.zeros(9, 3), torch.zeros(9).long())}, r"fits Linear.* \(1, 3\)"),
        ({"data": TensorDataset(torch.zeros(9, 3), torch.zeros(9).long())}, r"fits Linear"),
        ({"model": nn.Sequential(network(), nn.BatchNorm1d(3))}, "keep records apart"),
        ({"model": network().requires_grad_(False)}, "Expected model with a parameter that requ"),
        ({"optimizer": torch.optim.LBFGS}, "no closure .* got LBFGS"),
        ({"optimizer": torch.optim.SparseAdam}, "dense gradients, got SparseAdam"),
        ({"scheduler": StepLR(torch.optim.SGD([torch.zeros(2)]), 1)}, "a function of the optimiz"),
        ({"evaluate": lambda _: None}, "Expected evaluate to return a mapping from names to numbe"),
        ({"data": (torch.zeros(9, 4), torch.zeros(8).long())}, "inputs and targets of the same l"),
        *[({"data": other}, "Expected train_set a pair")
          for other in (5, {"train": []}, iter([]), Stream(), "text")],
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_before_a_step_is_taken(tmp_path, options, message):
    model = options.pop("model", network())
    before = weights(model)
    with pytest.raises(ValueError, match=message):
        train(model=model, out=tmp_path, **options)
    assert torch.equal(weights(model), before)
    assert charged(tmp_path) is None


class Factored(nn.Linear):
    """Rejects what is not positive definite, as made-up records are not."""

    def forward(self, x):
        return super().forward(torch.linalg.cholesky(x.reshape(-1, 2, 2)).flatten(1))


class Divided(nn.Linear):
    """Uses its weight in a way that book-keeping does not follow."""

    def forward(self, x):
        part, scale = checkpoint(lambda h: (h + 1, self.weight.sum()), x, use_reentrant=False)
        return super().forward(part * scale)


@pytest.mark.parametrize(
    ("kind", "message"), [(Factored, "positive-definite"), (Divided, "cannot follow")]
)
def test_a_model_that_rejects_made_up_records_is_refused(tmp_path, kind, message):
    """One record that it rejects, too, would end the run: nothing could take its place."""
    data = torch.eye(2).flatten().expand(RECORDS, 4).clone(), torch.arange(RECORDS) % 3
    with pytest.raises(RuntimeError, match=message) as error:
        train(data=data, model=kind(4, 3), out=tmp_path)
    assert "made-up records, of zeros" in error.value.__notes__[0]
    assert charged(tmp_path) is None


def test_a_mode_that_stops_at_one_record_is_refused(tmp_path):
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.raises(ArgumentError, match="detect_anomaly"),
    ):
        train(out=tmp_path)
    assert charged(tmp_path) is None


def test_another_model_cannot_go_on_with_a_run(tmp_path):
    train(plan_of(steps=2), out=tmp_path)
    with pytest.raises(ValueError, match=r"Expected the model with which this run was started"):
        train(plan_of(steps=2), model=nn.Linear(4, 3), out=tmp_path, resume=True)


def test_a_fitted_model_is_shown_in_one_line():
    fitted = train(plan_of(steps=3))
    assert len(fitted.history) == 3
    assert repr(fitted).startswith("Fitted(plan=Plan(")
    assert "Metrics" not in repr(fitted)
    assert "\n" not in repr(fitted)


@pytest.mark.parametrize("value", [torch.tensor(0.5), np.float32(0.5), 0.5])
def test_an_evaluation_may_return_scalars_of_any_kind(tmp_path, value):
    """They are written down after the steps are paid for: too late to fail."""
    train(plan_of(2), evaluate=lambda _: {"score": value}, out=tmp_path)
    assert [entry["score"] for entry in read_metrics(tmp_path)] == [0.5, 0.5]


@pytest.mark.thorough
def test_a_private_model_learns():
    rule = ProposeTestRelease(
        clip=1.0, propose=0.9, noise_multiplier=0.5, test=GaussianTest(1.0), failure=1e-3
    )
    inputs, targets = records()
    fitted = train(plan_of(steps=150, rule=rule), lr=1.0)
    assert 0.3 < fitted.pass_rate < 0.7
    assert accuracy(inputs, targets)(fitted.model)["accuracy"] > 0.7


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, one, other):
        return types.SimpleNamespace(logits=self.first(one) + self.second(other))


def test_accuracy_of_a_tree_of_inputs_and_an_output_with_logits():
    inputs, targets = records()
    model = TwoInputs()
    expected = float((model(inputs, -inputs).logits.argmax(-1) == targets).float().mean())
    for tree in ({"one": inputs, "other": -inputs}, (inputs, -inputs)):
        found = accuracy(tree, targets, batch=50)(model)["accuracy"]
        assert found == pytest.approx(expected)


def test_an_evaluation_that_cannot_work_fails_before_anything_is_paid(tmp_path):
    inputs, targets = records()
    with pytest.raises(RuntimeError, match="shape"):
        train(evaluate=accuracy(inputs[:, :2], targets), out=tmp_path)
    assert charged(tmp_path) is None


@pytest.mark.parametrize(
    ("inputs", "outputs", "labels"),
    [
        (RECORDS, 3, (RECORDS, 1)),  # would be compared with all others
        (RECORDS, 1, (RECORDS,)),  # one score has always the largest
        (RECORDS, 3, (RECORDS - 1,)),
        (1, 3, (RECORDS,)),
        (0, 3, (0,)),
    ],
)
def test_labels_that_are_not_one_for_each_record_are_refused(tmp_path, inputs, outputs, labels):
    found = accuracy(torch.zeros(inputs, 4), torch.zeros(labels, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="labels"):
        found(nn.Linear(4, outputs))
    if outputs == 3:
        with pytest.raises(ArgumentError, match="labels"):
            train(evaluate=found, out=tmp_path)
        assert charged(tmp_path) is None


def test_accuracy_of_sequences_is_of_the_labels_that_count():
    scores = torch.eye(2)[torch.tensor([[0, 1, 1], [1, 0, 1]])]
    labels = torch.tensor([[0, 1, -100], [0, 0, 1]])
    model = nn.Linear(2, 2)
    model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    assert accuracy(scores, labels)(model) == {"accuracy": 4 / 5}


def test_modes_are_put_back_after_an_evaluation():
    """Dropout would be off for the rest of the run, or a frozen layer learn statistics."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[2].eval()
    seen = []

    def evaluate(model):
        seen.append([module.training for module in model.modules()])
        model.eval()
        return {}

    train(plan_of(6), model=model, evaluate=evaluate, evaluate_every=2)
    assert seen == [[True, True, True, False, True]] * 4
    accuracy(*records())(model)
    assert [module.training for module in model.modules()] == seen[0]


@pytest.mark.thorough
@pytest.mark.parametrize("corruption", [GradientSignFlip(0.5, seed=4), GradientNoise(0.25)])
def test_a_gradient_corruption_is_given_as_it_is(corruption):
    bad = corrupted_mask(RECORDS, corruption.ratio, corruption.seed)

    def by_hand(gradients, chunk, generator):
        return corruption(gradients, bad[chunk.ids], valid=chunk.valid, generator=generator)

    model = train(corrupt=corruption, delta=1e-5).model
    assert torch.equal(weights(model), weights(train(corrupt=by_hand).model))
    assert not torch.equal(weights(model), weights(train().model))


def test_no_price_is_shown_for_records_that_read_others():
    with pytest.raises(ValueError, match="Expected delta None with Mimic"):
        train(corrupt=Mimic(0.1), delta=1e-5)
    assert train(corrupt=Mimic(0.1)).history[-1].epsilon is None


def test_a_step_needs_the_number_of_records_for_a_corruption():
    with pytest.raises(ValueError, match=r"corrupt\.hook"):
        Step(plan_of(), network(), cross_entropy, expected_batch=18, corrupt=Mimic(0.1))
    hook = Mimic(0.1).hook(RECORDS, "cpu")
    step = Step(plan_of(), network(), cross_entropy, expected_batch=18, corrupt=hook)
    with pytest.raises(ValueError, match="Expected ids in every Chunk"):
        step([Chunk(*records())])


@pytest.mark.parametrize("engine", EngineChoice)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_label_out_of_range_neither_stops_a_run_nor_is_told_of(engine, recompute, capfd):
    inputs, targets = records()
    targets[17] = 918273
    execution = Execution(seed=3, engine=engine, recompute=recompute)
    fitted = train(data=(inputs, targets), execution=execution, delta=1e-5, progress=True)
    assert weights(fitted.model).isfinite().all()
    assert "918273" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("at", "folder", "said"),
    [
        (0, False, "Nothing was charged"),
        (1, True, "after 2 steps.*charged for the whole plan.*resume=True"),
        (1, False, "after 2 steps.*charged for the whole plan.*cannot be resumed"),
    ],
)
def test_an_interruption_says_whether_anything_was_charged(tmp_path, at, folder, said):
    calls = []

    def evaluate(model):
        calls.append(model)
        if len(calls) == at + 1:  # the first call is the rehearsal
            raise KeyboardInterrupt
        return {}

    rule = Sum(clip=1.0, noise_multiplier=1.0)
    plan = Plan(sampling_rate=0.5, steps=4, aggregation=rule, expected_batch=10)
    out = {"out": tmp_path / "run"} if folder else {}
    reporting = Reporting(evaluate=evaluate, evaluate_every=2, **out)
    with Ledger(tmp_path / "budget.db", epsilon=100.0, delta=1e-3) as ledger:
        with pytest.raises(KeyboardInterrupt) as interrupted:
            fit(
                plan,
                nn.Linear(3, 2),
                cross_entropy,
                (torch.randn(20, 3), torch.arange(20) % 2),
                reporting=reporting,
                ledger=ledger,
                lr=0.1,
            )
        assert len(ledger.history()) == min(at, 1)
    assert re.search(said, " ".join(interrupted.value.__notes__))


def test_a_resumed_run_says_what_was_charged_when_it_goes_on_and_when_it_is_interrupted(
    tmp_path, capsys, monkeypatch
):
    looks = []

    def evaluate(model):
        looks.append(model)
        if len(looks) in at:
            raise KeyboardInterrupt
        return {}

    def run(steps=4, resume=True):
        looks.clear()
        rule = Sum(clip=1.0, noise_multiplier=1.0)
        plan = Plan(sampling_rate=0.5, steps=steps, aggregation=rule, expected_batch=10)
        given = {"evaluate": evaluate, "evaluate_every": 2, "out": tmp_path / "run"}
        data = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
        fit(
            plan, nn.Linear(3, 2), cross_entropy, data, ledger=ledger, lr=0.1,
            reporting=Reporting(resume=resume, progress=False, **given),
        )  # fmt: skip

    def interrupted(**options):
        with pytest.raises(KeyboardInterrupt) as caught:
            run(**options)
        return caught.value.__notes__[0]

    with Ledger(tmp_path / "budget.db", epsilon=100.0, delta=1e-3) as ledger:
        charge = charging.charge_calibrated

        def impatient(*given, **options):
            charge(*given, **options)
            raise KeyboardInterrupt

        monkeypatch.setattr(charging, "charge_calibrated", impatient)
        at = ()
        assert "may have been charged for the whole plan; resume" in interrupted(resume=False)
        monkeypatch.undo()
        at = (1,)
        assert "before its first step. Nothing more was charged; resume" in interrupted()
        at = (3,)  # the first is the rehearsal, the second that of step 2
        assert "after 4 steps. Nothing more was charged; resume" in interrupted()
        assert capsys.readouterr().err == (
            "The run goes on after 0 of 4 steps. Nothing more was charged.\n"
        )
        at = ()
        run()
        run(steps=6)
        assert capsys.readouterr().err.splitlines() == [
            "The run goes on after 2 of 4 steps. Nothing more was charged.",
            "The run goes on after 4 of 6 steps. Its ledger was charged for 2 more steps.",
        ]
        assert len(ledger.history()) == 2
