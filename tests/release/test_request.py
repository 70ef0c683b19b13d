"""Every statistic is asked and charged in the same way: options, price, data, in this order."""

import functools
import inspect
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

import attrs
import dp_accounting as dp

import prudent
from prudent._validate import ArgumentError
from prudent.accounting import PldAccountant
from prudent.release import statistics
from prudent.release.charging import Preview
from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Refused, Released
from prudent.release.request import TABLE_OPTIONS, Request
from tests.oracles.array_column import ArrayColumn
from tests.release.recording import Book

SAMPLE = np.random.default_rng(5).normal(100.0, 10.0, 5_000)
TESTED: Any = {"propose": 2.0, "delta": 1e-6}

ASK: dict[str, Any] = {
    "median": statistics.median,
    "quantile": functools.partial(statistics.quantile, p=0.9),
    "quantiles": functools.partial(statistics.quantiles, ps=[0.1, 0.5]),
    "iqr": statistics.iqr,
    "count": statistics.count,
    "sum": statistics.sum,
    "mean": statistics.mean,
    "variance": statistics.variance,
    "describe": statistics.describe,
    "histogram": statistics.histogram,
    "certificate": functools.partial(statistics.certify_quantile, high=110.0),
    "median, tested": functools.partial(statistics.median, **TESTED),
    "iqr, tested": functools.partial(statistics.iqr, **TESTED),
    "trimmed mean": functools.partial(statistics.trimmed_mean, trim=100, **TESTED),
    "mode": functools.partial(statistics.mode, delta=1e-6),
}


class Guarded(ArrayColumn):
    """A column that must not be read before the ledger is charged."""

    def __init__(self, book: Book) -> None:
        super().__init__(SAMPLE)
        self.book = book


def _guard(name: str) -> Any:
    def read(self: Guarded, *arguments: Any, **given: Any) -> Any:
        assert self.book.charges, f"{name} was read before the ledger was charged"
        return getattr(ArrayColumn, name)(self, *arguments, **given)

    return read


for _name in (
    *("count", "order_statistics", "counts_below", "sum_between", "clipped_sum"),
    *("clipped_squares", "frequencies", "leaders", "most_frequent", "counts_of"),
):
    setattr(Guarded, _name, _guard(_name))


# --- signatures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", statistics.__all__)
def test_a_signature_names_every_option(name: str) -> None:
    parameters = inspect.signature(getattr(statistics, name)).parameters
    kinds = {each.kind for each in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert parameters["epsilon"].default is inspect.Parameter.empty
    assert {"delta", "ledger", "noise", "dry_run"} <= parameters.keys()
    missing = {"by", "groups", "read_as"} if name == "top_k" else set()  # groups are its answer
    assert set(TABLE_OPTIONS) - missing <= parameters.keys()


def test_the_signature_of_a_median() -> None:
    parameters = inspect.signature(prudent.median).parameters
    own = [name for name in attrs.fields_dict(Request) if not name.startswith("other")]
    assert parameters.keys() == {*own}
    for name, parameter in parameters.items():
        assert parameter.default == inspect.signature(Request).parameters[name].default
    assert parameters["confidence"].default == 0.95
    assert parameters["dry_run"].default is False
    assert parameters["per_unit"].default is None


# --- price and order ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ASK)
def test_a_dry_run_reads_and_charges_nothing(name: str) -> None:
    book = Book()
    preview = ASK[name](Guarded(book), epsilon=0.5, dry_run=True, ledger=book)
    assert isinstance(preview, Preview)
    assert (preview.epsilon, book.charges) == (0.5, [])
    assert str(preview).startswith(preview.statistic)


@pytest.mark.parametrize("name", ASK)
def test_the_ledger_is_charged_first_and_by_what_was_released(name: str) -> None:
    book = Book()
    outcome = ASK[name](Guarded(book), epsilon=0.5, ledger=book)
    ((event, _, delta),) = book.charges
    assert event == outcome.event
    assert (outcome.epsilon, outcome.delta) == (0.5, delta)


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ["median", "quantiles", "mean", "describe", "median, tested"])
def test_the_event_costs_what_is_said(name: str) -> None:
    preview = ASK[name](SAMPLE, epsilon=0.5, dry_run=True)
    priced = PldAccountant().compose(preview.event).get_epsilon(max(preview.delta, 1e-12))
    assert priced <= 0.5 * (1 + 1e-6)  # the accountant rounds up by a hair


@pytest.mark.parametrize("name", ASK)
def test_an_answer_in_plain_words_has_its_price(name: str) -> None:
    outcome = ASK[name](SAMPLE, epsilon=0.5, noise=ReproducibleNoise(1))
    plain = outcome.plain()
    assert {"status", "mechanism", "epsilon", "delta", "notes"} <= plain.keys()
    assert plain["epsilon"] == 0.5
    assert all(isinstance(line, str) for line in outcome.lines())
    if getattr(outcome, "spread", None) is not None and isinstance(outcome, Released):
        assert (plain["interval"] is None) == ("no interval" in outcome.lines()[0])
        low, high = plain["interval"] or [plain["value"]] * 2
        assert low <= plain["value"] <= high
    assert outcome._repr_html_()


# --- certificates ---------------------------------------------------------------------------------

