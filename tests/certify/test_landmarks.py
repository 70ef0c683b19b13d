"""Landmarks in crowds: cells, weights and saved files, against brute force."""

from pathlib import Path

import attrs
import numpy as np
import pytest
from tools.feature_files.glyphs import digits

from prudent.certify import CertifiedClassifier
from prudent.certify.counts import NEAREST, SCALE, STEPS, Crowding, Landmarks, whole
from prudent.certify.features import Vectors, shipped_landmarks

WIDTH = 6


def crowded(records: float = 0.8, landmarks: float = 0.5, queries: float = 0.3) -> Landmarks:
    """Half of the landmarks in one crowd."""
    draw = np.random.default_rng(3)
    rows = np.concatenate([draw.normal(size=(70, WIDTH)), draw.normal(size=(70, WIDTH)) / 5 + 1])
    codes = whole(rows)
    crowding = Crowding.of(codes, records, landmarks, queries)
    return Landmarks(Vectors(WIDTH), codes, (-0.1, 0.2), crowding)


QUERIES = np.random.default_rng(4).normal(size=(50, WIDTH)) + 0.3


def test_cells_and_weights_are_those_of_the_definition() -> None:
    partition = crowded()
    assert partition.crowding is not None
    marks = partition.codes.astype(int)
    for row, number in enumerate(partition.crowding.products):
        others = np.delete(marks @ marks[row], row)
        assert number == round(np.sort(others)[-NEAREST:].sum() / NEAREST)
    cells, weights = partition.cells(QUERIES), partition.weights(QUERIES)
    found = partition.crowding.products.astype(float)
    for query, (cell,), row in zip(whole(QUERIES).astype(int), cells, weights, strict=True):
        product = marks @ query
        assert cell == np.argmax(product - np.rint(np.float32(0.8) * found.astype(np.float32)))
        crowd = np.sort(product)[-NEAREST:].sum() / NEAREST
        cosine = (product - round(0.3 * crowd) - np.rint(0.5 * found)) / SCALE**2
        wanted = np.clip((cosine + 0.1) / 0.3, 0, 1) * STEPS
        assert np.abs(row - wanted).max() <= 1 + 2e-6 * STEPS
        assert row.min() >= 0
        assert row.max() <= STEPS


def test_a_row_depends_on_its_record_alone() -> None:
    partition = crowded()
    for many in (partition.cells, partition.weights):
        alone = np.concatenate([many(query[None]) for query in QUERIES])
        assert alone.tobytes() == many(QUERIES).tobytes()


def test_crowds_attract_fewer_records() -> None:
    drawn = np.random.default_rng(5).normal(size=(2000, WIDTH)) / 3 + 1
    into = [(crowded(records).cells(drawn) >= 70).mean() for records in (0.0, 0.8)]
    assert into[1] < into[0]


def test_the_digest_tells_what_is_taken_off() -> None:
    one = crowded()
    assert one.crowding is not None
    others = [crowded(records=0.7), crowded(landmarks=0.4), crowded(queries=0.2)]
    others.append(attrs.evolve(one, crowding=None))
    assert len({each.digest for each in [one, *others]}) == 5


@pytest.mark.filterwarnings("ignore:The noise is predictable")
def test_a_saved_classifier_keeps_its_crowding(tmp_path: Path) -> None:
    made = CertifiedClassifier(1.0, classes=3, features=crowded())
    made.fit(QUERIES, np.arange(len(QUERIES)) % 3)
    made.save(tmp_path / "saved.npz")
    read = CertifiedClassifier.load(tmp_path / "saved.npz")
    for one, two in zip(made.predict_radius(QUERIES), read.predict_radius(QUERIES), strict=True):
        assert np.array_equal(one, two)


def test_digits_are_near_the_landmarks_that_come_with_the_package() -> None:
    shipped = shipped_landmarks("letters")
    pictures = (255 * digits(40, 99)).byte().numpy()
    codes, _ = shipped.features.codes(pictures)
    nearest = (codes @ shipped.codes.T).max(axis=1) / SCALE**2
    assert np.median(nearest) > 0.6
