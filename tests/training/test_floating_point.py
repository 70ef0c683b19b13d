"""Attacks on the low bits of noisy sums: they work against naive noise, and not against ours.

The attacker knows everything but the noise: two candidate sums, the key's construction, the
deviation and the lattice. Which floats can be reached from a sum is public knowledge. The attacks
of Mironov (2012) and, for Gaussian samplers, of Jin, McMurtry, Rubinstein and Ohrimenko (2022) ask
whether the output is reachable; that of Haney et al. (2022) looks at its precision; the order of
sums (Casacuberta et al. 2022) is in the last class.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

from prudent.accounting import DiscreteLaplaceTest, LaplaceTest, Reveals
from prudent.training import Chunk, FixedTrim, Plan, ProposeTestRelease, Step, Sum
from prudent.training.keystream import Key, Purpose, normals
from prudent.training.noise import (
    HostNoise,
    StepState,
    _relative_errors,
    rounded,
    spacing_of,
    with_rounding,
)
from prudent.training.parallel import Processes

CPU = torch.device("cpu")
DRAWS = 1 << 17
ONE = torch.ones((), dtype=torch.float64)


def noise(step=0, count=DRAWS):
    return normals(Key.from_seed(12).stream(Purpose.NOISE).words(count, step=step))


def naive(total, step):
    """Noise in single precision, then the sum in single precision."""
    return noise(step).float() + torch.tensor(total).float()


def parts(total, step):
    """Noise and one part of the sum rounded together, then another part: two processes."""
    return noise(step).float() + torch.tensor(0.0).float() + torch.tensor(total).float()


def ours(total, step):
    out = torch.full((DRAWS,), total, dtype=torch.float32)
    state = StepState.start(0.0, CPU)
    state.move_to(step + 1)
    HostNoise(Key.from_seed(12), CPU).add_(out, ONE, state)
    return out


def reachable(output, total):
    """Whether single-precision noise exists that gives the output: sum + noise rounds to it.

    The candidates are the floats next to output - total.
    """
    wanted = (output.double() - total).float()
    found = torch.zeros(len(output), dtype=torch.bool)
    for away in (-math.inf, None, math.inf):
        near = wanted if away is None else torch.nextafter(wanted, torch.tensor(away))
        found |= near + torch.tensor(total).float() == output
    return found


def trailing(output):
    """The exponent of the last bit that is set: the precision that an output shows."""
    mantissa, exponent = torch.frexp(output.double())
    whole = (mantissa * 2.0**53).to(torch.int64)
    return exponent - 53 + torch.log2((whole & -whole).double()).to(torch.int64)


def advantage(attack, mechanism, first=0.0, second=1.0):
    """Pr[attack says `second` | second] - Pr[… | first], for outputs around the middle.

    There the densities of both sums mirror each other, and what an attack on low bits gains comes
    from the low bits.
    """
    window = [mechanism(total, step) for step, total in enumerate((first, second))]
    middle = (first + second) / 2
    inside = [(out - middle).abs() < 0.5 for out in window]
    says = [attack(out)[keep].double().mean() for out, keep in zip(window, inside, strict=True)]
    return float(says[1] - says[0])


ATTACKS = {
    "reachable": lambda out: reachable(out, 1.0),
    "precision": lambda out: trailing(out) >= -25,
}
CHANCE = 5 / math.sqrt(0.3 * DRAWS)  # five standard deviations of a difference by chance


@pytest.mark.parametrize("mechanism", [naive, parts])
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attacks_work_on_naive_noise(attack, mechanism):
    """With one number each; the exact mechanism would allow nothing in this window."""
    assert advantage(ATTACKS[attack], mechanism) > 0.1


@pytest.mark.parametrize("attack", ATTACKS)
def test_they_gain_nothing_on_ours(attack):
    assert abs(advantage(ATTACKS[attack], ours)) < CHANCE


@pytest.mark.parametrize("total", [0.0, 1.0, 1e-4, 0.3, -7.123456, 1e5, 2.0**-30, 3.0e7])
@pytest.mark.parametrize("sigma", [1.0, 0.7, 1.999, 2.0**-20, 3e4])
def test_what_can_come_out_is_the_same_for_every_sum(total, sigma):
    """All outputs are multiples of the spacing, and of single floats if they are large."""
    out = torch.full((5000,), total, dtype=torch.float32)
    deviation = torch.tensor(sigma, dtype=torch.float64)
    spacing = float(spacing_of(deviation))
    assert sigma / 16 < spacing <= sigma / 8
    assert math.frexp(spacing)[0] == 0.5
    HostNoise(Key.from_seed(2), CPU).add_(out, deviation, StepState.start(0.0, CPU))
    assert torch.equal(torch.round(out.double() / spacing) * spacing, out.double())
    if abs(total) < 100 * sigma:
        # Neighbouring lattice points do occur: the noise is not coarser than it says.
        assert 1 in torch.unique(out.double() / spacing).diff()


class Two(Processes):
    """The first of two processes, with what the second one adds."""

    def collected(self, part):
        return part + torch.linspace(-1, 1, len(part), dtype=part.dtype)


def test_parts_of_other_processes_are_added_before_the_noise():
    model = nn.Linear(50, 20)
    plan = Plan(
        sampling_rate=0.5, steps=1, expected_batch=4.0,
        aggregation=Sum(clip=1.0, noise_multiplier=1.0),
    )  # fmt: skip
    step = Step(plan, model, lambda out, _: out.square().sum(1), processes=Two())
    step([Chunk(torch.randn(3, 50), torch.zeros(3))])
    released = torch.cat([p.grad.flatten() for p in model.parameters()]).double() * 4
    assert torch.equal(released, torch.round(released * 8) / 8)


def test_a_lattice_that_ignores_the_sum_would_be_seen():
    """Noise rounded before the sum is added shows the sum's own low bits."""
    spacing = spacing_of(ONE)
    total = 0.3
    out = torch.round(noise() / spacing) * spacing + total
    assert not torch.equal(torch.round(out / spacing) * spacing, out)


