"""A released loss: it is clipped, noisy, charged together with its step, and shown nowhere else."""

import math

import attrs
import dp_accounting as dp
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prudent
from prudent.training import (
    Chunk,
    Key,
    LossRelease,
    Plan,
    ProposeTestRelease,
    Reporting,
    Step,
    Sum,
    fit,
    make_private,
)

SUM = Sum(clip=1.0, noise_multiplier=2.0)
WATCH = LossRelease(loss_every=4, bound=2.0, noise_multiplier=3.0)
PLAN = Plan(sampling_rate=0.1, steps=9, aggregation=SUM, watch=WATCH, expected_batch=10)


def losses_of(outputs, targets):
    """Each record's loss is its target, whatever the model says."""
    moved = outputs.sum(-1)
    return targets + moved - moved.detach()


def released(plan, targets, steps, seed=0, valid=None):
    """The watched losses of so many steps on one batch."""
    model = nn.Linear(2, 1)
    step = Step(plan, model, losses_of, key=Key.from_seed(seed))
    chunk = Chunk(torch.ones(len(targets), 2), torch.tensor(targets), valid)
    return torch.stack([step([chunk]).watched for _ in range(steps)])


class TestPrice:
    def test_a_sum_and_a_loss_are_one_gaussian_release_on_one_sample(self):
        both = dp.GaussianDpEvent(1 / math.hypot(1 / 2.0, 1 / 3.0))
        plain, watched = PLAN.event.events
        assert plain == dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, SUM.event), 6)
        assert watched == dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, both), 3)

    def test_it_costs_and_a_calibrated_plan_leaves_room_for_it(self):
        bare = Plan(sampling_rate=0.1, steps=9, aggregation=SUM, expected_batch=10)
        assert PLAN.epsilon(1e-5) > bare.epsilon(1e-5) * 1.05
        solved = PLAN.calibrate(epsilon=1.0, delta=1e-5)
        assert solved.epsilon(1e-5) <= 1.0
        assert solved.watch == WATCH
        least = bare.calibrate(epsilon=1.0, delta=1e-5).aggregation.noise_multiplier
        assert solved.aggregation.noise_multiplier > least

    def test_a_test_and_a_loss_are_composed_before_sampling(self):
        ptr = ProposeTestRelease(
            clip=1.0, propose=0.5, noise_multiplier=2.0, test=prudent.GaussianTest(4.0)
        )
        one = Plan(sampling_rate=0.1, steps=1, aggregation=ptr, expected_batch=10, watch=WATCH)
        inner = one.event.event.event
        assert one.event.event.sampling_probability == 0.1
        assert inner == dp.ComposedDpEvent([ptr.event, dp.GaussianDpEvent(3.0)])
        assert one.epsilon(1e-5) > 1.05 * Plan(
            sampling_rate=0.1, steps=1, aggregation=ptr, expected_batch=10
        ).epsilon(1e-5)

    def test_parts_of_a_run_never_pay_for_fewer_losses_than_the_whole(self):
        for first in range(1, 9):
            assert WATCH.releases(first) + WATCH.releases(9 - first) >= WATCH.releases(9)


@pytest.mark.filterwarnings("ignore::prudent._warning.PredictableNoiseWarning")
class TestRelease:
    def test_only_the_steps_that_pay_show_a_loss(self):
        shown = released(PLAN, [1.0] * 10, 9).isfinite().tolist()
        assert shown == [True, False, False, False] * 2 + [True]
        assert sum(shown) == WATCH.releases(9)

    def test_losses_are_clipped_record_by_record(self):
        quiet = LossRelease(loss_every=1, bound=2.0, noise_multiplier=1e-9)
        plan = Plan(sampling_rate=0.1, steps=1, aggregation=SUM, watch=quiet, expected_batch=10)
        targets = [1.5, 100.0, -3.0, math.nan, math.inf, -math.inf, 7.0]
        valid = torch.tensor([True] * 6 + [False])
        mean = float(released(plan, targets, 1, valid=valid)[0])
        assert mean == pytest.approx((1.5 + 2 + 0 + 2 + 2 + 0) / 10, abs=1e-6)

    def test_noise_has_the_deviation_that_is_charged(self):
        """200 seeded draws: the same in every run."""
        every = LossRelease(loss_every=1, bound=2.0, noise_multiplier=3.0)
        plan = Plan(sampling_rate=0.1, steps=200, aggregation=SUM, watch=every, expected_batch=10)
        draws = released(plan, [1.0] * 10, 200)
        assert every.deviation(10) == 0.6
        assert float(draws.std()) == pytest.approx(0.6, rel=0.15)
        assert float(draws.mean()) == pytest.approx(1.0, abs=0.15)

    def test_it_is_not_the_noise_of_the_gradient(self):
        plan = Plan(
            sampling_rate=0.1, steps=1, aggregation=SUM, expected_batch=10,
            watch=LossRelease(loss_every=1, bound=1.0, noise_multiplier=2.0),
        )  # fmt: skip
        model = nn.Linear(1, 1, bias=False)
        step = Step(plan, model, losses_of, key=Key.from_seed(0))
        loss = step([Chunk(torch.ones(1, 1), torch.zeros(1))]).watched
        assert abs(float(loss) - float(model.weight.grad)) > 1e-3


