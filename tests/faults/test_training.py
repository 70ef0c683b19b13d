"""Faults of a training run: what was there stays, nothing is released unpaid, and it can go on."""

import os
import shutil
from pathlib import Path

import dp_accounting as dp
import pytest
import torch
from torch import nn

from prudent.budget.ledger import Ledger, StorageError
from prudent.training import Execution, Plan, Sum, fit
from prudent.training.run.checkpoint import charged, load_checkpoint
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered

CPU = torch.device("cpu")
PLAN = Plan(
    sampling_rate=0.5,
    steps=6,
    aggregation=Sum(clip=1.0, noise_multiplier=1.0),
    expected_batch=10.0,
)


class Hungry(nn.Module):
    """Asks for more memory than there is, in every pass from some evaluation on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.left == 0:
            torch.empty(1 << 60)
        return inputs

    def look(self, model: nn.Module) -> dict[str, float]:
        self.left -= 1
        return {}


def train(out: Path | None, *, records: int = 20, hungry: int = -1, width: int = 4, **options):
    """A run; with `hungry` it runs out of memory after so many evaluations."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, width), nn.Linear(width, 3), Hungry(hungry + 1 or -1))
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(records, 5, generator=generator), torch.arange(records) % 3
    settings = {"execution": Execution(seed=3), "evaluate_every": 2, "out": out, "lr": 0.1}
    settings["evaluate"] = model[2].look  # also once before the run, as a rehearsal
    return fit(PLAN, model, cross_entropy, data, **gathered(settings | options)).model


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def no_memory(out: Path | None, **options) -> ValueError:
    with pytest.raises(ValueError, match="physical_batch small enough for the memory") as caught:
        train(out, **options)
    return caught.value


def test_a_chunk_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    """A real failed allocation: the run ends before the update, and goes on without that step."""
    folder = tmp_path / "run"
    no_memory(folder, hungry=1)
    state, paid = load_checkpoint(folder, CPU), charged(folder)
    assert (state["step"], paid.steps) == (2, 3)
    with pytest.warns(RuntimeWarning, match="steps 3 to 3, .*: the model"):  # which fits now
        train(folder, resume=True)
    assert charged(folder).steps == PLAN.steps


@pytest.mark.parametrize("physical_batch", [16, None])
def test_running_out_of_memory_says_nothing_about_the_data(physical_batch: int | None) -> None:
    """Not how much was asked for, nor in which step, nor as the context of the error.

    Under this relation the number of records is secret, and with it the usual physical batch.
    """
    execution = Execution(seed=3, physical_batch=physical_batch)
    errors = [
        no_memory(None, hungry=hungry, records=records, execution=execution)
        for hungry, records in ((1, 20), (2, 20), (2, 21), (1, 40))
    ]
    assert len({str(error) for error in errors}) == 1
    assert all(error.__context__ is None and error.__cause__ is None for error in errors)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    def wrong(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a mistake in the loss")

    with pytest.raises(Exception, match="a mistake in the loss"):
        fit(PLAN, nn.Linear(5, 3), wrong, (torch.randn(20, 5), torch.arange(20) % 3), lr=0.1)


def test_a_full_disk_stops_a_run_that_can_go_on(disk, tmp_path: Path) -> None:
    """In the middle: what was written before is intact, and no half of a file takes up room."""
    folder, looks = disk.path / "run", []

    def filling(model: nn.Module) -> dict[str, float]:
        looks.append(None)
        if len(looks) == 3:  # the first is the rehearsal
            disk.fill()
        return {}

    with pytest.raises(OSError, match="Free some space or mend the disk, then start it") as caught:
        train(folder, evaluate=filling, width=400)
    assert caught.value.errno == 28
    assert Path(caught.value.filename).parent == folder
    assert not list(folder.glob("*.new"))
    assert load_checkpoint(folder, CPU)["step"] == 2
    assert charged(folder).steps == 4
    message = "Expected out a folder that can be written|Free some space"
    with pytest.raises((ValueError, OSError), match=message):
        train(folder, resume=True, width=400)
    disk.free()
    resumed = train(folder, resume=True, width=400)
    whole = train(tmp_path / "whole", width=400)
    assert torch.equal(weights(resumed), weights(whole))
    lines = [(place / "metrics.jsonl").read_text() for place in (folder, tmp_path / "whole")]
    assert lines[0] == lines[1]


@pytest.mark.filterwarnings("ignore:The run goes on after step")
def test_a_read_only_disk(disk, tmp_path: Path) -> None:
    no_memory(disk.path / "run", hungry=1)
    disk.protect()
    try:
        with pytest.raises(OSError, match=r"Read-only file system\. The run stops"):
            train(disk.path / "run", resume=True)
        with pytest.raises(OSError, match="Read-only file system"):
            train(disk.path / "other")
    finally:
        disk.protect(False)
    ended = train(disk.path / "run", resume=True)
    disk.protect()
    try:  # a finished run writes nothing
        resumed = train(disk.path / "run", resume=True)
    finally:
        disk.protect(False)
    assert torch.equal(weights(resumed), weights(ended))


def test_a_folder_of_another_user(unprivileged) -> None:
    folder = Path(f"/tmp/prudent-run-{os.getpid()}")  # nobody enters pytest's own
    train(folder)
    folder.chmod(0o555)
    try:
        with (
            unprivileged(),
            pytest.raises((OSError, ValueError), match=r"Permission denied|can be written"),
        ):
            train(folder, resume=True)
        assert charged(folder).steps == PLAN.steps
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_metrics_are_never_half_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while entries after the checkpoint are dropped loses none of those before it."""

    class Killed(BaseException):
        pass

    train(tmp_path)
    path = tmp_path / "metrics.jsonl"
    before = path.read_text()
    path.write_text(before + '{"step": 8, "eps')  # as a kill leaves it

    def dying(source: object, target: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(Killed):
        train(tmp_path, resume=True)
    monkeypatch.undo()
    assert path.read_text().startswith(before)
    train(tmp_path, resume=True)
    assert path.read_text() == before


class Unreachable(Ledger):
    """A ledger that is charged, and gone when the run is over."""

    def record_outcome(self, charge: object, outcome: object) -> None:
        raise StorageError("budget.db: the connection was lost; try again.")


def test_a_ledger_lost_after_the_charge_does_not_cost_the_model(tmp_path: Path) -> None:
    budget = {"epsilon": 50.0, "delta": 1e-3}
    with Unreachable(tmp_path / "budget.db", **budget) as ledger:
        with pytest.warns(UserWarning, match="complete and paid for, but its outcome could not"):
            model = train(None, ledger=ledger)
        (charge,) = ledger.history()
    assert torch.equal(weights(model), weights(train(None)))
    assert charge.event == PLAN.event
    assert not charge.outcome


class Silent(Ledger):
    """A ledger that writes a charge, and loses the answer."""

    def charge(self, event: dp.DpEvent, label: str = "", **options: object) -> object:
        super().charge(event, label, **options)
        raise StorageError("the connection was lost")


def test_a_charge_whose_answer_was_lost_is_not_made_again(tmp_path: Path) -> None:
    where, run = tmp_path / "budget.db", tmp_path / "run"
    with (
        Silent(where, epsilon=50.0, delta=1e-3) as ledger,
        pytest.raises(StorageError, match="connection was lost"),
    ):
        train(run, ledger=ledger)
    assert charged(run) is None  # no step was taken
    with Ledger.open(where) as ledger:
        train(run, ledger=ledger, resume=True)
        assert [charge.outcome for charge in ledger.history()] == [{"released": 1}]
