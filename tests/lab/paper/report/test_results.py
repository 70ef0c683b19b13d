"""A results file is read whole or refused with a line that says what to do."""

import statistics

import pytest

from prudent_lab.paper.results import COLUMNS, Estimate, append, read
from tests.lab.paper.report.conftest import cells, row


def test_a_cell_is_the_mean_over_seeds(results):
    found = results(cells({"ptr": [90.0, 91.0, 95.0]}))
    cell = found.row(("mnist", "none", 3.0))["ptr", "pld"]
    assert cell == Estimate(92.0, statistics.stdev([90.0, 91.0, 95.0]), 3)
    assert found.runs() == 3


def test_what_was_not_run_is_none_and_never_zero(results):
    found = results([row()])
    assert set(found.row(("mnist", "none", 3.0))) == {("ptr", "pld")}
    for place in (("mnist", "none", 5.0), ("mnist", "label:0.1", 3.0), ("emnist", "none", 3.0)):
        assert not found.row(place)
    assert not found.row(("mnist", "none", 3.0), "success")


def test_what_a_calibrated_run_passes_is_no_cell(results):
    """Its noise was solved for the ε at its end."""
    found = results(
        [
            row(column="ours", target=3.0, epsilon=2.0, accuracy=80.0),
            row(column="ours", target=3.0, epsilon=3.0, accuracy=90.0),
            row(column="ours", target=2.0, epsilon=2.0, accuracy=85.0),
        ]
    )
    assert found.row(("mnist", "none", 2.0))["ours", "pld"].mean == 85.0
    assert found.row(("mnist", "none", 3.0))["ours", "pld"].mean == 90.0
    assert found.runs() == 2


def test_seeds_can_be_left_out(write):
    path = write(cells({"ptr": [90.0, 91.0, 95.0]}))
    assert read(path, seeds=2).row(("mnist", "none", 3.0))["ptr", "pld"].mean == 90.5


def test_missing_columns_are_named(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text(",".join(c for c in COLUMNS if c not in ("target", "trim")) + "\n")
    with pytest.raises(ValueError, match=r"old.csv: expected .* target, trim missing"):
        read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accuracy": "good"}, "line 2: expected accuracy a finite number, got 'good'"),
        ({"accuracy": 0.1e4}, r"line 2: Expected accuracy in \[0, 100\], got 1000"),
        ({"accuracy": "nan"}, "line 2: expected accuracy a finite number, got 'nan'"),
        ({"accuracy": ""}, "line 2: expected accuracy a finite number, got ''"),
        ({"epsilon": -1}, "line 2: Expected epsilon finite and > 0"),
        ({"seed": 0.5}, "line 2: expected seed a whole number, got '0.5'"),
        ({"accountant": "moments"}, "line 2: Expected accountant one of pld, rdp"),
        ({"corrupt": "bitrot:0.1"}, "line 2: Expected corruption to be none or one of"),
        ({"pass_rate": 1.5}, "line 2: Expected pass_rate in"),
    ],
)
def test_a_bad_value_is_named_with_its_line(write, changes, message):
    with pytest.raises(ValueError, match=message):
        read(write([row(**changes)]))


def test_a_line_cut_short_is_refused(write):
    path = write([row()])
    path.write_text(path.read_text().rsplit(",", 3)[0] + "\n")
    with pytest.raises(ValueError, match="line 2: expected 13 values, got fewer"):
        read(path)


def test_the_same_run_twice_is_refused(write):
    """Else one seed would count as two."""
    with pytest.raises(ValueError, match="line 3: expected each run and price once"):
        read(write([row(), row(accuracy=91.0)]))


def test_what_is_appended_is_what_is_read(write, tmp_path):
    first, second = read(write([row(), row(seed=1, trim="")])).readings
    path = tmp_path / "new" / "results.csv"
    append(path, [first])
    append(path, [second])
    assert read(path).readings == (first, second)
