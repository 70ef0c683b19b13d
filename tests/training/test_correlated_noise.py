"""Noise that cancels: its covariance, its price against brute force, and its turns."""

import itertools
import math
import shutil

import attrs
import numpy as np
import pytest
import torch
from scipy import linalg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prudent import make_private
from prudent._validate import ArgumentError
from prudent.accounting import GaussianTest, PldAccountant, Relation, Run, to_json
from prudent.accounting.events import WorstOfDpEvent
from prudent.audit.training import scenes
from prudent.audit.training.one_run import one_run
from prudent.audit.training.white_box import white_box
from prudent.training import (
    Execution,
    Plan,
    PoissonSampler,
    ProposeTestRelease,
    Sum,
    TrimmedSum,
    fit,
)
from prudent.training.keystream import Key
from prudent.training.noise import HostNoise, NoiseHistory, StepState, add_correlated_, coefficients
from prudent.training.plan import HeldOut, LossRelease
from prudent.training.run.charging import _steps
from prudent.training.run.checkpoint import charged, load_checkpoint
from prudent_verify.events import Relation as Typed
from prudent_verify.events import parsed
from prudent_verify.prices import prove
from tests.training.run.test_resuming import CPU, STEPS, killed, train, updates

SUM = Sum(clip=1.0, noise_multiplier=1.0)
PLAN = Plan(sampling_rate=0.1, steps=12, aggregation=SUM, num_bands=3)


def strategy(num_bands, steps):
    """C."""
    column = np.zeros(steps)
    column[: min(num_bands, steps)] = coefficients(num_bands, steps)[:steps]
    return linalg.toeplitz(column, np.zeros(steps))


def noises(num_bands, steps, numbers=3, deviation=2.0, seed=5, numbered=None):
    """What is added to sums of zero, by step, and the normals that the key gives."""
    source, state = HostNoise(Key.from_seed(seed), CPU), StepState.start(0.0, CPU)
    level, added, drawn = torch.tensor(deviation, dtype=torch.float64), [], []
    for number in numbered or range(1, steps + 1):
        state.move_to(number)
        normals = torch.zeros(numbers, dtype=torch.float64)
        one, fine = torch.tensor([1.0, 2.0**-60], dtype=torch.float64)
        source.add_(normals, one, state, fine)
        drawn.append(normals)
        total = torch.zeros(numbers, dtype=torch.float64)
        add_correlated_(source, total, level, state, num_bands=num_bands, steps=steps)
        added.append(total)
    return torch.stack(added).numpy(), torch.stack(drawn).numpy()


@pytest.mark.parametrize(("num_bands", "steps"), [(2, 7), (4, 13), (8, 5)])
def test_the_strategy_times_the_noise_is_independent_noise(num_bands, steps):
    """Up to the lattice, whose spacing is at most an eighth of the deviation."""
    added, drawn = noises(num_bands, steps)
    white = strategy(num_bands, steps) @ added
    assert np.abs(white - 2.0 * drawn).max() <= 2.0 / 16 * sum(coefficients(num_bands, steps))
    assert np.abs(added - 2.0 * drawn).max() > 0.5  # plain noise would pass the line above, too


def test_the_noise_has_the_covariance_of_the_inverse():
    added, _ = noises(3, 6, numbers=40_000, deviation=1.0)
    inverse = linalg.inv(strategy(3, 6))
    expected = inverse @ inverse.T
    assert np.abs(np.cov(added) - expected).max() < 0.05
    assert expected[0, 1] < -0.3  # which independent noise has not


@pytest.mark.parametrize(
    ("steps", "num_bands", "error"),
    [(100, 2, 5.182), (100, 8, 3.125), (500, 8, 6.086), (2000, 16, 8.535)],
)
def test_the_error_is_that_of_jax_privacy(steps, num_bands, error):
    """Mean squared error of its `optimize_banded_toeplitz`, as printed by version 2.0.0."""
    sums = np.cumsum(linalg.inv(strategy(num_bands, steps)), 0)
    found = math.sqrt((sums**2).sum(1).mean())
    assert found == pytest.approx(error, abs=6e-4)


