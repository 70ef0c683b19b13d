import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent_lab.corruption import (
    Backdoor,
    ClassMeanPoison,
    DataCorruption,
    FeatureNoise,
    GradientMatchingPoison,
    RandomLabelFlip,
    TargetedLabelFlip,
    corrupted_mask,
)
from tests.raising import refused

KINDS = [
    *(RandomLabelFlip, TargetedLabelFlip, FeatureNoise),
    *(ClassMeanPoison, GradientMatchingPoison, Backdoor),
]


def table(records, classes, shape=(3,)):
    generator = torch.Generator().manual_seed(records)
    features = torch.rand(records, *shape, generator=generator)
    labels = torch.randint(0, classes, (records,), generator=generator)
    return features, labels


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_data_corruption_with_a_checked_ratio(kind):
    assert isinstance(kind(0.1), DataCorruption)
    with refused("ratio"):
        kind(0.6)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_chosen_records_change_and_the_arguments_do_not(kind):
    features, labels = table(200, classes=4)
    before = features.clone(), labels.clone()
    new_features, new_labels = kind(0.25).apply(features, labels, classes=4, seed=5)
    changed = (new_labels != labels) | (new_features != features).any(1)
    assert changed.equal(corrupted_mask(200, 0.25, seed=5))
    assert features.equal(before[0])
    assert labels.equal(before[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_alone_decides(kind):
    features, labels = table(200, classes=10)
    torch.manual_seed(1)
    first = kind(0.5).apply(features, labels, classes=10, seed=1)
    torch.manual_seed(2)
    second = kind(0.5).apply(features, labels, classes=10, seed=1)
    third = kind(0.5).apply(features, labels, classes=10, seed=2)
    assert first[0].equal(second[0])
    assert first[1].equal(second[1])
    assert not (first[0].equal(third[0]) and first[1].equal(third[1]))


@settings(deadline=None)
@given(classes=st.integers(2, 30), seed=st.integers(0, 1000))
def test_a_random_flip_is_always_to_another_class(classes, seed):
    features, labels = table(40, classes)
    _, flipped = RandomLabelFlip(0.5).apply(features, labels, classes=classes, seed=seed)
    assert (flipped != labels).sum() == 20
    assert flipped.min() >= 0
    assert flipped.max() < classes


def test_a_random_flip_is_uniform_over_the_other_classes():
    labels = torch.full((60_000,), 2)
    _, flipped = RandomLabelFlip(0.5).apply(torch.zeros(60_000, 1), labels, classes=4, seed=0)
    counts = flipped.bincount(minlength=4)
    assert counts[2] == 30_000
    # Binomial(30 000, 1/3): the deviation is 82, five of them 410.
    assert all(abs(int(counts[other]) - 10_000) < 410 for other in (0, 1, 3))


def test_a_targeted_flip_mirrors_the_class():
    labels = torch.arange(30) % 5  # the class in the middle stays
    _, flipped = TargetedLabelFlip(0.5).apply(torch.zeros(30, 1), labels, classes=5, seed=0)
    bad = corrupted_mask(30, 0.5, seed=0)
    assert flipped[bad].equal(4 - labels[bad])


def test_feature_noise_has_the_given_variance():
    features, labels = table(400, classes=2, shape=(25, 25))
    for variance in (100.0, 4.0):
        noisy, _ = FeatureNoise(0.5, variance).apply(features, labels, classes=2, seed=0)
        noise = (noisy - features)[corrupted_mask(400, 0.5, seed=0)]
        # 125 000 normals: relative deviation of the sample variance is sqrt(2/n) = 0.4 %.
        assert abs(float(noise.var()) / variance - 1) < 0.02
        assert abs(float(noise.mean())) < 5 * variance**0.5 / 125_000**0.5


# The rows of the module's table, in its order.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("records", "ratio"), [(19, 0.0), (19, 0.05), (0, 0.5)])
def test_edge_nothing_to_corrupt(kind, records, ratio):
    features, labels = table(records, classes=3)
    new_features, new_labels = kind(ratio).apply(features, labels, classes=3, seed=0)
    assert new_features.equal(features)
    assert new_labels.equal(labels)


def test_edge_one_class_random_flip():
    features, labels = table(10, classes=1)
    with refused("classes"):
        RandomLabelFlip(0.1).apply(features, labels, classes=1, seed=0)
    assert RandomLabelFlip(0).apply(features, labels, classes=1, seed=0)[1].equal(labels)


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_edge_integer_features(ratio):
    features = torch.arange(40, dtype=torch.uint8).reshape(10, 4)
    noisy, _ = FeatureNoise(ratio).apply(features, torch.zeros(10).long(), classes=1, seed=0)
    assert noisy.dtype == torch.float32
    honest = ~corrupted_mask(10, ratio, seed=0)
    assert noisy[honest].equal(features[honest].float())


@pytest.mark.parametrize("labels", [torch.tensor([0, 1]), torch.tensor([0.0, 1.0, 1.0])])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(ValueError, match="one integer label per row"):
        RandomLabelFlip(0.1).apply(torch.zeros(3, 2), labels, classes=2, seed=0)


@pytest.mark.parametrize("kind", [RandomLabelFlip, TargetedLabelFlip])
@pytest.mark.parametrize("odd", [-4, 3, 10**12])
def test_a_label_that_is_no_class_stays(kind, odd):
    """To refuse it would let one record decide whether there is a training, and tell of it."""
    labels = torch.arange(40) % 3
    labels[7] = odd
    _, changed = kind(0.5).apply(torch.zeros(40, 2), labels, classes=3, seed=0)
    others = torch.arange(40) != 7
    assert changed[7] == odd
    labels[7] = 0
    _, expected = kind(0.5).apply(torch.zeros(40, 2), labels, classes=3, seed=0)
    assert torch.equal(changed[others], expected[others])
