"""Descriptions: one price for all of it, near the truth, in order."""

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.noise import Distribution, ReproducibleNoise
from prudent.release.request import Request
from prudent.release.statistics import describe
from prudent.release.statistics.summaries import PROBABILITIES, DescriptionPlan
from tests.oracles.array_column import ArrayColumn
from tests.release.recording import Book

SAMPLE = np.random.default_rng(5).normal(100.0, 10.0, 20_000)


@pytest.fixture(scope="module")
def described() -> object:
    return describe(SAMPLE, epsilon=3.0, noise=ReproducibleNoise(1))


def test_a_description_is_near_the_truth(described: object) -> None:
    assert abs(described.count.value - 20_000) < 30
    assert abs(described.mean.value - SAMPLE.mean()) < 0.1
    assert abs(described.deviation.value - SAMPLE.std()) < 0.2
    for p in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert abs(described[p].value - np.quantile(SAMPLE, p)) < 1.0
    assert described.median == described["0.5"]


def test_its_intervals_hold_the_truth(described: object) -> None:
    low, high = described.mean.interval()
    assert low <= SAMPLE.mean() <= high < low + 1
    low, high = described.deviation.interval()
    assert low <= SAMPLE.std() <= high
    low, high = described.median.interval()
    assert low <= np.quantile(SAMPLE, 0.5) <= high
    with pytest.raises(ValueError, match=r"confidence at most 0\.95"):
        described.median.interval(0.99)


@pytest.mark.unhurried
@pytest.mark.parametrize("distribution", list(Distribution))
def test_all_of_it_costs_what_was_asked(distribution: Distribution) -> None:
    book = Book()
    given = {"epsilon": 0.9, "delta": 1e-6, "distribution": distribution}
    preview = describe(SAMPLE, dry_run=True, ledger=book, **given)
    assert not book.charges
    found = describe(SAMPLE, ledger=book, **given)
    ((event, label, delta),) = book.charges
    assert (event, label, delta) == (found.event, "description", found.delta)
    assert event == preview.event
    assert found.epsilon == 0.9
    spent = PldAccountant().compose(event).get_epsilon(found.delta)
    assert 0.5 < spent <= 0.9 * (1 + 1e-9)


@pytest.mark.unhurried
@pytest.mark.parametrize("size", [0, 1, 30, 3_000])
def test_quantiles_are_in_order_whatever_the_noise(size: int) -> None:
    for seed in range(3):
        found = describe(SAMPLE[:size], epsilon=0.5, noise=ReproducibleNoise(seed))
        values = [each.value for each in found.quantiles.values()]
        assert values == sorted(values)
        assert found.deviation.value >= 0


def test_it_is_shown_in_text_json_and_html(described: object) -> None:
    assert described.lines()[0].startswith("count")
    assert described.plain()["mean"] == described.mean.value
    assert "\ndeviation " in described._repr_html_()


def test_other_quantiles_can_be_asked_for() -> None:
    found = describe(SAMPLE, ps=["1/10", 0.9], epsilon=2.0, noise=ReproducibleNoise(0))
    assert list(found.quantiles) == ["0.1", "0.5", "0.9"]
    assert list(describe(SAMPLE, ps=[0.5], epsilon=2.0).quantiles) == ["0.5"]


def test_without_intervals_all_their_epsilon_goes_to_the_quantiles() -> None:
    given = {"epsilon": 0.5, "noise": ReproducibleNoise(2)}
    found = describe(SAMPLE[:4_000], confidence=0, **given)
    shown = {name: (value, interval) for name, value, interval in found.rows()}
    assert all(value for value, _ in shown.values())
    assert [name for name, (_, interval) in shown.items() if interval] == list(shown)[:3]
    assert list(found.plain()["intervals"]) == list(shown)[:3]
    assert PldAccountant().compose(found.event).get_epsilon(0.0) == pytest.approx(0.5)
    levels = [_plan(confidence).quantiles.level_epsilon for confidence in (0.95, 0.0)]
    assert levels[1] == pytest.approx(levels[0] / 0.7)
    with pytest.raises(ValueError, match=r"Expected confidence in \[0\.95, 1\)"):
        describe(SAMPLE, confidence=0.5, **given)


def test_all_intervals_that_are_shown_have_the_confidence_that_was_asked_for() -> None:
    found = describe(SAMPLE, epsilon=0.5, confidence=0.99, noise=ReproducibleNoise(3))
    assert found.count.usual_interval == found.count.interval(0.99)
    assert found.plain()["intervals"]["mean"] == list(found.mean.interval(0.99))


def _plan(confidence: float) -> DescriptionPlan:
    request = Request.of({"epsilon": 0.5, "confidence": confidence})
    return DescriptionPlan.of(request, ArrayColumn(SAMPLE), PROBABILITIES)


@pytest.mark.unhurried
def test_tails_of_a_part_of_epsilon_are_kept() -> None:
    """As of one of seven columns at ε = 3: they are near the truth, in intervals that hold it."""
    kept = 0
    for seed in range(4):
        found = describe(SAMPLE, epsilon=3 / 7, noise=ReproducibleNoise(seed))
        for p in ("0.05", "0.25", "0.75", "0.95"):
            truth = np.quantile(SAMPLE, float(p))
            assert abs(found[p].value - truth) < 1.0
            if (ends := found[p].usual_interval) is not None:
                kept += ends[0] <= truth <= ends[1]
    assert kept >= 13


def test_a_tail_of_too_few_records_is_not_anywhere() -> None:
    for seed in range(5):
        noise = ReproducibleNoise(seed)
        found = describe(SAMPLE[:300], epsilon=1.0, confidence=0, noise=noise)
        low, high = map(float, found.notes[0].split("[")[1].split("]")[0].split(", "))
        assert low <= found["0.01"].value <= found["0.99"].value <= high


def test_an_epsilon_too_small_for_all_its_parts_is_refused() -> None:
    book = Book()
    with pytest.raises(ValueError, match="Expected epsilon"):
        describe(SAMPLE, epsilon=0.005, ledger=book)
    assert not book.charges


def test_the_names_are_functions_of_the_package_whatever_was_imported() -> None:
    import prudent.release

    names = ("count", "describe", "histogram", "mean", "sum", "variance")
    assert all(callable(getattr(prudent.release, name)) for name in names)
