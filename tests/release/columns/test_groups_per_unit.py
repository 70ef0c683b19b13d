"""A unit in several groups: in at most k of them, at k times the price of one."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import pandas as pd  # noqa: E402
import pyarrow as pa  # noqa: E402

import prudent  # noqa: E402
from prudent import ArgumentError  # noqa: E402
from prudent.accounting import PldAccountant  # noqa: E402
from prudent.release.columns import units  # noqa: E402
from prudent.release.columns.column import KeptGroups  # noqa: E402
from prudent.release.columns.opening import open_groups, open_private_groups  # noqa: E402
from prudent.release.noise import ReproducibleNoise  # noqa: E402

GROUPS = ["a", "b", "c", "d"]
PEOPLE = ["p", "q", "r", "s", "é"]


def _rows(seed: int = 0) -> list[tuple[str, str, float]]:
    """Of each person some rows, in any number of groups, also ties and repeated values."""
    draws = np.random.default_rng(seed)
    rows = [("p", group, 1.0) for group in GROUPS]
    for person in PEOPLE[1:]:
        for _ in range(int(draws.integers(1, 9))):
            rows.append((person, str(draws.choice(GROUPS)), float(draws.integers(0, 4))))
    return rows


def _arrow(rows: list[tuple[str, str, float]]) -> pa.Table:
    person, group, x = zip(*rows, strict=True)
    return pa.table({"person": person, "g": group, "x": x})


Contents = Mapping[Any, Counter[float]]


def _contents(source: Any, most: int, per_unit: Any, key: str, *, private: bool) -> Contents:
    """The values of every group, however it was opened: what all releases read."""
    kept = KeptGroups(most, key)
    options: Any = {"by": "g", "unit": "person", "per_unit": per_unit, "kept": kept}
    if isinstance(source, dict):
        options |= source
        source = None
    if private:
        column: Any = open_private_groups(source, "x", **options).column()
    else:
        column = open_groups(source, "x", groups=GROUPS, **options)["a"]
    rows = column.share.kept().to_pyarrow().to_pydict()
    found: dict[Any, Counter[float]] = {}
    for group, value in zip(rows["member_0"], rows["value"], strict=True):
        found.setdefault(bytes(group).decode(), Counter())[float(value)] += 1
    return found


def _change(one: Contents, other: Contents) -> tuple[int, int]:
    """In how many groups they differ, and by how many values at most in one."""
    changes = []
    for group in one.keys() | other.keys():
        first, second = one.get(group, Counter()), other.get(group, Counter())
        changes.append(((first - second) + (second - first)).total())
    return sum(map(bool, changes)), max(changes)


def check_one_unit(load: Callable[[list[Any]], Any], *, seeds: int = 3) -> None:
    """Without any one unit, at most k groups change, each by at most what one unit adds."""
    for seed, (most, per_unit) in itertools.product(range(seeds), ((1, "sum"), (3, 2))):
        private = most == 3
        rows, key = _rows(seed), f"secret {seed}"
        whole = _contents(load(rows), most, per_unit, key, private=private)
        several = 0
        for person in PEOPLE:
            rest = load([row for row in rows if row[0] != person])
            groups, values = _change(whole, _contents(rest, most, per_unit, key, private=private))
            assert groups <= most
            assert values <= (per_unit if isinstance(per_unit, int) else 1)
            several = max(several, groups)
        assert several == most  # and the person who is in all groups is in so many


@pytest.mark.unhurried
def test_one_unit_changes_so_many_groups() -> None:
    check_one_unit(_arrow, seeds=1)


@pytest.mark.thorough
def test_one_unit_changes_so_many_groups_in_postgres(postgres_url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    names = itertools.count()

    def load(rows: list[Any]) -> dict[str, str]:
        name = f"kept_{next(names)}"
        with psycopg.connect(postgres_url) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {name}")
            connection.execute(f"CREATE TABLE {name} (person text, g text, x double precision)")
            with connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s, %s)", rows)
        return {"connect": postgres_url, "table": name}

    check_one_unit(load, seeds=1)


@pytest.mark.thorough
def test_one_unit_changes_so_many_groups_in_spark(spark_session: Any) -> None:
    backend = ibis.pyspark.connect(spark_session)

    def load(rows: list[Any]) -> Any:
        frame = spark_session.createDataFrame(rows, "person string, g string, x double")
        frame.createOrReplaceTempView("kept_groups")
        return backend.table("kept_groups")

    rows = _rows(0)
    whole = _contents(load(rows), 2, "sum", "secret", private=False)
    rest = load([row for row in rows if row[0] != "p"])
    assert _change(whole, _contents(rest, 2, "sum", "secret", private=False)) == (2, 1)


@pytest.mark.unhurried
def test_equal_hashes_keep_no_more_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "digest", lambda value: ibis.literal("same"))
    check_one_unit(_arrow, seeds=1)


def test_the_check_finds_a_group_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = units._in_its_groups
    monkeypatch.setattr(
        units,
        "_in_its_groups",
        lambda found, kept: planted(found, KeptGroups(kept.most + 1, kept.key)),
    )
    with pytest.raises(AssertionError, match="<="):
        check_one_unit(_arrow, seeds=1)


@pytest.mark.unhurried
def test_the_check_finds_a_choice_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that prefers groups with few rows depends on other units."""

    def planted(found: Any, kept: KeptGroups) -> Any:
        groups = units.members_of(found)
        found = found.mutate(size=found.count().over(ibis.window(group_by=groups)))
        order = [found.size, *(found[name] for name in groups)]
        place = ibis.dense_rank().over(ibis.window(group_by="unit", order_by=order))
        found = found.mutate(place=place)
        return found.filter(found.place < kept.most).select("unit", "value", *groups)

    monkeypatch.setattr(units, "_in_its_groups", planted)
    with pytest.raises(AssertionError):
        check_one_unit(_arrow, seeds=6)


