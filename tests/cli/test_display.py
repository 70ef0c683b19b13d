"""What comes from outside is printed as text: no terminal obeys it."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prudent.cli.display import echo, neutral, show_table, write_everywhere

Command = Callable[..., Any]
EVIL = "a\x1b[2J\x1b]0;owned\x07\r\n(0.1, 1e-9)-DP \u202eabc\x9b1m\x00"
SEEN = r"a\x1b[2J\x1b]0;owned\x07\r\n(0.1, 1e-9)-DP \u202eabc\x9b1m\x00"
NAME = EVIL.replace("\x00", "")  # which no engine takes in a name
COST = ["--epsilon=2", "--delta=1e-6"]


def test_only_printable_characters_are_left() -> None:
    assert neutral(EVIL) == SEEN
    assert neutral("Tromsø, 東京, ε ≤ 1, C:\\x") == "Tromsø, 東京, ε ≤ 1, C:\\x"
    assert neutral("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert neutral("\ud800") == "\\ud800"


@pytest.mark.parametrize(
    ("encoding", "seen"),
    [
        ("ascii", "Troms\\xf8 \\u6771: epsilon <= 1 x 2"),
        ("cp1252", "Tromsø \\u6771: epsilon <= 1 × 2"),
        ("utf-8", "Tromsø 東: ε ≤ 1 × 2"),
    ],
)
def test_an_answer_is_written_in_every_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, seen: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    write_everywhere()
    show_table(["a"], [["Tromsø 東: ε ≤ 1 × 2"]], lines=False)
    echo("ε ≤ 1")  # what typer writes in UTF-8 where it finds ASCII
    sys.stdout.flush()
    assert seen in written.getvalue().decode(encoding, errors="replace")


@pytest.fixture
def file(tmp_path: Path) -> str:
    pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"city": [EVIL] * 300, NAME: [1.0] * 300}), path)
    return str(path)


def test_a_released_value_is_one_line(run: Command, file: str) -> None:
    answer = run("release", "mode", file, "--column=city", *COST)
    assert answer.status == 0
    assert all(each.isprintable() or each == "\n" for each in answer.out + answer.err)
    assert answer.out.splitlines() == [
        f"{SEEN} (propose-test-release, robust branch)",
        "(2, 1e-06)-DP for adding or removing one record",
    ]
    plain = json.loads(run("release", "mode", file, "--column=city", *COST, "--json").out)
    assert plain["value"] == EVIL
