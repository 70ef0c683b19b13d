"""The keystream is ChaCha20's, its numbers have their laws, and positions never share bits."""

import copy
import math
import os
import pickle

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prudent.training import Chunk, Execution, Key, Plan, PoissonSampler, Step, Sum, make_private
from prudent.training.keystream import RARE, WORDS, Purpose, Reader, Stream, normals, uniforms
from tests.oracles import chacha20

RFC_KEY = bytes(range(32))
RFC_NONCE = bytes.fromhex("000000090000004a00000000")
# RFC 8439: section 2.3.2, and the first three vectors of appendix A.1.
VECTORS = [
    (
        RFC_KEY,
        1,
        RFC_NONCE,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32),
        0,
        bytes(12),
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        bytes(12),
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes([*bytes(31), 1]),
        1,
        bytes(12),
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
]
NOISE = Key.from_seed(1).stream(Purpose.NOISE)
DRAWS = 200_000


class TestCipher:
    def test_the_oracle_mixes_as_the_standard_does(self):
        """RFC 8439, section 2.1.1."""
        mixed = chacha20.quarter_round(0x11111111, 0x01020304, 0x9B8D6F43, 0x01234567)
        assert mixed == (0xEA2A92F4, 0xCB1CF8CE, 0x4581472E, 0x5881C4BB)

    @pytest.mark.parametrize(("key", "counter", "nonce", "expected"), VECTORS)
    def test_known_answers(self, key, counter, nonce, expected):
        expected = bytes.fromhex(expected)
        assert Reader(key, nonce, counter).words(8).numpy().tobytes() == expected
        assert chacha20.block(key, counter, nonce) == expected
        # The vectors can tell: fewer rounds, or one rotation that is off, give other bytes.
        assert chacha20.block(key, counter, nonce, rounds=18) != expected
        assert chacha20.block(key, counter, nonce, rotations=(16, 12, 8, 8)) != expected

    @pytest.mark.parametrize(
        ("step", "rank"), [(0, 0), (7, 0), (2**40 + 9, 3), (2**64 - 1, 2**32 - 1)]
    )
    def test_a_position_is_the_nonce(self, step, rank):
        words = NOISE.words(24, step=step, rank=rank).numpy().tobytes()
        nonce = step.to_bytes(8, "little") + rank.to_bytes(4, "little")
        assert words == b"".join(chacha20.block(NOISE.secret, k, nonce) for k in range(3))

    def test_parts_are_the_whole(self):
        sizes = (1, 3, 200_000, 8, 17)
        reader = NOISE.at(5)
        parts = torch.cat([reader.words(size) for size in sizes])
        assert torch.equal(parts, NOISE.words(sum(sizes), step=5))

    def test_no_position_is_read_beyond_its_end(self):
        """The counter of blocks would begin again, and with it the noise."""
        reader = Reader(RFC_KEY, RFC_NONCE, counter=2**32 - 1)
        reader.words(8)
        with pytest.raises(ValueError, match=f"Expected at most {WORDS} random words"):
            reader.words(1)


class TestPositions:
    def test_no_two_share_bits(self):
        keys = [Key.from_seed(1), Key.from_seed(2), Key.random()]
        steps, ranks = (0, 1, 2**32, 2**63), (0, 1, 2**31)
        seen = {
            int(key.stream(purpose).words(1, step=step, rank=rank))
            for key in keys
            for purpose in Purpose
            for step in steps
            for rank in ranks
        }
        assert len(seen) == len(keys) * len(Purpose) * len(steps) * len(ranks)

    def test_the_same_position_has_the_same_bits(self):
        again = Key(Key.from_seed(1).secret).stream(Purpose.NOISE)
        assert torch.equal(NOISE.words(9, step=4), again.words(9, step=4))

    @pytest.mark.parametrize("position", [{"step": 2**64}, {"step": 0, "rank": 2**32}])
    def test_what_the_nonce_cannot_hold_is_no_position(self, position):
        with pytest.raises(OverflowError):
            NOISE.words(1, **position)

    def test_generators_for_the_rest_are_their_own(self):
        cpu, key = torch.device("cpu"), Key.from_seed(1)
        states = [
            key.generator(cpu, purpose, rank=rank).initial_seed()
            for purpose in (Purpose.MODEL, Purpose.CORRUPTION)
            for rank in (0, 1)
        ]
        assert len(set(states)) == 4
        assert key.generator(cpu, Purpose.MODEL).initial_seed() == states[0]


