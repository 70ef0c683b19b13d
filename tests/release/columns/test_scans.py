"""How many queries a statistic asks of a table: few, and the same whatever the records are."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis")
pytest.importorskip("pandas")

import pandas

import prudent
from prudent.release import statistics
from prudent.release.columns import column, opening, queries, table_columns
from prudent.release.columns.column import Leaders, together
from prudent.release.lattice import Lattice
from prudent.release.noise import ReproducibleNoise
from tests.release.recording import Silence

TABLES = {
    "normal": np.random.default_rng(1).normal(500.0, 100.0, 3_000),
    "lognormal": np.random.default_rng(2).lognormal(10.0, 2.0, 3_000),
    "odd": np.array([np.inf, -np.inf, 1e300, -1e-300, 0.0, 5.0]),
    "one": np.array([3.0]),
    "none": np.array([np.nan, np.nan]),
}
FEW = 100
SCANS: dict[str, tuple[Callable[..., Any], int]] = {
    "mean": (statistics.mean, 3),
    "sum": (statistics.sum, 4),
    "variance": (statistics.variance, 3),
    "histogram": (statistics.histogram, 4),
    "describe": (statistics.describe, 3),
    "count": (statistics.count, 1),
}


def in_groups(values: Any) -> pandas.DataFrame:
    """A table of numbers in three groups, with words and units that repeat."""
    place = np.arange(len(values))
    texts = {"c": place % 3, "w": place % 5, "u": place // 4}
    return pandas.DataFrame(
        {"x": values, "y": values[::-1], **{name: each.astype(str) for name, each in texts.items()}}
    )


def asked(values: Any, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that one release asks."""
    found: list[str] = []

    def counted(honest: Any) -> Any:
        def fetch(expression: Any, *size: int) -> Any:
            found.append(str(expression.schema() if hasattr(expression, "schema") else ""))
            return honest(expression, *size)

        return fetch

    with monkeypatch.context() as patch:
        for module in (queries, opening):
            patch.setattr(module, "fetched", counted(module.fetched))
        patch.setattr(queries, "arrow_batches", counted(queries.arrow_batches))
        ask(in_groups(values), "x", epsilon=1.0, noise=ReproducibleNoise(1))
    return found


GROUPS = ["0", "1", "2"]
POOLED = ("mean of groups", "variance of groups")  # their bounds are those of all groups together


def by(statistic: Callable[..., Any], **others: Any) -> Callable[..., Any]:
    """Ask in three groups, and in one that has no record unless others are given."""
    asked: dict[str, Any] = {"groups": [*GROUPS, "none"]} | others
    return lambda *table, **given: statistic(*table, by="c", **asked, **given)


def of_pairs(statistic: Callable[..., Any], second: str = "other") -> Callable[..., Any]:
    """Ask for a statistic of two columns."""
    return lambda *table, **given: statistic(*table, **{second: "y"}, **given)


def _mode(data: Any, _: str, **given: Any) -> Any:
    return statistics.mode(data, "w", delta=1e-6, **given)


def _distinct(data: Any, _: str, **given: Any) -> Any:
    return statistics.count_distinct(data, "w", **given)


