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
from prudent.certify.demo import CLASSIFIERS, Classifier, Demo, draw, run_demo
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
    sharpness=1.0,
    curve=[(0, 0.961), (100, 0.95), (2000, 0.6)],
    epsilon=0.3,
)
BESIDE = attrs.evolve(
    CERTIFIED,
    certified={0: 0.951, 100: 0.94, 2000: 0.3},
    attacked={0: 0.951, 100: 0.948, 2000: 0.65},
    curve=[(0, 0.951), (100, 0.94), (2000, 0.3)],
    epsilon=1.0,
)
FOUND = list(zip(CLASSIFIERS, (CERTIFIED, BESIDE), strict=True))
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
    draw(Demo(ROWS, FOUND), COMMON, tmp_path / "demo.svg")
    text = (tmp_path / "demo.svg").read_text("utf-8")
    ElementTree.fromstring(text)
    words = " ".join(line for line in text.splitlines() if "<!--" in line)
    assert "public letters, ε = 0.3: 96.1%" in words
    assert "no public data, ε = 1: 95.1%" in words
    assert words.count("after the worst attack tried") == 2
    assert "bad records inserted or removed" in words
    assert "DP-SGD: 90.0%" in words


def test_the_last_lines_are_the_certificates():
    console = Console(file=io.StringIO(), width=100)
    show_runs(ROWS, "MNIST", console)
    show_certified(FOUND, console)
    told = console.file.getvalue()
    certified = told.index("certified accuracy against bad records")
    assert told.index("towards one half by design") < certified
    last = told[certified:]
    for title in ("public letters", "(0.3, 0)-DP", "no public data", "(1, 0)-DP"):
        assert title in last
    for number in ("96.10%", "2,000", "60.00%", "71.00%", "95.10%", "65.00%"):
        assert number in last
    assert "Certified is proved" in last
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
    plain = (Classifier("vectors:4", 1.0, "the numbers themselves"),)
    done = run_demo(common, tmp_path / "demo", classifiers=plain, workers=1)
    assert capsys.readouterr().out == ""  # which a program reads
    found = json.loads(json.dumps(done.plain()))
    assert [row["key"] for row in found["runs"]] == ["ptr", "ptr-paper", "trimmed", "dpsgd"]
    certified = found["certified"]["vectors:4"]
    assert certified["certified"]["0"] == certified["accuracy"] > 90
    assert certified["certified"]["100"] > 90
    assert (tmp_path / "demo" / "demo.csv").is_file()
    ElementTree.parse(tmp_path / "demo" / "demo.svg")


def test_json_holds_percentages_in_full():
    found = Result(2 / 3, {0: 1 / 7}, {}, {}, 1.0, 1.0, [], 1.0, largest=1 / 3).plain()
    shares = found["accuracy"], found["certified"]["0"], found["largest_class"]
    assert shares == (100 * (2 / 3), 100 * (1 / 7), 100 * (1 / 3))
