"""The counts that are read first, against a count by hand."""

import pytest

from prudent_lab.paper.jobs import published
from prudent_lab.paper.report.comparison import summarise
from tests.lab.paper.report.conftest import cells


def unique():
    """Every (data set, corruption, ε) of the paper with its PTR."""
    return {(c.dataset, c.corrupt, c.epsilon): c.accuracy for c in published() if c.method == "ptr"}


def everywhere(shift, **columns):
    """Rows for every cell: the paper's PTR plus a shift for each column."""
    return [
        line
        for (dataset, corrupt, epsilon), paper in unique().items()
        for accountant in ("rdp", "pld")
        for line in cells(
            {name: [paper + shift + more] for name, more in columns.items()},
            dataset=dataset,
            corrupt=corrupt,
            epsilon=epsilon,
            accountant=accountant,
        )
    ]


def test_nothing_run_is_nothing_won_and_nothing_lost(results):
    found = summarise(results([]))
    for count in found.values():
        assert count.made == 0
    assert len(found["PTR ≥ paper, PLD"].on("mnist", "emnist").differences) == 14 + 14 + 8
    assert len(found["PTR > Gaussian, PLD"].differences) == len(unique()) == 78


@pytest.mark.parametrize(
    ("comparison", "shift", "gain", "won"),
    [
        *(("PTR ≥ paper", shift, 0.0, won) for shift, won in ((0.5, 78), (0.0, 78), (-0.001, 0))),
        *(("PTR > Gaussian", 0.0, gain, won) for gain, won in ((0.5, 78), (0.0, 0), (-0.5, 0))),
    ],
)
def test_equal_to_the_paper_is_enough_and_a_gain_is_above_nothing(
    results, comparison, shift, gain, won
):
    found = summarise(results(everywhere(shift, ptr=0.0, trimmed=-gain)))
    for name in ("RDP", "PLD"):
        count = found[f"{comparison}, {name}"]
        assert (len(count.lost), count.made) == (78 - won, 78)


def test_exceptions_are_named_and_what_is_missing_is_no_exception(results):
    rows = everywhere(0.5, ptr=0.0)
    bad = next(r for r in rows if r["corrupt"] == "label:0.2" and r["accountant"] == "pld")
    bad["accuracy"] = 10.0
    gone = next(r for r in rows if r["dataset"] == "emnist")
    found = summarise(results([r for r in rows if r is not gone]))
    ((place, difference),) = found["PTR ≥ paper, PLD"].lost.items()
    assert place == (bad["dataset"], "label:0.2", bad["epsilon"])
    assert difference == 10.0 - unique()[place]
    assert found["PTR ≥ paper, RDP"].lost == {}
    made = [found[f"PTR ≥ paper, {name}"].made for name in ("RDP", "PLD")]
    assert made == ([77, 78] if gone["accountant"] == "rdp" else [78, 77])


def test_our_setting_is_held_against_the_paper_and_dpsgd(results):
    found = summarise(results(everywhere(0.0, **{"ours": 1.0, "ours-dpsgd": 1.0})))
    best, rival = found["best ≥ paper"], found["best > DP-SGD"]
    assert (best.made, len(best.lost), len(rival.lost)) == (78, 0, 78)
