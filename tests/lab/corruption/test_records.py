import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent_lab.corruption import corrupted_mask, corrupted_records
from tests.raising import refused

ratios = st.integers(0, 500).map(lambda thousandths: thousandths / 1000)
seeds = st.integers(0, 2**63)


@settings(deadline=None)
@given(records=st.integers(0, 300), ratio=ratios, seed=seeds)
def test_the_set_has_exactly_the_promised_size_and_valid_ids(records, ratio, seed):
    bad = corrupted_records(records, ratio, seed)
    assert len(bad) == math.floor(Fraction(str(ratio)) * records)
    assert bad.unique().tolist() == bad.tolist()
    assert all(0 <= record < records for record in bad.tolist())


def test_a_ratio_is_the_decimal_it_is_written_as():
    assert math.floor(0.29 * 100) == 28
    assert len(corrupted_records(100, 0.29, seed=0)) == 29
    assert len(corrupted_records(100, np.float64(0.29), seed=0)) == 29


@settings(deadline=None)
@given(records=st.integers(1, 200), low=ratios, high=ratios, seed=seeds)
def test_the_sets_of_one_seed_are_nested(records, low, high, seed):
    low, high = sorted((low, high))
    smaller, larger = (corrupted_records(records, ratio, seed) for ratio in (low, high))
    assert set(smaller.tolist()) <= set(larger.tolist())


def test_the_seed_alone_decides():
    torch.manual_seed(1)
    first = corrupted_records(1000, 0.1, seed=7)
    torch.manual_seed(2)
    assert first.equal(corrupted_records(1000, 0.1, seed=7))
    assert not first.equal(corrupted_records(1000, 0.1, seed=8))


def test_every_record_is_as_likely_to_be_bad():
    # 4000 draws of 2 records of 5: each count is binomial(4000, 0.4), five deviations are 155.
    counts = torch.stack([corrupted_mask(5, 0.4, seed) for seed in range(4000)]).sum(0)
    assert ((counts - 1600).abs() < 155).all()


def test_the_mask_is_the_set():
    mask = corrupted_mask(50, 0.3, seed=3)
    assert mask.dtype == torch.bool
    assert mask.nonzero().squeeze(1).equal(corrupted_records(50, 0.3, seed=3))


@pytest.mark.parametrize("ratio", [-0.1, 0.51, float("nan"), "half"])
def test_ratios_outside_the_range_are_refused(ratio):
    with refused("ratio"):
        corrupted_records(10, ratio, seed=0)


def test_a_negative_seed_is_refused():
    with refused("seed"):
        corrupted_records(10, 0.1, seed=-1)
