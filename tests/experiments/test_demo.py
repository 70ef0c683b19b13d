"""The training part of the demo, small enough for seconds: every entry trained, a table left."""

import csv

import attrs
import numpy as np
import pytest

from prudent.accounting import LaplaceTest, RdpAccountant, Reveals
from prudent.experiments.demo import entries, run_demo
from prudent.experiments.experiment import Experiment, Method

COMMON = Experiment(epsilon=None, steps=12, noise_multiplier=1.0, batch=40, corrupt="label:0.1")


def test_the_entries_differ_in_the_method_alone():
    *chosen, recipe = entries(COMMON)
    assert [entry.key for entry in chosen] == ["ptr", "ptr-paper", "trimmed", "dpsgd"]
    assert [entry.experiment.method for entry in chosen] == [
        Method.PTR,
        Method.PTR,
        Method.TRIMMED,
        Method.DPSGD,
    ]
    paper = chosen[1].experiment
    assert (paper.test, paper.reveals) == (LaplaceTest(1.0), Reveals.MARGIN)
    for entry in chosen:
        same = attrs.evolve(
            entry.experiment, method=COMMON.method, test=COMMON.test, reveals=COMMON.reveals
        )
        assert same == COMMON
    assert (recipe.key, recipe.recipe, recipe.experiment.corrupt) == (
        "recipe",
        "glyphs-linear",
        "none",
    )
    tight = entries(attrs.evolve(COMMON, epsilon=1.0, noise_multiplier=None, delta=1e-6))[-1]
    assert (tight.experiment.epsilon, tight.experiment.delta) == (1.0, 1e-6)


@pytest.mark.slow
def test_the_demo(tmp_path, capsys):
    chance, path = np.random.default_rng(0), tmp_path / "easy.npz"
    labels = np.arange(300) % 3
    features = (chance.normal(size=(300, 4)) + 3 * np.eye(4)[labels]).astype(np.float32)
    test = {"x_test": features[:60], "y_test": labels[:60]}
    np.savez(path, x_train=features, y_train=labels, **test, classes=3)
    common = attrs.evolve(COMMON, dataset=f"npz:{path}", accountant=RdpAccountant)
    rows = run_demo(common, tmp_path / "demo", workers=1)
    assert capsys.readouterr().out == ""  # which a program reads
    assert [row["key"] for row in rows] == ["ptr", "ptr-paper", "trimmed", "dpsgd"]
    assert all(len(row["curve"]) == 12 for row in rows)
    with (tmp_path / "demo" / "demo.csv").open() as file:
        assert [row["accuracy"] for row in csv.DictReader(file)] == [
            str(row["accuracy"]) for row in rows
        ]