@pytest.mark.filterwarnings("ignore::prudent._warning.PredictableNoiseWarning")
def test_a_run_records_its_losses_with_their_noise(tmp_path):
    data = torch.randn(100, 2), torch.arange(100) % 2
    model = nn.Linear(2, 2)
    fitted = fit(
        PLAN, model, nn.CrossEntropyLoss(reduction="none"), data, lr=0.1,
        execution=prudent.Execution(seed=3),
        reporting=Reporting(evaluate_every=2, out=tmp_path, progress=False),
    )  # fmt: skip
    shown = [entry.evaluation for entry in fitted.history]
    assert [set(each) for each in shown] == [
        {"train_loss", "train_loss_noise"}, set(), {"train_loss", "train_loss_noise"}, set(),
        {"train_loss", "train_loss_noise"},
    ]  # fmt: skip
    assert shown[0]["train_loss_noise"] == pytest.approx(WATCH.deviation(10))
    assert '"train_loss_noise"' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.filterwarnings("ignore::prudent._warning.PredictableNoiseWarning")
class TestOwnLoop:
    QUIET = Plan(
        sampling_rate=0.5, steps=5, aggregation=SUM, expected_batch=10,
        watch=LossRelease(loss_every=2, bound=2.0, noise_multiplier=1e-9),
    )  # fmt: skip

    def loop(self, plan=QUIET, **options):
        targets = torch.linspace(0, 4, 20)
        data = TensorDataset(torch.ones(20, 2), targets)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return make_private(
            model, optimizer, DataLoader(data, batch_size=10), plan=plan, key=Key.from_seed(4),
            **options,
        )  # fmt: skip

    @pytest.mark.parametrize("options", [{}, {"max_physical_batch": 3}, {"unit": [1, 2] * 10}])
    def test_losses_that_are_handed_over_are_clipped_by_record_or_person(self, options):
        if "unit" in options:
            options = {**options, "records_per_person": 4}
        model, optimizer, loader = self.loop(**options)
        for _ in range(2):
            for inputs, targets in loader:
                before, slots = optimizer.steps, loader.slots or 1
                losses = losses_of(model(inputs), targets)
                optimizer.watch(losses)
                losses.sum().div(max(1, len(losses))).backward()
                optimizer.step()
                shown = losses.detach().reshape(-1, slots).mean(1).clamp(0, 2).sum() / 10
                if before % 2 == 0:
                    assert optimizer.released["train_loss"] == pytest.approx(float(shown), abs=1e-6)
                    assert optimizer.released["train_loss_noise"] == pytest.approx(2e-10)
                else:
                    assert optimizer.released == {}
        assert optimizer.steps == 4

    def test_a_step_that_releases_the_loss_needs_it(self):
        model, optimizer, loader = self.loop()
        inputs, targets = next(iter(loader))
        losses_of(model(inputs), targets).mean().backward()
        for losses in (None, torch.zeros(len(targets) + 1)):
            if losses is not None:
                optimizer.watch(losses)
            with pytest.raises(ValueError, match="one loss for each row") as error:
                optimizer.step()
            assert str(len(targets)) not in str(error.value)
            assert optimizer.steps == 0
            inputs, targets = next(iter(loader))
            losses_of(model(inputs), targets).mean().backward()

    def test_held_out_records_are_released_when_they_are_due(self):
        plan = attrs.evolve(
            self.QUIET, watch=None, expected_batch=None,
            held_out=prudent.HeldOut(every=2, noise_multiplier=1e-9, metric="loss", bound=8.0),
        )  # fmt: skip
        held = TensorDataset(torch.ones(9, 2), torch.arange(9.0))
        model, optimizer, loader = self.loop(plan, held_out_set=held, held_out_loss=losses_of)
        found = []
        for _ in range(3):
            for inputs, targets in loader:
                if optimizer.steps == 5:
                    break
                losses_of(model(inputs), targets).mean().backward()
                optimizer.step()
                found.append(optimizer.released)
        assert [bool(each) for each in found] == [False, True, False, True, True]
        assert found[1]["held_out_loss"] == pytest.approx(4.0, abs=1e-6)
        assert found[1]["held_out_loss_noise"] == pytest.approx(4e-9 / 9)

    def test_epsilon_leaves_room_for_both(self):
        data = TensorDataset(torch.ones(20, 2), torch.zeros(20, dtype=torch.long))
        model = nn.Linear(2, 2)
        _, optimizer, _ = make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=2),
            epsilon=3.0, delta=1e-5, epochs=1, watch=WATCH, held_out_set=data,
            held_out=prudent.HeldOut(every=5, noise_multiplier=9.0),
        )  # fmt: skip
        assert optimizer.plan.watch == WATCH
        assert optimizer.plan.held_out is not None
        assert optimizer.plan.epsilon(1e-5) <= 3.0


@pytest.mark.filterwarnings("ignore::prudent._warning.PredictableNoiseWarning")
@pytest.mark.parametrize("unit", [None, [1, 2, 3, 4, 5] * 4])
def test_a_batch_without_a_step_is_not_passed_over(unit):
    plan = Plan(sampling_rate=0.5, steps=60, aggregation=SUM, expected_batch=10)
    model, optimizer, loader = TestOwnLoop().loop(plan, unit=unit)

    def skip_one():
        for _ in range(20):
            for number, (inputs, targets) in enumerate(loader):
                if number % 2:
                    losses_of(model(inputs), targets).mean().backward()
                    optimizer.step()

    with pytest.raises(ValueError, match="a step on every batch"):
        skip_one()
    assert optimizer.steps < 10
