"""Several questions of one table: one opening, one charge, one table of answers."""

import datetime
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa

import prudent
from prudent._validate import ArgumentError
from prudent.accounting import epsilon_of
from prudent.release import Ask
from prudent.release.noise import ReproducibleNoise
from tests.release.recording import Book, Silence

VALUES = np.random.default_rng(3).normal(50, 10, 800)
TABLE = pa.table(
    {
        "x": VALUES,
        "n": np.arange(800) % 7,
        "yes": VALUES > 50,
        "city": ["oslo", "bergen"] * 400,
        "who": np.arange(800) // 2,
    }
)


def test_all_questions_are_charged_once() -> None:
    book = Book()
    found: Any = prudent.table(
        TABLE,
        [Ask("mean", "x", bounds=(0, 100)), "median(n)", "count(*)", Ask("proportion", "yes")],
        epsilon=4.0,
        ledger=book,
        noise=ReproducibleNoise(1),
    )
    ((event, label, _),) = book.charges
    assert label == "table of x, n, yes"
    assert epsilon_of(event, delta=0.0) <= 4.0 + 1e-9
    assert found.event == event
    assert found["mean(x)"].value == pytest.approx(50, abs=2)
    assert found["COUNT(*)"].value == pytest.approx(800, abs=30)
    parts = [found[name].epsilon for name in found.answers]
    assert sum(parts) == pytest.approx(4.0)
    assert found["COUNT(*)"].epsilon < found["mean(x)"].epsilon


def test_answers_are_found_by_the_text_of_their_question() -> None:
    """As it was written, and however it is spaced and capitalised."""
    asked = ["median(x)", "AVG( yes )", "corr(x,n)", "count(DISTINCT city)"]
    found: Any = prudent.table(TABLE, asked, epsilon=40.0, noise=ReproducibleNoise(1))
    assert list(found.answers) == ["median(x)", "avg(yes)", "corr(x, n)", "count(DISTINCT city)"]
    for text in (*asked, *found.answers, "MEDIAN(x)"):
        assert found[text].epsilon < 40
    for unknown in ("median(y)", "no ( question"):
        with pytest.raises(KeyError):
            found[unknown]


@pytest.mark.thorough
def test_answers_are_one_frame() -> None:
    given: Any = {"epsilon": 20.0, "noise": ReproducibleNoise(2)}
    questions = {"x": ["median", "mean"], "n": "mean"}
    found: Any = prudent.table(TABLE, questions, by="city", groups=["oslo", "bergen"], **given)
    frame = found.to_frame()
    assert list(frame.columns) == ["city", "column", "statistic", "value", "low", "high", "status"]
    assert len(frame) == 6
    wide = found.to_frame(wide=True)
    parts = [
        f"{name}{part}"
        for name in ("median(x)", "mean(x)", "mean(n)")
        for part in ("", " low", " high", " notes")
    ]
    assert list(wide.columns) == ["city", *parts]
    assert (wide["mean(x) low"] < wide["mean(x)"]).all()
    assert wide["mean(x) notes"].str.contains("of the values lay outside").all()
    assert found._repr_html_().startswith("<pre>city ")
    assert found.plain()["answers"]["mean(n)"]["groups"]["oslo"]["status"] == "released"


@pytest.mark.unhurried
def test_private_groups_are_chosen_once() -> None:
    book = Book()
    found: Any = prudent.table(
        TABLE,
        ["avg(x)", "count(*)"],
        by=["city", "yes"],
        groups="private",
        epsilon=9.0,
        delta=1e-6,
        ledger=book,
        noise=ReproducibleNoise(5),
    )
    assert list(found["AVG(x)"]) == list(found["COUNT(*)"])
    assert len(book.charges) == 1
    assert epsilon_of(book.charges[0][0], delta=1e-6) <= 9.0 + 1e-6
    # The groups of each answer were chosen at a third of ε and with δ, which its price includes.
    prices = [(each.epsilon, each.delta) for each in found.answers.values()]
    assert sum(epsilon for epsilon, _ in prices) == pytest.approx(9.0 + 9.0 / 3)
    assert {delta for _, delta in prices} == {1e-6}


@pytest.mark.thorough
def test_a_description_of_every_column() -> None:
    found: Any = prudent.describe(TABLE, epsilon=40.0, unit=None, noise=ReproducibleNoise(3))
    assert found["describe(x)"].median.value == pytest.approx(50, abs=3)
    assert {"describe(n)", "proportion(yes)", "count(city)", "count_distinct(city)"} <= set(
        found.answers
    )
    statistics = set(found.to_frame().statistic)
    assert {"deviation", "0.5-quantile", "count_distinct"} <= statistics
    preview: Any = prudent.describe(TABLE, epsilon=40.0, dry_run=True)
    assert sum(part.epsilon for part in preview.parts) == pytest.approx(40.0)
    assert "description by exponential" in str(preview)


