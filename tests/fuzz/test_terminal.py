"""No text of users, data or files moves the cursor, hides itself or becomes a link: not in any
command that prints such text. JSON holds it exactly.
"""

import json
from pathlib import Path

import dp_accounting as dp
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("torch", reason="experiments are torch's")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import parquet

from prudent.release import Ledger
from tests.fuzz.commands import answer

LINK = "\x1b]8;;https://example.org\x1b\\\\click\x1b]8;;\x1b\\\\"
EVIL = (
    f"a{LINK}\x1b[2J\x1b]0;t\x07\r\x08\x7f\x85\x9b31m\u202e\u2066\u200f\ufeff\u2028"
    "[red]b[/red][link=https://example.org]c[/link]\N{ZERO WIDTH SPACE}"
)
FILE = EVIL.replace("/", "").replace("\\", "")
COST = ("--epsilon=2", "--delta=1e-6")


def assert_quiet(*texts: str) -> None:
    """Only printable characters and line ends; markup stays text."""
    for text in texts:
        odd = {each for each in text if not (each.isprintable() or each == "\n")}
        assert not odd, repr(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRUDENT_TRACEBACK", "1")
    monkeypatch.setenv("PRUDENT_LEDGERS", str(tmp_path / "ledgers"))
    table = pa.table({EVIL: [float(n) for n in range(300)], "city": [EVIL] * 300})
    parquet.write_table(table, tmp_path / f"{FILE}.parquet")
    with Ledger.create(tmp_path / f"{FILE}.db", epsilon=9.0, delta=1e-3) as ledger:
        ledger.charge(dp.LaplaceDpEvent(9.0), EVIL, details={"column": EVIL, "groups": (EVIL,)})
        ledger.record_outcome(ledger.charge(dp.LaplaceDpEvent(9.0), EVIL), "refused")
    return tmp_path


def release(statistic: str, *more: str) -> tuple[str, ...]:
    return ("release", statistic, f"{FILE}.parquet", f"--column={EVIL}", *COST, *more)


COMMANDS: dict[str, tuple[tuple[str, ...], int]] = {
    "a median": (release("median"), 0),
    "a preview": (release("median", "--dry-run"), 0),
    "groups": (release("count", "--by=city", f'--groups="{EVIL}",b'), 0),
    "a ledger": (release("count", f"--ledger={FILE}.db"), 0),
    "over budget": (release("count", f"--ledger={FILE}.db", "--epsilon=49"), 4),
    "a condition": (release("median", f"--where=city = '{EVIL}"), 2),
    "a unit": (release("count", f"--unit={EVIL}x"), 2),
    "a type": (release("median", f"--read-as={EVIL}"), 2),
    "a table": (
        ("release", "count", "--connect=duckdb://", f"--table={EVIL}", *COST, "--column=x"),
        2,
    ),
    "an address": (("release", "count", f"--connect={EVIL}", "--table=t", *COST, "--column=x"), 2),
    "no file": (("release", "count", f"{FILE}.csv", "--column=x", *COST), 2),
    "a balance": (("budget", "show", f"{FILE}.db"), 0),
    "a history": (("budget", "show", f"{FILE}.db", "--charges"), 0),
    "a check": (("budget", "verify", f"{FILE}.db", f"--digest={EVIL}"), 1),
    "a data set of a ledger": (("budget", "show", f"{FILE}.db", f"--dataset={EVIL}"), 2),
    "a new ledger": (("budget", "create", f"{FILE}2.db", "--epsilon=1", "--delta=1e-6"), 0),
    "a new name": (
        ("budget", "create", f"{FILE}.db", "--epsilon=1", "--delta=1e-6", f"--dataset={EVIL}"),
        2,
    ),
    "a data set": (("train", f"--dataset={EVIL}", "--steps=1"), 2),
    "settings": (("train", f"{FILE}.toml"), 2),
    "wrong settings": (("train", f"{FILE}.parquet"), 2),
    "a corruption": (("train", f"--corrupt={EVIL}", "--steps=1"), 2),
    "a device": (("train", f"--device={EVIL}", "--steps=1"), 2),
    "a test": (("epsilon", "--noise-multiplier=1", "--delta=1e-5", f"--test={EVIL}"), 2),
    "a parameter": (("calibrate", "--epsilon=1", "--delta=1e-5", f"--solve={EVIL}"), 2),
    "features": (("certify", "--dataset=mnist", f"--features={EVIL}"), 2),
    "a run": (("certify", FILE), 2),
    "results": (("paper", "table", "1", f"--results={FILE}.csv"), 2),
    "wrong results": (("paper", "table", "1", f"--results={FILE}.parquet"), 2),
    "a figure": (("paper", "figure", EVIL), 2),
    "a report": (("paper", "report", "--no-figures", f"--out={FILE}.html"), 0),
    "a picture": (("paper", "figure", "2", f"--out={FILE}"), 0),
    "a command": ((EVIL,), 2),
    "an option": (("epsilon", f"--{EVIL}"), 2),
}
QUICK = (
    *("a median", "groups", "over budget", "a history", "a unit", "a table", "no file"),
    *("a data set", "a run", "a command"),
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in COMMANDS],
)
def test_a_command_prints_only_text(place: Path, name: str) -> None:
    arguments, wanted = COMMANDS[name]
    status, out, err = answer(*arguments)
    assert_quiet(out, err)
    assert status == wanted, err
    assert (out + err).strip()


def test_json_holds_the_text_exactly(place: Path) -> None:
    _, out, _ = answer("budget", "show", f"{FILE}.db", "--charges", "--json")
    assert_quiet(out)
    charges = json.loads(out)
    assert charges[0]["label"] == charges[0]["column"] == EVIL
    _, out, _ = answer("release", "mode", f"{FILE}.parquet", "--column=city", *COST, "--json")
    assert_quiet(out)
    assert json.loads(out)["value"] == EVIL


def test_markup_stays_text(place: Path) -> None:
    for command in (
        ("budget", "show", f"{FILE}.db", "--charges"),
        release("count", f"--unit={EVIL}x"),
    ):
        _, out, err = answer(*command)
        assert "[red]b[/red][link=https://example.org]c[/link]" in "".join((out + err).split())


@pytest.mark.slow
def test_the_path_of_a_run_stays_text(place: Path, archive: Path) -> None:
    folder = place / FILE
    train = ("train", f"--dataset=npz:{archive}", "--method=dpsgd", "--steps=1", "--seed=0")
    _, out, err = answer(*train, "--noise-multiplier=1", "--batch=8", f"--out={folder}")
    assert_quiet(out, err)
    assert "[red]b[" in out


def test_a_traceback_is_text(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prudent.budget import ledger

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(EVIL)

    monkeypatch.setattr(ledger.Ledger, "open", fail)
    status, out, err = answer("budget", "show", "x.db")
    assert status == 1
    assert "Traceback" in err
    assert_quiet(out, err)


def test_the_check_can_fail() -> None:
    for text in ("\x1b[2J", "a\rb", "\x9b1m", "\u202e", "\u200f", LINK):
        with pytest.raises(AssertionError):
            assert_quiet(text)
