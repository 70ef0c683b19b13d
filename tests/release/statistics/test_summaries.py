"""Descriptions: one price for all of it, near the truth, in order."""

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.noise import Distribution, ReproducibleNoise
from prudent.release.statistics import describe
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
    assert "<td>deviation</td>" in described._repr_html_()


def test_other_quantiles_can_be_asked_for() -> None:
    found = describe(SAMPLE, ps=["1/10", 0.9], epsilon=2.0, noise=ReproducibleNoise(0))
    assert list(found.quantiles) == ["0.1", "0.5", "0.9"]
    assert list(describe(SAMPLE, ps=[0.5], epsilon=2.0).quantiles) == ["0.5"]


def test_an_epsilon_too_small_for_all_its_parts_is_refused() -> None:
    book = Book()
    with pytest.raises(ValueError, match="Expected epsilon"):
        describe(SAMPLE, epsilon=0.005, ledger=book)
    assert not book.charges


def test_the_names_are_functions_of_the_package_whatever_was_imported() -> None:
    import prudent.release

    names = ("count", "describe", "histogram", "mean", "sum", "variance")
    assert all(callable(getattr(prudent.release, name)) for name in names)
