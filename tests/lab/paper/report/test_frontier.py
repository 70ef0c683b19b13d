"""The worst attack is the worst of those that were run, by who attacks, and no more is claimed."""

from pathlib import Path

import pytest

from prudent_lab.corruption import AIMED
from prudent_lab.paper.jobs import settings
from prudent_lab.paper.report.frontier import (
    UNCOVERED,
    Attacker,
    attacker_of,
    frontier_table,
    frontiers,
    is_covered,
    worst_cases_table,
)
from prudent_lab.paper.results import read, shipped
from tests.lab.paper.report.conftest import cells


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


def table(grid):
    """The texts of a grid by attack and method, below the row without bad records."""
    return {
        (line[1].text, method): cell
        for line in grid.rows[1:]
        for method, cell in zip(grid.header[2:], line[2:], strict=True)
    }


def kinds(frontier):
    """The attacks of a frontier."""
    return list(dict.fromkeys(kind for row in frontier.rows for kind in row.cells))


def test_the_minimum_over_attacks_and_the_best_of_them(results):
    (frontier,) = frontiers(results(attacked(**ROWS)))
    assert (frontier.dataset, frontier.epsilon) == ("mnist", 3.0)
    assert (frontier.attacker, kinds(frontier)) == (Attacker.GRADIENTS, ["little", "mimic"])
    ours, dpsgd = frontier.rows
    assert (ours.worst, ours.clean.mean) == ((80.0, "mimic"), 96.0)
    assert dpsgd.worst == (60.0, "little")
    assert frontier.best(0.2) == 80.0
    grid = frontier_table(frontier)
    assert grid.header == ("bad", "attack", "TSGD+PTR, tuned", "DP-SGD, tuned")
    assert [cell.text for cell in grid.rows[0]] == ["0%", "none", "96.00", "97.00"]
    tones = {key: cell.tone for key, cell in table(grid).items() if cell.tone}
    assert tones == {
        ("worst accuracy", "TSGD+PTR, tuned"): "best",
        ("mimic†", "TSGD+PTR, tuned"): "worst",
        ("a little is enough†", "DP-SGD, tuned"): "worst",
    }


def test_a_method_that_missed_an_attack_is_never_the_best(results):
    (frontier,) = frontiers(
        results(attacked(**ROWS | {"mimic": {"ours": None, "ours-dpsgd": 50.0}}))
    )
    ours, _ = frontier.rows
    assert (ours.complete, ours.worst[0]) == (False, 85.0)
    assert frontier.best(0.2) == 50.0
    cells = table(frontier_table(frontier))
    least = cells["worst accuracy", "TSGD+PTR, tuned"]
    assert (least.detail, least.tone) == ("of 1 of 2 attacks", "")
    assert cells["mimic†", "TSGD+PTR, tuned"].text == "not run"


def poisoned(success=99.0):
    """Both attackers at 20 %; a backdoor leaves accuracy and succeeds."""
    chosen = attacked(**ROWS, class_mean={"ours": 94.0, "ours-dpsgd": 93.0})
    backdoor = attacked(backdoor={"ours": 95.5, "ours-dpsgd": 96.5})
    return chosen + [line | {"success": success} for line in backdoor]


def test_attackers_are_never_mixed(results):
    """A worst case over both would be that of the gradients, whatever records do."""
    records, gradients = frontiers(results(poisoned()))
    assert (records.attacker, gradients.attacker) == (Attacker.RECORDS, Attacker.GRADIENTS)
    assert kinds(records) == ["label", "class-mean", "backdoor"]
    assert kinds(gradients) == ["little", "mimic"]
    assert [row.worst[0] for row in records.rows] == [94.0, 93.0]
    assert [row.worst[0] for row in gradients.rows] == [80.0, 60.0]
    told = {
        (row["attacker"], row["attack"]) for each in (records, gradients) for row in each.plain()
    }
    assert told == {
        *(("records", kind) for kind in kinds(records)),
        *(("gradients", kind) for kind in kinds(gradients)),
    }


def test_a_backdoor_is_told_by_its_success_too(results):
    records, gradients = frontiers(results(poisoned(98.7)))
    cells = table(frontier_table(records))
    assert cells["backdoor", "DP-SGD, tuned"].text == "96.50"
    assert cells["backdoor: success", "DP-SGD, tuned"].text == "98.70"
    assert all("success" not in name for name, _ in table(frontier_table(gradients)))
    told = {row["attack"]: row.get("success") for row in records.plain()}
    assert told == {"label": None, "class-mean": None, "backdoor": 98.7}


def test_worst_cases_stand_beside_each_other_by_attacker(results):
    grid = worst_cases_table(frontiers(results(poisoned(98.7))))
    assert [[cell.text for cell in line] for line in grid.rows] == [
        ["Bad records", "20%", "94.00", "93.00"],
        ["backdoor: success", "20%", "98.70", "98.70"],
        ["Bad gradients", "20%", "80.00", "60.00"],
    ]
    best = [[cell.tone == "best" for cell in line[2:]] for line in grid.rows]
    assert best == [[True, False], [False, False], [True, False]]


def test_every_attack_of_the_settings_has_one_attacker():
    by_records = ["label", "label-targeted", "feature", "class-mean", "gradient-match", "backdoor"]
    kinds = settings()["frontier"]["kinds"]
    assert [kind for kind in kinds if attacker_of(kind) is Attacker.RECORDS] == [*by_records, AIMED]
    assert all(is_covered(f"{kind}:0.1") for kind in by_records)
    assert not is_covered(f"{AIMED}:0.1")


