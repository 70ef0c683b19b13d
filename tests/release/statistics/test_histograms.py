"""Histograms: one record in one bin, edges that are round, and pictures."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

import prudent
from prudent.accounting import PldAccountant
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import histogram
from prudent.release.statistics.summaries import round_edges
from tests.oracles.multisets import data_sets, neighbours, records
from tests.release.recording import Book, Silence

SAMPLE = np.random.default_rng(5).normal(100.0, 10.0, 5_000)


def exact(values: list[int], edges: list[float]) -> list[int]:
    noise = Silence()
    found = histogram(np.array(values, float), edges=edges, epsilon=0.8, noise=noise)
    ((_, scale, _),) = noise.drawn
    assert 0.8 * (1 - 1e-9) <= 1 / scale <= 0.8
    return [found.below, *found.counts, found.above]


@pytest.mark.unhurried
@pytest.mark.parametrize("edges", [[0, 4], [1, 2, 3], [0.5, 3.5], [5, 6]])
def test_a_record_changes_one_bin_by_one(edges: list[float]) -> None:
    found = {each: exact(records(each), edges) for each in data_sets(3)}
    for each in data_sets(2):
        assert sum(found[each]) == sum(each)
        for near in neighbours(each):
            changes = [abs(a - b) for a, b in zip(found[each], found[near], strict=True)]
            assert sorted(changes)[-2:] == [0, 1]


def test_bins_are_those_of_numpy() -> None:
    values, edges = [0, 1, 1, 2, 3, 3, 4], [1, 2, 3]
    assert exact(values, edges)[1:-1] == np.histogram(values, edges)[0].tolist()


def test_without_edges_round_ones_cover_the_data() -> None:
    found = histogram(SAMPLE, epsilon=2.0, noise=ReproducibleNoise(0))
    assert (found.epsilon, found.delta) == (2.0, 0.0)
    assert PldAccountant().compose(found.event).get_epsilon(0.0) <= 2.0 * (1 + 1e-9)
    assert 8 <= len(found.counts) <= 42
    assert all(edge == round(edge, 1) for edge in found.edges)
    assert abs(sum(found.counts) + found.below + found.above - 5_000) < 100
    assert found.below + found.above < 200


SKEWED = {
    "log-normal": lambda drawn, size: drawn.lognormal(8, 2, size),
    "Pareto": lambda drawn, size: 1e3 * drawn.pareto(1.1, size),
    "normal": lambda drawn, size: drawn.normal(45, 15, size),
}


@pytest.mark.parametrize("shape", SKEWED)
def test_default_bins_follow_the_quantiles(shape: str) -> None:
    """Between evenly spaced edges, nine in ten records of a skewed column were in one bin."""
    values = SKEWED[shape](np.random.default_rng(3), 10_000)
    found = histogram(values, epsilon=1.0, noise=ReproducibleNoise(6))
    assert 15 <= len(found.counts) <= 20
    assert max(found.counts) < 1_500
    assert found.below + found.above < 300


def test_few_records_have_few_bins() -> None:
    values = np.random.default_rng(3).normal(45, 15, 200)
    found = histogram(values, epsilon=1.0, noise=ReproducibleNoise(1))
    assert len(found.counts) <= 5
    assert len(histogram(values, bins=1, epsilon=1.0).counts) == 1


@pytest.mark.unhurried
def test_groups_have_the_same_default_bins(tmp_path: Path) -> None:
    pytest.importorskip("ibis", reason="groups are those of a table")
    drawn = np.random.default_rng(3)
    frame = {"g": ["a", "b"] * 1_000, "x": drawn.lognormal(3, 1, 2_000)}
    pandas = pytest.importorskip("pandas")
    data, options = pandas.DataFrame(frame), {"by": "g", "groups": ["a", "b"], "epsilon": 1.0}
    found = histogram(data, "x", **options, noise=ReproducibleNoise(2))
    assert found["a"].edges == found["b"].edges
    assert abs(sum(found["a"].counts) - 1_000) < 100
    data.to_parquet(tmp_path / "t.parquet")
    query = f"SELECT g, histogram(x) AS bins FROM '{tmp_path / 't.parquet'}' GROUP BY g"
    asked = prudent.sql(query, groups=["a", "b"], epsilon=1.0, noise=ReproducibleNoise(2))
    assert asked["bins"]["a"].edges == found["a"].edges


@pytest.mark.parametrize("edges", [[1], [], [2, 1], [1, 1], [0, np.inf], ["a", "b"], 3])
def test_edges_that_are_none_are_refused_before_anything_is_charged(edges: object) -> None:
    book = Book()
    with pytest.raises(ValueError, match="Expected"):
        histogram(SAMPLE, edges=edges, epsilon=1.0, ledger=book)
    assert not book.charges


@pytest.mark.parametrize("ends", [(0.013, 0.92), (-5.0, 1e6), (1e9, 1e9 + 30), (-1e-9, 1e-9)])
@pytest.mark.parametrize("whole", [False, True])
def test_round_edges_are_near_the_values(ends: tuple[float, float], whole: bool) -> None:
    low, high = ends
    inner = np.sort(np.random.default_rng(1).uniform(low, high, 12)).tolist()
    inner += [inner[3], low, high, high + 1, low - 1]
    edges = round_edges(low, high, sorted(inner), whole=whole)
    assert (edges[0], edges[-1]) == ends
    assert np.all(np.diff(edges) > 0)
    near = sorted({low, high, *(each for each in inner if low < each < high)})
    for edge in edges[1:-1]:
        place = int(np.argmin([abs(edge - each) for each in near]))
        gap = min(abs(near[place] - each) for each in near if each != near[place])
        assert abs(edge - near[place]) <= max(gap / 2, 0.5 * whole)
        assert edge == int(edge) or not whole


def test_it_is_shown_in_text_json_and_html() -> None:
    found = histogram(SAMPLE, edges=[80, 100, 120], epsilon=1.0)
    assert any("80 to 100" in line for line in found.lines())
    assert found.plain()["counts"] == list(found.counts)
    assert "80 to 100" in found._repr_html_()


def test_dates_have_edges_of_their_own_type() -> None:
    days = np.datetime64("2024-01-01") + np.arange(2_000) % 100
    found = histogram(days, edges=["2024-01-01", "2024-02-01", "2024-05-01"], epsilon=5.0)
    assert str(found.edges[1]) == "2024-02-01"
    assert abs(found.counts[0] - 620) < 20


def test_the_edges_that_are_shown_are_those_of_the_bins() -> None:
    """Also of numbers with many digits, such as times in milliseconds; 0.1 + 0.2 is 0.3."""
    edges = [0.1 + 0.2, 1_700_000_000_000, 1_700_000_000_250]
    shown = histogram([0.5], edges=edges, epsilon=1, noise=Silence()).lines()
    assert [line.partition(":")[0] for line in shown[:2]] == [
        "0.3 to 1700000000000",
        "1700000000000 to 1700000000250",
    ]
