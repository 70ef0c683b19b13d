"""Arrays and lists, asked in SQL, answer as an oracle in numpy does, question by question."""

import datetime
import gc
import os
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")

import prudent
from prudent.release import open_column
from prudent.release.columns.arrow_tables import open_matrix
from prudent.release.columns.column import Kind
from tests.oracles.array_column import ArrayColumn
from tests.release.columns.columns_suite import ADVERSARIAL, check_same_answers
from tests.release.recording import Silence

DAY, TIME = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12)
RECORDS: list[Any] = [
    *(0, 1, -1, 2**70, True, False, 0.0, -0.0, 1.0, 1.5, float("nan"), float("inf"), None, 1j),
    *("a", "é", "", "1", b"a", DAY, TIME, TIME.replace(tzinfo=datetime.UTC), DAY - DAY, object()),
    *(Decimal("1.25"), Decimal("sNaN"), Decimal("Infinity"), np.float32(0.1), np.int8(3), [1], {}),
    *(np.datetime64("NaT"), np.datetime64("2024-02-29"), np.str_("a"), 10**400, -(10**400)),
]
"""Odd and usual records, of which several are equal and not the same."""

ARRAYS: dict[str, Any] = {
    "doubles": ADVERSARIAL,
    "reversed": ADVERSARIAL[::-1],
    "floats": np.clip(ADVERSARIAL, -1e30, 1e30).astype(np.float32),
    "big-endian": np.arange(-50, 50).astype(">i2"),
    "truth": ADVERSARIAL > 0.2,
    "complex": ADVERSARIAL[:1000] + np.array([0, 1j] * 500),
    "none": np.empty(0),
    "texts": np.array(["b", "a", "b", "é", ""]),
    "bytes": np.array([b"b", b"a", b"b"]),
    "days": np.array(["2024-02-29", "NaT", "1969-12-31", "2024-02-29"], "M8[D]"),
    "nanoseconds": np.array([1, 1, 10**9, -5], "M8[ns]"),
    "durations": np.array([5, -5, 5], "m8[s]"),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ["doubles", "reversed", "floats", "big-endian", "truth", "none"])
def test_an_array_of_numbers_answers_as_the_oracle_does(name: str) -> None:
    check_same_answers(open_column(ARRAYS[name]), ARRAYS[name].astype(np.float64))


@pytest.mark.parametrize("name", [name for name in ARRAYS if name not in ("texts", "bytes")])
def test_numbers_of_any_type_are_ranked_as_by_the_oracle(name: str) -> None:
    found, expected = open_column(ARRAYS[name]), ArrayColumn(ARRAYS[name])
    assert found.scale == expected.scale
    np.testing.assert_array_equal(found.order_statistics(1, 9**9), np.sort(expected.numbers))


def check_categories(values: Any, kind: Kind, asked: list[Any]) -> None:
    found, expected = open_column(values, kind=kind), ArrayColumn.of(values, kind)
    for name in ("count", "leaders", "distinct"):
        assert getattr(found, name)() == getattr(expected, name)()
    assert repr(found.most_frequent()) == repr(expected.most_frequent())
    hashable = [each for each in asked if type(each) not in (list, dict, Decimal)]
    assert found.counts_of(hashable).tolist() == expected.counts_of(hashable).tolist()


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_of_categories_answers_as_the_oracle_does(name: str) -> None:
    asked = ["a", "", 1, 1.0, True, 0, DAY, b"b", 5, "nowhere"]
    check_categories(ARRAYS[name], "categories", asked)
    check_categories(ARRAYS[name], "rows", [])


@pytest.mark.unhurried
@pytest.mark.parametrize("seed", range(6))
def test_a_list_of_anything_answers_as_the_oracle_does(seed: int) -> None:
    generator = np.random.default_rng(seed)
    places = generator.integers(len(RECORDS), size=generator.integers(1, 60))
    values = [RECORDS[place] for place in places]
    for kind in ("categories", "sets"):
        check_categories(values, kind, RECORDS)
    for read_as in (None, "integer", "decimal(2)", "boolean", "date", "timestamp", "duration"):
        kinds: list[Kind] = ["numbers", "truth"] if read_as == "boolean" else ["numbers"]
        for kind in kinds:
            found, expected = (
                make(values, kind=kind, read_as=read_as) for make in (open_column, ArrayColumn.of)
            )
            assert found.scale == expected.scale
            np.testing.assert_array_equal(
                found.order_statistics(-5, 99), expected.order_statistics(-5, 99)
            )
            for given in (values, tuple(values), np.fromiter(values, object)):
                assert open_column(given, kind=kind, read_as=read_as).count() == expected.count()


def test_the_columns_of_a_matrix_leave_gaps_out() -> None:
    matrix = np.stack([ADVERSARIAL, np.arange(float(len(ADVERSARIAL)))], axis=1)
    columns = open_matrix(matrix)
    for place in range(2):
        found, expected = columns(place), ArrayColumn(matrix[:, place])
        assert found.count() == expected.count()
        np.testing.assert_array_equal(found.order_statistics(1, 9**9), np.sort(expected.numbers))


def test_a_masked_record_is_none() -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    assert open_column(masked).order_statistics(1, 9).tolist() == [2.0]
    assert open_column(masked, kind="rows").count() == 1


def test_no_warning_tells_of_a_huge_record() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        huge = np.array(["1e4000", "1"], np.longdouble)
        assert open_column(huge).order_statistics(1, 2).tolist() == [1.0, np.inf]


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.array(["a"]), {}, "values that are numbers, dates"),
        (np.ones((777, 2)), {}, "one-dimensional, got 2"),
        (np.ones(3), {"kind": "truth", "read_as": "number"}, "that are true or false"),
        (np.array([1, 2], "M8[D]"), {"read_as": "number"}, "read_as only with a list"),
        ([1], {"column": "x"}, "only with a table"),
        ([1], {"read_as": "text"}, "Expected read_as"),
    ],
)
def test_what_is_declared_wrong_is_refused(values: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_column(values, **options)
    assert "777" not in str(caught.value)


def test_columns_of_values_do_not_see_each_other() -> None:
    """Each has a connection of its own, and what one is given is gone with it."""
    one, other = (open_column(np.full(5, float(value))) for value in (1, 2))
    connections = [each.rows.get_backend().con for each in (one, other)]  # type: ignore[attr-defined]
    first, second = (set(each.execute("SHOW TABLES").fetchall()) for each in connections)
    assert first
    assert not first & second
    assert one.order_statistics(1, 1) == [1.0]
    assert other.order_statistics(1, 1) == [2.0]
    here = len(gc.get_objects())
    for _ in range(20):
        open_column([1.0] * 9).count()
    gc.collect()
    assert len(gc.get_objects()) < here + 20_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_opens_a_database_of_its_own() -> None:
    """The threads of one that was open before do not come along."""
    given: Any = {"epsilon": 1.0, "bounds": (0, 10), "noise": Silence()}
    expected = prudent.mean([1.0, 3.0], **given).value
    child = os.fork()
    if not child:
        os._exit(0 if prudent.mean([1.0, 3.0], **given).value == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