def test_an_attack_on_certified_classifiers_is_not_missed_by_others(results):
    rows = attacked(
        clean={"ours": 96.0, "certified-letters": 97.0},
        class_mean={"ours": 94.0, "certified-letters": 95.0},
        aimed={"certified-letters": 70.0},
    )
    (frontier,) = frontiers(results(rows))
    ours, certified = frontier.rows
    assert ours.complete
    assert certified.complete
    assert (ours.worst[0], certified.worst[0]) == (94.0, 70.0)
    assert frontier.best(0.2) == 94.0
    cells = table(frontier_table(frontier))
    name = f"aimed at the counts{UNCOVERED}"
    assert cells[name, "TSGD+PTR, tuned"].text == "–"
    assert cells[name, "certified classifier, public letters"].text == "70.00"


def test_seeds_are_told_where_they_are_not_as_many_as_usual(results):
    extra = cells({"ours": [80.0]}, corrupt="mimic:0.2", epsilon=3.0)
    rows = attacked(**ROWS) + [row | {"seed": 1, "target": 3.0} for row in extra]
    (frontier,) = frontiers(results(rows))
    assert frontier.usual_seeds == 1
    grid = frontier_table(frontier)
    assert "Seeds: 1," in grid.note
    details = {cell.detail for row in grid.rows for cell in row if cell is not None}
    assert details == {"", "2 seeds"}


def test_prices_are_never_mixed(results):
    rows = attacked(**ROWS) + cells({"ours": [50.0]}, corrupt="mimic:0.2", epsilon=5.0)
    rows += [r | {"target": 3.0, "epsilon": 1.0, "accuracy": 1.0} for r in attacked(**ROWS)]
    found = frontiers(results(rows))
    assert [frontier.epsilon for frontier in found] == [3.0, 5.0]
    assert found[0].rows[0].worst[0] == 80.0


def test_the_papers_faults_alone_make_no_frontier(results):
    assert frontiers(results(attacked(clean={"ours": 96.0}, label={"ours": 95.0}))) == []


@pytest.fixture(scope="module")
def measured():
    """The shipped frontiers."""
    records, gradients = frontiers(read(shipped()))
    return records, gradients


def test_what_the_essay_says_of_bad_records_follows_from_the_table(measured):
    records, _ = measured
    assert records.ratios == [0.1, 0.2, 0.3]
    assert all(row.complete for row in records.rows)
    for row in records.rows:
        if row.column.startswith("ours"):
            assert row.clean.mean - row.worst[0] <= 2
        if row.column == "ours-dpsgd":
            assert row.worst[0] == records.best(row.ratio)
    success = {(row.column, row.ratio): row.success["backdoor"].mean for row in records.rows}
    trained = [column for column in records.columns if column not in settings()["certified"]]
    assert all(success[column, 0.3] > 95 for column in trained)
    assert all(success[column, 0.1] > 99 for column in ("ours", "ours-dpsgd"))
    travel = ["trimmed", "dpsgd", "ptr", "ours", "ours-dpsgd"]  # by learning rate × steps
    assert [success[column, 0.1] for column in travel] == sorted(success[c, 0.1] for c in travel)
    for row in records.rows:
        if row.column in settings()["certified"]:
            assert row.success["backdoor"].mean < 1
            others = [cell.mean for kind, cell in row.cells.items() if kind != AIMED]
            assert row.worst[0] == row.cells[AIMED].mean < min(others) - 5


def test_what_the_essay_says_of_bad_gradients_follows_from_the_table(measured):
    _, gradients = measured
    for row in gradients.rows:
        for kind in ("gradient", "sign-flip"):
            assert row.clean.mean - row.cells[kind].mean < 5
    tuned = [row.worst[0] for row in gradients.at(0.1) if row.column.startswith("ours")]
    paper = [row.worst[0] for row in gradients.at(0.1) if not row.column.startswith("ours")]
    assert max(tuned) < min(paper)
    assert all(row.worst[0] < 26 for row in gradients.at(0.3))


def test_what_the_readme_says_follows_from_the_tables(measured):
    records, gradients = measured
    text = (Path(__file__).resolve().parents[4] / "README.md").read_text("utf-8")
    said = " ".join(text.split())

    def least(frontier, column):
        kept = [row.worst[0] for row in frontier.rows if row.column == column]
        return "{:.1f}, {:.1f} and {:.1f} %".format(*kept)

    best = [records.best(ratio) for ratio in records.ratios]
    assert best == [row.worst[0] for row in records.rows if row.column == "ours-dpsgd"]
    assert f"keeps the most, {least(records, 'ours-dpsgd')}, and TSGD+PTR" in said
    assert f"with it {least(records, 'ours')}." in said
    assert {len(row.cells) for row in records.rows if row.column == "ours"} == {6}
    assert len(kinds(gradients)) == 8
    assert "the worst of six attacks" in said
    assert "the worst of eight attacks" in said
    tenth, fifth = (
        {row.column: row.success["backdoor"].mean for row in records.at(ratio)}
        for ratio in (0.1, 0.2)
    )
    assert {f"{tenth[column]:.0f}" for column in ("ours", "ours-dpsgd")} == {"99"}
    trained = [rate for column, rate in fifth.items() if not column.startswith("certified")]
    assert len(trained) == 5
    assert f"in {min(trained):.0f} to {max(trained):.1f} % against" in said
    best = [gradients.best(ratio) for ratio in gradients.ratios]
    assert "leaves {:.0f}, {:.0f} and {:.0f} % at best".format(*best) in said
    tuned = max(row.worst[0] for row in gradients.rows if row.column.startswith("ours"))
    assert f"at most {tuned:.0f} % with our tuning" in said
