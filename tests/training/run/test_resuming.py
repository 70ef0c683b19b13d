"""A resumed run repeats lost steps only if they are proved to be the same releases."""

import contextlib
import os
import shutil

import attrs
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from prudent.accounting import GaussianTest
from prudent.training import (
    Execution,
    HeldOut,
    LossRelease,
    Plan,
    ProposeTestRelease,
    Sum,
    fit,
)
from prudent.training.keystream import Key
from prudent.training.parallel import Processes
from prudent.training.run.checkpoint import ReleaseDigests, charged, load_checkpoint
from prudent.training.run.metrics import Recorder
from prudent.training.run.reading import HeldOutRecords
from prudent.training.run.run import Run
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered

CPU = torch.device("cpu")
STEPS, EVERY = 12, 4
PLAN = Plan(sampling_rate=0.2, steps=STEPS, aggregation=Sum(clip=1.0, noise_multiplier=1.0))


class Killed(BaseException):
    """Ends a run like a kill does: nothing after it happens."""


class Dying:
    """An evaluation that ends the run when it is called for the nth time, the rehearsal apart."""

    def __init__(self, at):
        self.left = at

    def rehearse(self, model):
        """Does nothing."""

    def __call__(self, model):
        self.left -= 1
        if self.left == 0:
            raise Killed
        return {}


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
    settings = {"optimizer": torch.optim.Adam, "out": out, "evaluate_every": EVERY, "lr": 0.1}
    return fit(plan, model, loss, records, **gathered(settings | options))


def killed(folder, at=2, **options):
    """Ends a run after step 8, whose checkpoint is missing; returns that of step 4."""
    with pytest.raises(Killed):
        train(folder, evaluate=Dying(at), **options)
    return load_checkpoint(folder, CPU)


def updates(state):
    """The number of updates in a model, as its optimizer counts them."""
    return int(state["optimizer"]["state"][0]["step"])


def from_the_first(items):
    return torch.stack([x - items[0][0] for x, _ in items]), torch.tensor([y for _, y in items])


ITEMS = {"records": Items(), "collate_fn": from_the_first}
CHANGES = {
    "example": (
        {**ITEMS, "example": (torch.zeros(3), 0)},
        {**ITEMS, "example": (torch.ones(3), 0)},
        "what reads the records",
    ),
    "loss": ({}, {"loss": doubled}, "the loss"),
    "dropout": (
        {"model": nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))},
        {"model": nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.2))},
        "the model",
    ),
    "precision": ({}, {"execution": Execution(precision="bf16")}, "precision"),
    "engine": ({}, {"execution": Execution(engine="materialised")}, "engine"),
    "physical batch": ({}, {"execution": Execution(physical_batch=8)}, "batch size"),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", CHANGES)
def test_lost_steps_that_may_differ_are_counted_and_not_repeated(tmp_path, name):
    """The same noise on another sum is no noise on their difference."""
    before, after, said = CHANGES[name]
    state = killed(tmp_path, **before)
    assert (state["step"], charged(tmp_path).steps) == (EVERY, 2 * EVERY)
    with pytest.warns(RuntimeWarning, match=rf"steps 5 to 8, .* not repeated.*{said}"):
        resumed = train(tmp_path, resume=True, **after)
    kept = load_checkpoint(tmp_path, CPU)
    assert kept["key"] != state["key"]
    assert resumed.lost == EVERY
    assert updates(kept) == STEPS - EVERY
    assert charged(tmp_path).steps == kept["step"] == STEPS
    assert resumed.plan == PLAN


def from_environment(outputs, targets):
    return float(os.environ.get("PRUDENT_TEST_SCALE", "1")) * cross_entropy(outputs, targets)


def hooked(monkeypatch, stack):
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: 2 * out)
    stack.callback(handle.remove)


def patched_loss(monkeypatch, stack):
    own = nn.functional.cross_entropy
    monkeypatch.setattr(nn.functional, "cross_entropy", lambda *a, **k: 2 * own(*a, **k))


def patched_layer(monkeypatch, stack):
    own = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * own(self, x))


