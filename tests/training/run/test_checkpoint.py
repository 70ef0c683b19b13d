"""A run killed at any moment: the same model, the same metrics, and never a step unpaid."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import prudent
from prudent.accounting import GaussianTest
from prudent.training import (
    AdaptiveTrim,
    Execution,
    Plan,
    ProposeTestRelease,
    fit,
)
from prudent.training.run import checkpoint
from prudent.training.run.checkpoint import charged, load_checkpoint, record_paid, save_checkpoint
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered

pytestmark = pytest.mark.filterwarnings("ignore:The test passed in")  # by chance, without a seed

CPU = torch.device("cpu")
STEPS, EVERY = 20, 2
PLAN = Plan(
    sampling_rate=0.1,
    steps=STEPS,
    aggregation=ProposeTestRelease(
        clip=1.0,
        propose=0.5,
        noise_multiplier=1.0,
        test=GaussianTest(2.0),
        failure=1e-3,
        trim=AdaptiveTrim(first=0.5, up=0.1, down=0.1, most=1.0),
    ),
)


class Unlimited:
    """A budget without an end, which notes what is charged."""

    def __init__(self):
        self.events = []

    def charge(self, event, label="", *, delta=None):
        self.events.append(event)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def records():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(200, 5, generator=generator), torch.arange(200) % 3


def train(out, resume=False, optimizer=torch.optim.Adam, **changes):
    model, train_set = network(), records()

    def evaluate(model):
        return {"weight": float(model[0].weight.detach().double().sum())}

    settings = {
        "execution": Execution(seed=5),
        "evaluate": evaluate,
        "evaluate_every": EVERY,
        "average": 0.9,
        "lr": 0.01,
    }
    return fit(
        changes.pop("plan", PLAN),
        model,
        cross_entropy,
        train_set,
        optimizer=optimizer,
        **gathered(settings | {"out": out, "resume": resume} | changes),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Puts what an undisturbed run leaves into a folder; the run itself takes place once."""
    whole = tmp_path_factory.mktemp("finished")
    train(whole)

    def place(folder):
        shutil.copytree(whole, folder, dirs_exist_ok=True)

    return place


