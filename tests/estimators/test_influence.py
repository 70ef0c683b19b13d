"""The tail of influences: where they are clipped, and what its index says."""

import numpy as np
import pytest

from prudent.estimators.influence import InfluenceTail

EDGES = 2.0 ** (np.arange(31) / 2)


def histogram(index: float, records: int = 10**7, noise: float = 10.0) -> InfluenceTail:
    """The exact histogram of a power law from 1 on."""
    above = records * EDGES**-index
    return InfluenceTail(1.0, above[:-1] - np.append(above[1:-1], 0.0), noise)


@pytest.mark.parametrize("index", [1.1, 1.5, 2.0, 3.0])
def test_the_index_of_a_power_law_is_found(index: float) -> None:
    found, error = histogram(index).index(1e7)
    assert found == pytest.approx(index, abs=4 * error + 0.1)
    assert error < 0.3


@pytest.mark.parametrize("noise", [1.0, 10.0, 100.0])
def test_the_clip_is_about_the_best_one(noise: float) -> None:
    tail = histogram(2.0, 10**6, 1.0)

    def cost(clip: float) -> float:
        """Noise, and half of the mean excess of a power law of index 2, which is the clip."""
        return (noise * clip) ** 2 + (0.5 * 10**6 * clip**-2 * clip) ** 2

    best = min(cost(max(18.0, place)) for place in EDGES)
    assert cost(tail.clip(noise)) < 3 * best


def test_a_lone_far_bin_is_noise_unless_it_is_sure() -> None:
    counts = np.zeros(30)
    counts[:5] = 1000.0, 800.0, 500.0, 200.0, 80.0
    tail = InfluenceTail(1.0, counts, 10.0)
    counts[20] = 55.0
    assert tail.last == 4
    counts[20] = 65.0
    assert tail.last == 20


@pytest.mark.parametrize("noise", [1.0, 1e6])
def test_an_empty_histogram_has_an_answer(noise: float) -> None:
    tail = InfluenceTail(1.0, np.zeros(30), noise)
    assert tail.last == -1
    assert np.isfinite(tail.index(1e4)).all()
    assert tail.clip(3.0) >= 1.0
