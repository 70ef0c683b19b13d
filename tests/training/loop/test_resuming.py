"""A resumed run repeats lost steps only if they are proved to be the same releases."""

import shutil

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from prudent.accounting import GaussianTest
from prudent.training import Execution, Plan, ProposeTestRelease, Sum, fit
from prudent.training.loop.checkpoint import charged, load_checkpoint
from tests.training.gradients.oracle import cross_entropy

CPU = torch.device("cpu")
STEPS, EVERY = 12, 4
PLAN = Plan(sampling_rate=0.2, steps=STEPS, aggregation=Sum(clip=1.0, noise_multiplier=1.0))


class Killed(BaseException):
    """Ends a run like a kill does: nothing after it happens."""


class Dying(torch.optim.SGD):
    """Ends the run after its sixth step, two steps after the first checkpoint."""

    left = 6

    def step(self, closure=None):
        super().step(closure)
        type(self).left -= 1
        if self.left == 0:
            raise Killed


class Items(Dataset):
    """Records that must be read to be known."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.full((3,), index / 60), index % 2


def tensors():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(60, 3, generator=generator), torch.arange(60) % 2


def doubled(outputs, targets):
    return 2 * cross_entropy(outputs, targets)


def train(out, *, loss=cross_entropy, records=None, model=None, plan=PLAN, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    records = tensors() if records is None else records
    settings = {"optimizer": Dying, "out": out, "progress": False, "lr": 0.1}
    return fit(plan, model, loss, records, **(settings | {"evaluate_every": EVERY} | options))


def killed(folder, **options):
    Dying.left = 6
    with pytest.raises(Killed):
        train(folder, **options)
    Dying.left = 0
    return load_checkpoint(folder, CPU)


CHANGES = {
    "loss": ({}, {"loss": doubled}, "the loss"),
    "model": ({}, {"model": nn.Sequential(nn.Linear(3, 2), nn.Tanh())}, None),
    "dropout": (
        {"model": nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))},
        {"model": nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.2))},
        "the model",
    ),
    "precision": ({}, {"execution": Execution(precision="bf16")}, "precision"),
    "engine": ({}, {"execution": Execution(engine="materialised")}, "engine"),
    "physical batch": ({}, {"execution": Execution(physical_batch=8)}, "batch size"),
    "schedule": (
        {},
        {"scheduler": lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5)},
        None,
    ),
    "items": ({"records": Items()}, {"records": Items()}, "the records"),
}


@pytest.mark.parametrize("name", [name for name, (*_, said) in CHANGES.items() if said])
def test_lost_steps_that_may_differ_are_counted_and_not_repeated(tmp_path, name):
    """The same noise on another sum is no noise on their difference."""
    before, after, said = CHANGES[name]
    state = killed(tmp_path, **before)
    assert (state["step"], charged(tmp_path).steps) == (EVERY, 6)
    with pytest.warns(RuntimeWarning, match=rf"steps 5 to 6, .* not repeated.*{said}"):
        resumed = train(tmp_path, resume=True, **after)
    kept = load_checkpoint(tmp_path, CPU)
    assert kept["key"] != state["key"]
    assert resumed.lost == 2
    assert Dying.left == -(STEPS - 6)  # updates that were taken
    assert charged(tmp_path).steps == kept["step"] == STEPS
    assert resumed.plan == PLAN


def test_what_is_proved_to_be_the_same_is_repeated_with_the_same_noise(tmp_path):
    state = killed(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "copy")
    runs = [train(folder, resume=True) for folder in (tmp_path, tmp_path / "copy")]
    assert load_checkpoint(tmp_path, CPU)["key"] == state["key"]
    assert [run.lost for run in runs] == [0, 0]
    assert torch.equal(runs[0].model.weight, runs[1].model.weight)
    assert Dying.left == -2 * (STEPS - EVERY)


def test_a_list_of_records_is_compared(tmp_path):
    items = list(zip(*tensors(), strict=True))
    killed(tmp_path, records=items)
    assert train(tmp_path, resume=True, records=items).lost == 0


def test_nothing_is_lost_at_a_checkpoint(tmp_path):
    """A run that stopped there took no step after it."""
    few = Plan(sampling_rate=0.2, steps=EVERY, aggregation=PLAN.aggregation)
    train(tmp_path, plan=few, optimizer=torch.optim.SGD)
    assert train(tmp_path, plan=few, loss=doubled, resume=True).lost == 0


def test_a_run_that_is_killed_twice_pays_for_both(tmp_path):
    """The checkpoint with the new key is there before its first step."""
    killed(tmp_path, records=Items())
    Dying.left = 1
    with pytest.warns(RuntimeWarning, match="steps 5 to 6"), pytest.raises(Killed):
        train(tmp_path, resume=True, records=Items())
    first = load_checkpoint(tmp_path, CPU)
    assert (first["step"], first["lost"]) == (6, 2)
    assert charged(tmp_path).steps == 7
    Dying.left = 0
    with pytest.warns(RuntimeWarning, match="steps 7 to 7"):
        assert train(tmp_path, resume=True, records=Items()).lost == 3
    assert load_checkpoint(tmp_path, CPU)["key"] != first["key"]


def test_the_fraction_of_passed_tests_is_of_the_steps_that_were_taken(tmp_path):
    certain = ProposeTestRelease(
        clip=1.0, propose=1.0, noise_multiplier=1.0, test=GaussianTest(0.1), failure=0.4
    )
    plan = Plan(sampling_rate=0.9, steps=STEPS, aggregation=certain)
    killed(tmp_path, plan=plan, records=Items())
    with pytest.warns(RuntimeWarning, match="not repeated"):
        resumed = train(tmp_path, plan=plan, records=Items(), resume=True)
    assert resumed.pass_rate == 1.0


def test_a_seeded_run_stays_predictable(tmp_path):
    killed(tmp_path, records=Items(), execution=Execution(seed=1))
    with pytest.warns(RuntimeWarning, match="not repeated"):
        resumed = train(tmp_path, records=Items(), execution=Execution(seed=1), resume=True)
    assert resumed.predictable_noise