@pytest.mark.unhurried
def test_every_group_of_a_unit_has_the_same_chance() -> None:
    people = 4_000
    source = pa.table(
        {"person": np.repeat(np.arange(people), 4), "g": GROUPS * people, "x": np.zeros(4 * people)}
    )
    found = _contents(source, 1, "sum", "a secret", private=False)
    counts = np.array([found[group].total() for group in GROUPS])
    assert counts.sum() == people
    assert np.all(np.abs(counts - people / 4) < 6 * math.sqrt(people * 3 / 16))
    other = _contents(source, 1, "sum", "another", private=False)
    assert [other[group].total() for group in GROUPS] != counts.tolist()


# --- the price ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def visits() -> pd.DataFrame:
    draws = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "person": np.repeat(np.arange(900), 4),
            "ward": draws.choice(GROUPS, 3_600),
            "cost": draws.normal(50, 9, 3_600),
        }
    ).convert_dtypes()


class _Book:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def charge(self, event: Any, label: str = "", *, delta: float | None = None) -> None:
        self.events.append(event)


ASKED: dict[str, Any] = {
    "count": lambda table: table.count(epsilon=2.0),
    "sum": lambda table: table.sum("cost", epsilon=2.0, bounds=(0, 100)),
    "mean": lambda table: table.mean("cost", epsilon=2.0, delta=1e-6),
    "median": lambda table: table.median("cost", epsilon=2.0, delta=1e-6),
    "tested": lambda table: table.median("cost", epsilon=2.0, delta=1e-6, propose=5.0),
    "gaussian": lambda table: table.count(
        epsilon=2.0, delta=1e-6, distribution=prudent.release.Distribution.GAUSSIAN
    ),
    "several": lambda table: table.ask({"cost": ["median", "mean"]}, epsilon=2.0, delta=1e-6),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("groups", ["private", GROUPS])
@pytest.mark.parametrize("name", ASKED)
def test_what_is_charged_is_so_many_groups(name: str, groups: Any, visits: pd.DataFrame) -> None:
    if groups == "private" and name in ("count", "sum"):
        pytest.skip("needs delta")
    book = _Book()
    table = prudent.Table(
        visits, unit="person", groups_per_unit=3, ledger=book, noise=ReproducibleNoise(1)
    )
    found = ASKED[name](table.by("ward", groups=groups))
    (event,) = book.events
    parts = event.events if isinstance(event, dp.ComposedDpEvent) else [event]
    flat = [one for each in parts for one in getattr(each, "events", [each])]
    assert {each.count for each in flat if isinstance(each, dp.SelfComposedDpEvent)} == {3}
    assert found.epsilon <= 2.0
    priced = PldAccountant().compose(event).get_epsilon(max(found.delta, 1e-12))
    assert priced <= 2.0 * (1 + 1e-6)
    assert found.delta <= 1e-6


def test_the_noise_of_a_count_is_that_of_so_many(visits: pd.DataFrame) -> None:
    """The exact bound: a unit changes a vector of counts by 3 in the sum of absolute changes."""
    table = prudent.Table(visits, unit="person", groups_per_unit=3).by("ward", groups=GROUPS)
    one = prudent.Table(visits, unit="person").by("ward", groups=GROUPS)
    folded, plain = (each.count(epsilon=1.5, dry_run=True) for each in (table, one))
    assert folded.noise_scale == pytest.approx(3 * plain.noise_scale, rel=0.05)


def test_more_of_a_unit_is_counted(visits: pd.DataFrame) -> None:
    exact = visits.groupby("ward").person.nunique()
    for most in (1, 2, 4):
        table = prudent.Table(
            visits, unit="person", groups_per_unit=most, noise=ReproducibleNoise(1)
        )
        counts = table.by("ward", groups=GROUPS).count(epsilon=50)
        total = sum(each.value for each in counts.values())
        wanted = visits.groupby("person").ward.nunique().clip(upper=most).sum()
        assert total == pytest.approx(wanted, abs=15)
    assert total == pytest.approx(exact.sum(), abs=15)


@pytest.mark.parametrize(
    ("facts", "most"), [({}, 2), ({"unit": "person"}, 0), ({"unit": "person"}, "2")]
)
def test_what_is_wrong_is_said_before_any_charge(
    facts: Any, most: Any, visits: pd.DataFrame
) -> None:
    book = _Book()
    table = prudent.Table(visits, groups_per_unit=most, ledger=book, **facts)
    with pytest.raises(ArgumentError, match="groups_per_unit"):
        table.by("ward", groups=GROUPS).count(epsilon=1.0)
    with pytest.raises(ArgumentError, match="groups_per_unit"):
        prudent.Table(visits, groups_per_unit=2, unit="person", ledger=book).count(epsilon=1.0)
    assert not book.events
