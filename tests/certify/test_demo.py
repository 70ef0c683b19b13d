"""The demo: training runs and certificates end in one table, one picture and one object."""

import io
import json
import xml.etree.ElementTree as ElementTree

import attrs
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs pip install 'prudent[train]'")
from rich.console import Console

from prudent.accounting import RdpAccountant
from prudent.certify.demo import Demo, draw, run_demo
from prudent.certify.experiment import Result
from prudent.cli.demo import show_certified, show_runs
from prudent.experiments.demo import entries
from prudent.experiments.experiment import Experiment

COMMON = Experiment(epsilon=None, steps=12, noise_multiplier=1.0, batch=40, corrupt="label:0.1")
CERTIFIED = Result(
    accuracy=0.961,
    certified={0: 0.961, 100: 0.95, 2000: 0.6},
    attacked={0: 0.961, 100: 0.953, 2000: 0.71},
    attacks={0: {"none": 0.961}, 100: {"copies": 0.953}, 2000: {"copies": 0.71}},
    median_radius=2_345.0,
    curve=[(0, 0.961), (100, 0.95), (2000, 0.6)],
    epsilon=0.3,
    delta=1e-6,
)
ROWS = [
    {
        "key": entry.key,
        "title": entry.title,
        "accuracy": 0.9,
        "epsilon": 3.0,
        "noise_multiplier": 1.1,
        "pass_rate": 0.48,
        "curve": [(1.0, 0.5), (3.0, 0.9)],
    }
    for entry in entries(COMMON)
]


def test_the_picture_shows_both(tmp_path):
    draw(Demo(ROWS, CERTIFIED), COMMON, tmp_path / "demo.svg")
    text = (tmp_path / "demo.svg").read_text("utf-8")
    ElementTree.fromstring(text)
    words = " ".join(line for line in text.splitlines() if "<!--" in line)
    assert "(0.3, 1e-06)-DP: proved" in words
    assert "bad records inserted or removed" in words
    assert "DP-SGD: 90.0%" in words


def test_the_last_lines_are_the_certificates():
    console = Console(file=io.StringIO(), width=100)
    show_runs(ROWS, "MNIST", console)
    show_certified(CERTIFIED, console)
    told = console.file.getvalue()
    certified = told.index("certified accuracy at (0.3, 1e-06)")
    assert told.index("towards one half by design") < certified
    last = told[told.rindex("bad records ") :]
    for number in ("96.10%", "2,000", "60.00%", "71.00%", "Certified is proved"):
        assert number in last
    assert "measured, not proved" in " ".join(told.split())


@pytest.mark.slow
def test_the_demo(tmp_path, capsys):
    draw, path = np.random.default_rng(0), tmp_path / "easy.npz"
    labels = np.arange(3000) % 3
    features = (draw.random((3000, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    test = {"x_test": features[:60], "y_test": labels[:60]}
    np.savez(path, x_train=features, y_train=labels, **test, classes=3)
    common = attrs.evolve(COMMON, dataset=f"npz:{path}", accountant=RdpAccountant)
    done = run_demo(common, tmp_path / "demo", features="vectors:4", workers=1)
    assert capsys.readouterr().out == ""  # which a program reads
    found = json.loads(json.dumps(done.plain()))
    assert [row["key"] for row in found["runs"]] == ["ptr", "ptr-paper", "trimmed", "dpsgd"]
    assert found["certified"]["certified"]["0"] == found["certified"]["accuracy"] > 90
    assert found["certified"]["certified"]["100"] > 90
    assert (tmp_path / "demo" / "demo.csv").is_file()
    ElementTree.parse(tmp_path / "demo" / "demo.svg")
