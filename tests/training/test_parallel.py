"""Several processes release what one would: real ones, over gloo."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import traceback

import numpy as np
import pytest
import torch

from prudent._validate import ArgumentError
from prudent.cli import main
from prudent.training import Execution, Plan, PoissonSampler
from prudent.training.keystream import Key
from prudent.training.parallel import (
    DistributedGroup,
    Processes,
    ProcessLostError,
    _portable,
    local_device,
)
from prudent.training.run.checkpoint import charged, load_checkpoint
from tests.training import worlds

ALIKE = [n for n in worlds.SCENARIOS if not n.startswith(("refused", "broken", "first"))]
REFUSED = [n for n in worlds.SCENARIOS if n.startswith(("refused", "first"))]
BROKEN = [n for n in worlds.SCENARIOS if n.startswith("broken")]
COUNTS = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of a scenario, by name."""
    folder, known = tmp_path_factory.mktemp("alone"), {}

    def outcome(name):
        if name not in known:
            with torch.random.fork_rng():
                known[name] = worlds.SCENARIOS[name](folder / name)
        return known[name]

    return outcome


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Groups of processes, by their number; each is started once, for all workers of pytest."""
    folder, known = tmp_path_factory.getbasetemp(), {}
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def group(count):
        if count not in known:
            known[count] = worlds.Group(folder / f"group{count}", count)
        return known[count]

    return group


@pytest.fixture(scope="module")
def together(groups):
    """What the processes of a group made of a scenario: one outcome for each of them."""

    def outcomes(count, name):
        found = [outcome[name] for outcome in groups(count).left("all")]
        for outcome in found:
            assert not isinstance(outcome, str), outcome
        return found

    return outcomes


def is_alike(outcome, expected):
    """Sums of doubles in another order, and nothing else, may differ."""
    return (
        set(outcome) == set(expected)
        and torch.allclose(outcome["parameters"], expected["parameters"], rtol=0, atol=1e-12)
        and all(
            outcome[name] == expected[name] for name in ("pass_rate", "trims") if name in outcome
        )
        and all(np.allclose(outcome[n], expected[n]) for n in ("drawn", "losses") if n in outcome)
    )


@pytest.mark.unhurried
def test_two_processes_release_what_one_would_and_a_mistake_is_seen(alone, tmp_path):
    few = "mixed", "broken_noise", "refused_shared", "first_part"
    for outcome in worlds.Group(tmp_path / "group", 2, *few).left("all"):
        assert is_alike(outcome["mixed"], alone("mixed"))
        assert not is_alike(outcome["broken_noise"], alone("broken_noise"))
        assert outcome["refused_shared"] == outcome["first_part"] == {"refused": True}


@pytest.mark.thorough
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ALIKE)
def test_as_one_process_would(alone, together, name, count):
    expected = alone(name)
    for outcome in together(count, name):
        assert is_alike(outcome, expected)
        assert torch.equal(outcome["parameters"], together(count, name)[0]["parameters"])


@pytest.mark.thorough
@pytest.mark.parametrize("count", COUNTS)
def test_held_out_records_are_divided_among_processes(alone, together, count):
    expected = alone("held_out")["shown"]
    assert sum("held_out_accuracy" in shown for shown in expected) == 3
    for outcome in together(count, "held_out"):
        assert [shown.keys() for shown in outcome["shown"]] == [shown.keys() for shown in expected]
        values = zip(outcome["shown"], expected, strict=True)
        assert all(one == pytest.approx(other, abs=1e-9) for one, other in values)


@pytest.mark.thorough
def test_the_scenarios_are_what_their_names_say(alone):
    assert alone("passing")["pass_rate"] == 1
    assert alone("failing")["pass_rate"] == 0
    assert 0 < alone("mixed")["pass_rate"] < 1
    sizes = [len(own_ids(rank, 2, step, rate=0.03)) for rank in range(2) for step in range(12)]
    assert 0 in sizes
    assert max(sizes) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_mistake_would_be_seen(alone, together, name, count):
    """Noise added by all, weights from one's own norms, ties ordered within a process."""
    alike = [is_alike(outcome, alone(name)) for outcome in together(count, name)]
    assert all(alike) if name == "broken_not_at_all" else not any(alike)


