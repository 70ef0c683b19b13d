"""What the processes of test_processes.py do; a module of its own, so they can import it."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import dp_accounting as dp

from prudent.budget.ledger import Ledger, OverBudgetError

EVENT = dp.GaussianDpEvent(48.0)


@contextmanager
def processes() -> Iterator[list[ForkServerProcess]]:
    """A list to put started processes in; none of them outlives the test."""
    started: list[ForkServerProcess] = []
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.join()
            process.close()


def charge_and_release(location: str, name: str, times: int, released: Path) -> None:
    """Charges one event after another; each time the charge returned, notes its label in a file.

    The note stands for a release: a charge that is lost while its note is there would have cost
    privacy.
    """
    pauses = random.Random(name)
    notes = os.open(released / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Ledger.open(location) as ledger:
        for number in range(times):
            try:
                ledger.charge(EVENT, f"{name}/{number}")
            except OverBudgetError:
                break
            os.write(notes, f"{name}/{number}\n".encode())
            time.sleep(pauses.uniform(0, 0.004))
    os.close(notes)


def charge_slowly(location: str, ready: Path) -> None:
    """Stops for good inside the transaction, with the row written and not committed."""
    with Ledger.open(location) as ledger:
        append = ledger._store.append

        def append_and_wait(*arguments: object) -> None:
            append(*arguments)
            ready.touch()
            time.sleep(600)

        ledger._store.append = append_and_wait
        ledger.charge(EVENT, "never committed")
