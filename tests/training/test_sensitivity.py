"""What one record can change: a search over neighbouring batches, and rules it must find wrong.

A rule gives, for a batch of records in the order of their ids, the clipped sum, the trimmed sum and
the margin of the latter. `violation` says which promise a pair of neighbours breaks. The library's
rules must break none; every wrong rule below, each a mistake once made somewhere, must be caught.
"""

import itertools
import math
import random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from prudent.accounting import GaussianTest
from prudent.training import ProposeTestRelease, Sum, TrimmedSum
from prudent.training.aggregation import clip_weights, keep_smallest
from tests.tiers import examples

CLIP, PROPOSAL, EXPECTED = 1.0, 0.5, 4.0
SUM = Sum(clip=CLIP, noise_multiplier=1.0)
TRIMMED = TrimmedSum(clip=CLIP, noise_multiplier=1.0)
PTR = ProposeTestRelease(
    clip=CLIP, propose=PROPOSAL / CLIP, noise_multiplier=1.0, test=GaussianTest(1e-6)
)

NORMS = (0.0, 0.3, 0.5, 0.50001, 0.8, 1.0, 1.0, 2.0, 5.0, math.nan, math.inf)
DIRECTIONS = tuple(
    (math.cos(angle), math.sin(angle)) for angle in (0.0, 0.7, math.pi / 2, math.pi, 4.0, 5.5)
)


def tensors(batch, padding=0):
    """Norms, vectors and validity of a list of (norm, direction), with padding at the end."""
    rows = [*batch, *[(3.0, (1.0, 0.0))] * padding]
    norms = torch.tensor([norm for norm, _ in rows], dtype=torch.float64)
    directions = torch.tensor([d for _, d in rows], dtype=torch.float64).reshape(-1, 2)
    return norms, norms[:, None] * directions, torch.arange(len(rows)) < len(batch)


def weighted(weights, vectors):
    return torch.where(weights[:, None] > 0, weights[:, None] * vectors, 0.0).sum(0)


def library(batch, trim):
    """Clipped sum, trimmed sum, margin, and what is released on the branch that is taken."""
    norms, vectors, valid = tensors(batch, padding=2)
    count, words = torch.tensor(float(trim), dtype=torch.float64), torch.tensor([2**61, 2**62])
    total = weighted(SUM.decide(norms, valid, count, words).weights, vectors)
    trimmed = weighted(TRIMMED.decide(norms, valid, count, words).weights, vectors)
    decision = PTR.decide(norms, valid, count, words)
    margin = round(float(decision.noisy_margin))
    robust = weighted(decision.weights, vectors)
    assert torch.equal(robust, trimmed if margin > 0 else total)
    return total, trimmed, margin


def violation(rule, batch, position, record, trim):
    """Which promise is broken by adding one record, or None."""
    added = [*batch[:position], record, *batch[position:]]
    total, trimmed, margin = rule(batch, trim)
    total_added, trimmed_added, margin_added = rule(added, trim)
    slack = 1e-9
    if torch.linalg.vector_norm(total - total_added) > CLIP + slack:
        return "the sum moves by more than R"
    moved = torch.linalg.vector_norm(trimmed - trimmed_added)
    if moved > CLIP + slack:
        return "the trimmed sum moves by more than R"
    if max(margin, margin_added) > 0 and moved > PROPOSAL + slack:
        return "the trimmed sum moves by more than τ at a positive margin"
    if margin_added > margin:
        return "adding a record raises the margin"
    if margin - margin_added > 1:
        return "the margin moves by more than 1"
    if min(margin, margin_added) < 0 or margin != int(margin):
        return "the margin is no whole number from 0 on"
    return None


records = st.tuples(st.sampled_from(NORMS), st.sampled_from(DIRECTIONS))


@pytest.mark.unhurried
@examples(300)
@given(
    batch=st.lists(records, max_size=9),
    position=st.integers(0, 9),
    record=records,
    trim=st.integers(0, 7),
)
@example(batch=[], position=0, record=(5.0, (1.0, 0.0)), trim=0)
@example(batch=[(1.0, (1.0, 0.0))] * 6, position=0, record=(1.0, (-1.0, 0.0)), trim=3)
def test_one_record_changes_no_more_than_the_plan_says(batch, position, record, trim):
    assert violation(library, batch, min(position, len(batch)), record, trim) is None


@pytest.mark.unhurried
@examples(150)
@given(
    norms=st.lists(st.floats(0, 3, width=32), max_size=9),
    position=st.integers(0, 9),
    new=st.floats(0, 3, width=32),
    trim=st.integers(0, 9),
    data=st.data(),
)
def test_the_same_for_norms_without_ties(norms, position, new, trim, data):
    angles = st.floats(0, 6.25, width=32)
    batch = [(norm, (math.cos(a), math.sin(a))) for norm in norms for a in [data.draw(angles)]]
    angle = data.draw(angles)
    record = (new, (math.cos(angle), math.sin(angle)))
    assert violation(library, batch, min(position, len(norms)), record, trim) is None


