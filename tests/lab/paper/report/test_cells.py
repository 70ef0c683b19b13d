"""Cells: the paper's number, ours, and which of our settings stands beside them."""

from prudent_lab.paper.jobs import published
from prudent_lab.paper.report.cells import best_setting, every_group, groups, plain_table
from tests.lab.paper.report.conftest import cells, row


def test_every_number_of_the_paper_has_its_line(results):
    none = results([])
    lines = [
        line.paper
        for table in (1, 2, 3, 4)
        for group in groups(none, table)
        for line in group.lines
    ]
    assert sorted(lines, key=str) == sorted(published(), key=str)
    assert len(lines) == 202


def test_a_cell_printed_twice_counts_once(results):
    keys = [(g.dataset, g.corrupt, g.epsilon) for g in every_group(results([]))]
    assert len(keys) == len(set(keys))
    assert set(keys) == {(c.dataset, c.corrupt, c.epsilon) for c in published()}


def test_lines_hold_both_accountants(results):
    rows = [row(accountant="rdp", accuracy=88.0), row(accuracy=92.0)]
    group = groups(results(rows), 1)[0]
    assert (group.dataset, group.corrupt, group.epsilon) == ("mnist", "none", 3.0)
    line = group.line("ptr")
    assert line.paper.accuracy == 91.43
    assert {name: cell.mean for name, cell in line.ours.items()} == {"rdp": 88.0, "pld": 92.0}
    assert group.line("trimmed").ours["pld"] is None


def test_one_setting_for_a_data_set_and_not_the_luckiest_of_each_cell(results):
    rows = [
        *cells({"ours": [90.0], "ours-wide": [95.0], "ours-dpsgd": [99.0]}),
        *cells({"ours": [90.0], "ours-wide": [86.0]}, epsilon=5.0),
    ]
    found = results(rows)
    assert best_setting(found, "mnist") == "ours-wide"
    first, second = groups(found, 1)[:2]
    assert (first.best.mean, second.best.mean) == (95.0, 86.0)
    assert first.rival.mean == 99.0
    assert second.rival is None


def test_a_setting_run_in_few_cells_is_not_the_best(results):
    rows = [*cells({"ours": [90.0], "ours-odd": [99.0]}), *cells({"ours": [91.0]}, epsilon=5.0)]
    assert best_setting(results(rows), "mnist") == "ours"


def test_a_setting_is_held_against_its_own_dpsgd(results):
    rows = cells({"ours-wide": [95.0], "ours-dpsgd": [94.0], "ours-wide-dpsgd": [93.0]})
    assert groups(results(rows), 1)[0].rival.mean == 93.0


def test_no_setting_where_none_was_run(results):
    found = results(cells({"ptr": [90.0]}))
    assert best_setting(found, "mnist") is None
    assert groups(found, 1)[0].best is None


def test_a_table_for_programs_has_every_number(results):
    found = plain_table(results(cells({"ptr": [91.0]})), 3)
    assert len(found) == sum(cell.table == 3 for cell in published())
    assert found[0]["data"] == "emnist-az"
    assert found[0]["pld"] is None
    ptr = plain_table(results(cells({"ptr": [91.0]})), 1)[1]
    assert ptr["pld"] == {"mean": 91.0, "deviation": None, "seeds": 1}