@pytest.mark.parametrize("rule", ["mean", "median", "sum", "count", "min", 2])
def test_every_column_is_described_by_a_rule_that_its_type_has(rule: Any) -> None:
    """A text has no mean, and a date no sum: their notes say by which rule they count."""
    days = pa.array([datetime.date(2024, 1, 1 + day % 9) for day in range(200)])
    table = pa.table(
        {"x": np.arange(200.0), "t": ["a"] * 200, "d": days, "who": np.arange(200) // 4}
    )
    found: Any = prudent.describe(table, unit="who", per_unit=rule, epsilon=40.0, noise=Silence())
    assert set(found.answers) == {"describe(x)", "count(t)", "describe(d)"}
    assert found["count(t)"].value == (100 if rule == 2 else 50)
    words = {"sum": "the sum", "count": "the number of its rows", "mean": "the mean"}
    assert words.get(rule, "") in found["describe(x)"].notes[0]
    if rule not in ("min", 2):
        assert "the first of its values" in found["count(t)"].notes[0]
    if rule == "sum":
        assert "the mean of its values" in found["describe(d)"].notes[0]


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({"x": "nonsense"}, "Expected statistic one of"),
        ({}, "one or more different ones"),
        (["median(x)", "MEDIAN(x)"], "one or more different ones"),
        ([Ask("quantile", "x")], "Expected options of a quantile"),
        ([Ask("mean", "x", edges=[1, 2])], "Expected options of a mean"),
        ([3], "an Ask, or a text"),
        (["x"], "Single values are private"),
        ({"city": "mean"}, "of numbers"),
    ],
)
def test_what_is_no_question_costs_nothing(questions: Any, message: str) -> None:
    book = Book()
    with pytest.raises(ArgumentError, match=message):
        prudent.table(TABLE, questions, epsilon=1.0, ledger=book)
    assert book.charges == []


@pytest.mark.parametrize(
    "other", [{"unit": None}, {"by": "city"}, {"groups": ["oslo"]}, {"groups_per_unit": 3}]
)
def test_no_question_is_about_other_units_or_groups_than_the_whole(other: dict[str, Any]) -> None:
    book, asks = Book(), [Ask("mean", "x", bounds=(0, 100), **other), "count(*)"]
    with pytest.raises(ArgumentError, match="options"):
        prudent.table(TABLE, asks, unit="who", epsilon=1.0, ledger=book)
    assert not book.charges


@pytest.mark.parametrize("where", ["x < 100", lambda rows: rows.x < 100])
def test_a_condition_of_a_question_joins_that_of_its_table(where: Any) -> None:
    frame = pa.table({"x": np.arange(1000), "city": ["a", "b"] * 500})
    texts = ["count(*) FILTER (WHERE x < 0)", "count(*) FILTER (WHERE x >= 50)", "count(*)"]
    found = prudent.table(
        frame, texts, where=where, by="city", groups="private", epsilon=50.0, delta=1e-6
    )
    # Groups are those of the table, also where the first question has no row of them.
    assert [[each.value for each in answer.values()] for answer in found.answers.values()] == [
        *([pytest.approx(number, abs=9)] * 2 for number in (0, 25, 50)),
    ]


@pytest.mark.parametrize(
    ("statistic", "options"),
    [
        *(("maximum", {"propose": 1.0}), ("maximum", {"certify": 1.0}), ("mean", {"certify": 1.0})),
        *(("count", {"certify": 1.0}), ("mean", {"other": "n"}), ("median", {"other": "n"})),
    ],
)
def test_an_option_that_a_statistic_lacks_is_refused_free_of_charge(
    statistic: str, options: dict[str, Any]
) -> None:
    book = Book()
    with pytest.raises(ArgumentError, match=f"of a {statistic}"):
        prudent.table(TABLE, [Ask(statistic, "x", **options)], epsilon=1.0, delta=1e-6, ledger=book)
    assert book.charges == []


def test_a_histogram_has_a_row_for_each_bin() -> None:
    asked = [Ask("histogram", "n", edges=[0, 2, 4, 6]), "count(*)"]
    found: Any = prudent.table(TABLE, asked, epsilon=20.0, noise=ReproducibleNoise(1))
    shown = found["histogram(n)"]
    frame = found.to_frame()
    names = ["below 0", "0 to 2", "2 to 4", "4 to 6", "above 6"]
    assert frame.statistic.tolist() == [*names, "count"]
    assert frame.value.tolist()[:5] == [shown.below, *shown.counts, shown.above]
    assert (frame.high - frame.value).tolist()[:5] == pytest.approx([shown.half_width()] * 5)
    assert found.to_frame(wide=True)["histogram(n) 2 to 4"].tolist() == [shown.counts[1]]
