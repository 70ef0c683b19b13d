from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent_lab.corruption import (
    ALittleIsEnough,
    ColludingDirection,
    GradientCorruption,
    GradientNoise,
    GradientSignFlip,
    InnerProductManipulation,
    Mimic,
)
from tests.raising import refused

REVERSED = partial(InnerProductManipulation, scale=None)
LOUD = partial(InnerProductManipulation, scale=1e4)
KINDS = [
    GradientNoise,
    GradientSignFlip,
    ColludingDirection,
    InnerProductManipulation,
    REVERSED,
    LOUD,
    ALittleIsEnough,
    Mimic,
]
DETERMINISTIC = [kind for kind in KINDS if kind is not GradientNoise]

every_kind = pytest.mark.parametrize("kind", KINDS)


def batch(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (4, 3), "bias": (4,), "scale": ()}
    return {
        name: torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def flat(gradients):
    return torch.cat([rows.reshape(len(rows), -1) for rows in gradients.values()], 1)


def rows(*truths):
    return torch.tensor(truths, dtype=torch.bool)


def expected(corruption, honest, own):
    """What one bad record sends, in loops and plain formulas; both arguments are matrices."""
    if isinstance(corruption, GradientSignFlip):
        return -own
    if isinstance(corruption, ColludingDirection):
        return None
    if isinstance(corruption, InnerProductManipulation):
        mean = sum(honest) / len(honest)
        length = sum(one.norm() for one in honest) / len(honest)
        return -mean * (length / mean.norm() if corruption.scale is None else corruption.scale)
    if isinstance(corruption, ALittleIsEnough):
        mean = sum(honest) / len(honest)
        variance = sum((one - mean) ** 2 for one in honest) / len(honest)
        return mean - corruption.deviations * variance**0.5
    return honest[0]


@every_kind
def test_each_kind_is_a_gradient_corruption_with_a_checked_ratio(kind):
    assert isinstance(kind(0.1), GradientCorruption)
    with refused("ratio"):
        kind(0.6)


@settings(deadline=None)
@given(
    kind=st.sampled_from([kind for kind in DETERMINISTIC if kind is not ColludingDirection]),
    truths=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8),
)
def test_bad_rows_follow_the_formula_and_the_others_stay(kind, truths):
    mask, valid = rows(*(t[0] for t in truths)), rows(*(t[1] for t in truths))
    corruption, gradients = kind(0.5), batch(len(truths))
    before = flat(gradients)
    after = flat(corruption(gradients, mask, valid=valid))
    known = [i for i, (bad, real) in enumerate(truths) if real and not bad]
    known = known or [i for i, (_, real) in enumerate(truths) if real]
    for i, (bad, real) in enumerate(truths):
        want = expected(corruption, before[known], before[i]) if bad and real else before[i]
        torch.testing.assert_close(after[i], want, rtol=1e-12, atol=1e-12)
    assert before.equal(flat(gradients))


@every_kind
def test_only_bad_rows_change_and_all_of_them_do(kind):
    gradients, mask = batch(6), rows(0, 1, 0, 0, 1, 0)
    after = flat(kind(0.3)(gradients, mask))
    changed = (after != flat(gradients)).any(1)
    assert changed.equal(mask)
    assert flat(gradients).equal(flat(batch(6)))


def test_noise_has_the_given_variance_and_follows_the_generator():
    gradients = {"weight": torch.zeros(8, 200, 200)}
    mask = rows(0, 1, 1, 0, 1, 0, 0, 1)
    for variance in (100.0, 0.25):
        corruption = GradientNoise(0.5, variance)
        draw = [
            corruption(gradients, mask, generator=torch.Generator().manual_seed(seed))["weight"]
            for seed in (1, 1, 2)
        ]
        assert draw[0].equal(draw[1])
        assert not draw[0].equal(draw[2])
        # 160 000 normals: the sample variance has a relative deviation of 0.35 %.
        assert abs(float(draw[0][mask].var()) / variance - 1) < 0.02
        assert not draw[0][~mask].any()


def test_noise_is_drawn_anew_each_step_and_for_each_record():
    generator = torch.Generator().manual_seed(0)
    corruption, gradients, mask = GradientNoise(0.5), {"bias": torch.zeros(3, 5)}, rows(1, 1, 0)
    first = corruption(gradients, mask, generator=generator)["bias"]
    second = corruption(gradients, mask, generator=generator)["bias"]
    assert not first.equal(second)
    assert not first[0].equal(first[1])


def test_colluding_records_send_one_constant_vector_of_the_given_norm():
    corruption = ColludingDirection(0.5, norm=3.0)
    first = flat(corruption(batch(4, seed=0), rows(1, 0, 1, 0)))
    later = flat(corruption(batch(4, seed=1), rows(0, 1, 0, 0)))
    torch.testing.assert_close(first[0], first[2])
    torch.testing.assert_close(first[0], later[1])
    assert float(first[0].norm()) == pytest.approx(3.0)
    other = flat(ColludingDirection(0.5, norm=3.0, direction_seed=1)(batch(4), rows(1, 0, 0, 0)))
    assert float(first[0] @ other[0]) < 8.9


