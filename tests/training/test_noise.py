"""The noise of the test and of the gradients has the law it is priced by, and 10 % more is seen."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from prudent.accounting import DiscreteGaussianTest, DiscreteLaplaceTest, GaussianTest, LaplaceTest
from prudent.training import Chunk, FixedTrim, Plan, ProposeTestRelease, Step, Sum
from prudent.training import noise as noise_module
from prudent.training.keystream import Key, Purpose, Stream, normals
from prudent.training.noise import (
    DeviceNoise,
    HostNoise,
    StepState,
    margin_noise,
    noise_on,
    rounded,
    spacing_of,
)

TEST = Key.from_seed(11).stream(Purpose.TEST)
TESTS = (LaplaceTest(1.5), GaussianTest(3.0), DiscreteLaplaceTest(1.5), DiscreteGaussianTest(3.0))
DRAWS = 12_500
REJECT = 4.5  # standard deviations; by chance less than once in 100,000 comparisons


def name(test):
    return type(test).__name__


@pytest.fixture(scope="module", params=TESTS, ids=name)
def drawn(request):
    words = TEST.words(2 * DRAWS, step=0).view(-1, 2)
    test = request.param
    return test, each(test, lambda pair: margin_noise(test, pair), words).numpy()


def each(test, function, words):
    """The function of every pair of words: of all in one call, of some also one by one."""
    if isinstance(test, GaussianTest):  # normals are written in pairs, which vmap cannot follow
        return torch.stack([function(pair) for pair in words])
    together = torch.vmap(function)(words)
    for index in range(0, len(words), len(words) // 50):
        assert torch.equal(together[index], function(words[index]))
    return together


def deviation(test, draws):
    """The largest distance, in standard deviations, of a tail's frequency from its probability.

    The tails on both sides that have probability 0.3, 0.05 and 0.001 or the next below.
    """
    worst = 0.0
    for probability in (0.3, 0.05, 1e-3):
        distance = test.threshold(probability)
        expected = test.tail(distance)
        for side in (draws, -draws):
            seen = np.mean(side > distance)
            worst = max(worst, abs(seen - expected) / math.sqrt(expected / len(draws)))
    return worst


@pytest.mark.unhurried
def test_the_tails_are_as_heavy_as_the_law_says(drawn):
    test, draws = drawn
    assert deviation(test, draws) < REJECT


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_another_scale_is_seen(drawn, factor):
    test, draws = drawn
    if name(test).startswith("Discrete"):
        other, values = type(test)(test.scale * factor), np.arange(-40, 41)
        masses = np.array([other.tail(k - 1) - other.tail(k) for k in values])
        draws = np.random.default_rng(5).choice(values, DRAWS, p=masses / masses.sum())
    else:
        draws = draws * factor
    assert deviation(test, draws) > REJECT


def test_whole_numbers_have_their_masses(drawn):
    test, draws = drawn
    if not name(test).startswith("Discrete"):
        assert len(np.unique(draws)) == DRAWS
        return
    values = np.arange(-4, 5)
    masses = np.array([test.tail(k - 1) - test.tail(k) for k in values])
    seen = np.array([np.sum(draws == k) for k in values])
    seen, masses = np.append(seen, DRAWS - seen.sum()), np.append(masses, 1 - masses.sum())
    assert stats.chisquare(seen, masses * DRAWS).pvalue > 1e-6
    assert stats.chisquare(seen, np.roll(masses, 1) * DRAWS).pvalue < 1e-6


class TestPrecision:
    @pytest.mark.parametrize("test", TESTS, ids=name)
    def test_double(self, test):
        assert margin_noise(test, TEST.words(2, step=0)).dtype == torch.float64

    @pytest.mark.parametrize("test", [TESTS[0], TESTS[2], TESTS[3]], ids=name)
    @pytest.mark.parametrize("size", [0, 2**10, 2**40, 2**61, 2**62, 2**63 - 1])
    def test_every_word_gives_its_quantile(self, test, size):
        """Down to probabilities far below those of a test, which single precision has not."""
        both = [float(margin_noise(test, torch.tensor([word, 0]))) for word in (size, -size - 1)]
        assert both[0] == -both[1] >= 0
        beyond = (size + 0.5) / 2**63  # how likely it is that the noise is larger, or smaller
        gap = 0 if isinstance(test, LaplaceTest) else 1
        assert 2 * test.tail(both[0]) <= beyond * (1 + 1e-9)
        assert beyond <= 2 * test.tail(both[0] - gap) * (1 + 1e-9) or both[0] == 0

    @pytest.mark.parametrize("test", TESTS, ids=name)
    def test_what_a_test_fails_by_can_be_drawn(self, test):
        """A failure probability of 1e-15 is a number that 53 random bits could not hold."""
        assert float(margin_noise(test, torch.tensor([0, 0]))) > test.threshold(1e-17)


class TestBranches:
    @pytest.mark.unhurried
    @pytest.mark.parametrize("test", TESTS, ids=name)
    @pytest.mark.parametrize("margin", [0, 3, 6])
    def test_the_test_passes_as_often_as_it_is_priced(self, test, margin):
        rule = ProposeTestRelease(
            clip=1.0, propose=0.5, noise_multiplier=1.0, test=test, failure=0.1
        )
        norms, valid = torch.ones(2), torch.ones(2, dtype=torch.bool)
        trim = torch.tensor(margin + 2.0, dtype=torch.float64)
        times = 1200
        words = TEST.words(2 * times, step=1 + margin).view(-1, 2)
        passed = each(test, lambda pair: rule.decide(norms, valid, trim, pair).passed, words)
        passes = int(passed.sum())
        expected = test.tail(rule.threshold - margin)
        assert stats.binomtest(passes, times, expected).pvalue > 1e-5
        # One record more in the margin would have been noticed.
        if expected < 0.9:
            other = test.tail(rule.threshold - margin - 1)
            assert stats.binomtest(passes, times, other).pvalue < 1e-5

    @pytest.mark.parametrize("passing", [True, False])
    def test_gradient_noise(self, passing):
        """στ where the test passes, σR where not, over the expected batch; every draw its own."""
        model, clip, sigma, batch = nn.Linear(200, 100), 2.0, 1.5, 50.0
        plan = Plan(
            sampling_rate=0.1,
            steps=2,
            expected_batch=batch,
            aggregation=ProposeTestRelease(
                clip=clip,
                propose=0.25,
                noise_multiplier=sigma,
                test=GaussianTest(1e-6),
                trim=FixedTrim(0.5 if passing else 0.0),
            ),
        )
        step = Step(
            plan,
            model,
            lambda outputs, targets: (outputs - targets).square().sum(1),
            key=Key.from_seed(3),
        )
        nothing = [Chunk(torch.zeros(0, 200), torch.zeros(0, 100))]
        released = []
        for _ in range(2):
            assert bool(step(nothing).passed) is passing
            released.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        expected = sigma * clip * (0.25 if passing else 1.0) / batch
        # Uniform numbers over a cell of the lattice stand for where in it the noise was.
        spread = (
            torch.rand(2, len(released[0])).sub(0.5)
            * float(spacing_of(torch.tensor([expected * batch]).double()))
            / batch
        )
        first, second = (
            (values + more) / expected for values, more in zip(released, spread, strict=True)
        )
        assert stats.kstest(first, "norm").pvalue > 1e-5
        assert stats.kstest(first * 1.1, "norm").pvalue < 1e-5
        assert abs(float((first * second).mean())) < 5 / math.sqrt(len(first))


CPU = torch.device("cpu")


def at(step, trim=0.0):
    state = StepState.start(trim, CPU)
    state.move_to(step)
    return state


class TestHostNoise:
    NOISE = HostNoise(Key.from_seed(6), CPU)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("count", [1, 2, 17, 2**17, 2**18 + 3])
    def test_it_is_the_keystream_of_the_step(self, count, dtype):
        """However long the vector, on the lattice of its deviation."""
        words = Key.from_seed(6).stream(Purpose.NOISE).words(count + count % 2, step=4)
        start = torch.linspace(-1, 1, count, dtype=dtype)
        total, deviation = start.clone(), torch.tensor(0.3, dtype=dtype)
        self.NOISE.add_(total, deviation, at(4))
        expected = start.double() + deviation.double() * normals(words)[:count]
        assert torch.equal(total.double(), torch.round(expected * 32) / 32)

    def test_steps_and_purposes_have_noise_of_their_own(self):
        drawn = [self.NOISE.test_words(at(step)).tolist() for step in (1, 2, 1)]
        assert drawn[0] == drawn[2] != drawn[1]
        totals = [torch.zeros(2, dtype=torch.float64) for _ in range(3)]
        for total, step in zip(totals, (1, 2, 1), strict=True):
            self.NOISE.add_(total, torch.ones(()), at(step))
        assert torch.equal(totals[0], totals[2])
        assert not torch.equal(totals[0], totals[1])
        assert not torch.equal(totals[0], normals(torch.tensor(drawn[0])))


class Kernels:
    """The kernels' place taken on the host; off by `error`, or with one keystream for all ranks."""

    def __init__(self, error=0.0, ranks=1):
        self.error, self.ranks = error, ranks

    def stream(self, key):
        return Stream(key.numpy().tobytes())

    def fill_words(self, words, key, step, rank=0):
        words.copy_(self.stream(key).words(len(words), step=int(step), rank=rank * self.ranks))

    def add_normals(self, total, deviation, spacing, key, step):
        stream, number = self.stream(key), int(step)
        words = stream.words(len(total) + len(total) % 2, step=number)

        def more(places):
            return torch.cat([stream.word(p, step=number, rank=1) for p in places.tolist()])

        drawn = normals(words, more)[: len(total)] * (1 + self.error)
        total.copy_(rounded(total, drawn, deviation, spacing))


