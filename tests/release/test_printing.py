"""Sentences of answers are true as printed, and values have the digits that they deserve."""

import datetime
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.release import statistics
from prudent.release.certificates import Certificate
from prudent.release.columns.scales import Scale
from prudent.release.noise import Distribution, ReproducibleNoise
from prudent.release.outcome import Branch, NoiseSpread, Refused, Released

INTERVAL = re.compile(r"^(\S+) \(.*95% interval (\S+) to (\S+)\)")
LEAVES = re.compile(r"statistic of the data leaves \[(\S+), (\S+)\]")
SAMPLE = np.random.default_rng(3).normal(51_767_924.0, 1e5, 4_000)


@pytest.mark.unhurried
@pytest.mark.parametrize("middle", [51_767_924.0, 1_234_567.0, 0.123456789])
def test_a_certificate_is_not_violated_by_no_record_at_all(middle: float) -> None:
    """Rounded to the nearest six digits, "before it is no longer 5.17679e+07" was false."""
    values = np.full(20_000, middle)
    for seed in range(5):
        noise = ReproducibleNoise(seed)
        released = statistics.median(values, epsilon=1.0, certify=0.0, noise=noise)
        sentence = released.lines()[1]
        assert released.certificate.needed > 1_000
        assert "before the exact statistic of the data is no longer" in sentence
        assert float(sentence.split("no longer ")[1].split(" (")[0]) == released.value == middle
        noise = ReproducibleNoise(seed)
        released = statistics.median(values, epsilon=1.0, certify=middle * 3e-8, noise=noise)
        low, high = map(float, LEAVES.search(str(released.certificate)).groups())
        assert low <= released.certificate.low <= middle <= released.certificate.high <= high


@pytest.mark.unhurried
def test_an_interval_printed_at_a_median_of_many_digits_holds_it() -> None:
    """It was "5.17679e+07 to 5.17679e+07", which held the median in none of 100 runs."""
    values = SAMPLE.mean() + (SAMPLE - SAMPLE.mean()) / 1e4
    truth, held = np.sort(values)[1_999], 0
    for seed in range(20):
        released = statistics.median(values, epsilon=1.0, noise=ReproducibleNoise(seed))
        value, low, high = map(float, INTERVAL.match(released.lines()[0]).groups())
        held += low <= truth <= high
        assert low <= value <= high
    assert held >= 18


ASKED: dict[str, Any] = {
    "median": {},
    "iqr": {},
    "count": {},
    "mean": {"bounds": (5.1e7, 5.3e7)},
    "sum": {"bounds": (5.1e7, 5.3e7)},
    "trimmed_mean": {"trim": 500, "propose": 1e4, "delta": 1e-6},
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_printed_holds_what_was_released_in_few_digits(name: str) -> None:
    released = getattr(statistics, name)(
        SAMPLE, epsilon=1.0, noise=ReproducibleNoise(1), **ASKED[name]
    )
    found = re.match(r"^(\S+) \(.*95% interval (\S+) to ([^\s)]+)", released.lines()[0])
    value, low, high = map(float, found.groups())  # type: ignore[union-attr]
    least, most = released.interval()
    assert low <= least <= value <= most <= high
    assert high - low <= 1.02 * (most - least)
    assert len(found[1].strip("0")) <= 8  # type: ignore[index]
    assert abs(value - released.value) <= (most - least) / 100
    for all_digits in (repr(released), str(released.plain())):
        assert repr(released.value) in all_digits
    assert float(released) == released.value


def test_a_released_number_is_formatted_and_rounded_as_its_value() -> None:
    released = Released(
        3.14159,
        Branch.ROBUST,
        0.0,
        0.0,
        None,
        "laplace",
        NoiseSpread(Distribution.LAPLACE, 0.01, 0.0),
    )
    assert (format(released, ".2f"), f"{released:,.3f}") == ("3.14", "3.142")
    assert (round(released), round(released, 2)) == (3, 3.14)
    assert isinstance(round(released), int)
    assert f"{released}" == str(released)
    assert f"{released}".startswith("3.1416 (laplace, 95% interval 3.1116 to 3.1716)")
    category = Released("Oslo", Branch.ROBUST, 0.0, 0.0, None)
    assert f"{category:>6}" == "  Oslo"
    with pytest.raises(TypeError):
        round(category)
    with pytest.raises(TypeError):
        format(Refused("Too close.", event=None), ".2f")


def test_a_price_is_rounded_up() -> None:
    priced = Refused("Too close.", event=None, epsilon=1 / 3, delta=1e-7 / 3)
    assert str(priced).splitlines()[1].startswith("(0.333334, 3.33334e-08)-DP for ")
    preview = statistics.median(SAMPLE, epsilon=1 / 3, dry_run=True)
    assert str(preview).startswith("median by exponential: ε = 0.333334\n")


def test_a_certificate_without_tolerance_of_a_date_is_printed_in_full() -> None:
    day = datetime.date(2024, 3, 1)
    given: Any = {"needed": 3, "confidence": 0.999, "epsilon": 1.0, "event": None}
    assert "no longer 2024-03-01 (confidence 0.999)" in str(Certificate(low=day, high=day, **given))
    assert "exceeds 0.30000000000000004 (" in str(Certificate(low=None, high=0.1 + 0.2, **given))


@pytest.mark.parametrize(
    ("scale", "difference", "shown"),
    [
        (Scale("decimal", 2), False, (Decimal("0.10"), Decimal("0.12"))),
        (Scale("date"), False, (datetime.date(1970, 1, 11), datetime.date(1970, 1, 13))),
        (Scale("duration"), True, (datetime.timedelta(0, 0, 10), datetime.timedelta(0, 0, 12))),
    ],
)
def test_an_interval_of_whole_units_is_rounded_outward(
    scale: Scale, difference: bool, shown: tuple[Any, Any]
) -> None:
    """The mean of dates may lie between two of them."""
    assert scale.ends(10.6, 11.4, difference=difference) == shown
