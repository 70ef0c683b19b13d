"""One step against a loop over single records: clip, trim in the fixed order, add, divide."""

import math
import types

import dp_accounting as dp
import pytest
import torch
from torch import nn

from prudent.accounting import GaussianTest, RdpAccountant
from prudent.training import (
    AdaptiveTrim,
    Chunk,
    Fallback,
    FixedTrim,
    Mean,
    Plan,
    ProposeTestRelease,
    Step,
    Sum,
    TrimmedSum,
)
from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.keystream import Key, Purpose, normals
from prudent.training.noise import noise_factor, rounded
from tests.training.gradients.oracle import alone, cross_entropy

RECORDS, BATCH, SILENT, SEED = 23, 16.0, 1e-6, 5
HALF = 1e-8  # above half the spacing of the lattice of released sums, over the batch


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def data():
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(RECORDS, 6, generator=generator, dtype=torch.float64)
    inputs *= torch.linspace(0.01, 4, RECORDS)[torch.randperm(RECORDS, generator=generator), None]
    inputs[11] = inputs[4]  # a tie
    targets = torch.randint(0, 3, (RECORDS,), generator=generator)
    targets[11] = targets[4]
    return inputs, targets


def chunks(inputs, targets, size, padding):
    """Physical batches; padding repeats the first record, as the trainer's does."""
    parts = []
    for ids in torch.arange(len(targets)).split(size) if size else [torch.arange(len(targets))]:
        rows = torch.cat([ids, torch.zeros(padding, dtype=torch.int64)])
        valid = torch.arange(len(rows)) < len(ids)
        known = None if padding == 0 else valid
        parts.append(Chunk(inputs[rows], targets[rows], known, rows))
    return parts


def plan_of(aggregation):
    return Plan(sampling_rate=0.1, steps=10**6, aggregation=aggregation, expected_batch=BATCH)


def propose(share, **changes):
    settings = {
        "clip": 3.0,
        "propose": 0.5,
        "noise_multiplier": SILENT,
        "test": GaussianTest(1e-6),
        "trim": FixedTrim(share),
    }
    return ProposeTestRelease(**(settings | changes))


def by_hand(model, inputs, targets, clip, trim):
    """The clipped, trimmed sum over the expected batch, record after record."""
    gradients = alone(model, cross_entropy, inputs, targets, len(targets))
    rows = [torch.cat([g[i].flatten() for g in gradients.values()]) for i in range(len(targets))]
    clipped = [row * min(1.0, clip / float(row.norm())) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (min(clip, float(rows[i].norm())), i))
    kept = order[: max(0, len(rows) - trim)]
    return sum((clipped[i] for i in kept), torch.zeros_like(rows[0])) / BATCH


def step_of(aggregation, model, **options):
    key = Key.from_seed(SEED)
    return Step(plan_of(aggregation), model, cross_entropy, key=key, **options)


def first_noise(count):
    """Standard normals of the first step."""
    words = Key.from_seed(SEED).stream(Purpose.NOISE).words(count + count % 2, step=1)
    return normals(words)[:count]


def released(model, aggregation, outcome):
    """What the first step left in `.grad`, less the noise, which the seed gives away."""
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    noise = outcome.noise * noise_factor(len(gradient), len([*model.parameters()]), gradient.dtype)
    return gradient - noise * first_noise(len(gradient)) / BATCH


@pytest.mark.parametrize("engine", [BookKeeping, Materialised])
@pytest.mark.parametrize(("size", "padding"), [(None, 0), (None, 5), (4, 0), (4, 3), (1, 1)])
@pytest.mark.parametrize(
    ("aggregation", "trim", "passes"),
    [
        (Sum(clip=3.0, noise_multiplier=SILENT), 0, False),
        (TrimmedSum(clip=3.0, noise_multiplier=SILENT, trim=FixedTrim(0.0)), 0, True),
        (TrimmedSum(clip=3.0, noise_multiplier=SILENT, trim=FixedTrim(0.4)), 6, True),
        (propose(0.4, propose=0.99999), 6, False),
        (propose(0.4, fallback="trimmed"), 6, False),
        (propose(1.0, clip=5.0, propose=0.9), 16, True),
    ],
    ids=["sum", "trim-0", "trimmed", "ptr-falls-back", "ptr-falls-back-trimmed", "ptr-passes"],
)
def test_a_step_is_the_loop_over_records(engine, size, padding, aggregation, trim, passes):
    model, (inputs, targets) = network(), data()
    step = step_of(aggregation, model, engine=engine(model, cross_entropy))
    outcome = step(chunks(inputs, targets, size, padding))
    result = released(model, aggregation, outcome)
    assert bool(outcome.passed) is passes
    assert (int(outcome.trim), int(outcome.drawn)) == (trim, RECORDS)
    robust = passes or getattr(aggregation, "fallback", None) is Fallback.TRIMMED
    expected = by_hand(model, inputs, targets, aggregation.clip, trim if robust else 0)
    torch.testing.assert_close(result, expected, rtol=0, atol=HALF * aggregation.clip / 3)
    # The comparison can fail: one record more or less in the trim is far outside the tolerance.
    other = by_hand(model, inputs, targets, aggregation.clip, (trim if robust else 0) + 1)
    assert (result - other).abs().max() > 1e-4


