"""Units, conditions and types of a table: what is protected, what is refused, at what price."""

import functools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402
import pyarrow.csv  # noqa: E402
import pyarrow.parquet  # noqa: E402

from prudent._validate import ArgumentError  # noqa: E402
from prudent.accounting import ExponentialMechanismDpEvent, PldAccountant  # noqa: E402
from prudent.accounting.losses.domination import leaves  # noqa: E402
from prudent.release import statistics  # noqa: E402
from prudent.release.noise import ReproducibleNoise  # noqa: E402
from tests.release.recording import Book  # noqa: E402

SAMPLE = np.random.default_rng(3).normal(50.0, 10.0, 2000)
TABLE = pa.table(
    {
        "x": SAMPLE,
        "who": np.arange(2000) // 4,
        "city": np.where(np.arange(2000) % 3 == 0, "Oslo", "Bergen"),
        "yes": SAMPLE > 50,
    }
)
TESTED: Any = {"propose": 2.0, "delta": 1e-6}

NUMERIC: dict[str, Any] = {
    "median": statistics.median,
    "quantile": functools.partial(statistics.quantile, p=0.9),
    "quantiles": functools.partial(statistics.quantiles, ps=[0.5]),
    "iqr": statistics.iqr,
    "sum": statistics.sum,
    "mean": statistics.mean,
    "variance": statistics.variance,
    "describe": statistics.describe,
    "histogram": statistics.histogram,
    "certificate": functools.partial(statistics.certify_quantile, high=9.0),
    "trimmed mean": functools.partial(statistics.trimmed_mean, trim=5, **TESTED),
}


# --- one person, several rows ---------------------------------------------------------------------


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ["median", "quantile", "quantiles", "iqr"])
def test_several_rows_of_a_unit_share_its_epsilon(name: str) -> None:
    """Each unit has four rows, so four of them are all: the answer is that of a fourth of ε."""
    ask, units = NUMERIC[name], {"unit": "who", "per_unit": 4}
    of_units = ask(TABLE, "x", **units, epsilon=2.0, noise=ReproducibleNoise(3))
    of_rows = ask(SAMPLE, epsilon=0.5, noise=ReproducibleNoise(3))
    assert of_units.value == pytest.approx(of_rows.value, rel=1e-12)  # ε is rounded down
    assert (of_units.epsilon, of_units.delta) == (2.0, 0.0)
    assert PldAccountant().compose(of_units.event).get_epsilon(1e-12) <= 2 * (1 + 1e-6)
    preview = ask(TABLE, "x", **units, epsilon=2.0, dry_run=True)
    assert preview.rank_error == ask(SAMPLE, epsilon=0.5, dry_run=True).rank_error
    assert "at most 4 of its values" in of_units.notes[0]


@pytest.mark.parametrize("name", ["sum", "mean", "histogram"])
def test_several_rows_of_a_unit_get_noise_for_as_many(name: str) -> None:
    bounds: Any = {"edges": [0, 50, 100]} if name == "histogram" else {"bounds": (0, 100)}
    deviations = [
        ask_noise(NUMERIC[name](TABLE, "x", **bounds, unit="who", epsilon=1.0, per_unit=k))
        for k in (1, 4)
    ]
    # With one row per unit a mean has a fourth of the records, and so four times the noise.
    assert deviations[1] == pytest.approx((1 if name == "mean" else 4) * deviations[0], rel=0.1)


def ask_noise(outcome: Any) -> float:
    return outcome.spread.deviation if hasattr(outcome, "edges") else outcome.noise_scale


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("median", TESTED),
        ("median", {"certify": 1.0}),
        ("median", {"certify": 1.0, **TESTED}),
        ("certify_quantile", {"high": 60.0}),
    ],
)
def test_a_proposal_or_a_certificate_needs_one_value_per_unit(
    name: str, options: dict[str, Any]
) -> None:
    """Margins and distances change by as many records as a unit has; their noise is for one."""
    book = Book()
    ask = functools.partial(getattr(statistics, name), TABLE, "x", unit="who", epsilon=1.0)
    with pytest.raises(ArgumentError) as caught:
        ask(per_unit=4, **options, ledger=book)
    assert caught.value.argument == "per_unit"
    assert book.charges == []
    found = ask(per_unit="median", **options, ledger=book)
    assert len(book.charges) == 1
    assert name == "median" or 100 < found.value < 500


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ["mean", "describe", "histogram"])
def test_what_was_done_to_the_rows_is_said(name: str) -> None:
    outcome = getattr(statistics, name)(TABLE, "x", unit="who", per_unit="sum", epsilon=1.0)
    assert outcome.notes[0] == "Each who counts with the sum of its values."


# --- columns without numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMERIC)
def test_no_statistic_of_numbers_takes_it(name: str) -> None:
    book = Book()
    with pytest.raises(ArgumentError):
        NUMERIC[name](TABLE, "city", epsilon=1.0, ledger=book)
    with pytest.raises(ArgumentError):
        NUMERIC[name](TABLE, "city", epsilon=1.0, dry_run=True)
    assert book.charges == []


def test_text_in_a_csv_file_is_no_value(tmp_path: Path) -> None:
    """Its type is in its records alone, so nothing but an answer may tell: that it is nowhere."""
    pa.csv.write_csv(TABLE, tmp_path / "t.csv")
    released = statistics.median(str(tmp_path / "t.csv"), "city", epsilon=1.0)
    assert "no interval: too few records" in released.lines()[0]  # type: ignore[union-attr]
    assert "or too few with a value" in released.lines()[0]  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="Of text, ask for a count"):
        statistics.median(str(tmp_path / "t.csv"), "city", epsilon=1.0, read_as="text")


# --- conditions -----------------------------------------------------------------------------------


def test_a_condition_may_be_text() -> None:
    noise = ReproducibleNoise
    text = statistics.median(
        TABLE, "x", where="city = 'Oslo' AND x < 60", epsilon=1.0, noise=noise(1)
    )
    function = statistics.median(
        TABLE, "x", where=lambda t: (t.city == "Oslo") & (t.x < 60), epsilon=1.0, noise=noise(1)
    )
    assert text == function


@pytest.mark.parametrize("k", [3, 7, 49])
@pytest.mark.parametrize("name", ["median", "quantile", "quantiles", "iqr", "mean", "describe"])
def test_the_records_of_a_unit_together_cost_no_more_than_was_asked(name: str, k: int) -> None:
    asked = Fraction(0.3)
    shown = NUMERIC[name](TABLE, "x", unit="who", per_unit=k, epsilon=0.3, dry_run=True)
    choices = [
        leaf for leaf, _ in leaves(shown.event) if isinstance(leaf, ExponentialMechanismDpEvent)
    ]
    assert choices
    assert sum(Fraction(each.epsilon) for each in choices) <= asked