# Nothing of these is in a fingerprint of the model or the loss.
UNSEEN = {
    "global hook": hooked,
    "patched loss": patched_loss,
    "patched layer": patched_layer,
    "environment": lambda monkeypatch, stack: monkeypatch.setenv("PRUDENT_TEST_SCALE", "2"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_repeated_steps_that_release_something_else_get_a_new_key(tmp_path, monkeypatch, name):
    same = {"loss": from_environment, "execution": Execution(seed=1)}
    state = killed(tmp_path, **same)
    with contextlib.ExitStack() as stack:
        UNSEEN[name](monkeypatch, stack)
        with pytest.warns(RuntimeWarning, match=r"steps \d to 8, .* not repeated.*what a step"):
            resumed = train(tmp_path, resume=True, **same)
    kept = load_checkpoint(tmp_path, CPU)
    assert kept["key"] != state["key"]
    assert 0 < resumed.lost <= EVERY  # rounding may leave the first of them as they were
    assert updates(kept) == STEPS - resumed.lost
    assert charged(tmp_path).steps == kept["step"] == STEPS
    assert [entry.step for entry in resumed.history] == [STEPS]


def test_digests_of_releases_reveal_nothing_without_the_key(tmp_path):
    killed(tmp_path / "one")
    killed(tmp_path / "two")
    one, two = ((tmp_path / n / "releases.txt").read_text().split() for n in ("one", "two"))
    assert one[::2] == two[::2] == ["5", "6", "7", "8"]
    assert not set(one[1::2]) & set(two[1::2])


@pytest.mark.parametrize("left", ["1", "12", "12 ", "12 ab"])
def test_a_digest_that_a_kill_cut_off_hides_no_later_one(tmp_path, left):
    key, sums = Key.from_seed(1), [torch.ones(2)]

    def resumed():
        return ReleaseDigests(tmp_path, Processes())

    (tmp_path / "releases.txt").write_text(left)
    assert resumed().admits(key, "12", sums) == (left == "1")  # else it cannot be told
    resumed().admits(key, "13", sums)
    assert not any(resumed().admits(key, name, [torch.zeros(2)]) for name in ("12", "13"))


def test_a_precision_that_only_one_backend_was_given_is_no_obstacle(tmp_path):
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("an older torch")
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        killed(tmp_path)
        assert train(tmp_path, resume=True).lost == 0
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_what_is_proved_to_be_the_same_is_repeated_with_the_same_noise(tmp_path):
    state = killed(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    runs = [train(tmp_path / name, resume=True) for name in ("run", "copy")]
    kept = load_checkpoint(tmp_path / "run", CPU)
    assert kept["key"] == state["key"]
    assert updates(kept) == STEPS
    assert [run.lost for run in runs] == [0, 0]
    assert torch.equal(runs[0].model.weight, runs[1].model.weight)


@pytest.mark.parametrize("items", [list(zip(*tensors(), strict=True)), Items()])
def test_records_of_any_kind_are_compared(tmp_path, items):
    killed(tmp_path, records=items, example=items[0])
    assert train(tmp_path, resume=True, records=items, example=items[0]).lost == 0


def test_nothing_is_lost_at_a_checkpoint(tmp_path):
    """A run that stopped there took no step after it."""
    few = Plan(sampling_rate=0.2, steps=EVERY, aggregation=PLAN.aggregation)
    train(tmp_path, plan=few)
    assert train(tmp_path, plan=few, loss=doubled, resume=True).lost == 0


def test_without_the_record_of_what_was_paid_no_step_is_repeated(tmp_path):
    """It alone tells how many steps were taken since the checkpoint."""
    for at in (1, 2):  # after the checkpoint of step 0, and after that of step 4
        killed(tmp_path / str(at), at=at)
        (tmp_path / str(at) / "paid.json").unlink()
        with pytest.raises(ValueError, match=r"whose paid\.json is missing"):
            train(tmp_path / str(at), resume=True)


def test_a_run_that_is_killed_twice_pays_for_both(tmp_path):
    """The checkpoint with the new key is there before its first step."""
    killed(tmp_path)
    with pytest.warns(RuntimeWarning, match="steps 5 to 8"):
        first = killed(tmp_path, at=1, resume=True, loss=doubled)
    assert (first["step"], first["lost"]) == (2 * EVERY, EVERY)
    assert charged(tmp_path).steps == STEPS
    with pytest.warns(RuntimeWarning, match="steps 9 to 12"):
        assert train(tmp_path, resume=True).lost == 2 * EVERY
    assert load_checkpoint(tmp_path, CPU)["key"] != first["key"]


def test_an_older_checkpoint_does_not_go_on_beside_a_newer_one(tmp_path):
    """Each would take steps of its own, and the plan pays for one of them."""
    state = killed(tmp_path)
    old = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.warns(RuntimeWarning, match="steps 5 to 8"):
        train(tmp_path, loss=doubled, resume=True)
    (tmp_path / "checkpoint.pt").write_bytes(old)
    with pytest.warns(RuntimeWarning, match=f"steps 5 to {STEPS}, .*: the key"):
        assert train(tmp_path, resume=True).lost == STEPS - EVERY
    assert load_checkpoint(tmp_path, CPU)["key"] != state["key"]


@pytest.mark.filterwarnings("ignore:The test passed in")
def test_the_fraction_of_passed_tests_is_of_the_steps_that_were_taken(tmp_path):
    tested = ProposeTestRelease(
        clip=1.0, propose=0.9, noise_multiplier=1.0, test=GaussianTest(2.0), failure=0.4
    )
    plan = Plan(sampling_rate=0.9, steps=STEPS, aggregation=tested)
    killed(tmp_path, plan=plan)
    with pytest.warns(RuntimeWarning, match="not repeated"):
        resumed = train(tmp_path, plan=plan, loss=doubled, resume=True)
    passes = float(load_checkpoint(tmp_path, CPU)["passes"])
    assert resumed.pass_rate == passes / (STEPS - EVERY)


def test_a_seeded_run_stays_predictable(tmp_path):
    killed(tmp_path, execution=Execution(seed=1))
    with pytest.warns(RuntimeWarning, match="not repeated"):
        resumed = train(tmp_path, loss=doubled, execution=Execution(seed=1), resume=True)
    assert resumed.predictable_noise


def test_steps_after_the_first_checkpoint_are_compared_as_well(tmp_path, monkeypatch):
    """It is that of step 0, from which a run that was killed early goes on."""
    same = {"loss": from_environment, "execution": Execution(seed=1)}
    state = killed(tmp_path, at=1, **same)
    assert state["step"] == 0
    monkeypatch.setenv("PRUDENT_TEST_SCALE", "2")
    with pytest.warns(RuntimeWarning, match=r"steps \d to 4, .* not repeated.*what a step"):
        resumed = train(tmp_path, resume=True, **same)
    assert load_checkpoint(tmp_path, CPU)["key"] != state["key"]
    assert 0 < resumed.lost <= EVERY


def test_a_checkpoint_between_repeated_steps_forgets_none_of_them(tmp_path, monkeypatch):
    """As when a run is resumed with more frequent evaluations, and killed again."""
    same = {"loss": from_environment, "execution": Execution(seed=1), "resume": True}
    killed(tmp_path, **same)

    def die(*_):
        raise Killed

    with pytest.raises(Killed):
        train(tmp_path, evaluate_every=2, callbacks=[die], **same)
    assert (load_checkpoint(tmp_path, CPU)["step"], charged(tmp_path).steps) == (6, 8)
    monkeypatch.setenv("PRUDENT_TEST_SCALE", "2")
    with pytest.warns(RuntimeWarning, match=r"steps \d to 8, .* not repeated.*what a step"):
        train(tmp_path, **same)


@pytest.mark.parametrize("loss_every", [5, STEPS])
def test_a_run_that_passed_over_a_cycle_can_be_resumed_again(tmp_path, loss_every):
    """Also if it stops before it takes another step, or has none left."""
    plan = attrs.evolve(PLAN, watch=LossRelease(loss_every=loss_every, bound=1.0))
    killed(tmp_path, plan=plan)
    again = {"plan": plan, "loss": doubled, "resume": True}
    with pytest.warns(RuntimeWarning, match="not repeated"), contextlib.suppress(ZeroDivisionError):
        train(tmp_path, **again, evaluate=lambda model: {"wrong": 1 / 0})
    kept = load_checkpoint(tmp_path, CPU)
    assert charged(tmp_path).steps == kept["step"] == min(STEPS, 2 * loss_every)
    assert train(tmp_path, **again).lost == kept["lost"]


def test_held_out_records_are_not_released_again_after_steps_that_were_lost(tmp_path, monkeypatch):
    """The lost run may have released something of them after the last of its steps."""
    plan = attrs.evolve(PLAN, held_out=HeldOut(every=2 * EVERY))
    same = {"plan": plan, "loss": from_environment, "execution": Execution(seed=1)}
    same["held_out_set"] = tensors()
    released, own = [], HeldOutRecords._sum

    def counted(self, step):
        released.append(step.taken)
        return own(self, step)

    def dying(self, metrics):
        if metrics.step == 2 * EVERY:
            raise Killed

    monkeypatch.setattr(HeldOutRecords, "_sum", counted)
    with monkeypatch.context() as patch:  # killed before the checkpoint of step 8 is written
        patch.setattr(Recorder, "record", dying)
        with pytest.raises(Killed):
            train(tmp_path, **same)
    assert released == [2 * EVERY]
    own_step = Run._update

    def changed(self):
        if self.taken == 2 * EVERY - 2:  # the first lost steps are repeated, the others are not
            os.environ["PRUDENT_TEST_SCALE"] = "2"
        return own_step(self)

    monkeypatch.setenv("PRUDENT_TEST_SCALE", "1")
    monkeypatch.setattr(Run, "_update", changed)
    with pytest.warns(RuntimeWarning, match=r"steps \d to 8, .* not repeated.*what a step"):
        resumed = train(tmp_path, resume=True, **same)
    assert resumed.lost == 2
    assert released == [2 * EVERY, STEPS]
