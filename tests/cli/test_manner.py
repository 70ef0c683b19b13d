"""Every command alike: help teaches, `--json` is one document, `--quiet` leaves the result."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from prudent.cli import command_line
from tests.cli.conftest import leaves, prudent
from tests.cli.test_certify_run import written

ANSI = re.compile(r"\x1b\[[0-9;]*m")
PRICE = ["--noise-multiplier=5", "--test=none", "--delta=1e-6"]
ASKED = ["--column=x", "--epsilon=1"]
LONG = pytest.mark.slow
DOCS = Path(__file__).resolve().parents[2] / "docs"


COMMANDS = list(leaves(command_line()))
NAMED = {"ids": " ".join}


@pytest.mark.parametrize("words", COMMANDS, **NAMED)
def test_help_teaches_by_an_example(words: tuple[str, ...]) -> None:
    answer = prudent(*words, "--help")
    text = ANSI.sub("", answer.out)
    assert answer.status == 0
    assert f"$ prudent {' '.join(words)}" in text
    assert "--json" in text
    assert "--quiet" in text


@pytest.mark.parametrize("words", COMMANDS, **NAMED)
def test_an_error_is_a_document_too(words: tuple[str, ...]) -> None:
    loud = prudent(*words, "--json", "--no-such-flag")
    plain = json.loads(loud.out)
    assert (loud.status, plain["status"], plain["flag"]) == (2, 2, None)
    assert plain["error"].startswith("No such option: --no-such-flag.")
    assert loud.err == plain["error"] + "\n"
    assert prudent(*words, "--json", "--no-such-flag", "--quiet") == (2, loud.out, "")
    assert prudent(*words, "--no-such-flag", "-q") == (2, "", loud.err)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("manner")
    parquet.write_table(
        pa.table({"x": np.arange(1000.0), "y": np.arange(1000.0)}), folder / "t.parquet"
    )
    budget = ("--epsilon=9", "--delta=1e-6")
    assert prudent("budget", "create", str(folder / "b.db"), *budget).status == 0
    written(folder / "run")
    return folder


@pytest.fixture(autouse=True)
def own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that tests make are not those of whoever runs them."""
    monkeypatch.setenv("PRUDENT_KEYS", str(tmp_path / "keys"))


def right(words: tuple[str, ...], folder: Path, archive: Path) -> Sequence[str]:
    """Arguments with which a command answers."""
    table, ledger = str(folder / "t.parquet"), str(folder / "b.db")
    given: dict[str, Sequence[str]] = {
        "epsilon": PRICE,
        "calibrate": ["--solve=steps", "--epsilon=2", *PRICE, "--accountant=rdp"],
        "train": [f"--dataset=npz:{archive}", "--steps=2", "--noise-multiplier=1", "--seed=0"],
        "tune": [
            *("--search=lr=0.1:1:log", "--steps=2", "--noise-multiplier=1", "--distribution=fixed"),
            *("--candidates=1", f"--dataset=npz:{archive}"),
        ],
        "demo": ["--steps=2", f"--out={folder}/demo"],
        "sample": ["salaries", f"--out={folder}/s.parquet", "--force"],
        "synth": [table, "--epsilon=20", "--delta=1e-6", f"--out={folder / 'made.csv'}"],
        "regress": ["y ~ x", table, "--epsilon=20"],
        "explore": [f"--export={folder}/page.html"],
        "sql": [f"SELECT COUNT(*), SUM(x) FROM '{table}'", "--epsilon=1"],
        "release quantile": [table, *ASKED, "--p=0.9"],
        "release trimmed-mean": [
            *(table, *ASKED, "--trim=100", "--propose=50", "--delta=1e-6"),
            "--bounds=0,1000",
        ],
        "release mode": [table, *ASKED, "--delta=1e-6"],
        "release proportion": [table, "--column=x > 3", "--epsilon=1"],
        **{
            f"release {name}": [table, *ASKED, "--other=y"]
            for name in ("ratio", "covariance", "correlation")
        },
        "release weighted-mean": [table, *ASKED, "--weights=y"],
        "release top-k": [table, *ASKED, "--delta=1e-6"],
        "release table": [table, "--columns=avg(x)", "--epsilon=1"],
        "audit train": ["--noise-multiplier=1", "--runs=20"],
        "budget create": [f"{folder}/new.db", "--epsilon=1", "--delta=1e-6"],
        "certify": [f"--dataset=npz:{archive}", "--features=vectors:6", "--public", "--seed=0"],
        "paper figure": ["1", f"--out={folder}"],
        "paper table": ["1", "--seeds=1"],
        "paper report": ["--seeds=1", f"--out={folder}/report.html"],
    }
    name, kind = " ".join(words), words[0]
    if name == "verify":
        from prudent import count

        count([1.0, 2.0], epsilon=1.0, receipt=folder / "answer.json")
        return [str(folder / "answer.json")]
    shared = {"release": [table, *ASKED], "budget": [ledger]}.get(kind, [])
    return given.get(name, shared)


