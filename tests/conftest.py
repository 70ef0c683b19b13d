"""What every test shares: reproducible property tests, and the promise that the wheel is tested."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest

import prudent
from tests import answered_twice
from tests.archives import save_easy_classes
from tests.browsing import CHROMIUM
from tests.quick import is_quick
from tests.tiers import BRIEF, OTHER_TIERS, SERVER_NAMES, SERVERS, representatives
from tests.warming import begin_at_ones_own_end

_PLAIN = SimpleNamespace(_idlist=())
SOURCE = Path(__file__).resolve().parents[1] / "src"
ROOMS = ("audit", "budget", "certify", "cli", "records", "release", "training", "tune")
ABOVE_PRICES = ("prudent_lab", *(f"prudent.{room}" for room in ROOMS))

# The same examples on every run, and no clock: a shared machine must not decide what passes.
same = {"derandomize": True, "deadline": None, "database": None}
hypothesis.settings.register_profile("quick", max_examples=3, **same)
hypothesis.settings.register_profile("brief", max_examples=BRIEF, **same)
hypothesis.settings.register_profile("ci", max_examples=50, **same)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
QUICK = os.environ.get("PRUDENT_TEST_QUICK") == "1"
usual = "quick" if QUICK else "brief"
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", usual))


def pytest_configure(config: pytest.Config) -> None:
    """Refuses to test the source tree where the wheel was meant (`make test`)."""
    location = Path(str(prudent.__file__)).resolve()
    if os.environ.get("PRUDENT_TEST_WHEEL") == "1" and location.is_relative_to(SOURCE):
        raise pytest.UsageError(
            f"PRUDENT_TEST_WHEEL=1, but `import prudent` found the source tree: {location}. "
            "Put the directory the wheel was installed into on PYTHONPATH, as `make test` does."
        )
    if not QUICK:
        begin_at_ones_own_end(config)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out what `make quick` has no time for, by what a file imports."""
    if not QUICK:
        return None
    files = [collection_path]
    if collection_path.is_dir():  # its conftest.py may import what no file in it may
        files = list(collection_path.rglob("test_*.py"))
    return None if any(is_quick(file) for file in files if file.suffix == ".py") else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves servers and combinations of parameters to the second tier: see `tests/tiers.py`."""
    items.sort(key=lambda item: item.path)  # the same order in every worker: see tests/warming.py
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if OTHER_TIERS & {mark.name for mark in item.iter_markers()}:
            continue
        long = item.get_closest_marker("unhurried") is not None
        if (QUICK and long) or asks_a_server(item):
            item.add_marker("thorough")
        else:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        # One name per parameter, or per row of several; `indices` are numbered over all cases.
        chosen = representatives([getattr(case, "callspec", _PLAIN)._idlist for case in cases])
        if QUICK or cases[0].get_closest_marker("unhurried"):
            chosen = {min(chosen)}
        for position, case in enumerate(cases):
            if position not in chosen:
                case.add_marker("thorough")


def asks_a_server(item: pytest.Item) -> bool:
    """Whether a test has the fixture of a server, or a parameter that is named after one."""
    words = {word for name in getattr(item, "callspec", _PLAIN)._idlist for word in name.split("-")}
    return bool(SERVERS.intersection(getattr(item, "fixturenames", ())) or words & SERVER_NAMES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Writes the processor seconds of each test to a file, if one is named.

    A test that patches something must not see the prices of others, nor leave its own.
    """
    known = dict(_prices())
    before = sum(os.times()[:4])
    brief = "not thorough" in item.config.getoption("-m")
    answered_twice.begin(item.nodeid.partition("[")[0] if brief else None)
    outcome = yield
    if "monkeypatch" in getattr(item, "fixturenames", ()):
        _prices().clear()
        _prices().update(known)
    if path := os.environ.get("PRUDENT_TEST_TIMES"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{sum(os.times()[:4]) - before:.2f} {item.nodeid}\n")
    return outcome


def _prices() -> dict[Any, float]:
    """What the PLD accountant remembers."""
    module = sys.modules.get("prudent.accounting.pld_accountant")
    return {} if module is None else module._KNOWN


class _Patches(pytest.MonkeyPatch):  # type: ignore[misc]
    """Forgets prices when something changes that they could depend on.

    They cannot depend on the rooms above accounting, from which it imports nothing:
    `tests/test_architecture.py`.
    """

    def setattr(self, target: Any, *rest: Any, **options: Any) -> None:
        super().setattr(target, *rest, **options)
        name = target if isinstance(target, str) else getattr(target, "__module__", None)
        name = name or getattr(target, "__name__", type(target).__module__)
        if not str(name).startswith(ABOVE_PRICES):
            _prices().clear()


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    """Pytest's, with prices as they are after a change."""
    patches = _Patches()
    yield patches
    patches.undo()


@pytest.fixture(autouse=True)
def rows_and_engine_agree() -> Iterator[None]:
    """Fails where rows and SQL answer differently: see `tests/answered_twice.py`."""
    yield
    differing = answered_twice.FAILED.copy()
    answered_twice.FAILED.clear()
    assert not differing


@pytest.fixture
def same_draws(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every run of the test draws the same: see `tests/seeding.py`."""
    from tests import seeding

    attempt = getattr(request.node, "execution_count", 1)  # of pytest-rerunfailures
    with seeding.same_draws(f"{request.node.nodeid} {attempt}"):
        yield


def pytest_collection_finish() -> None:
    """Takes what was imported out of the garbage collector's sight: none of it is ever freed.

    A full collection otherwise visits millions of objects, a third of a second each time. What
    the tests make is looked through less often than by default, for the same reason.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three easy classes of a table with six columns, as `npz:PATH` takes them."""
    path = tmp_path_factory.mktemp("data") / "easy.npz"
    save_easy_classes(path)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium for the tests of a module."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        started = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()