def test_clipping_really_happened():
    model, (inputs, targets) = network(), data()
    gradients = alone(model, cross_entropy, inputs, targets, RECORDS)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    assert 3 < int((norms > 3.0).sum()) < RECORDS


class TestDpSgd:
    """With nothing trimmed and no test, everything is DP-SGD's."""

    def test_weights_and_noise(self):
        model, (inputs, targets) = network(), data()
        expected = by_hand(model, inputs, targets, 3.0, 0)
        drawn = first_noise(len(expected))
        for aggregation in (
            Sum(clip=3.0, noise_multiplier=1.3),
            TrimmedSum(clip=3.0, noise_multiplier=1.3, trim=FixedTrim(0.0)),
        ):
            outcome = step_of(aggregation, model)([Chunk(inputs, targets)])
            assert float(outcome.noise) == pytest.approx(1.3 * 3.0)
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            deviation = 3.9 * noise_factor(len(expected), len([*model.parameters()]), torch.float64)
            noisy = rounded(expected * BATCH, drawn, *map(torch.tensor, (deviation, 0.25)))
            assert torch.equal(gradient, noisy / BATCH)

    @pytest.mark.thorough
    @pytest.mark.parametrize("kind", [Sum, TrimmedSum])
    def test_price(self, kind):
        plan = Plan(sampling_rate=0.02, steps=300, aggregation=kind(clip=3.0, noise_multiplier=1.1))
        event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.1)), 300)
        theirs = dp.pld.PLDAccountant(value_discretization_interval=1e-4).compose(event)
        assert plan.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
        renyi = dp.rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
        assert plan.epsilon(1e-5, accountant=RdpAccountant) == pytest.approx(renyi, rel=2e-2)


class TestEdges:
    def test_empty_batch(self):
        model = network()
        for aggregation in (Sum(clip=1.0, noise_multiplier=SILENT), propose(0.5), Mean()):
            step = step_of(aggregation, model)
            outcome = step([Chunk(torch.zeros(0, 6).double(), torch.zeros(0, dtype=torch.int64))])
            assert released(model, aggregation, outcome).abs().max() < HALF
            assert (int(outcome.drawn), float(outcome.loss)) == (0, 0.0)

    def test_all_padding(self):
        model, (inputs, targets) = network(), data()
        aggregation = Sum(clip=1.0, noise_multiplier=SILENT)
        step = step_of(aggregation, model)
        outcome = step([Chunk(inputs, targets, torch.zeros(RECORDS, dtype=torch.bool))])
        assert released(model, aggregation, outcome).abs().max() < HALF
        assert int(outcome.drawn) == 0

    @pytest.mark.parametrize("engine", [BookKeeping, Materialised])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
    def test_records_that_are_not_finite_add_nothing(self, engine, bad):
        model, (inputs, targets) = network(), data()
        aggregation = TrimmedSum(clip=3.0, noise_multiplier=SILENT, trim=FixedTrim(0.2))
        step = step_of(aggregation, model, engine=engine(model, cross_entropy))
        spoiled = inputs.clone()
        spoiled[[3, 9]] = bad
        result = released(model, aggregation, step([Chunk(spoiled, targets)]))
        assert result.isfinite().all()
        if math.isnan(bad):
            rest = torch.tensor([i for i in range(RECORDS) if i not in (3, 9)])
            expected = by_hand(model, inputs[rest], targets[rest], 3.0, 3)
            torch.testing.assert_close(result, expected, rtol=0, atol=HALF)

    def test_the_mean(self):
        model, (inputs, targets) = network(), data()
        outcome = step_of(Mean(), model)([Chunk(inputs, targets)])
        expected = by_hand(model, inputs, targets, math.inf, 0)
        result = released(model, Mean(), outcome)
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-10)

    def test_what_is_not_trained_is_left_alone(self):
        model, (inputs, targets) = network(), data()
        model[0].weight.requires_grad_(False)
        Step(plan_of(Sum(clip=1.0, noise_multiplier=1.0)), model, cross_entropy)(
            [Chunk(inputs, targets)]
        )
        assert model[0].weight.grad is None
        assert model[0].bias.grad is not None

    def test_the_fallback_has_its_own_rate(self):
        grads = []
        for scale in (1.0, 0.25):
            model, (inputs, targets) = network(), data()
            rule = propose(0.0, fallback_scale=scale)
            step_of(rule, model)([Chunk(inputs, targets)])
            grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        torch.testing.assert_close(grads[0] * 0.25, grads[1])


