"""Poisson batches: every record by its own coin, whatever the physical shape."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from prudent.training import PoissonSampler
from prudent.training.keystream import Key


def members(sampler, step):
    """The ids of a batch, checked for its shape: ascending, padded at the end alone."""
    batch = sampler.batch(step)
    assert batch.ids.shape == batch.valid.shape
    assert batch.ids.shape[1] == sampler.physical_batch
    ids, valid = batch.ids.flatten(), batch.valid.flatten()
    count = int(valid.sum())
    assert valid[:count].all()
    assert (ids[count:] == 0).all()
    assert (ids[:count].diff() > 0).all()
    assert count == 0 or (ids[0] >= 0 and ids[count - 1] < sampler.records)
    assert len(batch.ids) == max(1, math.ceil(count / sampler.physical_batch))
    return ids[:count]


def indicators(sampler, steps):
    """A table (steps, records) of who was drawn when."""
    table = np.zeros((steps, sampler.records), dtype=bool)
    for step in range(steps):
        table[step, members(sampler, step).numpy()] = True
    return table


@pytest.fixture(scope="module", params=[1, 3, None], ids="physical={}".format)
def table(request):
    return indicators(
        PoissonSampler(40, 0.2, physical_batch=request.param, key=Key.from_seed(8)), 4000
    )


STEPS, RECORDS, RATE = 4000, 40, 0.2


@pytest.mark.unhurried
def test_every_record_is_drawn_at_the_rate(table):
    z = (table.mean(0) - RATE) / math.sqrt(RATE * (1 - RATE) / STEPS)
    assert np.abs(z).max() < 4.5
    assert stats.chi2.sf((z**2).sum(), RECORDS) > 1e-5
    wrong = (table.mean(0) - RATE * 1.1) / math.sqrt(RATE * (1 - RATE) / STEPS)
    assert stats.chi2.sf((wrong**2).sum(), RECORDS) < 1e-5


@pytest.mark.unhurried
def test_records_and_steps_are_independent(table):
    centred = (table - RATE) / math.sqrt(RATE * (1 - RATE))
    pairs = centred.T @ centred / math.sqrt(STEPS)
    z = pairs[np.triu_indices(RECORDS, 1)]
    assert np.abs(z).max() < 5
    assert stats.kstest(z, "norm").pvalue > 1e-5
    later = (centred[:-1] * centred[1:]).mean(0) * math.sqrt(STEPS - 1)
    assert np.abs(later).max() < 4.5


def test_the_size_of_a_batch_is_binomial(table):
    sizes = table.sum(1)
    law = stats.binom(RECORDS, RATE)
    edges = np.arange(4, 13)
    expected = np.diff(law.cdf(np.concatenate([[-1], edges, [RECORDS]])))
    seen = np.histogram(sizes, bins=[-0.5, *(edges + 0.5), RECORDS + 0.5])[0]
    assert stats.chisquare(seen, expected * STEPS).pvalue > 1e-5
    # A batch that was cut at its mean, or drawn anew when too large, would have been noticed.
    cut = np.histogram(np.minimum(sizes, 8), bins=[-0.5, *(edges + 0.5), RECORDS + 0.5])[0]
    assert stats.chisquare(cut, expected * STEPS).pvalue < 1e-5


def test_fixed_size_batches_would_be_noticed():
    """The check of independence can fail: drawing exactly qn records is not Poisson sampling."""
    chance = np.random.default_rng(0)
    fixed = np.zeros((STEPS, RECORDS), dtype=bool)
    for row in fixed:
        row[chance.choice(RECORDS, 8, replace=False)] = True
    centred = (fixed - RATE) / math.sqrt(RATE * (1 - RATE))
    z = (centred.T @ centred / math.sqrt(STEPS))[np.triu_indices(RECORDS, 1)]
    assert stats.kstest(z, "norm").pvalue < 1e-5


def test_a_batch_is_a_function_of_key_and_step():
    steps = [0, 1, 63, 64, 65, 200, 1000]
    sampler = PoissonSampler(500, 0.05, key=Key.from_seed(3))
    forwards = {step: members(sampler, step).tolist() for step in steps}
    again = PoissonSampler(500, 0.05, key=Key.from_seed(3))
    assert {step: members(again, step).tolist() for step in reversed(steps)} == forwards
    assert len({tuple(ids) for ids in forwards.values()}) == len(steps)
    other = PoissonSampler(500, 0.05, key=Key.from_seed(4))
    assert members(other, 0).tolist() != forwards[0]


@pytest.mark.parametrize("physical", [1, 7, 32, 1000])
def test_the_physical_size_changes_no_draw(physical):
    """Else a run resumed with another one would release other sums under the same noise."""
    plain, chunked = (
        PoissonSampler(300, 0.1, physical_batch=size, key=Key.from_seed(3))
        for size in (None, physical)
    )
    for step in range(80):
        assert torch.equal(members(plain, step), members(chunked, step))


def test_nobody_can_tell_the_draws_of_a_sampler_without_a_key():
    """The plan's price counts on that: with a fixed default, everyone would know who was drawn."""
    first, second = PoissonSampler(500, 0.05), PoissonSampler(500, 0.05)
    assert first.key != second.key
    assert any(not torch.equal(members(first, k), members(second, k)) for k in range(3))


def test_empty_draws_are_a_chunk_of_padding():
    sampler = PoissonSampler(10, 0.01, physical_batch=4, key=Key.from_seed(0))
    sizes = [len(members(sampler, step)) for step in range(300)]
    assert sizes.count(0) == pytest.approx(300 * 0.99**10, abs=30)
    empty = sampler.batch(sizes.index(0))
    assert empty.ids.shape == (1, 4)
    assert not empty.valid.any()


@pytest.mark.parametrize("physical", [None, 3])
def test_everyone_every_time(physical):
    sampler = PoissonSampler(10, 1.0, physical_batch=physical)
    for step in (0, 70):
        assert members(sampler, step).tolist() == list(range(10))


def test_one_record_and_tiny_rates():
    assert all(len(members(PoissonSampler(1, 1e-12), step)) == 0 for step in range(3))
    sampler = PoissonSampler(1, 0.5, physical_batch=1, key=Key.from_seed(1))
    drawn = sum(len(members(sampler, step)) for step in range(1000))
    assert drawn == pytest.approx(500, abs=80)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"records": 0, "rate": 0.1}, "records"),
        ({"records": 5, "rate": 0.0}, "rate"),
        ({"records": 5, "rate": 1.5}, "rate"),
        ({"records": 5, "rate": 0.1, "physical_batch": 0}, "physical_batch"),
        ({"records": 5, "rate": 0.1, "key": 3}, "key"),
        ({"records": 5, "rate": 0.1, "key": torch.Generator()}, "key"),
    ],
)
def test_what_is_refused(arguments, name):
    with pytest.raises(ValueError, match=f"Expected {name} "):
        PoissonSampler(**arguments)