def assert_same_run(folder, other):
    """Every number of the two runs, bit for bit."""
    assert (folder / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    assert (folder / "paid.json").read_text() == (other / "paid.json").read_text()
    states = [load_checkpoint(place, CPU) for place in (folder, other)]
    for state in states:
        assert len(state.pop("name")) == 16  # each run has its own
        assert all(state.pop("identity").values())  # of the optimizer, too, which may report
    leaves = [torch.utils._pytree.tree_flatten(state) for state in states]
    assert leaves[0][1] == leaves[1][1]
    for value, expected in zip(leaves[0][0], leaves[1][0], strict=True):
        if isinstance(expected, torch.Tensor):
            assert torch.equal(value, expected)
        else:
            assert value == expected


# Runs in a process of its own, so that forking is of a process with one thread. Each child takes
# the run as far as it comes before it is killed; it reports every step just before it is taken.
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch, torch._dynamo  # what every optimizer imports: here, not in each child
torch.set_num_threads(1)
from prudent._files import held
from prudent.training.run.checkpoint import charged, load_checkpoint
from tests.training.run import test_checkpoint as suite

folder, chance, kills = Path(sys.argv[1]), random.Random(int(sys.argv[2])), 0
folder.mkdir()
while True:
    state = load_checkpoint(folder, suite.CPU)
    begun = 0 if state is None else state["step"]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        class Reporting(torch.optim.Adam):
            def step(self, closure=None):
                os.write(writing, b".")
                return super().step(closure)
        suite.train(folder, resume=True, optimizer=Reporting)
        os._exit(0)
    os.close(writing)
    if kills < int(sys.argv[3]):
        wanted = chance.randint(0, 18)      # let so many steps happen, then a moment more
        seen = 0
        while seen < wanted and os.read(reading, 1):
            seen += 1
        time.sleep(chance.random() * 0.01)
        os.kill(child, signal.SIGKILL)
    else:
        seen = 0
    while os.read(reading, 1):
        seen += 1
    os.close(reading)
    _, status = os.waitpid(child, 0)
    taken, paid = begun + seen, (charged(folder) or (0, None))[0]
    assert paid >= taken, (paid, taken)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    kills += 1
print(kills)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_and_resumed_is_as_if_nothing_had_happened(tmp_path, finished, seed):
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(seed), str(2 * seed)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2
    finished(tmp_path / "whole")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


class Killed(BaseException):
    """Ends a run like a kill does: nothing after it happens."""


class Dying:
    """An evaluation that ends the run, the rehearsal apart."""

    def rehearse(self, model):
        """Does nothing."""

    def __call__(self, model):
        raise Killed


def interrupted(folder, monkeypatch, at):
    """Takes a run up to its nth change of a file in `out`, which no longer happens."""
    changes, replace = iter(range(10**6)), os.replace

    def dying(source, target):
        if next(changes) == at:
            raise Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(Killed):
        train(folder)
    monkeypatch.undo()


@pytest.mark.unhurried
@pytest.mark.parametrize("at", [0, 1, 2, 3, 8])
def test_between_any_two_changes_of_a_file(tmp_path, monkeypatch, finished, at):
    interrupted(tmp_path / "killed", monkeypatch, at)
    train(tmp_path / "killed", resume=True)
    finished(tmp_path / "whole")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.unhurried
def test_a_key_nobody_gave_is_kept_from_the_first_step_on(tmp_path):
    """Else a run killed before its first evaluation would take steps nobody paid for."""

    with pytest.raises(Killed):
        train(tmp_path, execution=Execution(), evaluate=Dying())
    before = load_checkpoint(tmp_path, CPU)
    assert before["step"] == 0
    assert charged(tmp_path)[0] == EVERY
    train(tmp_path, resume=True, execution=Execution())
    assert load_checkpoint(tmp_path, CPU)["key"] == before["key"]
    other = tmp_path / "other"
    train(other, execution=Execution())
    assert load_checkpoint(other, CPU)["key"] != before["key"]


@pytest.mark.unhurried
def test_a_run_without_a_seed_goes_on_as_it_would_have(tmp_path):
    """What was released before the first step is not released again with other noise."""
    whole, copy, looks = tmp_path / "whole", tmp_path / "copy", []

    def copying(model):
        looks.append(model)
        if len(looks) == 4:  # the first is the rehearsal
            shutil.copytree(whole, copy)
        return {}

    first = train(whole, execution=Execution(), evaluate=copying)
    assert load_checkpoint(copy, CPU)["step"] == 2 * EVERY
    resumed = train(copy, resume=True, execution=Execution(), evaluate=copying)
    for value, expected in zip(resumed.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(value, expected)
    assert_same_run(copy, whole)


def test_the_ledger_never_goes_back(tmp_path, monkeypatch):
    """Steps paid for by a killed run stay paid, however often the resumed one stops to look."""
    folder = tmp_path
    interrupted(folder, monkeypatch, at=2)  # the first checkpoint after a step is lost
    record_paid(folder, PLAN, 15)  # as a run with rarer evaluations would have
    paid = []

    def watch(model):
        paid.append(charged(folder)[0])
        return {}

    train(folder, resume=True, evaluate=watch)
    assert paid[0] == 15
    assert paid == sorted(paid)
    assert paid[-1] == STEPS
    steps, event, *_ = charged(folder)
    assert event == PLAN.event_after(steps)


def test_a_finished_run_is_left_as_it_is(tmp_path):
    first = train(tmp_path)
    text = (tmp_path / "metrics.jsonl").read_text()
    again = train(tmp_path, resume=True)
    assert again.history == []
    assert again.pass_rate == first.pass_rate
    assert (tmp_path / "metrics.jsonl").read_text() == text
    for value, expected in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(value, expected)


def test_another_plan_is_refused(tmp_path, finished):
    finished(tmp_path)
    for steps in (10, STEPS + 1):  # fewer would come with the epsilon of fewer
        words = f"Expected steps {STEPS}, with which this run was started, got {steps}"
        with pytest.raises(ValueError, match=words):
            train(tmp_path, resume=True, plan=attrs.evolve(PLAN, steps=steps))
    assert charged(tmp_path)[0] == STEPS
    quieter = Plan(sampling_rate=0.1, steps=STEPS, aggregation=PLAN.aggregation.with_noise(0.5))
    with pytest.raises(ValueError, match="Start again in an empty folder"):
        train(tmp_path, resume=True, plan=quieter)


def test_a_plan_of_fewer_steps_than_were_paid_for_is_refused(tmp_path):
    """With a checkpoint from before the run was made longer, and what was paid after it."""
    shorter, free = attrs.evolve(PLAN, steps=STEPS // 2), Unlimited()
    train(tmp_path, plan=shorter, ledger=free)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    train(tmp_path, resume=True, ledger=free)
    (tmp_path / "checkpoint.pt").write_bytes(before)
    with pytest.raises(ValueError, match=r"paid\.json does not match its checkpoint"):
        train(tmp_path, resume=True, plan=shorter, ledger=free)


def test_a_run_that_is_made_longer_is_the_longer_run(tmp_path, finished):
    """Only with a ledger: to decide on more steps after a look is what its filter allows for."""
    finished(tmp_path / "whole")
    half = attrs.evolve(PLAN, steps=STEPS // 2)
    train(tmp_path / "half", plan=half)
    with pytest.raises(ValueError, match="With a ledger that is charged for them"):
        train(tmp_path / "half", resume=True)
    ledger = Unlimited()
    longer = train(tmp_path / "half", resume=True, ledger=ledger)
    assert ledger.events == [PLAN.event]
    states = [load_checkpoint(tmp_path / name, CPU) for name in ("whole", "half")]
    assert states[0]["model"].keys() == states[1]["model"].keys()
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name])
    assert longer.plan == PLAN


def test_a_ledger_without_its_checkpoint_is_refused(tmp_path, finished):
    """Beginning anew would draw other noise for steps that were paid for once."""
    finished(tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(ValueError, match="Restore the checkpoint"):
        train(tmp_path, resume=True)
    assert charged(tmp_path)[0] == STEPS


@pytest.mark.parametrize(
    "other",
    [
        lambda inputs, targets: (torch.cat([inputs[1:], 2 * inputs[:1]]), targets),
        lambda inputs, targets: (inputs.flip(0), targets),
    ],
    ids=["another record", "another order"],
)
def test_other_data_are_refused(tmp_path, monkeypatch, finished, other):
    """The same noise on two data sets is no noise on their difference."""
    finished(tmp_path)
    changed = other(*records())
    monkeypatch.setitem(globals(), "records", lambda: changed)
    with pytest.raises(ValueError, match="Expected train_set with which this run was started"):
        train(tmp_path, resume=True)


class Items(Dataset):
    """Records that must be read to be known."""

    def __len__(self):
        return 220

    def __getitem__(self, index):
        return torch.full((5,), float(index)), index % 3


@pytest.mark.parametrize(
    ("whole", "example"),
    [(Items(), Items()[0]), (TensorDataset(torch.randn(220, 5), torch.arange(220) % 3), None)],
)
def test_another_part_of_the_data_is_refused(tmp_path, monkeypatch, whole, example):
    """`random_split` draws another part in every process that does not seed it."""

    def part(first):
        return Subset(whole, range(first, first + 200))

    monkeypatch.setitem(globals(), "records", lambda: part(0))
    few = Plan(sampling_rate=0.1, steps=2, aggregation=PLAN.aggregation)
    train(tmp_path, plan=few, example=example)
    train(tmp_path, plan=few, example=example, resume=True)
    monkeypatch.setitem(globals(), "records", lambda: part(20))
    with pytest.raises(ValueError, match="Expected train_set with which this run was started"):
        train(tmp_path, plan=few, example=example, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_two_runs_at_once_are_refused(tmp_path, resume):
    """Each would draw noise of its own, and the ledger would tell of one of them."""
    ledger, away = tmp_path / "paid.json", tmp_path / "away.json"
    looked = []

    def meanwhile(_):
        if not ledger.exists():  # the rehearsal
            return {}
        ledger.rename(away)  # as if the other had looked before there was one
        with pytest.raises(ValueError, match="Expected out a folder that no other run is using"):
            train(tmp_path, resume, execution=Execution())
        looked.append(ledger.exists())
        away.rename(ledger)
        return {}

    train(tmp_path, evaluate=meanwhile, evaluate_every=STEPS // 2)
    assert looked == [False, False]
    train(tmp_path, resume=True)  # a run that has ended holds nothing


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be opened here")
def test_files_stay_in_their_places_when_the_power_fails(tmp_path, monkeypatch):
    """A new name is on disk only once its folder is."""
    calls, replace, sync = [], os.replace, os.fsync

    def replacing(source, target):
        calls.append(target)
        replace(source, target)

    def syncing(number):
        if os.path.samestat(os.fstat(number), tmp_path.stat()):
            calls.append("folder")
        sync(number)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "fsync", syncing)
    save_checkpoint(tmp_path, {"step": 0})
    record_paid(tmp_path, PLAN, 1)
    assert calls == [tmp_path / "checkpoint.pt", "folder", tmp_path / "paid.json", "folder"]


def test_resuming_needs_a_folder():
    with pytest.raises(ValueError, match="Expected out the folder to resume from"):
        train(None, resume=True)


def test_leftovers_of_a_kill_are_ignored(tmp_path, finished):
    finished(tmp_path / "whole")
    folder = tmp_path / "begun"
    folder.mkdir()
    for name in ("checkpoint.pt.new", "paid.json.new"):
        (folder / name).write_bytes(b"\x00half")
    (folder / "metrics.jsonl").write_text('{"step": 4, "epsi')
    train(folder, resume=True)
    assert_same_run(folder, tmp_path / "whole")


def test_only_tensors_and_plain_values_are_read(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    save_checkpoint(tmp_path, {"step": 1, "model": Evil()})
    with pytest.raises(ValueError, match="holds other than tensors and plain values"):
        load_checkpoint(tmp_path, CPU)


def test_a_checkpoint_is_for_its_owner_alone(tmp_path):
    """It holds the key: whoever reads it can subtract the noise."""
    save_checkpoint(tmp_path, {"step": 0})
    save_checkpoint(tmp_path, {"step": 1})
    assert stat.S_IMODE((tmp_path / "checkpoint.pt").stat().st_mode) == 0o600
    assert load_checkpoint(tmp_path, CPU) == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_the_format_of_a_checkpoint_is_written_and_compared(tmp_path, monkeypatch, finished):
    finished(tmp_path)
    written = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert written["format"] == checkpoint.CHECKPOINT_FORMAT
    monkeypatch.setattr(checkpoint, "CHECKPOINT_FORMAT", checkpoint.CHECKPOINT_FORMAT + 1)
    save_checkpoint(tmp_path, load_checkpoint(tmp_path, CPU))
    monkeypatch.undo()
    needed = f"needs a newer version of prudent than {re.escape(prudent.__version__)}"
    with pytest.raises(ValueError, match=needed):
        train(tmp_path, resume=True)


def test_the_parts_of_a_checkpoint_are_those_of_its_format(tmp_path):
    """Another set of names would make runs unreadable that were begun before: it needs a number."""
    train(tmp_path, plan=Plan(sampling_rate=0.1, steps=2, aggregation=PLAN.aggregation))
    state = load_checkpoint(tmp_path, CPU)
    names = (
        "step plan event key predictable records data identity lost renewals model optimizer "
        "release corruption reading passes averages schedule name steps best"
    )
    assert checkpoint.CHECKPOINT_FORMAT == 1
    assert set(state) == set(names.split())
    assert set(state["release"]) == {"trim", "taken", "history"}
    assert state["passes"].untyped_storage().nbytes() == 8  # no private counter beside it


def test_the_format_of_a_ledger_is_written_and_compared(tmp_path):
    assert charged(tmp_path) is None
    record_paid(tmp_path, PLAN, 7)
    assert charged(tmp_path) == (7, PLAN.event_after(7), PLAN.relation, 0)
    path = tmp_path / "paid.json"
    content = json.loads(path.read_text())
    assert (content.pop("format"), content["steps"]) == (checkpoint.PAID_FORMAT, 7)
    path.write_text(json.dumps({"format": checkpoint.PAID_FORMAT + 1, "stages": []}))
    needed = f"needs a newer version of prudent than {re.escape(prudent.__version__)}"
    with pytest.raises(ValueError, match=needed):
        charged(tmp_path)
    path.write_text(json.dumps({**content, "format": "one"}))
    with pytest.raises(ValueError, match="damaged"):
        charged(tmp_path)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_flipped_bit_of_a_checkpoint_is_read(tmp_path, finished):
    """Other weights under the same noise: whoever sees both can subtract one from the other."""
    finished(tmp_path)
    path = tmp_path / "checkpoint.pt"
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    anywhere = torch.randint(8 * len(content), (200,), generator=generator).tolist()
    digest = range(8 * (len(content) - 60), 8 * len(content))
    for bit in (*anywhere, *digest):
        path.write_bytes(flipped(content, bit))
        with pytest.raises(ValueError, match="digest does not match"):
            load_checkpoint(tmp_path, CPU)
    for size in (0, 1, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="digest does not match"):
            load_checkpoint(tmp_path, CPU)
    with pytest.raises(ValueError, match="digest does not match"):
        train(tmp_path, resume=True)
    path.write_bytes(content)
    train(tmp_path, resume=True)


def test_no_flipped_bit_of_a_ledger_changes_what_was_paid(tmp_path, finished):
    record_paid(tmp_path, PLAN, 17)
    path = tmp_path / "paid.json"
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 3):  # every bit takes seconds
        path.write_bytes(flipped(content, bit))
        try:
            steps, event, *_ = charged(tmp_path)
        except ValueError:
            continue
        assert steps == 17 or not 0 <= steps <= STEPS or event != PLAN.event_after(steps)
    finished(tmp_path / "run")
    path = tmp_path / "run" / "paid.json"
    text = path.read_text()
    path.write_text(text.replace('"steps": 20', '"steps": 10'))
    with pytest.raises(ValueError, match=r"Expected out with what this run paid for"):
        train(tmp_path / "run", resume=True)
    path.write_text(text)
    train(tmp_path / "run", resume=True)
