"""Attacks by chosen records touch only the attacker's records, and know nothing of the others."""

import pytest
import torch

from prudent_lab.corruption import (
    Backdoor,
    ClassMeanPoison,
    GradientMatchingPoison,
    corrupted_mask,
)

KINDS = [ClassMeanPoison, GradientMatchingPoison, Backdoor]


def images(records=120, classes=4):
    generator = torch.Generator().manual_seed(records)
    features = torch.rand(records, 1, 6, 6, generator=generator)
    labels = torch.arange(records) % classes
    return features, labels


@pytest.mark.parametrize("kind", KINDS)
def test_no_honest_record_is_read(kind):
    """So the price of a run still holds for every honest record."""
    features, labels = images()
    bad = corrupted_mask(120, 0.25, seed=5)
    other = torch.where(bad[:, None, None, None], features, 1 - features)
    one = kind(0.25).apply(features, labels, classes=4, seed=5)
    two = kind(0.25).apply(other, labels, classes=4, seed=5)
    assert one[0][bad].equal(two[0][bad])
    assert one[1][bad].equal(two[1][bad])


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_inputs_stay_in_range_and_odd_labels_are_left_alone(kind):
    features, labels = images()
    labels[:60] = -1
    found, names = kind(0.5).apply(features, labels, classes=4, seed=5)
    assert found.min() >= features.min()
    assert found.max() <= features.max()
    assert names[:60].equal(labels[:60])
    nobody = kind(0.0).apply(features, labels, classes=4, seed=5)
    assert nobody[0] is features


def test_an_exaggerated_class_claims_to_be_the_next():
    features, labels = images()
    _, names = ClassMeanPoison(0.25).apply(features, labels, classes=4, seed=5)
    bad = corrupted_mask(120, 0.25, seed=5)
    assert names[bad].equal((labels[bad] + 1) % 4)


def test_matched_gradients_point_against_honest_training():
    from prudent_lab.corruption import records as poison
    from prudent_lab.corruption.records import VALUES, seeded_generator

    features, labels = images(400)
    features[:, 0, 0, :4] = torch.nn.functional.one_hot(labels, 4).float()  # something to learn
    bad = poison.corrupted_records(len(labels), 0.5, 5)
    chosen = poison._Chosen(features[bad], labels[bad])
    model = poison._surrogate(chosen, 4, seeded_generator(5, VALUES))
    wrong = (chosen.labels[:50] + 1) % 4

    def alignment(inputs):
        parameters = list(model.parameters())
        loss = torch.nn.functional.cross_entropy(model(inputs), wrong)
        mine = torch.autograd.grad(loss, parameters)
        honest = torch.nn.functional.cross_entropy(model(chosen.features), chosen.labels)
        theirs = torch.autograd.grad(honest, parameters)
        flat = [torch.cat([each.flatten() for each in one]) for one in (mine, theirs)]
        return float(torch.nn.functional.cosine_similarity(*flat, dim=0))

    start = chosen.features[:50]
    found = poison._matched(model, chosen, start, wrong, rounds=40)
    assert alignment(found) < alignment(start) - 0.05


def test_a_trigger_is_stamped_at_the_largest_value():
    features, labels = images()
    stamped = Backdoor(0.1, size=2).triggered(features, 1.0)
    assert (stamped[..., -2:, -2:] == 1).all()
    assert stamped[..., :-2, :].equal(features[..., :-2, :])
    found, names = Backdoor(0.25, target=3, size=2).apply(features, labels, classes=4, seed=5)
    bad = corrupted_mask(120, 0.25, seed=5)
    assert (names[bad] == 3).all()
    assert (found[bad][..., -2:, -2:] == found[bad].max()).all()
