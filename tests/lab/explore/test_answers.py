"""The numbers of the page are those of accountants, mechanism and certificates."""

import math

import numpy as np
import pytest
from benchmarks import explore_grid as answers
from benchmarks.explore_grid import Training

import prudent
from prudent import ArgumentError
from prudent.accounting import GaussianTest, LaplaceTest, Run
from prudent_lab import explore as page

SMALL = Training(records=2_000, batch=100, steps=12, delta=1e-5, epsilon=2.0)


def test_what_is_spent_is_what_the_accountant_says() -> None:
    found = answers.spent(SMALL)
    for steps, tested, plain in zip(found["steps"], found["tested"], found["plain"], strict=True):
        assert tested == prudent.Plan(
            sampling_rate=0.05,
            steps=steps,
            aggregation=prudent.ProposeTestRelease(
                clip=1.0, propose=0.5, noise_multiplier=1.1, test=GaussianTest(4.0)
            ),
        ).epsilon(1e-5)
        assert plain < tested
    assert found["steps"][-1] == 12
    assert found["paper"] == [None] * len(found["steps"])  # a theorem about Laplace tests


def test_the_paper_has_a_number_where_its_theorem_holds() -> None:
    found = answers.spent(
        Training(batch=64, test="laplace", scale=4.0, noise_multiplier=8.0, propose=0.9, steps=50)
    )
    known = [each for each in found["paper"] if each is not None]
    assert known
    assert all(paper >= ours for paper, ours in zip(found["paper"], found["tested"], strict=True))


@pytest.mark.thorough
def test_the_noise_meets_the_target() -> None:
    found = answers.noise(SMALL)
    test = GaussianTest(4.0)
    tested = Run(sampling_rate=0.05, steps=12, noise_multiplier=found["failed"], test=test)
    assert tested.epsilon(1e-5) == pytest.approx(2.0, rel=1e-3)
    assert tested.epsilon(1e-5) <= 2.0
    assert found["passed"] == 0.5 * found["failed"]
    assert found["plain"] < found["failed"]


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_chance_to_pass_is_that_of_drawn_batches(kind: str) -> None:
    setting = Training(records=2_000, batch=200, test=kind, scale=2.0, trim=0.3, failure=1e-4)
    found = answers.passing(setting)
    test = GaussianTest(2.0) if kind == "gaussian" else LaplaceTest(2.0)
    draw = np.random.default_rng(5)
    for place in (5, 20, 24, 30):
        long = draw.binomial(round(found["shares"][place] * 2_000), 0.1, 20_000)
        scales = draw.normal(0, 2, 20_000) if kind == "gaussian" else draw.laplace(0, 2, 20_000)
        passed = np.maximum(0, 60 - long) + scales > test.threshold(1e-4)
        assert found["chances"][place] == pytest.approx(passed.mean(), abs=0.015)
    assert found["chances"][0] > 0.99 > 0.01 > found["chances"][-1]


def test_what_is_withstood_is_the_certificate_of_the_plan() -> None:
    found = answers.withstood(SMALL)
    plan = prudent.Plan(
        sampling_rate=0.05,
        steps=12,
        aggregation=prudent.ProposeTestRelease(
            clip=1.0, propose=0.5, noise_multiplier=1.1, test=GaussianTest(4.0)
        ),
    )
    for records, accuracy in list(zip(found["records"], found["accuracy"], strict=True))[1:4]:
        certificate = plan.certificate(accuracy=0.95, records=records)
        assert accuracy == certificate.at_least
    assert found["records"][0] == 0
    assert found["accuracy"][-1] < 0.1


def test_settings_that_make_no_run_are_refused() -> None:
    for wrong in ({"test": "none"}, {"records": 1000, "batch": 2000}):
        with pytest.raises(ArgumentError):
            Training(**wrong)


def test_every_slider_starts_at_a_stop() -> None:
    assert all(slider["start"] in slider["stops"] for slider in page.sliders())


def test_the_page_asks_nobody_else() -> None:
    text = page.page().replace("http://www.w3.org/2000/svg", "")
    for mark in ("http:", "https:", "//cdn", "@import", "fetch("):
        assert mark not in text


class TestGrid:
    def test_holds_every_setting_of_an_exported_page(self) -> None:
        stored = page.stored()["answers"]
        wanted = list(answers.cells())
        assert {question: len(found) for question, found in stored.items()} == {
            "spent": 120,
            "noise": 72,
            "passing": 36,
            "withstood": 120,
            "tables": 8,
        }
        assert all(key in stored[question] for question, key, _ in wanted)

    @pytest.mark.thorough
    @pytest.mark.parametrize("question", ["spent", "noise", "passing", "withstood"])
    def test_is_what_the_accountant_says_now(self, question: str) -> None:
        cells = [(key, setting) for name, key, setting in answers.cells() if name == question]
        key, setting = cells[len(cells) // 3]
        assert page.stored()["answers"][question][key] == answers.cell(question, setting)

    @pytest.mark.slow
    @pytest.mark.parametrize("part", range(20))
    def test_every_cell_is_what_the_accountant_says_now(self, part: int) -> None:
        for question, key, setting in list(answers.cells())[part::20]:
            assert page.stored()["answers"][question][key] == answers.cell(question, setting), key

    def test_holds_the_quantiles_of_every_shape(self) -> None:
        known = {name: list(answers.quantiles(name).values()) for name in answers.SHAPES}
        assert page.stored()["shapes"] == known
        assert tuple(page.stored()["counts"]) == answers.COUNTS

    def test_bounds_are_rounded_to_the_safe_side(self) -> None:
        assert answers._rounded([1.23451, 0.0012341, -1.23451, 0.0, None, 7]) == [
            1.235,
            0.001235,
            -1.234,
            0.0,
            None,
            7,
        ]
        assert answers._rounded(0.98765, down=True) == 0.9876
        assert math.isinf(answers._rounded(math.inf))