# What takes minutes; and all but one of those that one function makes or answers.
SLOW = {("demo",), ("doctor",), ("paper", "figure"), ("paper", "report")} | {
    *(words for words in COMMANDS if words[0] == "release" and words[1] not in ("count", "mode")),
}


class Keys(NamedTuple):
    """Keys of a document: those before a semicolon in the table of the docs, and all of them."""

    always: set[str]
    ever: set[str]


def keys_of(command: str) -> Keys:
    """What the table says of a command, or of the one that holds it; nothing: it names no keys."""
    table = (DOCS / "command-line.md").read_text(encoding="utf-8").partition("| keys |")[2]
    rows = re.findall(r"^\| (`[^|]*`) \| (.*) \|$", table, re.MULTILINE)
    told = {name: row for names, row in rows for name in re.findall(r"`(.*?)`", names)}
    row = told.get(command) or told[command.partition(" ")[0]]
    row = row.replace("those of `epsilon`", told["epsilon"].partition(";")[0])
    always, ever = (set(re.findall(r"`(\w+)`", text)) for text in (row.partition(";")[0], row))
    return Keys(always, ever)


def test_the_table_of_keys_names_every_command() -> None:
    assert all(keys_of(" ".join(words)) is not None for words in COMMANDS)
    assert keys_of("calibrate").always == keys_of("epsilon").always
    assert "status" in keys_of("release median").always
    assert "value" in keys_of("release median").ever - keys_of("release median").always
    with pytest.raises(KeyError):
        keys_of("nothing")


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "words", [pytest.param(c, marks=[LONG] if c in SLOW else []) for c in COMMANDS], **NAMED
)
def test_json_is_one_document_and_quiet_is_silent(
    words: tuple[str, ...], folder: Path, archive: Path
) -> None:
    answer = prudent(*words, *right(words, folder, archive), "--json", "--quiet")
    assert (answer.err, answer.status) in [("", 0), ("", 3)], answer  # 3: refused by the test
    assert answer.out.count("\n") == 1
    document = json.loads(answer.out, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    always, ever = keys_of(" ".join(words))
    for entry in document if isinstance(document, list) else [document]:
        assert not ever or always <= entry.keys() <= ever


@pytest.mark.parametrize(
    ("words", "given", "noted"),
    [
        (("release", "count"), ["t.parquet", *ASKED], "No --ledger"),
        (("release", "count"), ["t.parquet", *ASKED, "--dry-run"], "Nothing was read"),
    ],
)
def test_notes_are_left_out_if_quiet(
    words: tuple[str, ...],
    given: list[str],
    noted: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    loud, quiet = prudent(*words, *given), prudent(*words, *given, "--quiet")
    assert noted in loud.err
    assert (quiet.status, quiet.err) == (0, "")
    assert quiet.out.count("\n") == loud.out.count("\n")


@pytest.mark.unhurried
def test_what_fails_after_the_document_adds_no_second_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    answer = prudent(
        *("release", "histogram", str(folder / "t.parquet"), *ASKED),
        *(f"--parquet={folder}/h.parquet", "--json"),
    )
    assert answer.status == 2
    assert json.loads(answer.out)["status"] == "released"
    assert "No space left" in answer.err
