"""No entry that takes an address shows its password, whatever it does with the address."""

import contextlib
import io
import json
import logging
import sqlite3
import sys
import traceback
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ibis", reason="tables need ibis")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

import prudent
from prudent import cli
from prudent._validate import redacted, without_password
from prudent.budget import allowance
from prudent.budget.ledger import Ledger, datasets
from prudent.release import open_column, open_groups
from prudent_lab.datasets import load

SECRET = "hunter2 tiger"
QUOTED = urllib.parse.quote(SECRET, safe="")
NOWHERE = "127.0.0.1:1"
ADDRESSES = {
    "plain": f"postgresql://me:hunter2tiger@{NOWHERE}/db",
    "encoded": f"postgres://me:{QUOTED}@{NOWHERE}/db",
    "query": f"postgresql://me@{NOWHERE}/db?password=hunter2tiger&connect_timeout=1",
    "ssl": f"postgresql://me@{NOWHERE}/db?sslpassword=hunter2tiger&connect_timeout=1",
    "keywords": f"host=127.0.0.1 port=1 dbname=db user=me password='{SECRET}'",
    "spaces": "host = 127.0.0.1 port = 1 dbname = db password = hunter2tiger",
    "other": f"mysql://me:hunter2tiger@{NOWHERE}/db",
    "token": "duckdb://md:x?motherduck_token=hunter2tiger",
    "broken": "postgresql://me:hunter2/ti?ger@nowhere:port/db",
}
PARTS = ("hunter2", "tiger")
PRICE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}


def _ledger_in_place(address: str) -> object:
    return prudent.median([1.0, 2.0], epsilon=1.0, ledger=address)  # type: ignore[arg-type]


ENTRIES: dict[str, Callable[[str], object]] = {
    "Ledger": lambda address: Ledger(address, **PRICE),
    "Ledger.open": Ledger.open,
    "Ledger.create": lambda address: Ledger.create(address, **PRICE),
    "datasets": datasets,
    "median of an address": lambda address: prudent.median(address, "x", epsilon=1.0),
    "median of a file": lambda address: prudent.median(f"{address}.csv", "x", epsilon=1.0),
    "median by connect": lambda a: prudent.median(None, "x", connect=a, table="t", epsilon=1.0),
    "an address as a ledger": _ledger_in_place,
    "an address as a table": lambda address: prudent.median(
        None, "x", connect="duckdb://", table=address, epsilon=1.0
    ),
    "an address as a column": lambda address: open_column([1.0], address),
    "an address as a number": lambda address: prudent.count([1.0], epsilon=address),  # type: ignore[call-overload]
    "open_groups": lambda a: open_groups(None, "x", by="g", groups=["a"], connect=a, table="t"),
    "parse a test": lambda address: cli.options.parse_test(address),
    "fit": lambda address: prudent.Plan(sampling_rate=address, steps=1, aggregation=None),  # type: ignore[arg-type]
    "a data set": load,
}
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "budget create": lambda a: ["budget", "create", a, "--epsilon=1", "--delta=1e-6"],
    "budget show": lambda a: ["budget", "show", a],
    "budget charges": lambda a: ["budget", "show", a, "--charges", "--json"],
    "budget verify": lambda a: ["budget", "verify", a, "--json"],
    "budget twice": lambda a: ["budget", "show", "--dataset", a, a],
    "a number": lambda a: ["budget", "create", "b.db", "--delta=1e-6", f"--epsilon={a}"],
    "an option": lambda a: ["budget", "show", f"--{a}"],
    "a command": lambda a: [a],
    "release of a file": lambda a: ["release", "median", a, "--column=x", "--epsilon=1"],
    "release by connect": lambda a: [
        *("release", "median", "--connect", a, "--table=t", "--column=x", "--epsilon=1", "--json"),
    ],
    "release and ledger": lambda a: [
        *("release", "count", "x.csv", "--column=x", "--epsilon=1", "--ledger", a),
    ],
    "certify": lambda a: ["certify", "--dataset=npz:no.npz", "--ledger", a],
    "certify a data set": lambda a: ["certify", "--dataset", a],
    "train": lambda a: ["train", "--dataset", a, "--steps=1"],
    "settings": lambda a: ["train", a],
    "epsilon": lambda a: ["epsilon", "--noise-multiplier=1", "--delta=1e-5", "--test", a],
}


