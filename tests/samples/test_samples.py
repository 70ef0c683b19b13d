"""The tables that ship: what they say of themselves is true, and nothing of the user's is lost."""

import json
from pathlib import Path

import pytest

from prudent import samples
from prudent._validate import ArgumentError
from tests.cli.conftest import prudent


def test_the_file_is_written_as_it_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = prudent("sample", "salaries")
    assert (told.status, told.err) == (0, "")
    assert "Wrote salaries.parquet." in told.out
    assert "Current Population Survey" in told.out
    shipped = samples.SAMPLES["salaries"].file.read_bytes()
    assert (tmp_path / "salaries.parquet").read_bytes() == shipped
    told = prudent("sample", "salaries", "--out=other.parquet", "--json", "--quiet")
    assert json.loads(told.out)["file"] == "other.parquet"
    assert (tmp_path / "other.parquet").read_bytes() == shipped


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    mine = tmp_path / "salaries.parquet"
    mine.write_text("mine")
    told = prudent("sample", "salaries", f"--out={mine}")
    assert told.status == 2
    assert "--force" in told.err
    assert mine.read_text() == "mine"
    assert prudent("sample", "salaries", f"--out={mine}", "--force").status == 0
    assert mine.read_bytes() == samples.SAMPLES["salaries"].file.read_bytes()


def test_an_unknown_name_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"name one of salaries, got 'wages'"):
        samples.write("wages", tmp_path / "wages.parquet")
    assert not list(tmp_path.iterdir())


def test_the_salaries_are_those_of_the_survey() -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra `tables`")
    table = parquet.read_table(samples.SAMPLES["salaries"].file).to_pydict()
    about = samples.SAMPLES["salaries"].about
    assert all(name in about for name in table)
    assert {len(column) for column in table.values()} == {15_992}
    salary = sorted(table["salary"])
    assert (salary[0], salary[7_995], salary[7_996], salary[-1]) == (0, 16_420, 16_423, 25_565)
    for schooling, education in zip(table["schooling"], table["education"], strict=True):
        degrees = {True: "no degree", False: "college"}
        assert education == ("high school" if schooling == 12 else degrees[schooling < 12])
    assert (sum(salary), sum(table["age"])) == (237_429_114, 531_338)