class TestTrim:
    @pytest.mark.parametrize("drawn", [0, 5, RECORDS])
    def test_it_is_a_share_of_the_expected_batch_whatever_was_drawn(self, drawn):
        model, (inputs, targets) = network(), data()
        step = Step(plan_of(propose(0.0, trim=AdaptiveTrim(first=0.4))), model, cross_entropy)
        outcome = step([Chunk(inputs[:drawn], targets[:drawn])])
        assert outcome.trim == 6.0

    def test_it_follows_the_branches(self):
        model, (inputs, targets) = network(), data()
        # Of a batch of 16: 2 at first, 2 up, 1 down.
        trim = AdaptiveTrim(first=0.125, up=0.125, down=0.0625, most=1.0)
        rule = propose(0.0, propose=0.99999, trim=trim)
        step = Step(plan_of(rule), model, cross_entropy)
        level, seen = 2.0, []
        for _ in range(30):
            outcome = step([Chunk(inputs, targets)])
            assert outcome.trim == level
            level = max(0.0, level - 1) if outcome.passed else min(16.0, level + 2)
            seen.append(bool(outcome.passed))
        assert {True, False} == set(seen)


class TestCorruption:
    def test_it_sees_every_gradient_of_its_chunk(self):
        model, (inputs, targets) = network(), data()
        seen = []

        def corrupt(gradients, chunk, generator):
            seen.extend(chunk.ids.tolist())
            return {name: 0 * value for name, value in gradients.items()}

        aggregation = Sum(clip=1.0, noise_multiplier=SILENT)
        outcome = step_of(aggregation, model, corrupt=corrupt)(chunks(inputs, targets, 10, 0))
        assert seen == list(range(RECORDS))
        assert released(model, aggregation, outcome).abs().max() < HALF

    def test_it_draws_with_the_generator_of_the_step(self):
        inputs, targets = data()

        def corrupt(gradients, chunk, generator):
            return {
                name: torch.randn(value.shape, dtype=value.dtype, generator=generator)
                for name, value in gradients.items()
            }

        def gradient(seed):
            model = network()
            step = step_of(Mean(), model, corrupt=corrupt)
            step.generator.manual_seed(seed)
            step(chunks(inputs, targets, 10, 0))
            return torch.cat([p.grad.flatten() for p in model.parameters()])

        assert torch.equal(gradient(1), gradient(1))
        assert not torch.equal(gradient(1), gradient(2))


def test_the_divisor_must_be_known():
    plan = Plan(sampling_rate=0.1, steps=1, aggregation=Mean())
    with pytest.raises(ValueError, match="Expected expected_batch or a plan with expected_batch"):
        Step(plan, network(), cross_entropy)


def test_the_plan_pays_for_no_step_beyond_its_last() -> None:
    plan = Plan(
        sampling_rate=0.5,
        steps=2,
        expected_batch=4,
        aggregation=Sum(clip=1.0, noise_multiplier=1.0),
    )
    step = Step(plan, network(), cross_entropy)
    inputs, targets = (part[:4] for part in data())
    for _ in range(2):
        step([Chunk(inputs, targets)])
    with pytest.raises(ValueError, match=r"plan\.steps = 2"):
        step([Chunk(inputs, targets)])


class Spectral(nn.Module):
    """A complex weight beside real ones, as in networks that learn in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3, dtype=torch.cfloat))
        self.head = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head((inputs.to(torch.cfloat) @ self.weight).abs())


def test_complex_parameters_are_refused() -> None:
    """torch draws complex noise of variance 1/2 in each part, and takes real weights with it."""
    plan = plan_of(Sum(clip=1.0, noise_multiplier=1.0))
    with pytest.raises(ValueError, match=r"float32 or float64, got torch.complex64 for 'weight'"):
        Step(plan, Spectral(), cross_entropy)
    frozen = Spectral()
    frozen.weight.requires_grad_(False)
    Step(plan, frozen, cross_entropy)([Chunk(torch.ones(2, 4), torch.tensor([0, 1]))])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="float32 or float64"):
        Step(plan_of(Sum(clip=1.0, noise_multiplier=1.0)), network().to(dtype), cross_entropy)


def test_two_steps_without_a_key_draw_different_noise() -> None:
    """The device's default generator would repeat itself after `torch.manual_seed`."""
    inputs, targets = (part[:4] for part in data())
    gradients = []
    for _ in range(2):
        torch.manual_seed(0)
        model = network()
        Step(plan_of(Sum(clip=1.0, noise_multiplier=1.0)), model, cross_entropy)(
            [Chunk(inputs, targets)]
        )
        gradients.append(next(model.parameters()).grad)
    assert not torch.equal(gradients[0], gradients[1])