def test_colluding_records_match_the_mean_honest_norm():
    gradients, mask, valid = batch(5), rows(1, 0, 0, 1, 0), rows(1, 1, 1, 1, 0)
    after = flat(ColludingDirection(0.5)(gradients, mask, valid=valid))
    honest = flat(gradients)[[1, 2]].norm(dim=1).mean()
    torch.testing.assert_close(after[[0, 3]].norm(dim=1), honest.expand(2))


@pytest.mark.parametrize("size", [0.0, 0.1, 40.0])
def test_reversed_is_finite_where_the_honest_have_no_mean(size):
    gradients = {"weight": size * torch.tensor([[3.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])}
    sent = REVERSED(0.5)(gradients, rows(1, 0, 0))["weight"][0]
    assert sent.isfinite().all()
    assert float(sent.norm()) <= size


@pytest.mark.parametrize("corruption", [*(kind(0.5) for kind in KINDS), ColludingDirection(0.5, 1)])
def test_per_record_is_said_exactly_where_no_other_record_matters(corruption):
    mask, mine, changed = rows(1, 0, 0, 1), batch(4), batch(4)
    for name, gradient in batch(4, seed=1).items():
        changed[name][1:3] = gradient[1:3]
    sent = [
        flat(corruption(gradients, mask, generator=torch.Generator().manual_seed(0)))[[0, 3]]
        for gradients in (mine, changed)
    ]
    assert corruption.per_record == sent[0].equal(sent[1])


# The rows of the module's table, in its order.


@every_kind
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_edge_no_bad_record_in_the_batch(kind, ratio):
    gradients = batch(5)
    after = kind(ratio)(gradients, torch.zeros(5, dtype=torch.bool))
    assert after.keys() == gradients.keys()
    assert flat(after).equal(flat(gradients))


@every_kind
def test_edge_empty_batch(kind):
    after = kind(0.5)(batch(0), torch.zeros(0, dtype=torch.bool))
    assert {name: gradient.shape for name, gradient in after.items()} == {
        "weight": (0, 4, 3),
        "bias": (0, 4),
        "scale": (0,),
    }


@pytest.mark.parametrize(
    "kind", [ColludingDirection, InnerProductManipulation, REVERSED, LOUD, ALittleIsEnough]
)
def test_edge_every_record_bad(kind):
    # They know their own true gradients only, padding excluded.
    gradients, everyone, valid = batch(4), rows(1, 1, 1, 1), rows(1, 1, 1, 0)
    after = flat(kind(0.5)(gradients, everyone, valid=valid))
    true = flat(gradients)
    assert after.isfinite().all()
    assert after[0].equal(after[1])
    assert after[0].equal(after[2])
    assert after[3].equal(true[3])
    if kind is ColludingDirection:
        assert float(after[0].norm()) == pytest.approx(float(true[:3].norm(dim=1).mean()))
    else:
        torch.testing.assert_close(after[0], expected(kind(0.5), true[:3], true[0]))


@every_kind
def test_edge_padding_wins(kind):
    gradients = batch(3)
    after = flat(kind(0.5)(gradients, rows(1, 1, 0), valid=rows(0, 1, 1)))
    assert after[0].equal(flat(gradients)[0])
    assert not after[1].equal(flat(gradients)[1])


@pytest.mark.parametrize(
    "kind", [ColludingDirection, InnerProductManipulation, REVERSED, LOUD, ALittleIsEnough, Mimic]
)
def test_edge_nan_outside_the_honest_rows(kind):
    clean, poisoned = batch(4), batch(4)
    for gradient in poisoned.values():
        gradient[[0, 3]] = torch.nan
    mask, valid = rows(1, 0, 0, 0), rows(1, 1, 1, 0)
    want = flat(kind(0.5)(clean, mask, valid=valid))[:3]
    torch.testing.assert_close(flat(kind(0.5)(poisoned, mask, valid=valid))[:3], want)


@every_kind
def test_dtypes_are_kept(kind):
    for dtype in (torch.float32, torch.bfloat16):
        gradients = {name: gradient.to(dtype) for name, gradient in batch(4).items()}
        after = kind(0.5)(gradients, rows(1, 0, 1, 0))
        assert {gradient.dtype for gradient in after.values()} == {dtype}


@every_kind
def test_no_value_is_read_back_from_the_device(kind):
    # A tensor without data cannot be read back: what runs on it never asks the device anything.
    gradients = {name: gradient.to("meta") for name, gradient in batch(4).items()}
    mask = torch.zeros(4, dtype=torch.bool, device="meta")
    after = kind(0.5)(gradients, mask, valid=mask)
    assert {name: gradient.shape for name, gradient in after.items()} == {
        name: gradient.shape for name, gradient in gradients.items()
    }


@every_kind
@pytest.mark.parametrize(
    ("mask", "valid", "message"),
    [
        (torch.zeros(3), None, "Expected mask to be a vector of booleans, got torch.float32"),
        (rows(0, 1), None, "Expected one row of weight, mask and valid for each record"),
        (rows(0, 1, 0), rows(1, 1), "Expected one row of weight, mask and valid"),
        (rows(0, 1, 0), torch.ones(3), "Expected valid to be a vector of booleans"),
    ],
)
def test_masks_that_do_not_fit_are_refused(kind, mask, valid, message):
    with pytest.raises(ValueError, match=message):
        kind(0.5)(batch(3), mask, valid=valid)
