"""The maps that come with the package, under attack on MNIST."""

import functools

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("torch", reason="data sets need pip install 'prudent[train]'")

from prudent.certify import CertifiedClassifier
from prudent.certify.classifier import decided, scores_of
from prudent.certify.features import feature_map
from prudent.certify.vectors import in_chunks
from prudent.experiments.datasets import Dataset, load
from prudent.release.noise import ReproducibleNoise
from tests.certify.attacking import Outcome, attacked


@functools.cache
def digits() -> Dataset:
    return load("mnist")


def under_attack(name: str, *, records: int, queries: int, each: int, epsilon: float) -> Outcome:
    """Attacks on a classifier of some digits, half of whose predictions are certified."""
    features, data = feature_map(name), digits()
    images, labels = data.train_features[:records].numpy(), data.train_labels[:records].numpy()
    test = data.test_features[:queries].numpy()
    model = CertifiedClassifier(features, 10, epsilon, noise=ReproducibleNoise(2))
    released = model.fit(images, labels).released_
    pairing = features.pairing
    asked = [pairing.queries(values) for _, values in in_chunks(features.queries, test)]
    vectors = [pairing.records(values)[0] for _, values in in_chunks(features.records, test)]
    queries_, rows = np.concatenate(asked), sparse.csr_array(np.concatenate(vectors))
    predicted, radii = decided(scores_of(queries_, released, pairing))
    assert np.mean(predicted == data.test_labels[:queries].numpy()) > 0.8
    most = int(2 * np.median(radii))
    assert most > 20
    return attacked(released, rows, queries_, pairing, each=each, most=most)


@pytest.mark.parametrize("name", ["glyphs", "letters", "scattering"])
def test_attacks_on_digits_change_no_certified_prediction_and_some_others(name: str) -> None:
    found = under_attack(name, records=700, queries=100, each=5, epsilon=20.0)
    assert found.tries == 500
    assert found.broken == 0
    assert found.changed > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glyphs", "letters", "scattering"])
def test_ten_thousand_attacks_on_digits(name: str) -> None:
    found = under_attack(name, records=10_000, queries=1_000, each=10, epsilon=1.0)
    assert found.tries == 10_000
    assert found.broken == 0
    assert found.changed > 10_000