@pytest.mark.thorough
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", REFUSED)
def test_all_processes_refuse(together, name, count):
    assert together(count, name) == [{"refused": True}] * count


@pytest.mark.thorough
@pytest.mark.parametrize("count", COUNTS)
def test_dropout_goes_on_in_every_process(together, count):
    """Compared with the whole run within the scenario, bit for bit."""
    first, *others = together(count, "dropout_resumed")
    for other in others:
        assert torch.equal(other["parameters"], first["parameters"])


class Member(Processes):
    """One of several processes, where they have nothing to say to each other."""

    def __init__(self, rank, count):
        self.rank, self.count = rank, count


def own_ids(rank, count, step, rate=0.3, **options):
    processes = Member(rank, count)
    key = Key.from_seed(worlds.SEED)
    sampler = PoissonSampler(worlds.RECORDS, rate, key=key, processes=processes, **options)
    batch = sampler.batch(step)
    assert (batch.ids % count == rank).all()  # padding, too, is a record of this process
    return batch.ids[batch.valid].tolist()


@pytest.mark.parametrize("count", [2, 3, 47])
@pytest.mark.parametrize("options", [{}, {"physical_batch": 1}, {"physical_batch": 5}])
def test_every_drawn_record_is_in_one_process(count, options):
    for step in (0, 5, 63, 64):
        whole = own_ids(0, 1, step)
        parts = [own_ids(rank, count, step, **options) for rank in range(count)]
        assert all(part == sorted(part) for part in parts)
        assert sorted(itertools.chain.from_iterable(parts)) == whole


def test_several_processes_do_nothing_as_one_does():
    alone = {name for name in vars(Processes) if not name.startswith("__")} - {"rank", "count"}
    missing = alone - vars(DistributedGroup).keys()
    assert not missing, "a group of several would silently do what one process does"


def test_one_process_is_not_several():
    with pytest.raises(ValueError, match="Expected distributed False or None in one process"):
        Execution(distributed=True).joined()


def test_each_process_has_its_own_device(monkeypatch):
    placed = []
    monkeypatch.setattr(torch.cuda, "set_device", placed.append)
    assert local_device("cuda") == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device("cuda") == torch.device("cuda", 3)
    assert local_device("cuda:1") == torch.device("cuda", 1)
    assert local_device("cpu") == torch.device("cpu")
    assert placed == [torch.device("cuda", 3)]


EVENT = Plan(sampling_rate=0.3, steps=worlds.STEPS, aggregation=worlds.propose()).event


@pytest.mark.thorough
class TestAProcessIsKilled:
    """Of two processes, after the ninth of twelve steps and before its checkpoint."""

    def test_the_others_stop_and_say_so(self, groups):
        survivor, victim = groups(2).statuses["killed"]
        assert victim == -9
        assert survivor == 1
        expected = "ProcessLostError: A process of this run was lost, so the others stop."
        assert expected in groups(2).said("killed", 0)

    def test_what_was_taken_is_paid_for(self, groups):
        folder = groups(2).folder / "killed" / "run"
        assert load_checkpoint(folder, worlds.CPU)["step"] == 6
        assert charged(folder)[0] == 9

    @pytest.mark.parametrize("count", [1, *COUNTS])
    def test_any_number_goes_on(self, groups, tmp_path, count):
        """With another number sums are rounded otherwise, so lost steps are not repeated."""
        killed = load_checkpoint(groups(2).folder / "killed" / "run", worlds.CPU)
        if count == 1:
            place = tmp_path / "run"
            shutil.copytree(groups(2).folder / "killed" / "run", place)
            with pytest.warns(RuntimeWarning, match=r"steps 7 to 9, .*the number of processes"):
                worlds.resumable(place, resume=True)
        else:
            place = groups(count).folder / "resumed" / "run"
            first, *others = groups(count).left("resumed")
            assert all(torch.equal(one["parameters"], first["parameters"]) for one in others)
        kept = load_checkpoint(place, worlds.CPU)
        assert (kept["lost"], kept["key"] == killed["key"]) == (
            (0, True) if count == 2 else (3, False)
        )
        assert charged(place)[:2] == (worlds.STEPS, EVENT)

    def test_as_many_as_before_end_with_the_same_bits(self, groups, together):
        uninterrupted = together(2, "uninterrupted")[0]["parameters"]
        assert torch.equal(groups(2).left("resumed")[0]["parameters"], uninterrupted)


