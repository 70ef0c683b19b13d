"""Images from random processes: seeded, in range, as many of each process as asked for."""

import pytest
import torch

from prudent_lab.recipes.random_images import MIXTURE, PROCESSES, draw


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_draws_different_images_in_the_unit_interval_from_its_seed_alone(name):
    first = PROCESSES[name](3, 16, seeded(1))
    assert first.shape == (3, 3, 16, 16)
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.isfinite(first).all()
    assert first.std() > 0.05
    assert (first[0] - first[1]).abs().mean() > 0.02
    torch.rand(5)  # the default generator is not involved
    assert torch.equal(first, PROCESSES[name](3, 16, seeded(1)))
    assert not torch.equal(first, PROCESSES[name](3, 16, seeded(2)))


def test_a_mixture_holds_the_stated_number_of_each_process(monkeypatch):
    counts = {}

    def counting(name):
        def process(count, side, generator):
            counts[name] = count
            return torch.zeros(count, 3, side, side)

        return process

    stub = {name: counting(name) for name in PROCESSES}
    monkeypatch.setattr("prudent_lab.recipes.random_images.PROCESSES", stub)
    drawn = draw(10, 8, seeded(), (("noise", 0.24), ("leaves", 0.5), ("generator", 0.26)))
    assert drawn.shape == (10, 3, 8, 8)
    assert counts == {"noise": 2, "leaves": 5, "generator": 3}


def test_the_fractions_of_the_default_mixture_add_up_to_one():
    assert sum(fraction for _, fraction in MIXTURE) == pytest.approx(1)


@pytest.mark.parametrize("arguments", [(0, 8), (2, 3)])
def test_no_images_and_tiny_images_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        draw(*arguments, seeded())


def test_coloured_noise_has_more_power_at_low_frequencies():
    images = PROCESSES["noise"](16, 16, seeded())
    power = torch.fft.rfft2(images - images.mean((2, 3), keepdim=True)).abs().square()
    assert power[..., 1, 1].mean() > 5 * power[..., 8, 8].mean()