def exact_law(fraction, g):
    """Probabilities of lattice points of one number, from exact normal tails."""
    edges = (np.arange(-64, 66) - 0.5 - fraction) * g
    return np.diff(special.ndtr(edges)), np.arange(-64, 65)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.4999])
def test_the_law_is_that_of_the_rounded_gaussian(fraction):
    spacing, sigma = spacing_of(ONE), ONE
    count = 1 << 18
    total = torch.full((count,), fraction, dtype=torch.float64) * spacing
    out = (rounded(total, noise(count=count), sigma, spacing) / spacing).to(torch.int64).numpy()
    masses, points = exact_law(fraction, float(spacing))
    expected = masses * count
    common = expected > 50
    seen = np.array([(out == point).sum() for point in points])
    deviations = (seen - expected)[common] / np.sqrt(expected[common])
    assert np.abs(deviations).max() < 5
    other = exact_law(fraction + 0.3, float(spacing))[0] * count
    assert np.abs((seen - other)[common] / np.sqrt(other[common])).max() > 5


class TestTheBound:
    """`with_rounding`, and the two inequalities that its proof starts from."""

    def test_errors_of_normals_are_as_small_as_it_needs(self):
        """η(r) against exact arithmetic, for random words and for those near both ends."""
        words = Key.from_seed(7).stream(Purpose.NOISE).words(400, step=0)
        ends = [2**63 - 1, 2**63 - 1 - 2**12, 2**63 - 2**30, 0, 1, 2**20, 2**43, -1, -(2**63)]
        turns = [0, 1, 2**61, 2**62 + 5, -(2**62) - 7, 2**63 - 1]
        edge = torch.tensor(list(itertools.product(ends, turns))).flatten()
        words = torch.cat([words, edge])
        drawn, worst = normals(words).view(-1, 2).tolist(), 0.0
        with mpmath.workprec(200):
            for (first, second), pair in zip(words.view(-1, 2).tolist(), drawn, strict=True):
                whole = first if first >= 0 else -first - 1
                low = second % 2048
                # The bits stand for all real numbers that begin with them: both ends of the cell.
                for rest, turn in itertools.product((1e-9, 1.0), (0.0, 1.0)):
                    if whole < 2**42:
                        rest = 0.5  # further bits make this cell as narrow as one pleases
                    uniform = (whole + (low + mpmath.mpf(rest)) / 2048) / mpmath.mpf(2) ** 63
                    radius = mpmath.sqrt(-2 * mpmath.log(uniform))
                    angle = mpmath.pi * (second // 2048 + mpmath.mpf(turn)) / 2**52
                    ideal = radius * mpmath.cos(angle), radius * mpmath.sin(angle)
                    error = max(abs(a - b) for a, b in zip(pair, ideal, strict=True))
                    allowed = (14.5 * radius + 5 / max(radius, mpmath.mpf(2) ** -40)) * 2.0**-53
                    worst = max(worst, float(error / allowed))
        assert 0.1 < worst < 1

    @pytest.mark.parametrize("g", [1 / 16, 0.09, 1 / 8])
    def test_cells_change_by_no_more_than_it_says(self, g):
        """The relative change of squares that are moved, grown and shrunk by η, exactly."""
        largest = _relative_errors()[1]
        eta_unit = 2.0**-30  # instead of 2⁻⁵³, so that doubles can resolve the change
        for x, y in itertools.product(np.arange(-9, 9.1, 0.75), (0.0, 0.3, 5.0)):
            corner = np.hypot(max(abs(x), abs(x + g)), max(abs(y), abs(y + g)))
            nearest = np.hypot(
                *(0.0 if a <= 0 <= a + g else min(abs(a), abs(a + g)) for a in (x, y))
            )
            if nearest < g / 2 or corner > 10.2:
                continue
            eta = (16 * corner + 6 / nearest + 1) * eta_unit
            sides = [
                [special.ndtr(-abs(a) + b) for b in (0, eta, g, g + eta, g + 2 * eta)]
                for a in (min(x, -x - g), min(y, -y - g))
            ]
            grown = math.prod((s[3] - s[0] + s[1] - s[0]) / (s[2] - s[0]) for s in sides) - 1
            claimed = 4 * eta / g * math.exp(g * corner)
            assert grown < claimed * 1.01
            assert claimed * 2.0**-53 / eta_unit <= largest * 1.01

    def test_it_is_small_and_grows_with_the_run(self):
        before = (3.0, 1e-5)
        for numbers in (0, 10**6, 10**9, 10**12):
            after = with_rounding(3.0, 1e-5, numbers=numbers)
            assert after[0] >= before[0]
            assert after[1] >= before[1]
            before = after
        assert with_rounding(3.0, 1e-5, numbers=0) == (3.0, 1e-5)
        assert with_rounding(1e4, 1e-5, numbers=9)[1] == 1
        assert before[0] - 3.0 < 1e-4
        assert before[1] / 1e-5 - 1 < 1e-4

    def test_advantages_over_all_outputs_are_within_it(self):
        """Of a coarse sampler, whose law can be enumerated: the lemma on real and ideal runs."""
        rng = np.random.default_rng(0)
        for _ in range(50):
            ideal = rng.dirichlet(np.ones(6), size=2)
            error = rng.uniform(-1e-3, 1e-3, (2, 6))
            error -= (ideal * error).sum(1, keepdims=True)
            real = ideal * (1 + error)
            ratio = np.log1p(np.abs(error).max())
            ratio = max(ratio, -np.log1p(-np.abs(error).max()))
            for epsilon in (0.0, 0.5, 1.5):
                delta = np.maximum(ideal[0] - np.exp(epsilon) * ideal[1], 0).sum()
                spent = np.maximum(real[0] - np.exp(epsilon + 2 * ratio) * real[1], 0).sum()
                assert spent <= np.exp(ratio) * delta + 1e-15


class TestShownMargins:
    """A plan that reveals the noisy margin reveals no more of it than is priced."""

    def margins(self, reveals, trim, test=None):
        rule = ProposeTestRelease(
            clip=1.0, propose=0.5, noise_multiplier=1.0, test=test or LaplaceTest(1.0),
            reveals=reveals, trim=FixedTrim(0.5),
        )  # fmt: skip
        norms, valid = torch.zeros(1), torch.ones(1, dtype=torch.bool)
        words = Key.from_seed(3).stream(Purpose.TEST).words(60, step=trim).view(-1, 2)
        count = torch.tensor(float(trim), dtype=torch.float64)
        decisions = [rule.decide(norms, valid, count, pair) for pair in words]
        shown = torch.stack([one.noisy_margin for one in decisions])
        passed = torch.stack([one.passed for one in decisions])
        assert torch.equal(passed, shown > rule.threshold)
        return shown

    @pytest.mark.parametrize("trim", [1, 40])
    def test_low_bits_of_continuous_noise_are_not_shown(self, trim):
        shown = self.margins(Reveals.MARGIN, trim) * 4096
        assert torch.equal(shown, shown.round())
        hidden = self.margins(Reveals.BRANCH, trim) * 4096
        assert not torch.equal(hidden, hidden.round())  # the full noise has such bits

    def test_whole_numbers_stay(self):
        shown = self.margins(Reveals.MARGIN, 7, DiscreteLaplaceTest(50.0))
        assert torch.equal(shown, shown.round())
        assert float(shown.std()) > 20
