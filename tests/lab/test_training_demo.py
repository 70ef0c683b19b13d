"""The training part of the demo: its runs differ in the method alone."""

from prudent.accounting import LaplaceTest, Reveals
from prudent_lab.demo import entries
from prudent_lab.settings import Experiment, Method

COMMON = Experiment.of(epsilon=None, steps=12, noise_multiplier=1.0, batch=40, corrupt="label:0.1")


def test_the_entries_differ_in_the_method_alone():
    *chosen, recipe = entries(COMMON)
    assert [entry.key for entry in chosen] == ["ptr", "ptr-paper", "trimmed", "dpsgd"]
    assert [entry.experiment.rule.method for entry in chosen] == [
        Method.PTR,
        Method.PTR,
        Method.TRIMMED,
        Method.DPSGD,
    ]
    paper, ours = chosen[1].experiment.rule, COMMON.rule
    assert (paper.test, paper.reveals) == (LaplaceTest(1.0), Reveals.MARGIN)
    for entry in chosen:
        same = entry.experiment.changed(method=ours.method, test=ours.test, reveals=ours.reveals)
        assert same == COMMON
    assert (recipe.key, recipe.model, recipe.experiment.corrupt) == (
        "recipe",
        "glyphs-linear",
        "none",
    )
    tight = entries(COMMON.changed(epsilon=1.0, noise_multiplier=None, delta=1e-6))[-1]
    privacy = tight.experiment.privacy
    assert (privacy.epsilon, privacy.delta) == (1.0, 1e-6)