def test_a_gap_begins_the_recursion_anew():
    """A step that failed after it was counted, and a resumed run, leave one out."""
    added, drawn = noises(3, 9, numbered=[1, 2, 3, 5, 6])
    first = coefficients(3, 9)[0]
    assert np.abs(added[3] - 2.0 * drawn[3] / first).max() <= 2.0 / 16
    assert np.abs(added[2] - 2.0 * drawn[2] / first).max() > 0.5


def test_other_noise_begins_the_recursion_anew():
    history = NoiseHistory.start(2, 9, 1, CPU)
    normals = torch.ones(1, dtype=torch.float64)
    levels = torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64)
    steps = [
        history.next_(normals.clone(), level, torch.tensor(k + 1)) for k, level in enumerate(levels)
    ]
    assert [float(each) for each in steps[::2]] == [1 / coefficients(2, 9)[0]] * 2
    assert float(steps[1]) < float(steps[0])


# ---- the price, by brute force -------------------------------------------------------------------


def hockey_sticks(columns, rate, sigma, epsilon, points):
    """δ at ε of what is seen with and without one record, and the other way round.

    Integrates the joint density of all releases, with the covariance of the noise itself, over a
    grid in the span of the means; what is at right angles to them says nothing.

    Args:
        columns: The steps in which the record may be drawn, each alone with the rate.
        rate: The rate.
        sigma: Noise multiplier.
        epsilon: ε.
        points: Of the grid, on each axis.
    """
    steps, num_bands = 4, 2
    inverse = linalg.inv(strategy(num_bands, steps))
    covariance = sigma**2 * inverse @ inverse.T
    root = linalg.cholesky(covariance, lower=True)
    means = linalg.solve_triangular(root, np.eye(steps)[:, columns], lower=True)  # whitened
    basis, places = linalg.qr(means, mode="economic")
    reach = 7.0 + np.abs(places).sum(1).max()
    axis = np.linspace(-reach, reach, points)
    grid = np.stack(np.meshgrid(*[axis] * len(columns), indexing="ij"), -1)
    cell = (axis[1] - axis[0]) ** len(columns)
    without = np.exp(-(grid**2).sum(-1) / 2) / (2 * math.pi) ** (len(columns) / 2)
    present = np.zeros_like(without)
    for drawn in itertools.product((0, 1), repeat=len(columns)):
        weight = math.prod(rate if each else 1 - rate for each in drawn)
        mean = places @ np.array(drawn)
        present += weight * without * np.exp(grid @ mean - mean @ mean / 2)
    excess = [present - math.exp(epsilon) * without, without - math.exp(epsilon) * present]
    assert basis.shape == (steps, len(columns))
    return [float(np.maximum(each, 0).sum() * cell) for each in excess]


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_the_price_is_that_of_the_worst_record(epsilon):
    """Four steps, two bands: drawn in steps 0 and 2, or 1 and 3 of which the last is cut off."""
    plan = Plan(sampling_rate=0.2, steps=4, aggregation=SUM, num_bands=2)
    priced = PldAccountant().compose(plan.event).get_delta(epsilon)
    worst, later = (
        hockey_sticks(columns, plan.turn_rate, 1.0, epsilon, 800) for columns in ([0, 2], [1, 3])
    )
    assert max(worst) <= priced * (1 + 1e-6)
    assert max(worst) >= priced * (1 - 1e-3)  # the price is attained
    assert all(one < other for one, other in zip(later, worst, strict=True))


def test_a_record_out_of_turn_exceeds_the_price():
    """Drawn from all records in every step, at the rate of a turn: neighbours overlap."""
    plan = Plan(sampling_rate=0.2, steps=4, aggregation=SUM, num_bands=2)
    priced = PldAccountant().compose(plan.event).get_delta(1.0)
    assert max(hockey_sticks([0, 1, 2, 3], plan.turn_rate, 1.0, 1.0, 24)) > 1.5 * priced
    # Even as seldom as that record would be drawn on average, but in steps next to each other.
    assert max(hockey_sticks([0, 1], plan.turn_rate, 1.0, 1.0, 800)) > 1.1 * priced


