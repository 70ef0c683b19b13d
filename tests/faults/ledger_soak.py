"""Many charges at one ledger while its processes are killed and its server is restarted.

Each process writes to a log of its own what it is about to ask, and what came of it. A charge whose
answer was lost is looked for in the history, as the message says. In the end log and ledger must
agree.
"""

import multiprocessing
import os
import random
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeVar

import attrs
import dp_accounting as dp

from prudent.budget.filters import AdaptiveFilter
from prudent.budget.ledger import Ledger, OverBudgetError, StorageError
from tests.budget.charging import processes

Answer = TypeVar("Answer")
DELTA = 1e-6
SPENT, PATIENCE = 3, 60  # exit status when the budget is used up; seconds to wait for a server


def work(location: str, log: Path, name: str, multiplier: float) -> None:
    """Charges until the budget is used up. Notes `?` before, then `+` for a charge that returned,
    and `=` or `-` for one that did not but is in the history, or is not."""
    out = os.open(log / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(kind: str, label: str) -> None:
        os.write(out, f"{kind}{label}\n".encode())

    ledger = patiently(lambda: Ledger.open(location))
    for number in range(10**9):
        label = f"{name}/{number}"
        note("?", label)
        try:
            ledger.charge(dp.GaussianDpEvent(multiplier), label)
        except OverBudgetError:
            os._exit(SPENT)
        except StorageError:
            ledger.close()
            ledger = patiently(lambda: Ledger.open(location))
            history = patiently(ledger.history)
            note("=" if any(charge.label == label for charge in history) else "-", label)
        else:
            note("+", label)  # stands for a release


def patiently(act: Callable[[], Answer]) -> Answer:
    """Tries again while the server is down; only for what charges nothing."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return act()
        except StorageError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def capacity(epsilon: float, multiplier: float) -> int:
    """How many charges fit, by the filter alone."""
    filter_ = AdaptiveFilter(epsilon, DELTA)
    state, count = filter_.opening(), 0
    event = dp.GaussianDpEvent(multiplier)
    while filter_.admits(state := filter_.charged(state, event, None)):
        count += 1
    return count


@attrs.frozen
class Soaked:
    """What a soak came to; `problems` is empty if log and ledger agree."""

    charges: int
    released: int
    kills: int
    restarts: int
    lost_answers: int
    seconds: float
    problems: list[str]


def soak(
    location: str,
    log: Path,
    *,
    epsilon: float,
    multiplier: float,
    workers: int,
    kills: int,
    restart: Callable[[], None] | None = None,
    restarts: int = 0,
    seed: int = 0,
) -> Soaked:
    """Lets processes charge until nothing fits any more, killing and restarting on the way.

    Faults are spread over the charges: one for every so many that were released.
    """
    began, chance = time.monotonic(), random.Random(seed)
    Ledger.create(location, epsilon=epsilon, delta=DELTA).close()
    fits = capacity(epsilon, multiplier)
    log.mkdir()
    faults = ["kill"] * kills + ["restart"] * restarts
    chance.shuffle(faults)
    due = sorted(chance.sample(range(fits), len(faults)))
    number, killed, answered = 0, 0, Answered(log)
    with processes() as running:
        while True:
            if running and not any(process.is_alive() for process in running):
                break
            spent = any(process.exitcode == SPENT for process in running)
            while not spent and sum(process.is_alive() for process in running) < workers:
                running.append(_start(location, log, f"w{number}", multiplier))
                number += 1
            if due and (answered.count() >= due[0] or spent):
                due.pop(0)
                if faults.pop() == "restart" and restart is not None:
                    restart()
                elif alive := [process for process in running if process.is_alive()]:
                    chance.choice(alive).kill()
                    killed += 1
            time.sleep(chance.uniform(0, 0.02))
        statuses = [process.exitcode for process in running]
    problems = check(location, log, fits=fits, killed=killed, statuses=statuses)
    notes = _notes(log)
    return Soaked(
        charges=fits,
        released=len(notes["+"]),
        kills=statuses.count(-9),
        restarts=restarts,
        lost_answers=len(notes["="]) + len(notes["-"]),
        seconds=time.monotonic() - began,
        problems=problems,
    )


def check(
    location: str, log: Path, *, fits: int, killed: int, statuses: list[int | None]
) -> list[str]:
    """Where log and ledger disagree."""
    notes = _notes(log)
    with patiently(lambda: Ledger.open(location)) as ledger:
        charged = [charge.label for charge in ledger.history()]
        verified, spent, limit = ledger.verify(), ledger.spent, ledger.balance().epsilon
    known = set(charged)
    claims = {
        "a process ended otherwise than by a kill or an empty budget": set(statuses) <= {SPENT, -9},
        "a charge stands twice": len(known) == len(charged),
        "a release was never charged": notes["+"] <= known,
        "a charge found in the history is gone": notes["="] <= known,
        "a charge that was not in the history came later": not notes["-"] & known,
        "a charge nobody asked for": known <= notes["?"],
        "more charges without a release than answers were lost": len(known - notes["+"])
        <= killed + len(notes["="]),
        "the ledger holds another number of charges than fit": len(charged) == fits == verified,
        "the budget is overdrawn": spent <= limit,
    }
    return [problem for problem, holds in claims.items() if not holds]


class Answered:
    """Counts what was released so far, reading only what was written since the last look."""

    def __init__(self, log: Path) -> None:
        self._log, self._read, self._count = log, dict[str, int](), 0

    def count(self) -> int:
        for path in self._log.iterdir():
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                new = file.read()
            self._read[path.name] = self._read.get(path.name, 0) + len(new)
            self._count += new.count(b"+")
        return self._count


def _notes(log: Path) -> dict[str, set[str]]:
    lines = [line for file in log.iterdir() for line in file.read_text().splitlines()]
    return {kind: {line[1:] for line in lines if line[0] == kind} for kind in "?+=-"}


def _start(*arguments: object) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.ledger_soak"])
    process = context.Process(target=work, args=arguments)
    process.start()
    return process
