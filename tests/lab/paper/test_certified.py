"""Certified classifiers in the frontier: the records of every other method, and aimed ones."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `train`")

from prudent.certify import CertifiedClassifier  # noqa: E402
from prudent.release.noise import ReproducibleNoise  # noqa: E402
from prudent_lab.corruption import (  # noqa: E402
    AIMED,
    Backdoor,
    ClassMeanPoison,
    RandomLabelFlip,
    parse,
)
from prudent_lab.datasets import Dataset  # noqa: E402
from prudent_lab.paper.certified import Measured, noise_of  # noqa: E402
from prudent_lab.paper.jobs import frontier_jobs  # noqa: E402


@pytest.fixture(scope="module")
def known() -> Measured:
    """Four classes of vectors that are easy to tell apart."""
    draw = np.random.default_rng(0)
    labels = draw.integers(4, size=2600)
    rows = np.eye(12)[labels] + 0.25 * draw.random((2600, 12))
    rows = torch.tensor(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=torch.float32)
    names = torch.tensor(labels)
    data = Dataset("easy", rows[600:], names[600:], rows[:600], names[:600], 4, "")
    public = CertifiedClassifier(1.0, 4, 200, "vectors:12", ramp=(0.0, 0.5)).known().partition
    return Measured.of(data, public)


@pytest.mark.parametrize(
    "corruption", [None, RandomLabelFlip(0.3), ClassMeanPoison(0.2), Backdoor(0.3)], ids=str
)
def test_a_row_is_that_of_the_classifier_fitted_on_the_bad_records(known, corruption):
    data = known.data if corruption is None else known.data.corrupted(corruption, 5)
    noise = noise_of(known, 3.0, 5)
    model = CertifiedClassifier(3.0, 4, features=known.public, noise=ReproducibleNoise(5)).fit(
        data.train_features.numpy(), data.train_labels.numpy()
    )
    accuracy, success = known.measured(noise, corruption, 5)
    wanted = model.score(data.test_features.numpy(), data.test_labels.numpy())
    assert accuracy == round(100 * wanted, 2)
    assert (success is not None) == isinstance(corruption, Backdoor)
    if isinstance(corruption, Backdoor):
        others = data.test_labels != 0
        stamped = corruption.triggered(data.test_features[others]).numpy()
        assert success == round(100 * float(np.mean(model.predict(stamped) == 0)), 2)


def test_records_aimed_at_the_sums_do_more_harm_than_those_that_are_not(known):
    noise = noise_of(known, 3.0, 1)
    clean, _ = known.measured(noise, None, 1)
    flipped, _ = known.measured(noise, parse("label:0.3"), 1)
    assert clean > 95
    assert known.aimed_at(noise, 0.3, 1) < flipped - 20


def test_certified_classifiers_meet_every_attack_by_records_and_no_other():
    met = {job.corrupt.partition(":")[0] for job in frontier_jobs(1) if job.features}
    by_records = {"label", "label-targeted", "feature", "class-mean", "gradient-match", "backdoor"}
    assert met == {"none", AIMED, *by_records}
    assert not any(job.corrupt.startswith(AIMED) for job in frontier_jobs(1) if not job.features)
