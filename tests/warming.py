"""On a fresh clone two workers compile each module once, instead of both of them all.

Every worker of pytest-xdist imports every test, and whatever the tests import. The first time,
compiling that takes longer than all the rest of collection. So the workers begin at opposite ends:
even ones with torch and the first test, odd ones with the other libraries and the last test. Each
finds compiled what another one has been through.
"""

import contextlib
import importlib
import os
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
EVEN = ("torch._inductor", "torch.distributed.fsdp")
ODD = ("sklearn.utils.estimator_checks", "ibis", "polars", "matplotlib.pyplot")


def begin_at_ones_own_end(config: pytest.Config) -> None:
    """Imports a worker's half of the libraries, and turns the order of tests around for odd ones.

    Only where all tests are asked for: a few of them may need none of these libraries.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or [Path(each).resolve() for each in config.args] != [TESTS]:
        return
    odd = int(worker.removeprefix("gw")) % 2
    for name in (EVEN, ODD)[odd]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if odd:
        found = {TESTS / each.relative_to(TESTS).parts[0] for each in TESTS.rglob("test_*.py")}
        config.args = [str(path) for path in sorted(found, reverse=True)]
