"""The released whitening: its sensitivity, its noise, and that a plan pays for it."""

import math
from types import SimpleNamespace

import attrs
import dp_accounting as dp
import pytest
import torch

from prudent.accounting import ZERO_OUT, PldAccountant
from prudent.training import Reporting
from prudent.training.keystream import Key
from prudent.training.run.charging import RunCharge
from prudent_lab.datasets import Dataset
from prudent_lab.experiment import Setup, run
from prudent_lab.recipes.digits import ReleasedWhitening, linear, mapped, of_unit_length
from prudent_lab.settings import Experiment
from tests.raising import refused

KEY = Key.from_seed(3)
EXACT = ReleasedWhitening(noise_multiplier=1e-4)


def as_vector(moment):
    """What the noise is added to: the diagonal, and √2 times what is above it."""
    row, column = torch.triu_indices(len(moment), len(moment))
    return moment[row, column] * torch.where(row == column, 1.0, math.sqrt(2))


def features(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def table(rows=240, seed=0):
    labels = torch.arange(rows) % 3
    points = features(rows, 6, seed=seed) + 3 * torch.nn.functional.one_hot(labels, 6)
    part = slice(0, 2 * rows // 3), slice(2 * rows // 3, rows)
    return Dataset(
        "table", points[part[0]], labels[part[0]], points[part[1]], labels[part[1]], 3, ""
    )


@pytest.mark.parametrize("shape", [(50, 7), (50, 3, 7)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_one_record_moves_the_release_by_at_most_one(shape, scale):
    rows = features(*shape) * scale
    absent = rows.clone()
    absent[17] = 0
    moved = as_vector(EXACT.released(rows, KEY)) - as_vector(EXACT.released(absent, KEY))
    assert moved.norm() <= 1 + 1e-3
    if len(shape) == 2:
        assert moved.norm() >= 1 - 1e-3  # the bound is attained, so a lower price would be wrong


def test_views_that_agree_count_as_one_record():
    rows = features(50, 7)
    views = rows[:, None].expand(50, 4, 7)
    once, often = EXACT.released(rows, KEY), EXACT.released(views, KEY)
    torch.testing.assert_close(once, often, atol=1e-3, rtol=0)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_counts_as_absent(odd):
    rows, absent = features(50, 7), features(50, 7)
    rows[3, 2], absent[3] = odd, 0
    assert torch.equal(EXACT.released(rows, KEY), EXACT.released(absent, KEY))
    assert mapped(rows, torch.eye(7)).isfinite().all()


def test_the_noise_has_the_deviation_that_is_priced():
    release = ReleasedWhitening(noise_multiplier=3.0)
    drawn = as_vector(release.released(torch.zeros(10, 120), KEY))
    assert abs(drawn.std() / 3.0 - 1) < 0.04  # about three deviations for 7,260 numbers
    assert release.event == dp.GaussianDpEvent(3.0)
    assert torch.equal(drawn, as_vector(release.released(torch.zeros(10, 120), KEY)))
    other = as_vector(release.released(torch.zeros(10, 120), Key.from_seed(4)))
    assert abs(torch.corrcoef(torch.stack([drawn, other]))[0, 1]) < 0.06


def test_features_become_white_and_of_unit_length():
    stretched = features(4000, 5) * torch.tensor([10.0, 5.0, 2.0, 1.0, 1.0])
    moment = EXACT.released(stretched, KEY)
    rows = of_unit_length(stretched) @ EXACT.matrix(moment)
    covariance = rows.T @ rows
    torch.testing.assert_close(covariance, torch.eye(5), atol=0.01, rtol=0)
    assert (mapped(stretched, EXACT.matrix(moment)).norm(dim=1) <= 1).all()


@pytest.mark.thorough
def test_the_epsilon_of_a_run_includes_the_release():
    release = ReleasedWhitening(noise_multiplier=2.0)
    settings = Experiment.of(method="dpsgd", epsilon=3.0, delta=1e-4, steps=4, batch=160, clip=0.5)
    setup = Setup(release=release, build=linear)
    result = run(settings, setup=setup, dataset=table(), evaluations=1)
    noise = result.fitted.plan.aggregation.noise_multiplier
    accountant = PldAccountant()
    accountant.compose(dp.GaussianDpEvent(2.0)).compose(dp.GaussianDpEvent(noise), 4)
    assert result.epsilon <= 3.0
    assert result.epsilon == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-3)
    assert result.fitted.history[-1].epsilon == pytest.approx(result.epsilon, rel=1e-3)
    alone = run(settings, setup=Setup(build=linear), dataset=table(), evaluations=1)
    assert alone.fitted.plan.aggregation.noise_multiplier < noise


@pytest.mark.unhurried
def test_a_release_with_secret_noise_is_never_repeated(tmp_path, monkeypatch):
    setup = Setup(release=ReleasedWhitening(noise_multiplier=2.0), build=linear)
    settings = Experiment.of(method="dpsgd", epsilon=3.0, steps=2, batch=100)

    def start(**options):
        run(settings, setup=setup, dataset=table(), secret_noise=True, **options)

    with refused("secret_noise"):
        start(reporting=Reporting(out=tmp_path, resume=True))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("secret_noise"):
        start()


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_features_of_any_size_have_length_at_most_one(scale):
    rows = features(20, 7) * scale
    assert (of_unit_length(rows).norm(dim=1) <= 1).all()
    assert (of_unit_length(rows.double()).norm(dim=1) <= 1).all()
    assert mapped(rows, 1e20 * torch.eye(7)).isfinite().all()


def test_the_moment_is_summed_in_double_precision():
    """In single precision the rounding of a sum of many rows exceeds the room left for it."""
    rows = of_unit_length(features(20_000, 4).abs())
    exact = ReleasedWhitening(noise_multiplier=1e-9)
    found = exact.released(rows, KEY)
    unit = (1 - 1e-6) * rows.double() / rows.double().norm(dim=1, keepdim=True)
    assert (as_vector(found) - as_vector(unit.T @ unit)).norm() < 1e-7


def test_a_plan_counts_what_was_released_before_it():
    plan = Experiment.of(method="dpsgd", epsilon=None, noise_multiplier=2.0, steps=3).plan(1000)
    priced = attrs.evolve(plan, before=dp.GaussianDpEvent(1.0))
    assert priced.event_after(0) == dp.ComposedDpEvent([priced.before, dp.NoOpDpEvent()])
    assert priced.epsilon_after(0, 1e-5) == pytest.approx(
        PldAccountant().compose(dp.GaussianDpEvent(1.0)).get_epsilon(1e-5), rel=1e-3
    )
    assert priced.epsilon(1e-5) > priced.epsilon_after(0, 1e-5) > plan.epsilon(1e-5) > 0
    assert priced.relation == ZERO_OUT
    assert "before" in repr(priced)
    assert "before" not in repr(plan)
    solved = priced.calibrate(epsilon=6.0, delta=1e-5)
    assert 5.9 < solved.epsilon(1e-5) <= 6.0
    with pytest.raises(ValueError, match="before"):
        attrs.evolve(plan, before=1.0)


class OpenLedger:
    """A ledger that admits everything."""

    def __init__(self):
        self.charges = []

    def charge(self, event, label, delta=None):
        self.charges.append(SimpleNamespace(event=event, label=label, outcome=""))
        return self.charges[-1]

    def history(self):
        return self.charges


def test_a_ledger_is_charged_once_for_the_release_and_the_steps():
    plan = Experiment.of(method="dpsgd", epsilon=None, noise_multiplier=2.0, steps=3).plan(
        1000, dp.GaussianDpEvent(1.0)
    )
    ledger = OpenLedger()
    for resumed in (False, True):
        RunCharge(ledger, plan, 1e-5, "name", resumed).pay()
    assert [charge.event for charge in ledger.charges] == [plan.event]
    assert plan.event.events[0] == dp.GaussianDpEvent(1.0)