@pytest.mark.thorough
def test_adaptive_gradients_cost_no_more():
    """Gradients and other records follow what was released, with the noise as it is computed."""
    plan, runs, draw = attrs.evolve(PLAN, steps=6), 400_000, np.random.default_rng(3)
    column, rate, part = np.array(coefficients(3, 6)), plan.turn_rate, 1
    inverse = linalg.inv(strategy(3, 6))
    noise = draw.standard_normal((runs, 6)) @ inverse.T
    seen, ratio = np.zeros((runs, 6)), np.zeros(runs)
    shift = np.zeros((runs, 6))
    for step in range(6):
        others = np.tanh(3 * seen[:, :step].sum(1))  # what the other records add
        if step % 3 == part:
            own = np.where(seen[:, step - 1] > 0, 1.0, -1.0)
            drawn = draw.random(runs) < rate
            shift[:, step] = own
            seen[:, step] = drawn * own
        seen[:, step] += noise[:, step] + others
    white = np.zeros((runs, 6))
    for step in range(6):
        for lag in range(min(3, step + 1)):
            others = np.tanh(3 * seen[:, : step - lag].sum(1))
            white[:, step] += column[lag] * (seen[:, step - lag] - others)
    for step in (1, 4):
        reach = min(3, 6 - step)
        along = (white[:, step : step + reach] @ column[:reach]) * shift[:, step]
        square = (column[:reach] ** 2).sum()
        ratio += np.log1p(rate * np.expm1(along - square / 2))
    delta = np.maximum(0, 1 - np.exp(0.5 - ratio))
    priced = PldAccountant().compose(plan.event).get_delta(0.5)
    assert delta.mean() <= priced + 5 * delta.std() / math.sqrt(runs)
    assert delta.mean() >= 0.9 * priced


@pytest.mark.thorough
@pytest.mark.usefixtures("same_draws")
def test_an_audit_finds_most_of_the_price_and_refutes_a_draw_out_of_turn(monkeypatch):
    plan = Plan(sampling_rate=0.2, steps=8, aggregation=SUM, num_bands=4, expected_batch=64)
    honest = white_box(plan, delta=1e-2, lanes=20_000, confidence=0.999)
    assert not honest.refuted
    assert honest.lower > 0.5 * honest.claimed  # its part is secret
    assert not one_run(plan, delta=1e-5, canaries=2_000).refuted
    monkeypatch.setattr(
        PoissonSampler, "_ids_at", lambda self, places, block: places.clamp_max(self.records)
    )
    assert white_box(plan, delta=1e-2, lanes=20_000, confidence=0.999).refuted


# ---- turns ---------------------------------------------------------------------------------------


def drawn(sampler, steps):
    found = [sampler.batch(step) for step in range(steps)]
    return [set(batch.ids[batch.valid].tolist()) for batch in found]


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_record_is_in_one_of_any_batches_in_a_row(rate):
    sampler = PoissonSampler(200, rate, num_bands=5, key=Key.from_seed(1))
    batches = drawn(sampler, 150)
    for start in range(146):
        row = batches[start : start + 5]
        assert sum(map(len, row)) == len(set.union(*row))
    if rate == 1.0:
        assert all(set.union(*batches[k : k + 5]) == set(range(200)) for k in range(0, 145, 5))
    assert sum(map(len, batches)) == pytest.approx(rate * 200 * 30, rel=0.2)


def test_the_part_of_a_record_depends_on_no_other():
    few, more = (PoissonSampler(n, 0.5, num_bands=4, key=Key.from_seed(2)) for n in (90, 91))
    parts = [{i for i in row.tolist() if i < 90} for row in few._parts]
    assert parts == [{i for i in row.tolist() if i < 90} for row in more._parts]


