"""What fails after the data were opened is said in one sentence that tells nothing of them."""

import datetime
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.release.columns import scales
from prudent.release.columns.column import UNREADABLE, Column, SourceError, redact_errors
from prudent.release.outcome import Released
from prudent.release.statistics import (
    certify_quantile,
    count,
    describe,
    histogram,
    iqr,
    mean,
    median,
    mode,
    quantiles,
    trimmed_mean,
    variance,
)
from tests.oracles.array_column import ArrayColumn

COST: Any = {"epsilon": 1.0, "delta": 1e-6}


class Panic(BaseException):
    """As polars raises them."""


ERRORS = [
    ValueError("secret"),
    MemoryError("secret: array with shape (2, 24901, 24901)"),
    RuntimeError("secret"),
    KeyError("secret"),
    OSError(5, "secret"),
    UnicodeDecodeError("utf-8", b"secret", 0, 1, "secret"),
    Panic("secret"),
]


class Broken(ArrayColumn):
    """A column that raises an error whatever it is asked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(np.arange(9.0))
        self.error = error

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise self.error

    count = order_statistics = counts_below = frequencies = leaders = _raise
    sum_between = counts_of = most_frequent = clipped_sum = clipped_squares = _raise


RELEASES: dict[str, Any] = {
    "median": lambda column: median(column, propose=1.0, **COST),
    "iqr": lambda column: iqr(column, propose=1.0, **COST),
    "trimmed mean": lambda column: trimmed_mean(column, trim=1, propose=1.0, **COST),
    "mode": lambda column: mode(column, **COST),
    "mode, list": lambda column: mode(column, categories=[1.0, 2.0], **COST),
    "exponential": lambda column: median(column, epsilon=1.0),
    "exponential, range": lambda column: iqr(column, epsilon=1.0),
    "exponential, several": lambda column: quantiles(column, ps=[0.1, 0.9], epsilon=1.0),
    "count": lambda column: count(column, epsilon=1.0),
    "mean": lambda column: mean(column, epsilon=1.0),
    "variance": lambda column: variance(column, epsilon=1.0, bounds=(0, 9)),
    "describe": lambda column: describe(column, epsilon=1.0),
    "histogram": lambda column: histogram(column, epsilon=1.0),
    "certificate": lambda column: certify_quantile(column, high=3.0, epsilon=1.0),
}


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param(name, error, id=f"{name}-{type(error).__name__}")
        for name in RELEASES
        for error in (ERRORS[:1] if name == "search" else ERRORS)  # calibrating a search is slow
    ],
)
def test_every_failure_of_a_release_looks_the_same(name: str, error: BaseException) -> None:
    with pytest.raises(SourceError) as caught:
        RELEASES[name](Broken(error))
    assert str(caught.value) == UNREADABLE
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (KeyboardInterrupt("secret"), ""),
        (SystemExit("secret"), "1"),
        (SystemExit(3), "3"),
        (ImportError("secret", name="opendp.prelude"), "A release needs opendp, "),
        (ImportError("secret", name="secret"), UNREADABLE),
        (ImportError("secret"), UNREADABLE),
        (SourceError("the file is gone"), "the file is gone"),
    ],
    ids=repr,
)
def test_interruptions_and_missing_packages_pass_without_their_words(
    error: BaseException, shown: str
) -> None:
    """The error of an engine that they interrupted stays behind as well."""

    def interrupted() -> None:
        try:
            raise RuntimeError("secret")
        except RuntimeError:
            raise error  # noqa: B904

    expected = SourceError if shown == UNREADABLE else type(error)
    with pytest.raises(expected) as caught:
        redact_errors(interrupted)
    assert str(caught.value).startswith(shown)
    assert caught.value.__context__ is caught.value.__cause__ is None
    assert "secret" not in str(caught.value)


def test_what_can_be_read_is_returned() -> None:
    assert redact_errors(max, 1, 2) == 2


# --- conversions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["Y", "M", "D", "h", "s", "ms", "us", "ns"])
def test_the_mode_of_times_is_a_time(unit: str) -> None:
    """A list of nanoseconds would be a list of integers."""
    common = np.datetime64("2024-01-01").astype(f"M8[{unit}]")
    data = np.array([common] * 300 + [np.datetime64("NaT")], f"M8[{unit}]")
    outcome = mode(data, **COST)
    assert isinstance(outcome, Released)
    assert isinstance(outcome.value, datetime.date)
    assert outcome.value.isoformat()[:10] == "2024-01-01"
    listed = mode(list(data), **COST)
    assert isinstance(listed, Released)
    assert listed.value == outcome.value


@pytest.mark.parametrize(
    ("stamp", "shown"),
    [
        (
            np.datetime64("2024-01-01T00:00:00.5", "ns"),
            datetime.datetime(2024, 1, 1, 0, 0, 0, 500000),
        ),
        (np.datetime64(10**12, "ps"), datetime.datetime(1970, 1, 1, 0, 0, 1)),
        (np.datetime64("2024-01-01T00:00:00.000000001"), "2024-01-01 00:00:00.000000001"),
        (np.datetime64("-0044-03-15"), "-044-03-15"),
        (np.datetime64("12024-01-01", "D"), "12024-01-01"),
        (np.datetime64(2**62, "s"), str(np.datetime64(2**62, "s")).replace("T", " ")),
        (np.timedelta64(90, "m"), datetime.timedelta(minutes=90)),
        (np.timedelta64(2**62, "s"), "4611686018427387904 seconds"),
    ],
)
def test_every_time_has_an_image(stamp: Any, shown: Any) -> None:
    assert scales.moment(stamp) == shown
    outcome = mode(np.array([stamp] * 300), **COST)
    assert isinstance(outcome, Released)
    assert outcome.value == shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("2024-01-01 10:00:00.5", datetime.datetime(2024, 1, 1, 10, 0, 0, 500000)),
        ("2024-01-01 10:00:00.123456000", datetime.datetime(2024, 1, 1, 10, 0, 0, 123456)),
        ("2024-01-01 10:00:00.123456789", "2024-01-01 10:00:00.123456789"),
        ("2024-01-01 10:00:00+00", datetime.datetime(2024, 1, 1, 10, tzinfo=datetime.UTC)),
        ("infinity", "infinity"),
        ("0044-03-15 10:00:00 BC", "0044-03-15 10:00:00 BC"),
        ("10000-01-01 00:00:00", "10000-01-01 00:00:00"),
    ],
)
def test_every_time_of_an_engine_has_an_image(written: str, shown: Any) -> None:
    assert scales.timestamp_of(written) == shown


def test_equal_decimals_look_the_same() -> None:
    shown = [str(scales.decimal_of(text)) for text in ("1.0", "1.000", "1", "100", "-0.50", "NaN")]
    assert shown == ["1", "1", "1", "100", "-0.5", "NaN"]


class Grumpy:
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (float("nan"), None),
        (Grumpy(), None),
        ("\ud800", "?"),
        (True, "True"),
        (7, "7"),
    ],
)
def test_every_object_has_a_text_or_none(value: Any, shown: Any) -> None:
    assert scales.text(value) == shown
    assert len(str(scales.text(10**5000))) == 5001


def test_bytes_in_an_unknown_encoding_are_shown() -> None:
    assert scales.text_of(b"caf\xc3\xa9") == "café"
    assert scales.text_of(b"caf\xe9") == "caf\\xe9"
    assert scales.text_of(b"caf\xe9", "latin1") == "café"
    assert scales.text_of(b"a", "mule_internal") == "a"


# --- frames ---------------------------------------------------------------------------------------


def test_a_lazy_frame_is_collected(tmp_path: Path) -> None:
    pytest.importorskip("ibis")
    polars = pytest.importorskip("polars")
    from prudent.release.columns.opening import open_column

    frame = polars.DataFrame({"x": [1.0, 2.0], "city": ["a", "b"], "z": ["1", "secret"]})
    lazy = frame.lazy().with_columns(polars.col("z").cast(polars.Float64))
    column: Column = open_column(lazy, "x", unit="city")
    assert column.order_statistics(1, 9).tolist() == [1.0, 2.0]  # z is not even computed
    with pytest.raises(ValueError, match=r"unknown column .*Columns: city, x, z"):
        open_column(frame.lazy(), "nowhere")
    with pytest.raises(SourceError) as caught:
        open_column(lazy, "z")
    assert str(caught.value) == UNREADABLE
    with pytest.raises(SourceError, match="got GroupBy"):
        open_column(frame.group_by("city"), "x")