class TestKeys:
    def test_the_system_gives_a_new_one_each_time(self):
        assert Key.random() != Key.random()
        assert len(Key.random().secret) == 32
        assert not Key.random().predictable
        assert Execution().key() != Execution().key()

    def test_a_seed_gives_the_same_one_and_says_so(self):
        assert Key.from_seed(3) == Key.from_seed(3) == Execution(seed=3).key()
        assert Key.from_seed(3).predictable
        large = [Key.from_seed(3 + high * 2**32) for high in range(4)] + [Key.from_seed(2**200)]
        assert len({key.secret for key in large}) == 5

    def test_it_is_never_shown(self):
        key = Key(bytes(range(65, 97)))
        for shown in (repr(key), str(key), repr(key.stream(Purpose.NOISE))):
            assert "ABC" not in shown
            assert "secret" not in shown
        with pytest.raises(ValueError, match="Expected secret 32 bytes") as error:
            Key(b"ABCDEF")
        assert "ABC" not in str(error.value)

    @pytest.mark.parametrize("seed", [-1, 0.5, "one", None])
    def test_seeds_are_whole_numbers(self, seed):
        with pytest.raises(ValueError, match="Expected seed"):
            Key.from_seed(seed)


class TestUniforms:
    def test_all_bits_are_fair_and_none_follows_another(self):
        words = NOISE.words(DRAWS, step=1).numpy()
        bits = ((words[:, None] >> np.arange(64)) & 1).astype(np.float64) * 2 - 1
        assert np.abs(bits.sum(0)).max() / math.sqrt(DRAWS) < 4.5
        pairs = (bits.T @ bits)[np.triu_indices(64, 1)] / math.sqrt(DRAWS)
        assert np.abs(pairs).max() < 5.5
        # A bit that is set once in a hundred times too often is seen.
        assert abs(bits[:, 0].sum() + 0.02 * DRAWS) / math.sqrt(DRAWS) > 4.5

    def test_they_are_uniform(self):
        drawn = uniforms(NOISE.words(DRAWS, step=2)).numpy()
        assert stats.kstest(drawn, "uniform").pvalue > 1e-5
        assert stats.kstest(drawn**1.02, "uniform").pvalue < 1e-5
        for small in (1e-2, 1e-3, 1e-4):
            assert stats.binomtest(int((drawn <= small).sum()), DRAWS, small).pvalue > 1e-5

    def test_none_is_zero_and_small_ones_have_all_their_digits(self):
        words = torch.tensor([0, -1, 1, 2**52, -(2**63), 2**63 - 1])
        expected = [2.0**-64, 2.0**-64, 1.5 * 2.0**-63, (2**52 + 0.5) * 2.0**-63, 1.0, 1.0]
        assert uniforms(words).tolist() == expected