def test_one_band_is_dp_sgd_bit_for_bit():
    generator = torch.Generator().manual_seed(1)
    records = torch.randn(60, 3, generator=generator), torch.arange(60) % 2
    plan = Plan(sampling_rate=0.2, steps=5, aggregation=SUM)
    assert repr(attrs.evolve(plan, num_bands=1)) == repr(plan)
    assert to_json(attrs.evolve(plan, num_bands=1).event) == to_json(plan.event)
    weights = []
    for chosen in (plan, attrs.evolve(plan, num_bands=1), attrs.evolve(plan, num_bands=2)):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        loss = nn.CrossEntropyLoss(reduction="none")
        fit(chosen, model, loss, records, lr=0.1, execution=Execution(seed=4))
        weights.append(model.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


# ---- the plan ------------------------------------------------------------------------------------


def test_what_is_released_of_one_part_is_priced():
    plan = attrs.evolve(PLAN, steps=13)
    assert isinstance(plan.event, WorstOfDpEvent)
    (inner,) = plan.event.events
    assert (inner.count, inner.event.sampling_probability) == (5, pytest.approx(0.3))
    plain = PldAccountant().compose(inner).get_epsilon(1e-5)
    assert plan.epsilon(1e-5) == plain
    run = Run(sampling_rate=0.1, steps=13, noise_multiplier=1.0, num_bands=3)
    assert run.event == plan.event
    assert plan.calibrate(epsilon=2.0, delta=1e-5).epsilon(1e-5) <= 2.0
    solved = run.calibrate("sampling_rate", epsilon=50.0, delta=1e-5)
    assert solved.sampling_rate <= 1 / 3


def test_records_of_a_person_may_be_in_different_parts():
    """So the pairs of several records in the same steps do not apply, and the chain does."""
    group = attrs.evolve(PLAN, relation=Relation("zero-out", 2))
    (inner,) = PLAN.event.events
    pairs = attrs.evolve(group, num_bands=1, sampling_rate=PLAN.turn_rate, steps=4)
    assert pairs.event == inner
    assert group.epsilon(1e-5) > pairs.epsilon(1e-5)
    assert "group" in PLAN.certificate(accuracy=0.9, records=2).method


def test_a_released_loss_is_charged_in_the_turns_that_show_it():
    """With as many bands as steps between losses, one part shows all of its own."""
    watch = LossRelease(loss_every=3, bound=2.0, noise_multiplier=4.0)
    (same,) = attrs.evolve(PLAN, watch=watch).event.events
    assert (same.count, PLAN.cycle) == (4, 3)
    other = attrs.evolve(PLAN, watch=attrs.evolve(watch, loss_every=2))
    (apart,) = other.event.events
    assert [part.count for part in apart.events] == [2, 2]
    assert other.cycle == 6


@pytest.mark.parametrize(
    "plan",
    [
        Plan(sampling_rate=0.1, steps=7, aggregation=SUM, num_bands=3),
        PLAN,
        attrs.evolve(PLAN, watch=LossRelease(loss_every=2, bound=1.0)),
    ],
)
def test_a_charge_is_recognised(plan):
    assert _steps(plan.event, plan) >= plan.steps
    assert plan.event_after(_steps(plan.event, plan)) == plan.event
    assert _steps(attrs.evolve(plan, num_bands=2).event, plan) == 0


def test_what_is_not_proved_is_refused():
    ptr = ProposeTestRelease(clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(4.0))
    with pytest.raises(ArgumentError, match="num_bands 1 with ProposeTestRelease"):
        attrs.evolve(PLAN, aggregation=ptr)
    with pytest.raises(ArgumentError, match="num_bands at most 1/sampling_rate = 10"):
        attrs.evolve(PLAN, num_bands=11)
    with pytest.raises(ArgumentError, match="num_bands 1 with a test"):
        Run(test=GaussianTest(4.0), sampling_rate=0.1, num_bands=2)
    assert attrs.evolve(PLAN, aggregation=TrimmedSum(clip=1.0, noise_multiplier=1.0)).num_bands == 3


@pytest.mark.thorough
def test_the_price_is_proved_again_in_ball_arithmetic():
    pytest.importorskip("flint")
    from prudent.accounting.serialisation import to_plain

    claimed = PLAN.epsilon(1e-5)
    event, relation = parsed(to_plain(PLAN.event)), Typed.parsed(to_plain(PLAN.relation))
    found = prove(event, relation, claimed, 1e-5)
    assert found.epsilon <= claimed * 1.01


# ---- runs ----------------------------------------------------------------------------------------

TURNS = Plan(sampling_rate=0.2, steps=STEPS, aggregation=SUM, num_bands=3)


@pytest.mark.parametrize("num_bands", [3, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_resumed_run_has_the_same_noise(tmp_path, num_bands):
    plan = attrs.evolve(TURNS, num_bands=num_bands)
    killed(tmp_path / "run", plan=plan)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    state = load_checkpoint(tmp_path / "run", CPU)
    assert state["release"]["history"]["kept"].abs().min() > 0
    runs = [train(tmp_path / name, resume=True, plan=plan) for name in ("run", "copy")]
    assert torch.equal(runs[0].model.weight, runs[1].model.weight)
    seeded = {"execution": Execution(seed=7), "plan": plan}
    whole = train(None, **seeded)
    killed(tmp_path / "seeded", **seeded)
    resumed = train(tmp_path / "seeded", resume=True, **seeded)
    assert torch.equal(whole.model.weight, resumed.model.weight)


def test_a_new_key_begins_with_a_new_cycle(tmp_path):
    """Its parts are new: a record takes part as often as is paid for, in those of both keys."""
    killed(tmp_path, plan=TURNS)  # step 8 is paid for
    with pytest.warns(RuntimeWarning, match="goes on after step 9 .* steps 5 to 9"):
        resumed = train(tmp_path, resume=True, plan=TURNS, execution=Execution(physical_batch=8))
    kept = load_checkpoint(tmp_path, CPU)
    assert resumed.lost == 5
    assert updates(kept) == STEPS - 5
    assert charged(tmp_path).event == TURNS.event


def loop(plan, key=None, **more):
    """A training loop with a loader of its own."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(60, 3, generator=generator), torch.arange(60) % 2)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=12)
    return make_private(model, optimizer, loader, plan=plan, key=key, **more)


def take(model, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def test_a_loop_takes_its_batches_in_turn():
    model, optimizer, loader = loop(TURNS, key=Key.from_seed(3))
    for number, batch in enumerate(loader):
        take(model, optimizer, batch)
        if number == 1:
            break  # the next epoch begins with the part whose turn it is
    batches = iter(loader)
    take(model, optimizer, next(batches))
    next(batches)
    skipped = next(batches)
    with pytest.raises(ValueError, match="out of its turn"):
        take(model, optimizer, skipped)
    assert optimizer.steps == 3


def test_a_loaded_state_counts_whole_cycles():
    model, optimizer, loader = loop(TURNS)
    for _, batch in zip(range(4), loader, strict=False):
        take(model, optimizer, batch)
    _, other, _ = loop(TURNS)
    other.load_state_dict(optimizer.state_dict())
    assert other.steps == 6


def test_two_optimizers_of_a_run_release_no_more_of_held_out_records_than_is_paid_for():
    plan = attrs.evolve(TURNS, steps=6, held_out=HeldOut(every=5))
    loops = [loop(plan, held_out_set=(torch.randn(5, 3), torch.arange(5) % 2)) for _ in range(2)]
    loops[1][1].load_state_dict(loops[0][1].state_dict())
    taken, released = 0, 0
    batches = [iter(loader) for _, _, loader in loops]
    for which in itertools.cycle((0, 1)):
        model, optimizer, _ = loops[which]
        try:
            take(model, optimizer, next(batches[which]))
        except ValueError:
            break
        taken, released = taken + 1, released + bool(optimizer.released)
    assert taken == plan.steps  # of which 5 and 6 were reached by both
    assert released == plan.held_out.releases(plan.steps) == 2
    _, late, _ = loop(plan, held_out_set=(torch.randn(5, 3), torch.arange(5) % 2))
    late.load_state_dict(loops[0][1].state_dict())
    assert late.state_dict()["tested"] == loops[0][1].state_dict()["tested"] != []


def test_make_private_finds_the_noise():
    data = TensorDataset(torch.randn(60, 3), torch.arange(60) % 2)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=6)
    settings = {"epsilon": 8.0, "delta": 1e-5, "epochs": 2}
    _, private, drawn_from = make_private(model, optimizer, loader, num_bands=4, **settings)
    assert private.plan.num_bands == 4
    assert private.plan.epsilon(1e-5) <= 8.0
    assert drawn_from.sample_rate == pytest.approx(0.1)
    assert scenes.Likelihood(private.plan, scenes.dirac(SUM)).epsilon(1e-5) is None
