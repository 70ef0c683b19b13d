"""Groups that are private, and proposals of their own: keys, prices and order of events."""

from typing import Any

import dp_accounting as dp
import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis")
pytest.importorskip("pandas")

import pandas

from prudent.accounting import ApproximateDpEvent, PldAccountant
from prudent.release.charging import Preview
from prudent.release.columns.opening import Opened
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import count, mean, median, mode
from tests.release.recording import Book

DRAW = np.random.default_rng(7)
FRAME = pandas.DataFrame(
    {
        "x": DRAW.normal(50.0, 10.0, 3_000),
        "city": DRAW.choice(["Oslo", "Bergen", "Tromsø"], 3_000, p=[0.6, 0.395, 0.005]),
        "person": np.arange(3_000) % 1_000,
    }
)
PRICE = {"epsilon": 1.0, "delta": 1e-6}
PRIVATE = {"by": "city", "groups": "private", **PRICE}


def test_only_groups_with_enough_records_are_released() -> None:
    found = mean(FRAME, "x", bounds=(0, 100), **PRIVATE)
    assert list(found) == ["Bergen", "Oslo"]
    for group, each in found.items():
        truth = FRAME.x[FRAME.city == group].mean()
        assert abs(each.value - truth) < 3
        assert (each.epsilon, each.delta) == (1.0, 1e-6)


def test_a_group_of_one_record_is_almost_never_released() -> None:
    frame = pandas.concat([FRAME, FRAME.head(1).assign(city="Hammerfest")])
    for seed in range(3):
        assert "Hammerfest" not in count(frame, noise=ReproducibleNoise(seed), **PRIVATE)


def test_the_choice_and_the_statistic_are_charged_once_and_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, counts = Book(), Opened.counts

    def read(groups: Opened, **given: Any) -> Any:
        assert book.charges, "groups were read before the ledger was charged"
        return counts(groups, **given)

    monkeypatch.setattr(Opened, "counts", read)
    found = count(FRAME, ledger=book, **PRIVATE)
    ((event, label, delta),) = book.charges
    assert (label, delta) == ("count", 1e-6)
    assert all(each.event == event for each in found.values())
    choice, noise = event.events
    assert isinstance(choice, ApproximateDpEvent)
    assert (choice.epsilon, choice.delta) == pytest.approx((1 / 3, 1e-6), rel=1e-5)
    assert noise.noise_parameter == pytest.approx(2 / 3)
    assert PldAccountant().compose(event).get_epsilon(1e-6) <= 1.0


@pytest.mark.unhurried
def test_a_test_gets_half_of_delta() -> None:
    found = median(FRAME, "x", propose=5.0, **PRIVATE | {"epsilon": 6.0})
    assert set(found) <= {"Oslo", "Bergen", "Tromsø"}
    event = next(iter(found.values())).event
    assert isinstance(event, dp.ComposedDpEvent)
    assert event.events[0].delta == pytest.approx(0.5e-6)
    assert PldAccountant().compose(event).get_epsilon(1e-6) <= 6.0


def test_a_dry_run_tells_how_large_a_group_must_be() -> None:
    book = Book()
    preview = mean(FRAME, "x", dry_run=True, ledger=book, **PRIVATE)
    assert isinstance(preview, Preview)
    assert (preview.epsilon, preview.delta, book.charges) == (1.0, 1e-6, [])
    assert "with probability 1/2 if it has 37 records" in preview.notes[-1]


def test_a_person_is_in_one_group_only() -> None:
    found = count(FRAME, unit="person", noise=ReproducibleNoise(0), **PRIVATE)
    assert sum(each.value for each in found.values()) < 1_030


def test_every_statistic_takes_private_groups() -> None:
    found = mode(FRAME, "city", **PRIVATE | {"epsilon": 9.0})
    assert {group: each.value for group, each in found.items()} == {g: g for g in found}
    assert len(found) >= 2


@pytest.mark.parametrize("missing", ["by", "delta"])
def test_private_groups_need_a_column_and_a_delta(missing: str) -> None:
    given = {name: value for name, value in PRIVATE.items() if name != missing}
    with pytest.raises(ValueError, match=f"Expected {missing}"):
        mean(FRAME, "x", **given)
