"""Corruptions as they are written, and a user's own."""

import sys

import pytest
import torch

from prudent_lab.corruption import GradientSignFlip, RandomLabelFlip, corruption_of, written
from prudent_lab.paper.results import read
from tests.lab.paper.report.conftest import row

FAULTS = """
import attrs

from prudent_lab.corruption import corrupted_records

@attrs.frozen
class Swap:
    ratio: float

    def apply(self, features, labels, *, classes, seed):
        bad = corrupted_records(len(labels), self.ratio, seed)
        changed = features.clone()
        changed[bad] = features[bad].flip(1)
        return changed, labels

def nothing(ratio):
    return ratio

number = 3
"""


@pytest.fixture
def faults(tmp_path, monkeypatch):
    (tmp_path / "faults.py").write_text(FAULTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "faults.py"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("none", ("none", None, "", False)),
        ("label:0.1", ("label", 0.1, "", False)),
        ("gradient:0.1:variance=25", ("gradient", 0.1, "variance=25", False)),
        ("aimed:0.3", ("aimed", 0.3, "", False)),
        ("faults.py:Swap:0.2", ("faults.py:Swap", 0.2, "", True)),
        ("my.faults:swap:0.2", ("my.faults:swap", 0.2, "", True)),
    ],
)
def test_the_parts_of_a_corruption(text, parts):
    assert written(text) == parts


@pytest.mark.parametrize("text", ["faults.py:Swap:0.7", "faults.py:Swap:x", "label:2", "what:0.1"])
def test_what_is_no_corruption_is_refused(text):
    with pytest.raises(ValueError, match="Expected corrupt"):
        written(text)


def test_one_of_a_file_is_called_with_the_ratio(faults):
    made = corruption_of(f"{faults.name}:Swap:0.5")
    assert made.ratio == 0.5
    features = torch.arange(8.0).reshape(4, 2)
    changed, _ = made.apply(features, torch.zeros(4, dtype=torch.long), classes=2, seed=0)
    assert int((changed != features).any(1).sum()) == 2


def test_one_of_a_module(faults, monkeypatch):
    monkeypatch.syspath_prepend(str(faults.parent))
    monkeypatch.delitem(sys.modules, "faults", raising=False)
    assert corruption_of("faults:Swap:0.25").ratio == 0.25
    monkeypatch.delitem(sys.modules, "faults")


def test_those_of_the_package_keep_their_names():
    assert corruption_of("none") is None
    assert corruption_of("label:0.1") == RandomLabelFlip(0.1)
    assert isinstance(corruption_of("sign-flip:0.1"), GradientSignFlip)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("none.py:Swap:0.1", FileNotFoundError, "a file of corruptions"),
        ("faults.py:Other:0.1", ValueError, "a function of faults.py, got 'Other'"),
        ("faults.py:number:0.1", ValueError, "a function of faults.py, got 'number'"),
        ("faults.py:nothing:0.1", ValueError, "returns a DataCorruption"),
        ("no_such_module:swap:0.1", ValueError, "a module that can be imported"),
    ],
)
def test_what_is_wrong_is_named(faults, text, error, message):
    with pytest.raises(error, match=message):
        corruption_of(text)


def test_a_file_of_results_runs_no_code(tmp_path, monkeypatch):
    """Only who asks for a run names code to be run."""
    from prudent_lab.paper.results import Reading, append

    (tmp_path / "evil.py").write_text("raise RuntimeError('ran')")
    monkeypatch.chdir(tmp_path)
    values = {name: None if value == "" else value for name, value in row().items()}
    append(tmp_path / "r.csv", [Reading(**values | {"corrupt": "evil.py:boom:0.1"})])
    (reading,) = read(tmp_path / "r.csv").readings
    assert reading.corrupt == "evil.py:boom:0.1"
