"""Cells: the paper's number, ours, and which of our settings stands beside them."""

import attrs

from prudent_lab.paper.jobs import published
from prudent_lab.paper.report.comparison import (
    datasets,
    plain_table,
    printed,
    tuned_columns,
)
from tests.lab.paper.report.conftest import cells, row


def test_every_number_of_the_paper_has_its_line(results):
    none = results([])
    lines = [
        (table, dataset, *place[1:], method, accuracy)
        for table in (1, 2, 3, 4)
        for dataset in datasets(table)
        for place, methods in printed(table, dataset).items()
        for method, accuracy in methods.items()
    ]
    assert sorted(lines) == sorted(map(attrs.astuple, published()))
    told = [line for table in (1, 2, 3, 4) for line in plain_table(none, table)]
    assert len(lines) == len(told) == 202


def test_lines_hold_both_accountants(results):
    rows = [row(accountant="rdp", accuracy=88.0), row(accuracy=92.0)]
    trimmed, ptr = plain_table(results(rows), 1)[:2]
    assert (ptr["dataset"], ptr["corrupt"], ptr["epsilon"]) == ("mnist", "none", 3.0)
    assert (trimmed["method"], ptr["method"], ptr["paper"]) == ("trimmed", "ptr", 91.43)
    assert (ptr["rdp"]["mean"], ptr["pld"]["mean"]) == (88.0, 92.0)
    assert trimmed["pld"] is None


def tuned(results, epsilon=3.0):
    """Our best setting on MNIST, and DP-SGD with the same tuning, in the cell without faults."""
    line = next(line for line in plain_table(results, 1) if line["epsilon"] == epsilon)
    return [cell and cell["mean"] for cell in (line["best"], line["dpsgd_same_tuning"])]


def test_one_setting_for_a_data_set_and_not_the_luckiest_of_each_cell(results):
    rows = [
        *cells({"ours": [90.0], "ours-wide": [95.0], "ours-dpsgd": [99.0]}),
        *cells({"ours": [90.0], "ours-wide": [86.0]}, epsilon=5.0),
    ]
    found = results(rows)
    assert tuned_columns(found, "mnist") == ("ours-wide", "ours-dpsgd")
    assert tuned(found) == [95.0, 99.0]
    assert tuned(found, 5.0) == [86.0, None]


def test_a_setting_run_in_few_cells_is_not_the_best(results):
    rows = [*cells({"ours": [90.0], "ours-odd": [99.0]}), *cells({"ours": [91.0]}, epsilon=5.0)]
    assert tuned_columns(results(rows), "mnist")[0] == "ours"


def test_a_setting_is_held_against_its_own_dpsgd(results):
    rows = cells({"ours-wide": [95.0], "ours-dpsgd": [94.0], "ours-wide-dpsgd": [93.0]})
    assert tuned(results(rows)) == [95.0, 93.0]


def test_no_setting_where_none_was_run(results):
    found = results(cells({"ptr": [90.0], "ours-dpsgd": [99.0]}))
    assert tuned_columns(found, "mnist") == ("", "")
    assert tuned(found) == [None, None]
