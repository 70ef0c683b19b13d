"""Statistics of two columns: exact sums, their sensitivity, and intervals that cover."""

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa

import prudent
from prudent._validate import ArgumentError
from prudent.release.columns.opening import open_column
from prudent.release.columns.table_columns import ProductSums
from prudent.release.lattice import Lattice
from prudent.release.noise import AdditiveMechanism, Distribution, ReproducibleNoise
from prudent.release.statistics.pairs import (
    Clipping,
    PairMoments,
    PairSums,
    lattice_between,
)
from tests.release.recording import Book, Silence

RNG = np.random.default_rng(5)
X = RNG.normal(50, 10, 400)
Y = X / 10 + RNG.normal(0, 1, 400)
W = RNG.uniform(0, 3, 400)
TABLE = pa.table({"x": X, "y": Y, "w": W, "id": np.arange(400) // 4})
BOUNDED: Any = {"bounds": (0.0, 100.0), "other_bounds": (-5.0, 15.0)}
QUIET: Any = {"epsilon": 1.0, "noise": Silence()}


def test_without_noise_they_are_what_numpy_says() -> None:
    found = prudent.covariance(TABLE, "x", "y", **BOUNDED, **QUIET).value
    assert found == pytest.approx(np.cov(X, Y, ddof=0)[0, 1], rel=1e-5)
    found = prudent.correlation(TABLE, "x", "y", **BOUNDED, **QUIET).value
    assert found == pytest.approx(np.corrcoef(X, Y)[0, 1], rel=1e-5)
    found = prudent.weighted_mean(TABLE, "x", "w", bounds=(0, 100), largest_weight=3, **QUIET).value
    assert found == pytest.approx(np.average(X, weights=W), rel=1e-6)
    found = prudent.ratio(TABLE, "x", "w", bounds=(0, 100), other_bounds=(0, 3), **QUIET).value
    assert found == pytest.approx(X.sum() / W.sum(), rel=1e-6)


def test_a_person_counts_with_the_means_of_both() -> None:
    ones, twos = X.reshape(-1, 4).mean(1), Y.reshape(-1, 4).mean(1)
    found = prudent.covariance(TABLE, "x", "y", unit="id", **BOUNDED, **QUIET)
    assert found.value == pytest.approx(np.cov(ones, twos, ddof=0)[0, 1], rel=1e-5)
    with pytest.raises(ArgumentError, match="a rule such as mean"):
        prudent.covariance(TABLE, "x", "y", unit="id", per_unit=2, **BOUNDED, **QUIET)


def test_only_rows_with_both_values_count() -> None:
    table = pa.table({"x": [1.0, None, 3.0, float("nan")], "y": [1.0, 1.0, None, 2.0]})
    column: Any = open_column(table, "x", other="y")
    assert column.sums(lattice_between((0, 4)), lattice_between((0, 4))).count == 1


ODD = [0.0, 1.0, 0.5, 1 / 3, -7.0, 9.0, float("inf"), -0.0, 1e-300]


class InMemory:
    """Pairs in memory, whose sums are those of whole numbers of Python."""

    def __init__(self, pairs: np.ndarray) -> None:
        self.pairs = pairs

    def sums(self, first: Lattice, second: Lattice) -> ProductSums:
        ones = [int(step) - first.low for step in first.steps(self.pairs[:, 0])]
        twos = [int(step) - second.low for step in second.steps(self.pairs[:, 1])]
        return ProductSums(
            count=len(ones),
            first=sum(ones),
            second=sum(twos),
            product=sum(a * b for a, b in zip(ones, twos, strict=True)),
            first_squares=sum(a * a for a in ones),
            second_squares=sum(b * b for b in twos),
        )


def test_an_engine_gives_the_sums_of_memory() -> None:
    pairs = np.array(list(itertools.product(ODD, ODD)))
    column: Any = open_column(pa.table({"x": pairs[:, 0], "y": pairs[:, 1]}), "x", other="y")
    lattices = lattice_between((-3.0, 4.7)), lattice_between((0.0, 1.0))
    assert column.sums(*lattices) == InMemory(pairs).sums(*lattices)


@pytest.mark.parametrize("kind", ["weighted", "covariance", "correlation"])
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-3.0, 4.7)])
def test_one_pair_moves_the_sums_by_at_most_their_sensitivity(kind: Any, ends: Any) -> None:
    """Whatever the pair: alone, and among others. A sensitivity of one less is exceeded."""
    lattice = lattice_between(ends)
    sums = PairSums(kind, lattice, lattice_between((0.0, 1.0)) if kind == "weighted" else lattice)
    pairs = list(itertools.product(ODD, ODD))
    whole = np.array(pairs)

    def read(kept: np.ndarray) -> np.ndarray:
        return np.array(sums.read(InMemory(kept)), object)  # type: ignore[arg-type]

    everything, nothing = read(whole), read(whole[:0])
    moved = []
    for place in range(len(pairs)):
        one = whole[place : place + 1]
        moved.append(sum(abs(read(one) - nothing)))
        moved.append(sum(abs(everything - read(np.delete(whole, place, axis=0)))))
    assert max(moved) <= sums.sensitivity
    assert max(moved) > sums.sensitivity * 0.49


