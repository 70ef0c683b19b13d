"""Answers by group are a dictionary that can be shown as a table."""

from prudent.release.noise import Distribution
from prudent.release.outcome import Branch, Groups, NoiseSpread, Refused, Released, ReleasedInterval


def test_groups_become_a_frame_with_intervals() -> None:
    spread = NoiseSpread(Distribution.LAPLACE, 1.0, 0.0)
    released = Released(5.0, Branch.ROBUST, 1.4, 0.0, None, spread=spread)
    groups = Groups({"<a>": released, "b": Refused("no", None)}, epsilon=0.5, delta=0.0)
    frame = groups.to_frame()
    assert list(frame.columns) == ["group", "value", "low", "high", "status"]
    assert frame.status.tolist() == ["released", "refused"]
    assert frame.low[0] < 5.0 < frame.high[0]
    assert "&lt;a&gt;" in groups._repr_html_()
    first, *_, price = str(groups).splitlines()
    assert first.startswith("<a>: 5")
    assert price == "(0.5, 0)-DP for adding or removing one record"


def test_a_table_says_what_confidence_its_intervals_have() -> None:
    spread = ReleasedInterval(4.0, 6.0, 0.9, False)
    released = Released(5.0, Branch.SELECTED, 0.0, 0.0, None, spread=spread)
    groups = Groups({"a": released, "b": Refused("no", None)}, ["g"], epsilon=0.5, delta=0.0)
    assert "90% interval" in groups._repr_html_()


def test_arithmetic_gives_plain_numbers() -> None:
    answer = Released(5.0, Branch.ROBUST, 1.4, 0.0, None)
    found = [answer + 1, 1 + answer, answer * 2, 10 / answer, answer - answer, -answer, abs(answer)]
    assert found == [6.0, 6.0, 10.0, 2.0, 0.0, -5.0, 5.0]
    assert all(type(each) is float for each in found)
    assert answer > 4
    assert answer <= 5.0
    assert (answer**2, answer // 2, answer % 2) == (25.0, 2.0, 1.0)
    assert {answer: 1}[answer] == 1
    assert sum([answer, answer]) == 10.0
    assert int(answer) == 5


def test_columns_of_the_answer_never_take_the_place_of_those_of_the_data() -> None:
    spread = NoiseSpread(Distribution.LAPLACE, 1.0, 0.0)
    released = Released(5.0, Branch.ROBUST, 1.4, 0.0, None, spread=spread)
    names = ["status", "value", "value_"]
    groups = Groups({("open", 7, "x"): released}, names, epsilon=0.5, delta=0.0)
    frame = groups.to_frame()
    assert frame[names].to_numpy().tolist() == [["open", 7, "x"]]
    assert list(frame.columns) == [*names, "value__", "low", "high", "status_"]
    assert frame["status_"].tolist() == ["released"]
    assert frame["value__"].tolist() == [5.0]
    assert [line.split()[:4] for line in groups.table()[:2]] == [
        [*names, "value"],
        ["open", "7", "x", "5"],
    ]
    empty = Groups({}, names, epsilon=0.5, delta=0.0).to_frame()
    assert list(empty.columns) == list(frame.columns)
