"""`prudent epsilon` and `prudent calibrate` say what the library says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import pytest

from prudent._rounding import rounded_up
from prudent.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZERO_OUT,
    ApproximateDpEvent,
    AttackBounds,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    PldAccountant,
    RdpAccountant,
    Relation,
    Reveals,
    Run,
    describe,
    price_list,
    to_json,
)
from prudent.accounting.serialisation import from_plain
from prudent.cli.options import parse_test
from prudent.training import Plan, ProposeTestRelease

Command = Callable[..., Any]
RUN = Run(
    sampling_rate=0.00426667,
    steps=500,
    noise_multiplier=1.1,
    test=LaplaceTest(1.0),
    propose=0.5,
    failure=1e-8,
    reveals=Reveals.MARGIN,
)
FLAGS = [
    "--sampling-rate=0.00426667",
    "--steps=500",
    "--noise-multiplier=1.1",
    "--propose=0.5",
    "--test=laplace:1.0",
    "--failure=1e-8",
    "--reveals=margin",
    "--delta=1e-5",
]


def test_epsilon_is_the_accountants(run: Command) -> None:
    answer = run("epsilon", *FLAGS, "--json")
    price = json.loads(answer.out)
    lower, upper = PldAccountant().compose(RUN.event).epsilon_bounds(1e-5)
    assert answer.status == 0
    assert list(price) == [
        "epsilon", "pairs_epsilon_lower", "delta", "relation", "accountant", "event", "infinite",
    ]  # fmt: skip
    assert (price["epsilon"], price["pairs_epsilon_lower"]) == (upper, lower)
    assert (price["delta"], price["accountant"]) == (1e-5, "pld")
    assert from_plain(price["event"]) == RUN.event
    assert from_plain(price["relation"]) == ADD_REMOVE


@pytest.mark.parametrize(
    ("flags", "relation"),
    [
        ([], ADD_REMOVE),
        (["--relation", "zero-out"], ZERO_OUT),
        (["--relation", "replace-one"], REPLACE_ONE),
        (["--records-per-person", "3"], Relation(records=3)),
    ],
)
def test_the_relation_is_printed_and_priced(run: Command, flags: list[str], relation: Any) -> None:
    given = ["--noise-multiplier=4", "--test=none", "--delta=1e-6", *flags]
    found = Run(noise_multiplier=4.0, relation=relation).epsilon(1e-6)
    first = run("epsilon", *given).out.splitlines()[0]
    assert first.startswith(f"ε ≤ {rounded_up(found)} at δ = 1e-06 for {relation}")
    price = json.loads(run("epsilon", *given, "--json").out)
    assert (from_plain(price["relation"]), price["epsilon"]) == (relation, found)


def test_noise_is_solved_for_the_relation(run: Command) -> None:
    flags = ["--epsilon=2", "--test=none", "--delta=1e-6", "--relation=replace-one"]
    lines = run("calibrate", "--solve=noise-multiplier", *flags).out.splitlines()
    sigma = float(lines[0].split(" = ")[1])
    assert Run(noise_multiplier=sigma / 2).epsilon(1e-6) == pytest.approx(2, rel=1e-4)
    assert str(REPLACE_ONE) in lines[1]


def test_the_renyi_accountant_is_bracketed_by_loss_distributions(run: Command) -> None:
    price = json.loads(run("epsilon", *FLAGS, "--accountant", "rdp", "--json").out)
    lower = PldAccountant().compose(RUN.event).epsilon_bounds(1e-5)[0]
    assert price["epsilon"] == RUN.epsilon(1e-5, RdpAccountant)
    assert price["pairs_epsilon_lower"] == lower < price["epsilon"]


@pytest.mark.parametrize("reveals", list(Reveals))
def test_what_is_revealed_reaches_the_event(run: Command, reveals: Reveals) -> None:
    flags = [flag for flag in FLAGS if not flag.startswith("--reveals")]
    price = json.loads(run("epsilon", *flags, f"--reveals={reveals.value}", "--json").out)
    assert from_plain(price["event"]).event.event.reveals is reveals


@pytest.mark.thorough
def test_the_branch_of_a_monotone_margin_is_charged_by_default(run: Command) -> None:
    """As a training plan charges it; the same run had two prices."""
    flags = [flag for flag in FLAGS if not flag.startswith("--reveals")]
    aggregation = ProposeTestRelease(
        clip=1.0, propose=0.5, noise_multiplier=1.1, test=LaplaceTest(1.0), failure=1e-8
    )
    plan = Plan(sampling_rate=0.00426667, steps=500, aggregation=aggregation)
    price = json.loads(run("epsilon", *flags, "--json").out)
    assert price["epsilon"] == plan.epsilon(1e-5)
    assert from_plain(price["event"]) == attrs.evolve(RUN, reveals=aggregation.reveals).event
    assert Run().reveals is aggregation.reveals
    solved = ("--solve=steps", f"--epsilon={price['epsilon']}")
    steps = json.loads(run("calibrate", *flags, *solved, "--json").out)["steps"]
    assert steps >= 500


def test_a_person_reads_a_bracket_and_the_share_of_the_test(run: Command) -> None:
    lines = run("epsilon", *FLAGS).out.splitlines()
    upper, lower = map(float, re.findall(r"ε [≤≥] ([\d.]+)", lines[0]))
    share, bare = re.findall(r"([\d.]+)% .* ε ≤ ([\d.]+)", lines[1])[0]
    exact = RUN.epsilon(1e-5)
    assert lower < exact <= upper < exact * 1.001
    assert "(the dominating pairs: ε ≥ " in lines[0]
    assert float(share) == pytest.approx(100 * (1 - float(bare) / upper), abs=0.06)
    assert "Laplace test of scale 1" in lines[2]


@pytest.mark.unhurried
def test_what_is_printed_is_the_least_of_the_bounds(run: Command) -> None:
    """A tiny proposal costs at most what revealing everything would."""
    flags = [flag for flag in FLAGS if not flag.startswith("--propose")]
    found, revealing = (
        json.loads(run("epsilon", *flags, f"--propose={propose}", "--json").out)["epsilon"]
        for propose in (1e-3, 0)
    )
    assert found <= revealing
    bounds = [RUN.epsilon(1e-5), RUN.epsilon(1e-5, RdpAccountant)]
    assert json.loads(run("epsilon", *FLAGS, "--json").out)["epsilon"] == min(bounds)


def test_an_infinite_price_is_said_in_words_and_in_json(run: Command) -> None:
    flags = ("epsilon", "--noise-multiplier=1", "--test=none", "--delta=0")
    assert "∞" in run(*flags).out
    plain = json.loads(run(*flags, "--json").out)
    assert plain["epsilon"] is None
    assert plain["infinite"].startswith("ε is infinite at δ = 0.")


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("solve", "given"),
    [
        ("noise-multiplier", "--noise-multiplier"),
        ("steps", "--steps"),
        ("test-scale", "--test"),
        ("failure", "--failure"),
        ("propose", "--propose"),
        ("sampling-rate", "--sampling-rate"),
    ],
)
def test_calibrate_solves_what_was_not_given(run: Command, solve: str, given: str) -> None:
    flags = [flag for flag in FLAGS if not flag.startswith(given)]
    answer = run("calibrate", f"--solve={solve}", "--epsilon=0.8", *flags, "--json")
    solved = json.loads(answer.out)
    assert answer.status == 0
    assert solved[solve.replace("-", "_")] > 0
    event = from_plain(solved["event"])
    exact = PldAccountant().compose(event).get_epsilon(1e-5)
    assert solved["epsilon"] <= exact <= 0.8
    assert solved["epsilon"] == pytest.approx(exact, rel=5e-4)  # grids differ with the event


@pytest.mark.thorough
def test_the_solved_value_is_the_one_in_the_event(run: Command) -> None:
    flags = [flag for flag in FLAGS if not flag.startswith("--test")]
    command = ("calibrate", "--solve=test-scale", "--epsilon=0.8", *flags, "--test=gaussian")
    solved = json.loads(run(*command, "--json").out)
    assert from_plain(solved["event"]).event.event.test == GaussianTest(solved["test_scale"])
    first, price, *_ = run(*command).out.splitlines()
    name, shown = first.split(" = ")
    assert name == "test-scale"
    assert len(shown) <= 7  # few digits, to the safe side
    assert solved["test_scale"] <= float(shown) <= solved["test_scale"] * (1 + 1e-5)
    flags = [*flags, f"--test=gaussian:{shown}"]
    assert price == run("epsilon", *flags).out.splitlines()[0]  # what is printed is what is priced
    assert float(price.split()[2]) <= 0.8


@pytest.mark.thorough
def test_calibrate_ignores_the_value_of_what_it_solves(run: Command) -> None:
    solve = ("calibrate", "--solve=steps", "--epsilon=0.8", "--json")
    flags = [flag for flag in FLAGS if not flag.startswith("--steps")]
    assert run(*solve, *flags, "--steps=-5").out == run(*solve, *flags).out


@pytest.mark.parametrize(
    ("text", "test"),
    [
        ("laplace:2", LaplaceTest(2.0)),
        ("gaussian:0.5", GaussianTest(0.5)),
        ("discrete-laplace:3", DiscreteLaplaceTest(3.0)),
        ("discrete-gaussian:4", DiscreteGaussianTest(4.0)),
        ("none", None),
    ],
)
def test_tests_are_read_as_they_are_written(text: str, test: object) -> None:
    assert parse_test(text) == test


class TestEvents:
    """`prudent epsilon --event`: what an auditor reads, as text and as JSON."""

    ONE = dp.GaussianDpEvent(3.0)
    TWO = dp.ComposedDpEvent([ONE, ApproximateDpEvent(0.5, 1e-7)])

    @pytest.mark.unhurried
    @pytest.mark.parametrize("event", [ONE, pytest.param(TWO, marks=pytest.mark.slow)])
    def test_text_and_json(self, run: Command, tmp_path: Path, event: dp.DpEvent) -> None:
        path = tmp_path / "event.json"
        path.write_text(to_json(event))
        answer = run("epsilon", f"--event={path}", "--delta=1e-6", "--json")
        report = json.loads(answer.out)
        accountant = PldAccountant().compose(event)
        assert report["epsilon"] == accountant.get_epsilon(1e-6)
        assert from_plain(report["event"]) == event
        assert [price["adds"] for price in report["prices"]] == [
            price.adds for price in price_list(event, 1e-6)
        ]
        bounds = AttackBounds.of(event)
        even, rare = report["attacks"]
        assert (even["prior"], rare["prior"]) == (0.5, 0.1)
        assert even["success"] == bounds.success(0.5)
        assert even["advantage"] == even["success"] - 0.5
        curve = report["trade_off"]
        assert curve["misses_at_least"] == [bounds.misses(r) for r in curve["false_positives"]]
        deltas = dict(zip(*report["profile"].values(), strict=True))
        least = accountant.get_delta(1.0)
        assert least <= deltas[1.0] <= least * (1 + 1e-3)
        assert deltas[report["epsilon"]] <= 1e-6
        # What --json printed is an event file too, and the text has the same numbers.
        again = tmp_path / "price.json"
        again.write_text(answer.out)
        text = run("epsilon", f"--event={again}", "--delta=1e-6", "--prior=0.25").out
        assert f"ε ≤ {rounded_up(report['epsilon'])} at δ = 1e-06" in text
        assert "prior 0.25: right with probability at most" in text
        assert "prior 0.5" not in text
        assert all(
            describe(price.event).split("\n")[0] in text for price in price_list(event, 1e-6)
        )

    def test_an_infinite_epsilon_is_explained(self, run: Command, tmp_path: Path) -> None:
        path = tmp_path / "event.json"
        path.write_text(to_json(ApproximateDpEvent(0.5, 1e-7)))
        answer = run("epsilon", f"--event={path}", "--delta=1e-8")
        assert "ε ≤ ∞" in answer.out
        assert "ε ≥" not in answer.out
        assert "ε is finite for every δ above 1e-07" in answer.out

    @pytest.mark.parametrize(
        ("content", "flags", "message"),
        [
            ("{", [], "JSON"),
            ('{"format": 1, "kind": "os.system"}', [], r"^--event: .*event\.json: Expected kind"),
            ("[" * 100_000, [], "JSON|nested"),
            (None, [], "a readable file .*No such file"),
            (to_json(dp.GaussianDpEvent(1.0)), ["--noise-multiplier=1"], "complete"),
            (to_json(dp.GaussianDpEvent(1.0)), ["--steps=100"], "complete"),
            (to_json(dp.GaussianDpEvent(1.0)), ["--num-bands=2"], "complete"),
            (to_json(dp.GaussianDpEvent(1.0)), ["--prior=2"], "prior"),
            (to_json(dp.GaussianDpEvent(1.0)), ["--prior=a"], "prior"),
        ],
    )
    def test_mistakes(self, run: Command, tmp_path: Path, content, flags, message) -> None:
        path = tmp_path / "event.json"
        if content is not None:
            path.write_text(content)
        answer = run("epsilon", f"--event={path}", "--delta=1e-6", *flags)
        assert answer.status == 2
        assert re.search(message, answer.err)
        assert answer.err.count("\n") == 1

    def test_the_accountant_is_the_one_that_was_named(self, run: Command, tmp_path: Path) -> None:
        path = tmp_path / "event.json"
        path.write_text(to_json(dp.GaussianDpEvent(2.0)))
        by_renyi = RdpAccountant().compose(dp.GaussianDpEvent(2.0)).get_epsilon(1e-6)
        for flags in ([f"--event={path}"], ["--noise-multiplier=2", "--prior=0.5"]):
            answer = run("epsilon", *flags, "--delta=1e-6", "--accountant=rdp", "--json")
            found = json.loads(answer.out)
            assert (found["accountant"], found["epsilon"]) == ("rdp", pytest.approx(by_renyi))

    def test_a_run_has_a_report_too(self, run: Command) -> None:
        flags = ["--noise-multiplier=5", "--test=none", "--delta=1e-6", "--prior=0.5"]
        assert "Price list" in run("epsilon", *flags).out


class TestPlainTraining:
    """Without a test, `prudent epsilon` prices DP-SGD; sizes may be given as people know them."""

    SIZE = ("--batch", "256", "--records", "60000", "--epochs", "15")

    def test_without_a_test_it_is_dp_sgd(self, run: Command) -> None:
        given = "--noise-multiplier", "1.1", "--delta", "1e-5", "--json"
        by_epochs = json.loads(run("epsilon", *given, *self.SIZE).out)
        size = ("--sampling-rate", "256/60000", "--steps", "3516", "--test", "none")
        by_rate = json.loads(run("epsilon", *given, *size).out)
        assert by_epochs["epsilon"] == by_rate["epsilon"] > 0
        assert by_epochs["event"] == by_rate["event"]

    @pytest.mark.parametrize(
        "flags",
        [("--batch", "256"), ("--epochs", "3", "--steps", "7"),
         ("--batch", "2", "--records", "9", "--sampling-rate", "0.1")],
    )  # fmt: skip
    def test_sizes_that_do_not_fit_each_other(self, run: Command, flags: tuple[str, ...]) -> None:
        answer = run("epsilon", "--noise-multiplier", "1.1", "--delta", "1e-5", *flags)
        assert answer.status == 2