class TestNormals:
    def test_they_are_normal_into_the_tails(self):
        drawn = normals(NOISE.words(DRAWS, step=3)).numpy()
        assert stats.kstest(drawn, "norm").pvalue > 1e-5
        edges = stats.norm.isf([0.5, 0.2, 0.05, 0.01, 1e-3, 1e-4])
        limits = np.concatenate([[-np.inf], -edges[:0:-1], edges, [np.inf]])
        expected = np.diff(stats.norm.cdf(limits)) * DRAWS
        assert self.fit(drawn, limits, expected) > 1e-5
        for factor in (0.98, 1.02):
            assert self.fit(drawn * factor, limits, expected) < 1e-5

    @staticmethod
    def fit(drawn, limits, expected):
        seen = np.histogram(drawn, limits)[0]
        return stats.chisquare(seen, expected).pvalue

    def test_both_of_a_pair_are_normal_and_independent(self):
        cosine, sine = normals(NOISE.words(DRAWS, step=4)).numpy().reshape(-1, 2).T
        for part in (cosine, sine):
            assert stats.kstest(part, "norm").pvalue > 1e-5
        assert abs((cosine * sine).mean()) < 4.5 / math.sqrt(len(cosine))
        assert abs((cosine**2 * sine**2).mean() - 1) < 4.5 * math.sqrt(8 / len(cosine))

    def test_the_longest_radius_is_as_far_out_as_its_bits_reach(self):
        pairs = normals(torch.tensor([0, 0, -1, 2**62, 2**63 - 1, 5])).view(-1, 2)
        longest = math.sqrt(-2 * math.log(2.0**-75))
        assert longest == pytest.approx(10.2, abs=0.005)
        assert pairs.norm(dim=1).tolist() == pytest.approx([longest, longest, 0.0])
        assert pairs[0].tolist() == pytest.approx([longest, 0.0])
        assert pairs[1].tolist() == pytest.approx([0.0, longest], abs=1e-14)

    def test_every_bit_of_both_words_counts(self):
        base = torch.tensor([2**30 + 12345, 2**50 + 12345])
        moved = torch.stack([base + torch.tensor(by) for by in ([0, 0], [1, 0], [0, 1], [0, 2048])])
        assert len({tuple(normals(pair).tolist()) for pair in moved}) == 4

    def test_rare_pairs_get_further_bits(self):
        """Radius and angle of the words against exact arithmetic, down to a uniform of 2⁻¹³⁸."""
        words = torch.tensor([RARE - 1, 2**61, 5, 3, -1, -7, 0, 2**40, RARE, 1])
        further = torch.tensor([2**62, -1, -(2**63), 2**20])
        asked = []

        def finer(places):
            asked.extend(places.tolist())
            return further

        drawn = normals(words, finer).view(-1, 2).tolist()
        assert asked == [0, 2, 4, 6]  # not the last pair
        with mpmath.workprec(300):
            for pair, (cosine, sine) in enumerate(drawn):
                first, second = words[2 * pair : 2 * pair + 2].tolist()
                more = further[pair].item() if pair < 4 else None
                rest = mpmath.mpf(0.5) if more is None else abs(more + mpmath.mpf(0.5)) / 2**63
                whole = first if first >= 0 else -first - 1
                uniform = (whole + (second % 2048 + rest) / 2**11) / mpmath.mpf(2) ** 63
                radius = mpmath.sqrt(-2 * mpmath.log(uniform))
                angle = mpmath.pi * (second // 2048 + mpmath.mpf(0.5)) / 2**52
                error = (16 * radius + 6 / radius) * 2.0**-53
                assert abs(cosine - radius * mpmath.cos(angle)) < error
                assert abs(sine - radius * mpmath.sin(angle)) < error

    def test_one_word_of_a_position(self):
        for place in (0, 7, 8, 1001):
            expected = NOISE.words(place + 1, step=3, rank=1)[-1:]
            assert torch.equal(NOISE.word(place, step=3, rank=1), expected)


def test_streams_are_values():
    assert Key.from_seed(1).stream(Purpose.NOISE) == Stream(NOISE.secret)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("held", [Key.random(), Key.random().stream(Purpose.NOISE)])
def test_a_key_is_not_copied(held, copied):
    with pytest.raises(TypeError, match="never copied or pickled"):
        copied(held)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_draw_the_noise_of_its_parent():
    plan = Plan(sampling_rate=0.5, steps=3, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    key, sampler = Key.random(), PoissonSampler(4, 0.5)
    chunk = Chunk(torch.ones(2, 2), torch.zeros(2), torch.ones(2, dtype=torch.bool))

    def step_of(**given):
        return Step(plan, nn.Linear(2, 1), lambda x, _: x.sum(1), expected_batch=2, **given)

    step = step_of(key=key)
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for use in (lambda: step([chunk]), lambda: sampler.batch(0), lambda: step_of(key=key)):
                try:
                    use()
                except RuntimeError as error:
                    refused += "by a fork" in str(error)
            step_of()  # a key of its own
        except BaseException:
            refused = -1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    step([chunk])
    # Workers that read are forked, too, and draw nothing.
    data = DataLoader(TensorDataset(torch.ones(8, 2), torch.zeros(8)), batch_size=4, num_workers=1)
    model = nn.Linear(2, 1)
    made = make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), data, plan=plan)
    assert len(list(made[2])) == 2
