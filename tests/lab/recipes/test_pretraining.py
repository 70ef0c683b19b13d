"""Contrastive pretraining: its loss, its views, and that it is a function of the seed."""

import math

import pytest
import torch

from prudent_lab.recipes import pretraining
from prudent_lab.recipes.pretraining import (
    Pretraining,
    contrast,
    pretrain,
    views,
)

TINY = Pretraining(widths=(4, 4, 8), images=24, side=32, batch=8, steps=1)


@pytest.fixture
def pool(monkeypatch):
    """The images on which networks are pretrained here; drawing them takes longer."""
    drawn = torch.randint(0, 256, (24, 3, 32, 32), generator=seeded(3), dtype=torch.uint8)
    monkeypatch.setattr(pretraining, "pool_of_images", lambda *_: drawn)
    return drawn


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_loss_is_that_of_finding_the_other_view_among_all_others():
    codes = torch.nn.functional.normalize(torch.randn(6, 4, generator=seeded()), dim=1)
    expected = 0.0
    for i in range(6):
        others = [float(codes[i] @ codes[j]) / 0.3 for j in range(6) if j != i]
        partner = float(codes[i] @ codes[(i + 3) % 6]) / 0.3
        expected += math.log(sum(map(math.exp, others))) - partner
    assert contrast(codes[:3], codes[3:], 0.3).item() == pytest.approx(expected / 6, rel=1e-5)


def test_views_differ_are_in_range_and_follow_the_generator(pool):
    images = pool.float() / 255
    first, second = views(images, seeded(1)), views(images, seeded(2))
    assert first.shape == (24, 3, 32, 32)
    assert first.min() >= 0
    assert first.max() <= 1
    assert not torch.equal(first, second)
    assert torch.equal(first, views(images, seeded(1)))


def test_a_network_is_a_function_of_its_setting(pool):
    first, second = (pretrain(TINY).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_pretraining_lowers_the_loss(monkeypatch):
    waves = torch.arange(1, 25).view(-1, 1, 1, 1) * torch.linspace(0, 3, 32).view(1, 1, 32, 1)
    pool = ((waves.sin() + 1) * 127).expand(-1, 3, -1, 32).byte()
    seen: list[float] = []

    def noted(*codes):
        loss = contrast(*codes)
        seen.append(loss.item())
        return loss

    monkeypatch.setattr(pretraining, "pool_of_images", lambda *_: pool)
    monkeypatch.setattr(pretraining, "contrast", noted)
    pretrain(Pretraining(widths=(8, 8, 16), images=24, side=32, batch=24, steps=100, lr=5e-3))
    assert seen[-1] < 0.9 * math.log(2 * 24 - 1)


def test_features_of_a_record_do_not_depend_on_the_records_beside_it(pool):
    encoder = pretrain(TINY)
    images = pool.float() / 255
    together = encoder(images)[-1][:1]
    torch.testing.assert_close(together, encoder(images[:1])[-1], atol=1e-5, rtol=1e-4)
    with pytest.raises(AssertionError):  # the comparison can fail: batch statistics mix records
        torch.testing.assert_close(encoder.train()(images)[-1][:1], together, atol=1e-5, rtol=1e-4)
