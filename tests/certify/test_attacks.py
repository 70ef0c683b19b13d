"""Attacks by someone who knows everything: what they reach, and that they cannot break a radius."""

import numpy as np
import pytest

from prudent_lab.attacks import Target, changed_at
from prudent_lab.certifying import BrokenCertificateError, _changed_beyond
from tests.certify.test_classifier import blobs, fitted


def test_a_prediction_changes_with_one_record_more_than_its_radius_and_not_before() -> None:
    found = fitted()
    (records, labels), (queries, truth) = blobs(1, 2000), blobs(2, 40)
    partition = found.partition_
    target = Target(
        found.counts_,
        partition.sizes,
        partition.cells(records),
        labels,
        partition.weights(queries),
        truth,
        partition.cells(queries),
    )
    radii = found.predict_radius(queries)[1]
    assert radii.min() > 0
    assert not any(changed_at(target, each, int(radii[each])) for each in range(40))
    assert all(changed_at(target, each, int(radii[each]) + 1) for each in range(40))
    assert _changed_beyond(target, radii) == 1
    with pytest.raises(BrokenCertificateError, match="copies of one record"):
        _changed_beyond(target, np.where(np.arange(40) == 7, radii + 1, radii))