def test_what_is_no_batch_is_refused_by_name() -> None:
    inputs, targets = (part[:4] for part in data())
    step = Step(plan_of(Sum(clip=1.0, noise_multiplier=1.0)), network(), cross_entropy)
    for wrong in ([], Chunk(inputs, targets), [(inputs, targets)]):
        with pytest.raises(ValueError, match="chunks"):
            step(wrong)
    with pytest.raises(ValueError, match="valid"):
        step([Chunk(inputs, targets, valid=torch.ones(4))])
    for size in (0, -3, "20"):
        with pytest.raises(ValueError, match="expected_batch"):
            Step(
                Plan(sampling_rate=0.5, steps=1, aggregation=Sum(clip=1.0, noise_multiplier=1.0)),
                network(),
                cross_entropy,
                expected_batch=size,
            )


def ids_of(*parts):
    """Chunks of the first records, under given ids; a negative one marks padding."""
    inputs, targets = data()
    made = []
    for ids in map(torch.tensor, parts):
        rows = torch.arange(len(ids))
        made.append(Chunk(inputs[rows], targets[rows], ids >= 0, ids.clamp_min(0)))
    return made


@pytest.mark.parametrize(
    "parts",
    [[[4] * 20], [[1, 2, 2]], [[2, 1, 2]], [[1, 5], [5, 6]], [[1, -1, 1]], [[7], [-1], [7]]],
)
def test_a_record_that_would_count_twice_is_refused(parts):
    model = network()
    step = Step(plan_of(Sum(clip=1.0, noise_multiplier=SILENT)), model, cross_entropy)
    with pytest.raises(ValueError, match="all different"):
        step(ids_of(*parts))
    assert step.taken == 0


@pytest.mark.parametrize(
    "parts",
    [
        *([[0]], [[0, 1], [2, -1]], [[-1]], [[3, -1, 4], [-1, 9]], [[-1, -1], [0, 5]]),
        *([[3, 2, 1]], [[1, 5], [4, 6]]),
    ],
)
def test_ids_may_have_any_order_and_padding_anywhere(parts):
    model = network()
    step = Step(plan_of(Sum(clip=1.0, noise_multiplier=SILENT)), model, cross_entropy)
    assert step(ids_of(*parts)).drawn == sum(i >= 0 for part in parts for i in part)


def test_ties_are_broken_by_id_whatever_the_order():
    """Gradients of one length: which of them are trimmed is a matter of their ids alone."""

    def trimmed(ids, order):
        model = nn.Linear(6, 2, bias=False).double()
        nn.init.zeros_(model.weight)
        plan = plan_of(TrimmedSum(clip=10.0, noise_multiplier=SILENT, trim=FixedTrim(2.5 / BATCH)))
        step = Step(plan, model, cross_entropy)
        inputs, targets = torch.eye(6).double(), torch.zeros(2).long()
        step([Chunk(inputs[rows], targets, ids=ids[rows]) for rows in order.split(2)])
        return model.weight.grad[0].abs() > 0.25 / BATCH

    ids = torch.tensor([4, 1, 7, 0, 9, 3])
    kept = trimmed(ids, torch.arange(6))
    assert kept.sum() == 4
    for order in (ids.argsort(), torch.tensor([5, 2, 0, 1, 4, 3])):
        assert torch.equal(trimmed(ids, order), kept)
    assert not torch.equal(trimmed(9 - ids, torch.arange(6)), kept)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(3), "one integer for each row"),
        (torch.zeros(3, 1).long(), "one integer for each row"),
        (torch.arange(2), "one integer for each row"),
    ],
)
def test_ids_that_are_none(ids, message):
    inputs, targets = data()
    step = Step(plan_of(Sum(clip=1.0, noise_multiplier=SILENT)), network(), cross_entropy)
    chunk = Chunk(inputs[:3], targets[:3], torch.ones(3, dtype=torch.bool), ids)
    with pytest.raises(ValueError, match=message):
        step([chunk])
    with pytest.raises(ValueError, match="in every Chunk of a batch or in none"):
        step([Chunk(inputs, targets, ids=torch.arange(RECORDS)), Chunk(inputs, targets)])


