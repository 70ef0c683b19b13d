"""The worst attack is the worst of those that were run, and no more is claimed."""

import pytest

from prudent.paper.report.document import Tone
from prudent.paper.report.frontier import frontiers, is_covered
from prudent.paper.report.grids import UNCOVERED, frontier_grid
from tests.paper.report.conftest import cells


def attacked(**accuracies):
    """Rows of two methods under attacks at 20 %."""
    return [
        line
        for kind, values in accuracies.items()
        for line in cells(
            {name: [value] for name, value in values.items() if value is not None},
            corrupt="none" if kind == "clean" else f"{kind.replace('_', '-')}:0.2",
        )
    ]


ROWS = {
    "clean": {"ours": 96.0, "ours-dpsgd": 97.0},
    "label": {"ours": 95.0, "ours-dpsgd": 94.0},
    "mimic": {"ours": 80.0, "ours-dpsgd": 90.0},
    "little": {"ours": 85.0, "ours-dpsgd": 60.0},
}


def test_the_minimum_over_attacks_and_the_best_of_them(results):
    (frontier,) = frontiers(results(attacked(**ROWS)))
    assert (frontier.dataset, frontier.epsilon) == ("mnist", 3.0)
    assert frontier.kinds == ("label", "little", "mimic")
    ours, dpsgd = frontier.rows
    assert (ours.worst, ours.least, ours.clean.mean) == ("mimic", 80.0, 96.0)
    assert (dpsgd.worst, dpsgd.least) == ("little", 60.0)
    assert frontier.best(0.2) == 80.0
    tones = {(r[1].text, c.tone) for r in frontier_grid(frontier).rows for c in r if c is not None}
    assert ("TSGD+PTR, tuned", Tone.BEST) in tones
    assert ("DP-SGD, tuned", Tone.BEST) not in tones
    assert ("DP-SGD, tuned", Tone.WORST) in tones


def test_a_method_that_missed_an_attack_is_never_the_best(results):
    (frontier,) = frontiers(
        results(attacked(**ROWS | {"mimic": {"ours": None, "ours-dpsgd": 50.0}}))
    )
    ours, _ = frontier.rows
    assert (ours.complete, ours.least) == (False, 85.0)
    assert frontier.best(0.2) == 50.0
    grid = frontier_grid(frontier)
    row = grid.rows[0]
    least = row[grid.header.index("least")]
    assert least.detail == "of 2 of 3 attacks"
    assert least.tone is Tone.PLAIN
    assert "not run" in [cell.text for cell in row]


def test_seeds_are_told_where_they_are_not_as_many_as_usual(results):
    extra = cells({"ours": [95.0]}, corrupt="label:0.2", epsilon=3.0)
    rows = attacked(**ROWS) + [row | {"seed": 1, "target": 3.0} for row in extra]
    (frontier,) = frontiers(results(rows))
    assert frontier.usual_seeds == 1
    grid = frontier_grid(frontier)
    assert "Seeds: 1," in grid.note
    details = {cell.detail for row in grid.rows for cell in row if cell is not None}
    assert details == {"", "2 seeds"}


def test_prices_are_never_mixed(results):
    rows = attacked(**ROWS) + cells({"ours": [50.0]}, corrupt="mimic:0.2", epsilon=5.0)
    rows += [r | {"target": 3.0, "epsilon": 1.0, "accuracy": 1.0} for r in attacked(**ROWS)]
    found = frontiers(results(rows))
    assert [frontier.epsilon for frontier in found] == [3.0, 5.0]
    assert found[0].rows[0].least == 80.0


def test_the_papers_faults_alone_make_no_frontier(results):
    assert frontiers(results(attacked(clean={"ours": 96.0}, label={"ours": 95.0}))) == []


@pytest.mark.parametrize(
    ("kind", "covered"), [("label", True), ("sign-flip", True), ("mimic", False), ("little", False)]
)
def test_attacks_that_no_price_covers_are_marked(results, kind, covered):
    assert is_covered(f"{kind}:0.1") is covered
    rows = attacked(**ROWS | {kind.replace("-", "_"): {"ours": 90.0}})
    header = frontier_grid(frontiers(results(rows))[0]).header
    assert sum(name.endswith(UNCOVERED) for name in header) == 2