@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("kind", ["covariance", "correlation"])
def test_intervals_hold_the_statistic(kind: Any, distribution: Distribution) -> None:
    mechanism = AdditiveMechanism.calibrate(8.0, 1e-6, distribution)
    sums = PairSums(kind, lattice_between((0.0, 100.0)), lattice_between((-5.0, 15.0)))
    column: Any = open_column(TABLE, "x", other="y")
    known = [10 * each for each in sums.read(column)]  # of each record ten
    truth = np.cov(X, Y, ddof=0)[0, 1] if kind == "covariance" else np.corrcoef(X, Y)[0, 1]

    class Known(PairSums):
        def read(self, pairs: Any) -> list[int]:
            return known

    told, held = 0, 0
    for seed in range(150):
        region = Known(kind, sums.first, sums.second).release(
            column, mechanism, ReproducibleNoise(seed)
        )
        ends = PairMoments(sums, region).interval(None, 0.9)
        if ends is not None:
            told += 1
            held += ends[0] <= truth <= ends[1]
    assert told >= 100
    assert held >= 0.9 * told


@pytest.mark.thorough
def test_all_of_it_is_charged_once_and_costs_what_it_says() -> None:
    from prudent.accounting import epsilon_of

    book = Book()
    for ask in (prudent.covariance, prudent.correlation, prudent.ratio):
        ask(TABLE, "x", "y", epsilon=1.0, ledger=book)
    prudent.weighted_mean(TABLE, "x", "w", epsilon=1.0, ledger=book)
    assert len(book.charges) == 4
    for event, *_ in book.charges:
        assert epsilon_of(event, delta=0.0) <= 1.0 + 1e-9


def test_a_second_column_is_needed() -> None:
    book = Book()
    with pytest.raises(ArgumentError, match="the name of a second column"):
        prudent.covariance(TABLE, "x", epsilon=1.0, ledger=book)
    with pytest.raises(ValueError, match="Expected a table for other"):
        prudent.covariance([1.0], other="y", epsilon=1.0, ledger=book)
    assert book.charges == []


def test_postgres_gives_the_same_sums(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS pairs (x float8, y float8, id int)")
        connection.execute("DELETE FROM pairs")
        with connection.cursor().copy("COPY pairs FROM STDIN") as copy:
            for row in zip(X.tolist(), Y.tolist(), range(400), strict=True):
                copy.write_row(row)
    there: Any = open_column(connect=postgres_url, table="pairs", column="x", other="y")
    here: Any = open_column(TABLE, "x", other="y")
    lattices = lattice_between((0.0, 100.0)), lattice_between((-5.0, 15.0))
    assert there.sums(*lattices) == here.sums(*lattices)


@pytest.mark.unhurried
@pytest.mark.parametrize("rows", [0, 1, 20])
def test_a_ratio_of_few_records_without_bounds_has_no_interval(rows: int) -> None:
    """Either sum may be that of few records, while the other one has private bounds."""
    for bounds in ({}, {"bounds": (0.0, 100.0)}, {"other_bounds": (0.0, 3.0)}):
        found = prudent.ratio(TABLE.slice(0, rows), "x", "w", **bounds, **QUIET)
        assert found.usual_interval is None
        assert "values from about" in str(found.about)
        assert not found.known
        sums: Any = found.spread.noise  # type: ignore[union-attr]
        if sums.below.value:
            assert found.value == pytest.approx(sums.above.value / sums.below.value)


@pytest.mark.unhurried
@pytest.mark.parametrize("statistic", [prudent.covariance, prudent.correlation])
def test_pairs_are_shown_only_if_most_values_are_known_to_be_inside(statistic: Any) -> None:
    draw = np.random.default_rng(4)
    x = draw.normal(50.0, 10.0, 6_000)
    table = pa.table({"x": x, "y": x + draw.normal(0.0, 5.0, 6_000)})
    given: Any = {"epsilon": 1.0, "noise": ReproducibleNoise(3)}
    few = statistic(table.slice(0, 60), "x", "y", **given)
    assert not few.known
    assert "half of the values or more may lie outside" in few.notes[0]
    many = statistic(table, "x", "y", **given)
    assert many.known
    assert [note.split(":")[0] for note in many.notes] == ["First column", "Second column"]
    assert all("of the values lay outside" in note for note in many.notes)
    public = statistic(table.slice(0, 2), "x", "y", bounds=(0, 100), other_bounds=(0, 9), **given)
    assert public.usual_interval is not None
    assert public.notes == ()


def test_weights_that_are_all_negative_have_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": [1.0, 2.0] * 50, "weight": [-1.0] * 100})
    noise = ReproducibleNoise(0)
    monkeypatch.setattr(Clipping, "ends", lambda *_: (-1.0, 0.0))
    found = prudent.weighted_mean(table, "x", "weight", epsilon=5.0, noise=noise)
    assert -1 <= found.value <= 0