class TestKernels:
    @pytest.fixture(autouse=True)
    def _unchecked(self):
        noise_module._kernels_work.cache_clear()
        yield
        noise_module._kernels_work.cache_clear()

    def test_they_are_used_if_they_draw_what_the_host_draws(self, monkeypatch):
        monkeypatch.setattr(noise_module, "_kernels", Kernels)
        assert noise_module._kernels_work(CPU)
        device, host = DeviceNoise(Key.from_seed(1), CPU), HostNoise(Key.from_seed(1), CPU)
        assert torch.equal(device.test_words(at(3)), host.test_words(at(3)))

    @pytest.mark.parametrize("wrong", [{"error": 1e-10}, {"ranks": 0}])
    def test_wrong_noise_is_refused(self, monkeypatch, wrong):
        monkeypatch.setattr(noise_module, "_kernels", lambda: Kernels(**wrong))
        with pytest.raises(RuntimeError, match="draw other numbers on cpu than the cipher gives"):
            noise_module._kernels_work(CPU)

    def test_without_them_the_host_draws_and_says_so(self, monkeypatch):
        def missing():
            raise ModuleNotFoundError("No module named 'triton'")

        monkeypatch.setattr(noise_module, "_kernels", missing)
        with pytest.warns(RuntimeWarning, match="no CUDA graph is captured: Triton does not run"):
            assert not noise_module._kernels_work(CPU)
        assert not noise_module._kernels_work(CPU)  # said once
        assert isinstance(noise_on(CPU, Key.random()), HostNoise)


class TestStepState:
    def test_it_goes_on_from_what_was_saved(self):
        state = at(0)
        state.load_state_dict(at(7, trim=1.5).state_dict())
        assert (state.taken, int(state.number), float(state.trim)) == (7, 7, 1.5)


def test_a_step_that_fails_never_shares_its_noise():
    """Its position is used up: another batch at the same one could be subtracted from it."""
    plan = Plan(
        sampling_rate=0.1,
        steps=9,
        expected_batch=1,
        aggregation=Sum(clip=1.0, noise_multiplier=1.0),
    )
    model = nn.Linear(3, 2)
    step = Step(plan, model, lambda outputs, targets: (outputs - targets).square().sum(1))
    step([Chunk(torch.zeros(0, 3), torch.zeros(0, 2))])  # after a rehearsal, which takes no step
    with pytest.raises(ValueError, match="an input that fits"):
        step([Chunk(torch.zeros(1, 4), torch.zeros(1, 2))])
    step([Chunk(torch.zeros(0, 3), torch.zeros(0, 2))])
    assert (step.taken, int(step.state.number)) == (3, 3)
