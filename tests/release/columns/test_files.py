"""The file of a name is read and no other; those of a pattern are joined by column names."""

from pathlib import Path

import pytest

pytest.importorskip("ibis", reason="needs pip install 'prudent[tables]'")

import pyarrow as pa
import pyarrow.parquet

from prudent.release.columns.opening import open_column
from prudent.release.columns.sources import SourceError

ODD_NAMES = ["d[1]", "a*b", "q?", "[abc]", "x[!a]", "a]b[", "{a}", "s'q", "**", "[[]1]"]
DECOYS = ["d1", "axb", "qq", "a", "xb", "ab", "1]"]


def everything(path: Path, column: str = "x") -> list[float]:
    return open_column(path, column).order_statistics(1, 99).tolist()


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_name_is_no_pattern_if_there_is_such_a_file(
    name: str, suffix: str, tmp_path: Path
) -> None:
    for each, value in [(name, 1.0), *((decoy, 2.0) for decoy in DECOYS)]:
        path = tmp_path / (each + suffix)
        if suffix == ".csv":
            path.write_text(f"x,city\n{value},a\n")
        else:
            pa.parquet.write_table(pa.table({"x": [value], "city": ["a"]}), path)
    assert everything(tmp_path / (name + suffix)) == [1.0]
    cities = open_column(tmp_path / (name + suffix), "city", kind="categories")
    assert cities.leaders().most == 1


def test_a_name_that_cannot_be_written_as_no_pattern_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a\\[1].csv").write_text("x\n1\n")
    with pytest.raises(SourceError, match="Rename it"):
        open_column(tmp_path / "a\\[1].csv", "x")


def test_text_files_are_joined_by_the_names_of_their_columns(tmp_path: Path) -> None:
    """By position, the ages of the second file would be taken for salaries."""
    (tmp_path / "p1.csv").write_text("salary,age\n100,30\n200,31\n")
    (tmp_path / "p2.csv").write_text("age,salary\n32,300\n")
    (tmp_path / "p3.csv").write_text("salary,age\n400,33\n")
    assert everything(tmp_path / "p*.csv", "salary") == [100.0, 200.0, 300.0, 400.0]
    assert everything(tmp_path / "p*.csv", "age") == [30.0, 31.0, 32.0, 33.0]


def test_text_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p1.csv").write_text("salary,age\n100,30\n")
    (tmp_path / "p2.csv").write_text("salary,years\n200,31\n")
    with pytest.raises(SourceError, match=r"same column names, got other names .*p2\.csv"):
        open_column(tmp_path / "p*.csv", "salary")


def test_an_open_quote_in_a_header_makes_no_name_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('x,"y\n1,secret\n2,secret"\n')
    with pytest.raises(SourceError, match="first line of distinct column names") as caught:
        open_column(tmp_path / "t.csv", "z")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("other", [{"x": ["1", "secret"]}, {"x": [2**40]}, {"y": [1.0]}])
def test_parquet_files_with_other_types_are_refused(other: dict[str, list], tmp_path: Path) -> None:
    """Some values of one type can be converted into the other, and some cannot."""
    for name, columns in (("p1", {"x": pa.array([1], "int32"), "z": [1]}), ("p2", other)):
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    with pytest.raises(SourceError, match=r"same columns and types, got .* in '.*p2\.parquet'"):
        open_column(tmp_path / "p*.parquet", "x")


def test_parquet_files_may_differ_in_what_is_not_used(tmp_path: Path) -> None:
    for name, columns in (("p1", {"x": [1.0], "z": [1]}), ("p2", {"z": ["a"], "x": [2.0]})):
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    assert everything(tmp_path / "p*.parquet") == [1.0, 2.0]


def test_folders_of_a_pattern_give_columns(tmp_path: Path) -> None:
    for year, value in ((2023, 1.0), (2024, 2.0)):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        pa.parquet.write_table(pa.table({"x": [value], "city": ["a"]}), folder / "f.parquet")
    pattern = tmp_path / "*" / "*.parquet"
    assert everything(pattern) == [1.0, 2.0]
    column = open_column(pattern, "x", where=lambda t: t.year == 2024)
    assert column.order_statistics(1, 9).tolist() == [2.0]
