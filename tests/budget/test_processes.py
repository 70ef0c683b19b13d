"""Many processes at one ledger, some of them killed: never overdrawn, no release forgotten."""

import multiprocessing
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from prudent.budget.filters import AdaptiveFilter
from prudent.budget.ledger import Ledger, OverBudgetError
from tests.budget import charging
from tests.budget.charging import processes

DELTA = 1e-6


def start(target: object, *arguments: object) -> ForkServerProcess:
    # Forked from a server that has imported the package: a few milliseconds each, and no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["prudent.budget.ledger"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def capacity(epsilon: float) -> int:
    """How many charges fit, by the filter alone."""
    filter_ = AdaptiveFilter(epsilon, DELTA)
    state, count = filter_.opening(), 0
    while filter_.admits(state := filter_.charged(state, charging.EVENT, None)):
        count += 1
    return count


def charge_from_many(
    location: str, directory: Path, *, epsilon: float, workers: int, times: int, kills: int
) -> None:
    Ledger.create(location, epsilon=epsilon, delta=DELTA).close()
    fits = capacity(epsilon)
    assert fits < times * (workers - kills), "or the budget would not be reached"
    released = directory / "released"
    released.mkdir()
    chance = random.Random(workers)
    with processes() as started:
        for number in range(workers):
            started.append(
                start(charging.charge_and_release, location, f"w{number}", times, released)
            )
        victims = chance.sample(started, kills)
        while not any(released.iterdir()):
            assert any(process.is_alive() for process in started)
            time.sleep(0.01)
        for victim in victims:
            time.sleep(chance.uniform(0, 0.2))
            victim.kill()
        for process in started:
            process.join(300)
            assert not process.is_alive()
        unhurt = [process.exitcode for process in started if process not in victims]
        assert unhurt == [0] * (workers - kills)
    notes = [line for file in released.iterdir() for line in file.read_text().splitlines()]
    with Ledger.open(location) as ledger:
        charged = [charge.label for charge in ledger.history()]
        assert len(set(charged)) == len(charged)
        assert set(notes) <= set(charged)
        assert len(charged) - len(notes) <= kills  # each death loses at most the charge under way
        assert len(charged) == fits
        assert ledger.verify() == fits
        assert ledger.spent <= epsilon
        with pytest.raises(OverBudgetError):
            ledger.charge(charging.EVENT)


@pytest.mark.unhurried
def test_processes_charge_at_once_and_some_are_killed(location: str, tmp_path: Path) -> None:
    charge_from_many(location, tmp_path, epsilon=1.0, workers=8, times=25, kills=3)


def test_a_process_killed_before_its_commit_leaves_nothing(location: str, tmp_path: Path) -> None:
    with Ledger(location, epsilon=1.0, delta=DELTA) as ledger, processes() as started:
        ledger.charge(charging.EVENT, "before")
        ready = tmp_path / "ready"
        started.append(start(charging.charge_slowly, location, ready))
        while not ready.exists():
            assert started[0].is_alive()
            time.sleep(0.01)
        started[0].kill()
        started[0].join()
        ledger.charge(charging.EVENT, "after")
        assert [charge.label for charge in ledger.history()] == ["before", "after"]
        assert ledger.verify() == 2