def test_where_nothing_can_be_raised_a_record_still_counts_once(monkeypatch):
    """As in a CUDA graph: rows that repeat an id have no weight."""
    monkeypatch.setattr("prudent.training.chunk.is_capturing", lambda: True)
    inputs, targets = data()
    results = []
    for rows, ids in (
        ([0, 1, 2, 3], [2, 5, 7, 8]),
        ([0, 0, 1, 1, 1, 2, 0, 3, 2], [2, 2, 5, 5, 5, 7, 2, 8, 7]),
    ):
        model = network()
        step = Step(plan_of(Sum(clip=1.0, noise_multiplier=1e-12)), model, cross_entropy)
        outcome = step([Chunk(inputs[rows], targets[rows], ids=torch.tensor(ids))])
        assert outcome.drawn == 4
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-9)


def test_a_label_out_of_range_changes_nothing_but_its_own_summand():
    """The step is that without the record, up to noise that nobody sees."""
    inputs, targets = data()
    targets[9] = 77
    results = []
    for keep in (torch.arange(RECORDS), torch.arange(RECORDS)[torch.arange(RECORDS) != 9]):
        model = network()
        step = Step(plan_of(propose(0.25)), model, cross_entropy)
        step([Chunk(inputs[keep], targets[keep], ids=keep)])
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-4)


def test_the_first_step_warns_of_a_loss_over_the_batch():
    def contrastive(outputs, targets):
        return cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))

    step = Step(plan_of(Sum(clip=1.0, noise_multiplier=SILENT)), network(), contrastive)
    with pytest.warns(RuntimeWarning, match="nothing to compare"):
        step([Chunk(*data())])
    step([Chunk(*data())])


def test_the_counter_never_goes_back():
    """Else steps are released again with noise that has been used, and counted once."""
    plan = Plan(sampling_rate=1.0, steps=3, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    model = nn.Linear(2, 1)
    step = Step(plan, model, lambda outputs, targets: outputs.sum(1), expected_batch=2)
    batch = [Chunk(torch.ones(2, 2), torch.zeros(2), torch.ones(2, dtype=torch.bool))]
    step(batch)
    saved, first = step.state.state_dict(), model.weight.grad
    step(batch)
    step.state.load_state_dict(saved)
    assert step.taken == 2
    step(batch)
    assert not torch.equal(model.weight.grad, first)
    with pytest.raises(ValueError, match=r"at most plan\.steps = 3"):
        step(batch)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_chunks_of_different_forms_add_up_to_those_of_single_records(device):
    """Also where a step is replayed: a graph is good for one combination of forms."""
    rule = ProposeTestRelease(
        clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(1.0), failure=1e-2
    )
    plan = Plan(sampling_rate=0.1, steps=40, aggregation=rule)

    def texts(number, size):
        draw, chunks = torch.Generator().manual_seed(number % 2), []
        for place, length in enumerate((4, 9, 6, 4)):
            words = torch.randint(0, 20, (4, length), generator=draw).to(device)
            ids = 50 * torch.arange(4, device=device) + place
            valid = torch.arange(4, device=device) < 3
            parts = zip(*(each.split(size) for each in (words, valid, ids)), strict=True)
            chunks += [Chunk(part, part[:, 0] % 3, real, own) for part, real, own in parts]
        return chunks

    runs = []
    for size in (4, 1):
        torch.manual_seed(0)
        layers = nn.Embedding(20, 8), nn.Linear(8, 3), Averaged()
        model = nn.Sequential(*layers).double().to(device)
        step = Step(plan, model, cross_entropy, expected_batch=12, key=Key.from_seed(1))
        runs.append([])
        for number in range(10):
            step(texts(number, size))
            runs[-1] += [parameter.grad.clone() for parameter in model.parameters()]
    for mine, same in zip(*runs, strict=True):
        torch.testing.assert_close(mine, same, rtol=1e-8, atol=1e-8)


class Averaged(nn.Module):
    """The mean over the words of a text, of whatever length."""

    def forward(self, x):
        return x.mean(-2)


def test_a_program_is_dropped_when_other_parameters_are_trained():
    model, dropped = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), []
    plan = Plan(sampling_rate=0.5, steps=2, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    step = Step(plan, model, cross_entropy, expected_batch=4)
    step.programs.append(types.SimpleNamespace(clear=lambda: dropped.append(None)))
    for _ in range(2):
        step.refresh()
    assert not dropped
    model[0].requires_grad_(False)
    step.refresh()
    assert dropped
