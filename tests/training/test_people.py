"""Training with a privacy unit: people are drawn, and each adds one clipped gradient."""

import copy
import json

import attrs
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import prudent
from prudent import ArgumentError
from prudent.accounting import GaussianTest
from prudent.records.people import Unit
from prudent.training import (
    EngineChoice,
    Execution,
    FixedTrim,
    Key,
    Plan,
    ProposeTestRelease,
    Sum,
    TrimmedSum,
    fit,
    make_private,
)
from prudent.training.run.run import Run
from tests.training.gradients.oracle import alone, cross_entropy
from tests.training.reporting import gathered

PEOPLE, RECORDS, SLOTS, CLIP = 9, 40, 8, 0.3
EVERYONE = Plan(
    sampling_rate=1.0, steps=1, aggregation=Sum(clip=CLIP, noise_multiplier=1e-9), expected_batch=7
)


def records() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, 5, generator=draw, dtype=torch.float64)
    ids = (torch.arange(RECORDS) % PEOPLE).index_fill(0, torch.arange(0, RECORDS, 10), 8)
    return x, torch.arange(RECORDS) % 3, ids


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def clipped_sum(model: nn.Module, per_unit: str = "mean") -> Tensor:
    """The sum of the clipped gradients of all people, from one backward pass per record."""
    x, y, ids = records()
    each = alone(model, cross_entropy, x, y, RECORDS)
    flat = torch.cat([gradient.flatten(1) for gradient in each.values()], 1)
    total = torch.zeros(flat.shape[1], dtype=torch.float64)
    for person in ids.unique():
        own = flat[ids == person]
        assert len(own) <= SLOTS
        gradient = own.mean(0) if per_unit == "mean" else own.sum(0)
        total += gradient * min(1.0, CLIP / float(gradient.norm()))
    return total


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved(model: nn.Module, before: nn.Module, batch: float) -> Tensor:
    return (flat(before) - flat(model)) * batch


@pytest.mark.parametrize(
    ("execution", "per_unit"),
    [
        ({}, "mean"),
        ({"physical_batch": 2, "recompute": True}, "sum"),
        ({"engine": EngineChoice.MATERIALISED, "physical_batch": 4}, "mean"),
    ],
    ids=["at once", "in parts, twice", "formed"],
)
def test_fit_releases_the_sum_over_people(execution, per_unit):
    model = network()
    before = copy.deepcopy(model)
    x, y, ids = records()
    fitted = fit(
        EVERYONE,
        model,
        cross_entropy,
        (x, y),
        unit=ids,
        records_per_person=SLOTS,
        per_unit=per_unit,
        execution=Execution(seed=0, **execution),
        lr=1.0,
    )
    assert fitted.protected == "person"
    torch.testing.assert_close(
        moved(model, before, 7), clipped_sum(before, per_unit), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("physical", [None, 8])
def test_make_private_releases_the_sum_over_people(physical):
    model = network()
    before = copy.deepcopy(model)
    x, y, ids = records()
    model, optimizer, loader = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        DataLoader(TensorDataset(x, y), batch_size=3),
        plan=EVERYONE,
        unit=ids.tolist(),
        records_per_person=SLOTS,
        max_physical_batch=physical,
        key=Key.from_seed(0),
    )
    for inputs, targets in loader:
        assert len(targets) == PEOPLE * SLOTS
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    torch.testing.assert_close(moved(model, before, 7), clipped_sum(before), rtol=1e-7, atol=1e-7)


def test_rows_that_were_not_drawn_are_no_people_of_a_later_batch():
    """Without their people, each row would be clipped alone, and a person counted many times."""
    x, y, ids = records()
    model, optimizer, loader = make_private(
        model := network(),
        torch.optim.SGD(model.parameters(), lr=1.0),
        DataLoader(TensorDataset(x, y), batch_size=3),
        plan=attrs.evolve(EVERYONE, sampling_rate=0.02, steps=50),
        unit=ids,
        key=Key.from_seed(0),
    )
    batches = iter(loader)
    inputs, targets = next(each for each in batches if len(each[1]))
    whole = nn.functional.cross_entropy(model(inputs.repeat(2, 1)), targets.repeat(2))
    assert next(each for each in batches if len(each[1]) == 2 * len(targets))
    whole.backward()
    with pytest.raises(ValueError, match="one row per record"):
        optimizer.step()
    assert optimizer.steps == 0


