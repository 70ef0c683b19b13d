"""Groups of several columns: lists, products, private combinations, one group per person."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa

import prudent
from prudent._validate import ArgumentError
from prudent.receipts.receipt import Receipt
from tests.release.recording import Book, Silence

TABLE = pa.table(
    {
        "region": ["north"] * 60 + ["south"] * 40,
        "team": ["hr", "it"] * 50,
        "year": [2023, 2023, 2024, 2024] * 25,
        "who": [place // 10 for place in range(100)],
        "x": [float(place) for place in range(100)],
    }
)
QUIET: Any = {"epsilon": 1.0, "noise": Silence()}
BOTH = {"region": ["north", "south"], "team": ["hr", "it"]}


def values(found: Any) -> dict[Any, Any]:
    return {group: each.value for group, each in found.items()}


def test_a_product_of_lists_and_a_list_of_tuples_are_the_same() -> None:
    by = ["region", "team"]
    product = prudent.count(TABLE, by=by, groups=BOTH, **QUIET)
    wanted = {("north", "hr"): 30, ("north", "it"): 30, ("south", "hr"): 20, ("south", "it"): 20}
    assert values(product) == wanted
    assert values(prudent.count(TABLE, by=by, groups=list(wanted), **QUIET)) == wanted
    three = prudent.count(TABLE, by=["team", "year"], groups=[("hr", 2023), ("it", 1999)], **QUIET)
    assert values(three) == {("hr", 2023): 25, ("it", 1999): 0}
    frame = product.to_frame()
    assert list(frame.columns) == ["region", "team", "value", "low", "high", "status"]


def test_private_combinations_are_chosen_by_their_counts() -> None:
    book = Book()
    given: Any = {"epsilon": 6.0, "delta": 1e-6, "groups": "private", "noise": Silence()}
    found = prudent.count(TABLE, by=["region", "team"], ledger=book, **given)
    assert list(found) == [("north", "hr"), ("north", "it"), ("south", "hr"), ("south", "it")]
    assert len(book.charges) == 1


def test_a_person_is_in_one_combination() -> None:
    """Ten rows of a person, five in each team, would otherwise count in two groups."""
    found = prudent.count(TABLE, by=["region", "team"], groups=BOTH, unit="who", **QUIET)
    assert sum(values(found).values()) == 10
    assert "in the group (region, team) with most of its rows" in found["north", "hr"].notes[0]
    one = pa.table({"g": ["a", "a", "b"], "h": ["u", "v", "v"], "who": [1, 1, 1]})
    found = prudent.count(
        one, by=["g", "h"], groups={"g": ["a", "b"], "h": ["u", "v"]}, unit="who", **QUIET
    )
    assert values(found) == {("a", "u"): 1, ("a", "v"): 0, ("b", "u"): 0, ("b", "v"): 0}


@pytest.mark.parametrize(
    ("by", "groups", "message"),
    [
        (["region", "team"], {"region": ["north"]}, "a list for each of region, team"),
        (["region", "team"], ["north"], "with 2 values each"),
        (["region", "team"], [("north",)], "with 2 values each"),
        (["region", "region"], BOTH, "distinct columns"),
        (["region", "team"], None, "a list that is public knowledge"),
        (["region", "nowhere"], BOTH, "by: unknown column"),
        ([], BOTH, "distinct columns"),
        (["region", 3], BOTH, "the name of a column"),
    ],
)
def test_what_names_no_groups_is_refused(by: Any, groups: Any, message: str) -> None:
    book = Book()
    with pytest.raises(ArgumentError, match=message):
        prudent.count(TABLE, by=by, groups=groups, epsilon=1.0, ledger=book)
    assert book.charges == []


def test_the_counts_of_all_groups_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from prudent.release.columns import dialects

    asked, rows = [], dialects._rows

    def told(expression: Any, sql: str) -> Any:
        asked.append(sql)
        return rows(expression, sql)

    monkeypatch.setattr(dialects, "_rows", told)
    prudent.count(TABLE, by=["region", "team"], groups=BOTH, **QUIET)
    assert len(asked) == 1


def test_postgres_groups_by_several_columns(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS several (region text, team text, who int)")
        connection.execute("DELETE FROM several")
        rows = zip(*(TABLE[name].to_pylist() for name in ("region", "team", "who")), strict=True)
        with connection.cursor().copy("COPY several FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    there: Any = {"connect": postgres_url, "table": "several", "by": ["region", "team"]}
    for own in ({}, {"unit": "who"}):
        here = values(prudent.count(TABLE, by=there["by"], groups=BOTH, **own, **QUIET))
        assert values(prudent.count(**there, groups=BOTH, **own, **QUIET)) == here
    found = prudent.count(**there, groups="private", epsilon=6.0, delta=1e-6, noise=Silence())
    assert len(found) == 4


def test_groups_with_commas_in_their_names_have_different_titles(tmp_path: Path) -> None:
    """All of them are in a document, which has the titles for keys."""
    table = pa.table({"a": ["x, y", "x", 'x"'], "b": ["z", "y, z", "z"]})
    groups = [("x, y", "z"), ("x", "y, z"), ('x"', "z")]
    asked = prudent.Table(table, noise=Silence()).by(["a", "b"], groups=groups)
    receipt = tmp_path / "receipt.json"
    found = asked.ask(["count(*)"], epsilon=1, receipt=receipt)
    titles = ['"x, y", z', 'x, "y, z"', r'"x\"", z']
    assert sorted(found.plain()["answers"]["count(*)"]["groups"]) == sorted(titles)
    assert sorted(Receipt.read(receipt)[0].released) == sorted(titles)