CERTIFIED: dict[str, Any] = {
    "median": (statistics.median, lambda data: np.sort(data)[-(-len(data) // 2) - 1]),
    "quantile, tested": (
        functools.partial(statistics.quantile, p=0.25, **TESTED),
        lambda data: np.sort(data)[-(-len(data) // 4) - 1],
    ),
    "trimmed mean": (
        functools.partial(statistics.trimmed_mean, trim=900, bounds=(0, 200), **TESTED),
        lambda data: np.sort(data)[900:-900].mean(),
    ),
    "iqr": (
        functools.partial(statistics.iqr, bounds=(0, 200), **TESTED),
        lambda data: (
            np.sort(data)[-(-3 * len(data) // 4) - 1] - np.sort(data)[-(-len(data) // 4) - 1]
        ),
    ),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", CERTIFIED)
def test_a_certificate_is_in_the_same_charge_and_holds(name: str) -> None:
    ask, statistic = CERTIFIED[name]
    book = Book()
    released = ask(Guarded(book), epsilon=1.0, certify=5.0, ledger=book, noise=ReproducibleNoise(2))
    ((event, _, delta),) = book.charges
    assert isinstance(event, dp.ComposedDpEvent)
    assert event.events[-1] == released.certificate.event
    assert event == released.event
    assert PldAccountant().compose(event).get_epsilon(max(delta, 1e-12)) <= 1 + 1e-6
    assert released.epsilon == 1.0
    assert released.withstands > 5
    assert released.plain()["certificate"]["withstands"] == released.withstands
    low, high = released.certificate.low, released.certificate.high
    assert (low + high) / 2 == pytest.approx(released.value)
    for far in (0.0, 200.0):
        worse = np.append(SAMPLE, np.full(released.withstands, far))
        assert low <= statistic(worse) <= high
        much_worse = np.append(SAMPLE, np.full(20 * released.withstands + 3_000, far))
        assert name == "iqr" or not low <= statistic(much_worse) <= high


def test_a_certificate_of_a_category() -> None:
    data = ["a"] * 900 + ["b"] * 200
    book = Book()
    cost: Any = {"epsilon": 2.0, "delta": 1e-6}
    released = statistics.mode(data, certify=0, ledger=book, noise=ReproducibleNoise(2), **cost)
    assert (released.value, released.certificate.low) == ("a", "a")
    assert 600 < released.withstands < 700
    assert len(book.charges) == 1
    assert "is no longer a" in str(released.certificate)


def test_what_cannot_be_certified_says_so_before_it_is_charged() -> None:
    book = Book()
    with pytest.raises(ArgumentError, match="certify"):
        ASK["iqr"](Guarded(book), epsilon=1.0, certify=1.0, ledger=book)
    for name in ("mean", "quantiles"):
        with pytest.raises(TypeError, match="certify"):
            ASK[name](Guarded(book), epsilon=1.0, certify=1.0, ledger=book)
    assert book.charges == []


def test_a_refused_answer_has_no_certificate_and_costs_the_same() -> None:
    book = Book()
    cost: Any = {"propose": 1e-5, "epsilon": 1.0, "delta": 1e-6, "ledger": book}
    refused = statistics.median(SAMPLE[:40], certify=1.0, **cost)
    assert isinstance(refused, Refused)
    assert refused.epsilon == 1.0
    assert isinstance(book.charges[0][0], dp.ComposedDpEvent)


@pytest.mark.parametrize(
    ("ends", "least", "most", "words"),
    [
        ({"high": 110.0}, 1000, 4000, "exceeds 110"),
        ({"low": 95.0}, 1000, 4000, "is below 95"),
        ({"low": 95.0, "high": 110.0}, 1000, 4000, "leaves [95, 110]"),
        ({"low": 120.0}, 0, 0, "is below 120"),
    ],
)
def test_an_interval_is_certified_without_a_value(ends, least, most, words) -> None:
    released = statistics.certify_quantile(
        SAMPLE, **ends, epsilon=0.5, noise=ReproducibleNoise(1), confidence=0.99
    )
    assert least <= released.value <= most
    assert released.certificate.needed == released.value
    assert words in str(released.certificate)


@pytest.mark.parametrize("ends", [{}, {"low": 2.0, "high": 1.0}, {"high": "much"}])
def test_an_interval_that_is_none_is_not_charged(ends: dict[str, Any]) -> None:
    book = Book()
    with pytest.raises(ArgumentError) as caught:
        statistics.certify_quantile(SAMPLE, **ends, epsilon=0.5, ledger=book)
    assert caught.value.argument == ("high" if ends == {"high": "much"} else "low")
    assert book.charges == []


# --- refusals -------------------------------------------------------------------------------------

ADVICE: dict[str, tuple[Any, str]] = {
    "median": (functools.partial(statistics.median, propose=1e-3), "Leave the proposal out"),
    "quantile": (
        functools.partial(statistics.quantile, p=0.9, propose=1e-3),
        "Leave the proposal out",
    ),
    "iqr": (functools.partial(statistics.iqr, propose=1e-3), "Leave the proposal out"),
    "trimmed mean": (functools.partial(statistics.trimmed_mean, trim=2, propose=1e-3), "Trim more"),
    "mode": (statistics.mode, "count of each category"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_a_refusal_says_what_failed_and_what_would_help(name: str) -> None:
    ask, helps = ADVICE[name]
    outcomes = [ask(data, epsilon=0.5, delta=1e-6) for data in (SAMPLE[:20], [1.0, 2.0])]
    assert {type(each) for each in outcomes} == {Refused}
    assert outcomes[0].reason == outcomes[1].reason  # it is the same for all data
    what, advice = outcomes[0].reason.split(".", 1)
    assert what.startswith("The noisy margin did not exceed")
    assert helps in advice
    assert "costs again" in advice
    assert outcomes[0].plain()["notes"] == [outcomes[0].reason]