@pytest.mark.thorough
class TestAProcessRunsOutOfMemory:
    """Of two processes, in the middle of a run."""

    def test_it_says_so_and_the_other_stops(self, groups):
        assert groups(2).statuses["hungry"] == [1, 1]
        assert "physical_batch small enough for the memory" in groups(2).said("hungry", 1)
        assert "ProcessLostError: A process of this run was lost" in groups(2).said("hungry", 0)

    def test_what_was_taken_is_paid_for_and_the_run_goes_on(self, groups, tmp_path):
        shutil.copytree(groups(2).folder / "hungry" / "run", tmp_path / "run")
        begun = load_checkpoint(tmp_path / "run", worlds.CPU)["step"]
        assert 0 < begun < charged(tmp_path / "run").steps < worlds.STEPS
        with pytest.warns(RuntimeWarning, match="not repeated"):
            worlds.resumable(tmp_path / "run", resume=True)
        assert charged(tmp_path / "run").steps == worlds.STEPS


def test_an_error_that_cannot_be_sent_is_sent_as_text():
    """Else the first process would end with another error, and the others not know which."""

    class LocalError(Exception):
        pass

    assert repr(_portable(LocalError("it is full"))) == "RuntimeError('LocalError: it is full')"
    error = ArgumentError("out", "a folder", got=3)
    assert _portable(error) is error


def test_a_failed_allocation_is_no_lost_process():
    together = DistributedGroup.__new__(DistributedGroup)
    with pytest.raises(torch.OutOfMemoryError), together.watched():
        raise torch.OutOfMemoryError("tried to allocate")
    with pytest.raises(ProcessLostError) as lost, together.watched():
        raise RuntimeError("WorkNCCL(OpType=ALLGATHER, NumelIn=918273) timed out")
    assert "918273" not in "".join(traceback.format_exception(lost.value))  # of a drawn batch


def check_as_one_command(shown, two, archive, one, capsys):
    """One line of output, and one line of metrics for each evaluation: one process speaks."""
    assert main(worlds.command(archive, one)) == 0
    assert json.loads(shown) == json.loads(capsys.readouterr().out)
    lines = [(run / "metrics.jsonl").read_text() for run in (one, two)]
    assert lines[0] == lines[1]
    models = [load_checkpoint(run, worlds.CPU)["model"] for run in (one, two)]
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value)


@pytest.mark.thorough
def test_the_command_line_in_an_environment_as_of_torchrun(groups, archive, tmp_path, capsys):
    group = groups(2)
    assert group.left("told") == [0, 0]
    assert group.said("told", 1) == ""
    two = group.folder / "told" / "run"
    check_as_one_command(group.said("told", 0), two, archive, tmp_path / "one", capsys)


@pytest.mark.slow
def test_the_command_line_under_torchrun(archive, tmp_path, capsys):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "-m", "prudent"]
    done = subprocess.run(
        [*command, *worlds.command(archive, tmp_path / "two")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_as_one_command(done.stdout, tmp_path / "two", archive, tmp_path / "one", capsys)