def parts(batch):
    norms, vectors, valid = tensors(batch, padding=2)
    weights, clipped = clip_weights(norms, valid, CLIP)
    return norms, vectors, valid, weights, clipped


def margin_of(clipped, valid, trim):
    return max(0, trim - int((valid & (clipped > PROPOSAL)).sum()))


def trim_from_the_drawn_batch(batch, trim):
    return library(batch, math.floor(trim / 7 * len(batch)))


def ties_that_depend_on_the_batch(batch, trim):
    _, vectors, valid, weights, clipped = parts(batch)
    ids = torch.arange(len(clipped)) * (-1) ** len(batch)
    order = sorted(range(len(batch)), key=lambda i: (float(clipped[i]), int(ids[i])))
    keep = torch.zeros(len(clipped), dtype=torch.bool)
    keep[order[: max(0, len(batch) - trim)]] = True
    trimmed = weighted(weights * keep, vectors)
    return weighted(weights, vectors), trimmed, margin_of(clipped, valid, trim)


def division_by_the_drawn_batch(batch, trim):
    total, trimmed, margin = library(batch, trim)
    scale = EXPECTED / max(1, len(batch))
    return total * scale, trimmed * scale, margin


def margin_below_zero(batch, trim):
    total, trimmed, _ = library(batch, trim)
    _, _, valid, _, clipped = parts(batch)
    return total, trimmed, trim - int((valid & (clipped > PROPOSAL)).sum())


def no_margin_for_small_batches(batch, trim):
    total, trimmed, margin = library(batch, trim)
    return total, trimmed, margin if len(batch) > trim else 0


def full_margin_for_small_batches(batch, trim):
    total, trimmed, margin = library(batch, trim)
    return total, trimmed, margin if len(batch) > trim else trim


def margin_of_another_bound(batch, trim):
    total, trimmed, _ = library(batch, trim)
    _, _, valid, _, clipped = parts(batch)
    return total, trimmed, max(0, trim - int((valid & (clipped > 0.9)).sum()))


def one_too_few_trimmed(batch, trim):
    total, _, margin = library(batch, trim)
    return total, library(batch, max(0, trim - 1))[1], margin


def padding_counted_as_records(batch, trim):
    _, vectors, valid, weights, clipped = parts(batch)
    key = torch.where(valid, clipped, math.inf)
    keep = keep_smallest(key, torch.ones_like(valid), torch.tensor(float(trim)))
    trimmed = weighted(weights * keep, vectors)
    return weighted(weights, vectors), trimmed, margin_of(clipped, valid, trim)


def no_clipping(batch, trim):
    norms, vectors, valid, _, clipped = parts(batch)
    weights = (valid & torch.isfinite(norms)).double()
    keep = keep_smallest(clipped, valid, torch.tensor(float(trim)))
    return (
        weighted(weights, vectors),
        weighted(weights * keep, vectors),
        margin_of(clipped, valid, trim),
    )


def not_finite_trimmed_first_but_not_counted(batch, trim):
    norms, vectors, valid, weights, clipped = parts(batch)
    key = torch.where(torch.isfinite(norms), clipped, 2 * CLIP)
    trimmed = weighted(weights * keep_smallest(key, valid, torch.tensor(float(trim))), vectors)
    return weighted(weights, vectors), trimmed, margin_of(clipped, valid, trim)


def trimmed_mean_of_the_kept(batch, trim):
    total, trimmed, margin = library(batch, trim)
    return total, trimmed * EXPECTED / max(1, len(batch) - trim), margin


@pytest.mark.parametrize(
    "rule",
    [
        trim_from_the_drawn_batch,
        ties_that_depend_on_the_batch,
        division_by_the_drawn_batch,
        margin_below_zero,
        no_margin_for_small_batches,
        full_margin_for_small_batches,
        margin_of_another_bound,
        one_too_few_trimmed,
        padding_counted_as_records,
        no_clipping,
        not_finite_trimmed_first_but_not_counted,
        trimmed_mean_of_the_kept,
    ],
)
def test_a_wrong_rule_is_caught(rule):
    chance = random.Random(4)

    def record():
        return chance.choice(NORMS), chance.choice(DIRECTIONS)

    for _ in range(3000):
        batch = [record() for _ in range(chance.randint(0, 9))]
        case = batch, chance.randint(0, len(batch)), record(), chance.randint(0, 7)
        if violation(rule, *case) is not None:
            return
    pytest.fail("the search finds nothing wrong with a wrong rule")


@pytest.mark.unhurried
def test_all_small_batches():
    """Every batch of up to two records from a small alphabet, every neighbour, every trim."""
    alphabet = list(itertools.product((0.3, 1.0, math.nan), ((1.0, 0.0), (-1.0, 0.0))))
    for size in (0, 1, 2):
        for batch in itertools.product(alphabet, repeat=size):
            for record in alphabet[::3]:
                for trim in range(3):
                    assert violation(library, list(batch), size // 2, record, trim) is None
