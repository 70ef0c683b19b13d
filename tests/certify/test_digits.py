"""The maps that come with the package, under attack on MNIST."""

import functools

import numpy as np
import pytest

pytest.importorskip("torch", reason="data sets need the extra `train`")

from prudent.release.noise import ReproducibleNoise
from prudent_lab.certifying import CertifyResult, run
from prudent_lab.datasets import Dataset, load


@functools.cache
def digits() -> Dataset:
    return load("mnist")


def under_attack(name: str, *, records: int, queries: int, epsilon: float) -> CertifyResult:
    """Certify some digits and attack them; raises if a certified prediction changes."""
    data = digits()
    train = data.train_features[:records].numpy(), data.train_labels[:records].numpy()
    test = data.test_features[:queries].numpy(), data.test_labels[:queries].numpy()
    most = records // 20
    return run(
        lambda: (train, test),
        features=name,
        classes=10,
        epsilon=epsilon,
        records=(0, most // 8, most),
        noise=ReproducibleNoise(2),
    )[1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["glyphs", "letters"])
def test_attacks_on_digits_change_no_certified_prediction_and_some_others(name: str) -> None:
    found = under_attack(name, records=800, queries=60, epsilon=30.0)
    assert found.accuracy > 0.75
    assert found.attacked[40] < found.accuracy
    assert found.certified[40] <= found.attacked[40]
    assert found.median_radius > 10
    if name == "letters":  # one table: radii are sharp
        assert found.beyond == 1
    assert {"aimed", "copies", "mixture", "removal"} == set(found.attacks[40])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epsilon"), [("glyphs", 1.0), ("letters", 0.3)])
def test_all_digits(name: str, epsilon: float) -> None:
    found = under_attack(name, records=60_000, queries=10_000, epsilon=epsilon)
    assert found.accuracy > 0.93
    assert found.certified[3000] > 0.5
    assert np.isfinite(found.median_radius)
