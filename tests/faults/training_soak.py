"""Training runs that are killed at random and resumed, until each has come to its end.

    python -m tests.faults.training_soak FOLDER KILLS SEED

A process of its own, with one thread, so that it may fork: each child takes a run as far as it
comes before it is killed, and reports every step just before the update is made.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import attrs
import torch
import torch._dynamo  # what every optimizer imports: here, not in each child

from prudent.budget.ledger import Ledger
from prudent.training import Execution, Plan, Reporting, fit
from prudent.training.run.checkpoint import charged, load_checkpoint
from tests.training.gradients.oracle import cross_entropy
from tests.training.run.test_checkpoint import PLAN, assert_same_run, network, records

CPU = torch.device("cpu")
STEPS, EVERY = 40, 4
BUDGET = {"epsilon": 50.0, "delta": 1e-3}


class Telling(torch.optim.Adam):
    """Writes a byte for every step, to a pipe that is no part of what it is."""

    def step(self, closure=None):
        if "REPORT_TO" in os.environ:
            os.write(int(os.environ["REPORT_TO"]), b".")
        return super().step(closure)


def train(folder: Path, ledger: Path, seed: int) -> None:
    """A run that goes on where it was left."""
    plan = Plan(sampling_rate=0.1, steps=STEPS, aggregation=PLAN.aggregation, expected_batch=20.0)
    with Ledger(ledger, **BUDGET) as opened:
        fit(
            plan,
            network(),
            cross_entropy,
            records(),
            optimizer=Telling,
            execution=Execution(seed=seed),
            average=0.9,
            ledger=opened,
            reporting=Reporting(
                evaluate=lambda model: {"weight": float(model[0].weight.detach().double().sum())},
                evaluate_every=EVERY,
                out=folder,
                resume=True,
            ),
            lr=0.01,
        )


@attrs.frozen
class Soaked:
    """What the soak came to. Every claim is asserted on the way."""

    runs: int
    kills: int
    steps_repeated: int
    seconds: float


def soak(folder: Path, kills: int, seed: int) -> Soaked:
    """Begins runs until so many were killed, and compares each with one that was left alone."""
    began, chance, done, runs, repeated = time.monotonic(), random.Random(seed), 0, 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    train(folder / "first", folder / "first.db", 0)  # prices are remembered: here, not in children
    while done < kills:
        place = folder / f"run{runs}"
        again, seen = _until_its_end(place, kills - done, chance, runs)
        done, repeated = done + again, repeated + seen - STEPS
        train(place / "whole", place / "whole.db", runs)
        assert_same_run(place / "killed", place / "whole")
        with Ledger.open(place / "killed.db") as ledger:
            (charge,) = ledger.history()  # once, however often it was resumed
            assert charge.outcome == {"released": 1}
            assert ledger.verify() == 1
        runs += 1
    return Soaked(runs, done, repeated, time.monotonic() - began)


def _until_its_end(place: Path, kills: int, chance: random.Random, seed: int) -> tuple[int, int]:
    """Kills of one run, and steps taken in all."""
    folder, ledger, done, total = place / "killed", place / "killed.db", 0, 0
    folder.mkdir(parents=True)
    while True:
        state = load_checkpoint(folder, CPU)
        begun = 0 if state is None else state["step"]
        seen, status = _child(folder, ledger, seed, chance if done < kills else None)
        total += seen
        paid = charged(folder)
        assert seen == 0 or (paid is not None and paid.steps >= begun + seen), "a step unpaid"
        if seen:
            with Ledger.open(ledger) as opened:
                assert len(opened.history()) == 1, "not charged, or more than once"
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return done, total
        done += 1


def _child(folder: Path, ledger: Path, seed: int, chance: random.Random | None) -> tuple[int, int]:
    """Steps that a child took, and how it ended; without `chance` it is not killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.environ["REPORT_TO"] = str(writing)
            train(folder, ledger, seed)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    seen = 0
    if chance is not None:
        wanted = chance.choice([0, 0, chance.randint(1, 6)])  # so many steps, then a moment more
        while seen < wanted and os.read(reading, 1):
            seen += 1
        time.sleep(chance.random() * (0.3 if wanted == 0 else 0.01))
        os.kill(child, signal.SIGKILL)
    while os.read(reading, 1):
        seen += 1
    os.close(reading)
    return seen, os.waitpid(child, 0)[1]


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = soak(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(attrs.asdict(result)))
