"""The demo: a table, certificates and training runs end in tables, pictures and one object."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import attrs
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `train`")
from rich.console import Console

from prudent._validate import ArgumentError
from prudent.accounting import RdpAccountant
from prudent_lab import certifying
from prudent_lab import demo as pictures
from prudent_lab.certifying import CertifyResult
from prudent_lab.commands.demo import _median, show_certified, show_median, show_runs
from prudent_lab.demo import LETTERS, Classifier, entries, run_demo
from prudent_lab.settings import Experiment

COMMON = Experiment.of(epsilon=None, steps=12, noise_multiplier=1.0, batch=40, corrupt="label:0.1")
CERTIFIED = CertifyResult(
    accuracy=0.961,
    certified={0: 0.961, 100: 0.95, 500: 0.9, 1000: 0.8, 2000: 0.6},
    attacked={0: 0.961, 2000: 0.71},
    attacks={2000: {"copies": 0.71}},
    median_radius=2_345.0,
    curve=[(0, 0.961), (100, 0.95), (2000, 0.6)],
    epsilon=0.3,
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


def words(path: Path) -> str:
    text = path.read_text("utf-8")
    ElementTree.fromstring(text)
    return " ".join(line for line in text.splitlines() if "<!--" in line)


def test_the_pictures_show_both(tmp_path):
    alone = attrs.evolve(CERTIFIED, attacked={0: 0.961}, attacks={}, epsilon=1.0)
    with pictures.panels(1, tmp_path / "a.svg") as (axes,):
        certifying.draw([("public letters", CERTIFIED), ("no public data", alone)], axes)
    told = words(tmp_path / "a.svg")
    assert "public letters, ε = 0.3: 96.1%" in told
    assert "no public data, ε = 1: 96.1%" in told
    assert told.count("after the worst attack tried") == 1  # of the one that was attacked
    assert "bad records inserted or removed" in told
    with pictures.panels(1, tmp_path / "b.svg") as (axes,):
        pictures.draw_training(ROWS, COMMON, axes)
    assert "DP-SGD: 90.0%" in words(tmp_path / "b.svg")


def test_the_first_answer_is_a_table_with_a_certificate():
    pytest.importorskip("opendp", reason="tables need the extra `tables`")
    console = Console(file=io.StringIO(), width=100)
    show_median(_median(), console)
    told = console.file.getvalue()
    assert "records must be added or removed" in told
    assert "(0.3, 0)-DP" in told


def test_the_entries_differ_in_the_method_alone():
    methods = {entry.key: entry.experiment.rule.method.value for entry in entries(COMMON)}
    assert methods == {name: name for name in ("ptr", "trimmed", "dpsgd")}
    same = {"method": COMMON.rule.method, "clip": COMMON.rule.clip, "lr": COMMON.optimizer.lr}
    assert all(entry.experiment.changed(**same) == COMMON for entry in entries(COMMON))


def test_an_attack_that_no_epsilon_covers_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="prudent train"):
        run_demo(COMMON.changed(corrupt="mimic:0.1"), tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_what_is_proved_is_told_from_what_is_measured():
    console = Console(file=io.StringIO(), width=100)
    show_runs(ROWS, "MNIST", console)
    told = console.file.getvalue()
    assert "towards one half by design" in told
    show_certified(LETTERS, CERTIFIED, console)
    last = console.file.getvalue()[len(told) :]
    for words in ("public letters", "ε = 0.3", "96.10%", "2,000", "60.00%"):
        assert words in last
    assert "Certified is proved" in last
    assert "measured, not proved" in " ".join(told.split())


def easy(path: Path) -> Experiment:
    draw = np.random.default_rng(0)
    labels = np.arange(3000) % 3
    features = (draw.normal(0, 0.2, (3000, 4)) + 2 * np.eye(4)[labels] - 0.5).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    test = {"x_test": features[:60], "y_test": labels[:60]}
    np.savez(path, x_train=features, y_train=labels, **test, classes=3)
    return COMMON.changed(dataset=f"npz:{path}", accountant=RdpAccountant)


PLAIN = Classifier("vectors:4", 1.0, "the numbers themselves")


@pytest.mark.slow  # CI begins with `make demo`
def test_the_demo(tmp_path, capsys):
    told = []
    out, tell = tmp_path / "demo", lambda *found: told.append(found)
    done = run_demo(easy(tmp_path / "easy.npz"), out, PLAIN, workers=1, tell=tell)
    assert told == [(PLAIN, done.certified)]
    assert not done.certified.attacks  # they take minutes
    assert [row["key"] for row in done.rows] == ["ptr", "trimmed", "dpsgd"]
    assert all(len(row["curve"]) == 12 for row in done.rows)
    assert capsys.readouterr().out == ""  # which a program reads
    for name in ("certified.svg", "training.svg"):
        assert words(out / name)
    certified = json.loads(json.dumps(done.plain()))["certified"]["vectors:4"]
    assert certified["certified"]["0"] == certified["accuracy"] > 90
    assert certified["certified"]["100"] > 90
    with (out / "demo.csv").open() as file:
        found = [row["accuracy"] for row in csv.DictReader(file)]
    assert found == [str(row["accuracy"]) for row in done.rows]


def test_json_holds_percentages_in_full():
    found = CertifyResult(2 / 3, {0: 1 / 7}, {}, {}, 1.0, [], 1.0, largest=1 / 3).plain()
    shares = found["accuracy"], found["certified"]["0"], found["largest_class"]
    assert shares == (100 * (2 / 3), 100 * (1 / 7), 100 * (1 / 3))


def drawn(path):
    with pictures.panels(2, path) as axes:
        for panel in axes:
            panel.plot([0, 1], [0, 1], color="#2F8FD0", label="a line")
            panel.set_title("a title")
            panel.legend()
    return path.read_text("utf-8")


def test_a_picture_has_no_colour_of_its_own_for_text_and_axes(tmp_path):
    text = drawn(tmp_path / "a.svg")
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert "style" in tags
    assert "prefers-color-scheme: dark" in text
    assert "#2f8fd0" in text.lower()  # lines keep theirs
    assert "currentColor" in text
    for fixed in ("#000000", "#ffffff", "black", "white", pictures._INK):
        assert fixed not in text.lower()


def test_the_same_picture_is_the_same_file(tmp_path):
    assert drawn(tmp_path / "a.svg") == drawn(tmp_path / "b.svg")