SCANS |= {
    "iqr": (statistics.iqr, 3),
    "covariance": (of_pairs(statistics.covariance), 3),
    "correlation": (of_pairs(statistics.correlation), 3),
    "ratio": (of_pairs(statistics.ratio), 5),
    "weighted mean": (of_pairs(statistics.weighted_mean, "weights"), 3),
    "mean of groups": (by(statistics.mean, groups=GROUPS), 3),
    "variance of groups": (by(statistics.variance), 3),
    "describe of groups": (by(statistics.describe), 3),
    "median of groups": (by(statistics.median), 2),
    "iqr of groups": (by(statistics.iqr), 3),
    "covariance of groups": (by(of_pairs(statistics.covariance)), 3),
    "mode of groups": (by(_mode), 1),
    "distinct of groups": (by(_distinct), 1),
    "distinct sets of groups": (by(_distinct, unit="u", per_unit=2), 1),
    "mean of groups between bounds": (by(statistics.mean, bounds=(0, 1_000)), 1),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", SCANS)
def test_a_statistic_asks_few_queries_whatever_the_records(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what was released: a mean or a sum of few records takes another way than of many.

    As of a table of which DuckDB hands over too many rows to keep them.
    """
    monkeypatch.setattr(queries, "MOST_KEPT", -1)
    ask, most = SCANS[name]
    every = not name.startswith(("mean", "sum", "ratio"))
    tables = [values for values in TABLES.values() if every or len(values) > FEW]
    seen = {tuple(asked(values, ask, monkeypatch)) for values in tables}
    assert len(seen) == 1
    assert len(next(iter(seen))) == most, seen


def test_rows_that_are_handed_over_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("variance", "covariance", "variance of groups", "covariance of groups"):
        assert len(asked(TABLES["normal"], SCANS[name][0], monkeypatch)) == 1, name


@pytest.mark.unhurried
def test_rows_that_were_kept_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mean", "covariance", "describe of groups", "weighted mean"):
        found = []
        for most in (-1, queries.MOST_KEPT):
            monkeypatch.setattr(queries, "MOST_KEPT", most)
            given = {"epsilon": 1.0, "noise": ReproducibleNoise(1)}
            found.append(str(SCANS[name][0](in_groups(TABLES["lognormal"]), "x", **given)))
        assert found[0] == found[1], name


def test_bounds_leave_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    for statistic in (statistics.mean, statistics.sum, statistics.variance):

        def ask(*table: Any, statistic: Any = statistic, **given: Any) -> Any:
            return statistic(*table, bounds=(0, 1_000), **given)

        assert len(asked(TABLES["normal"], ask, monkeypatch)) == 1


def test_the_most_frequent_words_of_all_groups_are_read_at_once() -> None:
    """Each group has another one; a list of words of its own is asked for on its own."""
    place = np.arange(600)
    words = np.where(place // 3 % 4 == 0, "rare", (place % 3).astype(str))
    frame = pandas.DataFrame({"w": words, "c": place % 3})
    columns = opening.open_groups(frame, "w", by="c", groups=[0, 1, 2], kind="categories")
    found: list[Any] = list(columns.values())
    expected = [(Leaders(150, 50, False), str(group), 2) for group in range(3)]
    noted: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        fetch = queries.fetched
        patch.setattr(queries, "fetched", lambda asked: (noted.append(asked), fetch(asked))[1])
        assert together([each.leaders for each in found]) == [row[0] for row in expected]
        assert together([each.most_frequent for each in found]) == [row[1] for row in expected]
        assert together([each.distinct for each in found]) == [row[2] for row in expected]
        assert len(noted) == 3
        lists = [["rare", "0"], ["1"], ["1"]]
        counts = together(
            [
                functools.partial(each.counts_of, some)
                for each, some in zip(found, lists, strict=True)
            ]
        )
        assert [each.tolist() for each in counts] == [[50, 150], [150], [0]]
        assert len(noted) == 5


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "name", [name for name in SCANS if "groups" in name and name not in POOLED]
)
def test_groups_that_are_asked_together_answer_as_each_alone(name: str) -> None:
    """Also where records are odd, and where a group has none."""
    values = np.concatenate([*TABLES.values()])
    frame = in_groups(values)
    ask, _ = SCANS[name]
    given: Any = {"epsilon": 1.0, "noise": Silence()}
    both = ask(frame, "x", **given)
    for group in both:
        alone = frame[frame.c == group]
        assert both[group] == ask(alone, "x", **given)[group]


def test_large_groups_wait_for_no_lock_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that asks for its sample, or its count, hands over to one that asks for the same."""
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 100)
    values = TABLES["normal"]
    frame = pandas.DataFrame({"x": values, "y": values, "c": np.arange(len(values)) % 2})
    found: list[Any] = []

    def both() -> None:
        given: Any = {"by": "c", "groups": [0, 1], "epsilon": 1.0, "noise": Silence()}
        found.append(statistics.median(frame, "x", **given))
        columns = opening.open_groups(frame, "x", by="c", groups=[0, 1], other="y").values()
        found.append(together([each.second.count for each in columns]))  # type: ignore[attr-defined]

    thread = threading.Thread(target=both, daemon=True)
    thread.start()
    thread.join(60)
    assert found[1:] == [[1_500, 1_500]], "they wait for each other"


def test_every_group_has_a_sample_of_its_own() -> None:
    """An engine that draws before it joins rows with their groups takes all of a group or none."""
    frame = pandas.DataFrame({"x": np.arange(4_000.0), "c": np.arange(4_000) % 8})
    groups = opening.open_groups(frame, "x", by="c", groups=range(8)).values()
    asked = [
        queries.ColumnQuery(each, queries.sample_quantiles, {"share": 0.5}, dict) for each in groups
    ]
    drawn = [set(each["value"]) for each in queries.answer(asked)]
    assert all(180 < len(each) < 320 for each in drawn), list(map(len, drawn))


@pytest.mark.unhurried
def test_rows_that_a_mean_has_read_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of large groups are found in them, as of the engine when they are not kept."""
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 100)
    values = TABLES["normal"]
    frame = pandas.DataFrame({"x": values, "c": np.arange(len(values)) % 2})
    fetch, seen = queries.fetched, []

    def watched(expression: Any) -> Any:
        seen.append(expression)
        return fetch(expression)

    monkeypatch.setattr(queries, "fetched", watched)
    query = "SELECT c, avg(x), median(x) FROM t WHERE c IN (0, 1) GROUP BY c"
    found = []
    for most in (queries.MOST_KEPT, -1):
        monkeypatch.setattr(queries, "MOST_KEPT", most)
        seen.clear()
        answers = prudent.sql(query, t=frame, epsilon=2.0, noise=Silence())
        found.append([each.value for each in answers["median(x)"].values()])
        assert bool(seen) == (most < 0)
    assert found[0] == found[1]


def test_tasks_take_turns_and_end_with_the_first_error() -> None:
    answered: list[list[int]] = []

    def answer(asked: Any) -> list[int]:
        answered.append(list(asked))
        if 99 in asked:
            raise ZeroDivisionError
        return [each + 1 for each in asked]

    def task(first: int, times: int) -> int:
        for _ in range(times):
            (first,) = column.ask([first], answer)
        return first

    def both() -> int:
        return sum(together([lambda: task(10, 2), lambda: task(20, 1)]))

    assert together([lambda: task(0, 1), both, lambda: task(30, 3)]) == [1, 33, 33]
    assert answered == [[0, 10, 20, 30], [11, 31], [32]]
    with pytest.raises(ZeroDivisionError):
        together([lambda: task(98, 3), lambda: task(5, 4)])


def test_an_interruption_leaves_no_task_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would keep the connection open; one that has not begun does not begin."""
    begun: list[int] = []
    honest = column._Turn.proceed

    def proceed(turn: Any) -> bool:
        if len(begun) == 2:
            raise KeyboardInterrupt
        return honest(turn)

    def task(place: int) -> None:
        begun.append(place)
        column.ask([place], list)

    before = set(threading.enumerate())
    monkeypatch.setattr(column._Turn, "proceed", proceed)
    with pytest.raises(KeyboardInterrupt):
        together([functools.partial(task, place) for place in range(4)])
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    assert begun == [0, 1]


@pytest.mark.parametrize("reads", [True, False])
def test_counts_of_values_clipped_beyond_a_lattice_are_of_their_edges(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    column: Any = opening.open_column(pandas.DataFrame({"x": [1.0, 5.0, 50.0, 1e9]}), "x")
    if not reads:  # as other engines are asked
        monkeypatch.setattr(queries.ColumnQuery, "reads", property(lambda _: False))
    assert column.clipped_sum(1e3, 1e4, Lattice(0, -10, 10)) == 40
    edges = np.array([np.nextafter(10.0, np.inf), 1e3])
    assert column.counts_below(edges).tolist() == [2, 3]


def test_a_sum_between_ranks_asks_for_as_many_limbs_whatever_the_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries.ColumnQuery, "reads", property(lambda _: False))
    for module in (queries, table_columns):
        monkeypatch.setattr(module, "limb_bits", lambda *_, **__: 8)
    fetch, seen = queries.fetched, set()

    def watched(expression: Any) -> Any:
        seen.add(tuple(name for name in expression.columns if name.startswith("part")))
        return fetch(expression)

    monkeypatch.setattr(queries, "fetched", watched)
    for values in ([1.0, 2.0, 3.0], [1.0, 2e5, 3e9]):
        column: Any = opening.open_column(pandas.DataFrame({"x": values}), "x")
        assert column.sum_between(1, 3, Lattice(0)) == sum(values)
    assert len(seen - {()}) == 1