@contextlib.contextmanager
def everything_shown() -> Iterator[io.StringIO]:
    """What is printed, warned or logged, as one text."""
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    logging.getLogger().addHandler(handler)
    try:
        with (
            contextlib.redirect_stdout(shown),
            contextlib.redirect_stderr(shown),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("always")
            yield shown
    finally:
        logging.getLogger().removeHandler(handler)


def texts_of(error: BaseException) -> Iterator[str]:
    """Everything that a failure can print; not the lines of this file, where the password is."""
    frames = traceback.TracebackException.from_exception(error)
    while frames is not None:
        yield from frames.format_exception_only()
        frames = frames.__cause__ or frames.__context__  # type: ignore[assignment]
    each: BaseException | None = error
    while each is not None:
        yield f"{each} {each!r} {each.args!r} {getattr(each, '__notes__', '')}"
        each = each.__cause__ or each.__context__


def assert_hidden(text: str) -> None:
    assert not [part for part in PARTS if part in text], text


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRUDENT_LEDGERS", str(tmp_path / "ledgers.jsonl"))


QUICK = ("keywords",)


def _forms() -> list[Any]:
    marks = {form: [] if form in QUICK else [pytest.mark.slow] for form in ADDRESSES}
    return [pytest.param(form, marks=marks[form]) for form in ADDRESSES]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("form", _forms())
def test_a_function_shows_no_password(entry: str, form: str) -> None:
    with everything_shown() as shown, pytest.raises((ValueError, OSError, ImportError)) as caught:
        ENTRIES[entry](ADDRESSES[form])
    assert_hidden(shown.getvalue() + "".join(texts_of(caught.value)))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("form", _forms())
def test_a_command_shows_no_password(
    command: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRUDENT_TRACEBACK", "1")
    with everything_shown() as shown:
        assert cli.main(COMMANDS[command](ADDRESSES[form])) == 2
    # A traceback quotes lines of source; none of prudent's holds the address.
    assert_hidden(shown.getvalue())


def test_a_ledger_stores_and_lists_no_password(tmp_path: Path) -> None:
    for number, address in enumerate(ADDRESSES.values()):
        path = tmp_path / f"{number}.db"
        with Ledger.create(path, **PRICE, data=address, another=True) as ledger:
            assert_hidden(repr(ledger) + str(ledger.balance()) + str(ledger.data))
            assert_hidden(json.dumps(ledger.balance().to_plain()))
            with pytest.raises(ValueError, match="budget") as caught:
                Ledger.create(tmp_path / f"second-{number}.db", **PRICE, data=address)
            assert_hidden("".join(texts_of(caught.value)))
        with contextlib.closing(sqlite3.connect(path)) as file:
            assert_hidden(str(file.execute("SELECT * FROM prudent_ledger").fetchall()))
        allowance.remember("d", address, "default")
    assert_hidden((tmp_path / "ledgers.jsonl").read_text())


@pytest.mark.parametrize("form", ADDRESSES)
def test_an_address_as_it_is_shown(form: str) -> None:
    address = ADDRESSES[form]
    assert_hidden(without_password(address))
    assert_hidden(redacted(f"could not reach {address!r}", address))
    assert_hidden(redacted(f"could not reach {address}"))


def test_the_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2tiger")
    monkeypatch.setenv("PRUDENT_TRACEBACK", "1")
    with everything_shown() as shown:
        assert cli.main(["budget", "show", f"postgresql://me@{NOWHERE}/db"]) == 2
    assert_hidden(shown.getvalue())


def test_the_test_would_see_a_password() -> None:
    def leaks() -> None:
        raise ValueError("at postgresql://me:hunter2@host")

    with pytest.raises(ValueError, match="at ") as caught:
        leaks()
    with pytest.raises(AssertionError):
        assert_hidden("".join(texts_of(caught.value)))
    with everything_shown() as shown:
        print("hunter2", file=sys.stderr)
        logging.getLogger("x").warning("tiger")
    assert "hunter2" in shown.getvalue()
    assert "tiger" in shown.getvalue()