def test_epsilon_of_make_private_is_that_of_its_people():
    """The rate is that of people, and a person adds one clipped gradient, whatever she has."""
    x, y, ids = records()
    _, optimizer, loader = make_private(
        model := network(),
        torch.optim.SGD(model.parameters(), lr=1.0),
        DataLoader(TensorDataset(x, y), batch_size=2),
        epsilon=3.0,
        delta=1e-3,
        epochs=2,
        unit=ids,
    )
    plan = optimizer.plan
    assert plan.sampling_rate == 2 / PEOPLE
    assert plan.steps == 2 * len(loader) == 2 * -(-PEOPLE // 2)
    same = Plan(
        sampling_rate=2 / PEOPLE,
        steps=plan.steps,
        aggregation=Sum(clip=1.0, noise_multiplier=plan.aggregation.noise_multiplier),
        expected_batch=2,
    )
    assert plan.epsilon(1e-3) == same.epsilon(1e-3) <= 3.0


def run(plan, data=None, unit=None, **execution):
    x, y, ids = records() if data is None else data
    return Run(
        plan,
        network(),
        cross_entropy,
        (x, y),
        options={"lr": 0.5},
        execution=Execution(seed=3, **execution),
        unit=Unit.given(ids if unit is None else unit, 3, None),
    )


TESTED = Plan(
    sampling_rate=0.6,
    steps=3,
    aggregation=ProposeTestRelease(
        clip=CLIP,
        propose=0.5,
        noise_multiplier=1.0,
        test=GaussianTest(1.0),
        failure=1e-3,
        trim=FixedTrim(0.4),
    ),
    expected_batch=5,
)


def test_draws_and_trims_count_people():
    made = run(TESTED)
    sizes = []
    for _ in range(3):
        made.take()
        sizes.append(int(made.last.drawn))
        assert int(made.last.trim) == 2  # 0.4 of 5 people
    assert sizes == [int(made.sampler.batch(number).valid.sum()) for number in range(3)]
    assert made.sampler.records == PEOPLE
    made.charge.delta = 1e-2
    assert made.metrics({}).relation == "adding or removing one person"


@pytest.mark.parametrize(
    "aggregation", [EVERYONE.aggregation, TrimmedSum(clip=CLIP, noise_multiplier=1.0)]
)
def test_the_order_of_records_has_no_effect(aggregation):
    """Bit for bit, with more records than slots and a new choice of them in every step."""
    plan = Plan(sampling_rate=0.6, steps=4, aggregation=aggregation, expected_batch=5)
    order = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(5))
    found = []
    for data in (records(), tuple(part[order] for part in records())):
        made = run(plan, data)
        for _ in range(4):
            made.take()
        found.append(flat(made.model))
    assert torch.equal(*found)


def test_a_resumed_run_is_of_the_same_people(tmp_path):
    x, y, ids = records()
    options = {"records_per_person": 3, "execution": Execution(seed=1), "lr": 0.5}

    def train(out, unit=ids, **more):
        settings = {"out": out, "evaluate_every": 2, **options, **more}
        plan = Plan(sampling_rate=0.5, steps=4, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
        return fit(plan, network(), cross_entropy, (x, y), unit=unit, **gathered(settings))

    whole = train(tmp_path / "whole")
    resumed = train(tmp_path / "whole", resume=True)
    assert torch.equal(flat(whole.model), flat(resumed.model))
    for other in ({"unit": ids.flip(0)}, {"records_per_person": 4}, {"per_unit": "sum"}):
        with pytest.raises(ValueError, match="different records"):
            train(tmp_path / "whole", resume=True, **other)
    with pytest.raises(ValueError, match="different records"):
        train(tmp_path / "whole", unit=None, records_per_person=None, resume=True)


def test_items_with_an_entry_for_the_person():
    x, y, ids = records()
    items = [
        {"input": row, "user": f"user {person}", "labels": int(label)}
        for row, label, person in zip(x, y, ids.tolist(), strict=True)
    ]
    model = network()
    before = copy.deepcopy(model)
    fit(
        EVERYONE,
        model,
        cross_entropy,
        items,
        example=items[0],
        unit="user",
        records_per_person=SLOTS,
        execution=Execution(seed=0),
        lr=1.0,
    )
    torch.testing.assert_close(moved(model, before, 7), clipped_sum(before), rtol=1e-7, atol=1e-7)


def test_what_needs_a_unit_is_refused_without():
    x, y, _ = records()
    with pytest.raises(ArgumentError, match="records_per_person None without a unit"):
        prudent.fit(EVERYONE, network(), cross_entropy, (x, y), records_per_person=3)


def test_who_is_protected_is_told(tmp_path):
    """One record less of a person is another person: no word may promise it for this ε."""
    x, y, ids = records()
    _, optimizer, loader = make_private(
        model := network(),
        torch.optim.SGD(model.parameters(), lr=1.0),
        DataLoader(TensorDataset(x, y), batch_size=3),
        plan=TESTED,
        unit=ids,
        key=Key.from_seed(0),
    )
    assert "one person" in repr(optimizer)
    assert "one person" in repr(loader)
    file = tmp_path / "receipt.json"
    settings = {"unit": ids, "execution": Execution(seed=1), "lr": 0.5}
    reporting = prudent.Reporting(receipt=file)
    fit(TESTED, network(), cross_entropy, (x, y), reporting=reporting, **settings)
    assert json.loads(file.read_text())["unit"] == "person"


@pytest.mark.parametrize("items", [False, True])
def test_a_network_that_cannot_be_trained_is_not_charged(tmp_path, items):
    x, y, ids = records()
    data = list(zip(x, y, strict=True)) if items else (x, y)
    example = data[0] if items else None
    mixing = nn.Sequential(nn.BatchNorm1d(x.shape[1]), network())
    with prudent.Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-3) as ledger:
        settings = {"unit": ids, "ledger": ledger, "example": example, "lr": 0.5}
        with pytest.raises(ValueError, match="keep records apart"):
            fit(TESTED, mixing, cross_entropy, data, **settings)
        assert not ledger.history()
