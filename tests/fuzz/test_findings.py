"""Inputs that once raised an error that nobody chose, leaked or hung; each is refused today."""

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("torch", reason="most entries are about training")


from prudent._formats import DamagedFileError
from prudent._validate import ArgumentError
from prudent_lab import named_datasets as formats
from tests.fuzz import files

XY = ("x_train", "y_train", "x_test", "y_test")
HUGE = b"\x00\x00\x08\x02" + (2**32 - 1).to_bytes(4, "big") * 2

FILES: list[tuple[str, bytes]] = [
    ("idx", b"\x00\x00\x08\x03\x00\x00\x00"),
    ("idx", b"\x00\x00\x08\xff" + bytes(1020)),
    ("idx", HUGE),  # a product of sizes that overflowed 64 bits
    ("idx, gzipped", b"\x1f:\x8b\x08"),
    ("idx, gzipped", gzip.compress(HUGE, mtime=0)[:-9]),
    ("cifar packed", b"\xfd7zXZ\x00\x00"),
    ("reviews", b'{"t": '),
    ("reviews", b"[" * 100_000),
    ("reviews", b'[{"s": ' + b"9" * 5000 + b"}]"),
    ("npz", b""),
    ("npz", b"PK\x03\x04"),
    ("npz", files._saved(x_train=np.zeros(3), y_train=np.zeros(3, int), x_test=np.zeros(3))),
    (
        "npz",
        files._saved(**dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.array("a"))),
    ),
    ("classifier", files._saved(released=np.zeros(2), header=np.array("[]"))),
    ("landmarks", files._saved(rows=np.eye(2))),
    ("landmarks", files._array(np.array(["a", "b"]))),
    ("features network", files._saved(header=np.array('{"layers": {"weights": 1}}'))),
    ("features network", files._saved(header=np.array('{"layers": [], "ballot": {}}'))),
    ("safetensors", b"\xff" * 8),
    ("settings", b'dataset = "\xbd"'),
    ("settings", b"steps = " + b"9" * 5000),
    ("settings", b"a = " + b"[" * 5000),
    ("checkpoint, resealed", b"\x80\x02cos\nsystem\n(S'true'\ntR."),
    ("paid", b"[" * 100_000),
    ("metrics", b'{"step": 1, "a": "\xf5"}'),
    ("metrics", b'{"step": 1' + b"0" * 400 + b"}"),
    ("event", b'{"format": 1, "kind": "GaussianDpEvent", "noise_multiplier": "\\u001b[2J"}'),
    (
        "event",
        b'{"format": 1, "kind": "SelfComposedDpEvent", "count": null, '
        b'"event": {"kind": "NoOpDpEvent"}}',
    ),
    ("event", b"[" * 100_000),
    ("known ledgers", b'{"data": "d", "ledger": "/nowhere\xaf"}\n'),
    ("results", b"dataset,\xed"),
    ("options", b"\r/3\r/3"),
    ("options", b"9" * 5002),
]


def numbered(inputs: Sequence[tuple[str, Any]]) -> list[str]:
    """Names for tests that are the same in every process, whatever an input holds."""
    return [f"{number} {name}" for number, (name, _) in enumerate(inputs)]


@pytest.mark.parametrize(("name", "content"), FILES, ids=numbered(FILES))
def test_a_file_is_refused(name: str, content: bytes) -> None:
    target = next(each for each in files.TARGETS if each.name == name)
    target.judge(content)


def test_a_damaged_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\x03\x04 a secret")
    with pytest.raises(DamagedFileError, match=r"Expected .*a\.npz to be an \.npz") as caught:
        files._read_npz(path)
    assert caught.value.path == str(path)
    assert caught.value.__suppress_context__
    assert "secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_one_line_of_the_census_does_not_decide_about_others(tmp_path: Path) -> None:
    good = ", ".join(["7"] * 41 + ["- 50000."])
    for odd in ('"' + good, "a\rb", "x" * 200_000, '"', ""):
        (tmp_path / "census.csv").write_text(f"{good}\n{odd}\n{good}\n", newline="")
        rows, labels = formats.read_census(tmp_path / "census.csv")
        assert labels.tolist() == [0, -1, 0]
        assert np.isfinite(rows[[0, 2]]).all()


def test_a_value_is_shown_in_bounds_and_without_passwords() -> None:
    assert len(str(ArgumentError("x", "short", got="a" * 10**6))) < 2000
    assert "<int>" in str(ArgumentError("x", "short", got=10**5000))
    assert "hunter" not in str(ArgumentError("x", "a path", got="postgresql://me:hunter@h/d"))
    assert "hunter" not in str(ArgumentError("x", "a path", shown="password=hunter"))
