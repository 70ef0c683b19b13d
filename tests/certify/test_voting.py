"""Votes for landmarks: exact, each record by itself, and a similarity that saturates."""

import numpy as np
import pytest

from prudent.certify import CertifiedClassifier
from prudent.certify.features.voting import LANDMARK_SCALE, SCALE, Voting, rectified, rounded
from prudent.certify.vectors import LENGTH


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


@pytest.fixture(scope="module")
def voting() -> Voting:
    landmarks = np.random.default_rng(0).standard_normal((400, 20))
    tables = rounded(landmarks, LANDMARK_SCALE).reshape(4, 100, 20)
    return Voting("test", "", unit, tables, low=0.1, high=0.5, share=0.25)


def test_a_record_votes_for_the_nearest_landmark_of_each_table(voting: Voting) -> None:
    rows = np.random.default_rng(1).standard_normal((50, 20))
    votes = voting.records(rows)[:, 40:].reshape(50, 4, 100)
    whole = rounded(unit(rows)).astype(np.int64)
    for row, vote in zip(whole, votes, strict=True):
        products = voting.landmarks.astype(np.int64) @ row
        assert vote.argmax(axis=1).tolist() == products.argmax(axis=1).tolist()
        assert vote.sum() == 1
        assert vote.max() == 0.25


def test_codes_are_whole_and_short_so_that_products_are_exact() -> None:
    codes = rounded(np.random.default_rng(2).standard_normal((300, 50)) * 1e5)
    assert (codes == np.trunc(codes)).all()
    lengths = np.square(codes.astype(np.float64)).sum(axis=1)
    assert lengths.max() <= SCALE**2
    assert SCALE * LANDMARK_SCALE < 1 << 24
    assert lengths.min() > 0.98 * SCALE**2
    assert not rounded(np.zeros((1, 3))).any()


def test_weights_follow_the_cosine_between_their_bounds(voting: Voting) -> None:
    queries = np.random.default_rng(3).standard_normal((30, 20))
    cosines = unit(queries) @ unit(voting.landmarks.reshape(400, 20)).T
    wanted = ((cosines - 0.1) / 0.4).clip(0, 1)
    found = voting.queries(queries)
    np.testing.assert_allclose(found[:, 40:], wanted, atol=0.04)
    np.testing.assert_allclose(found[:, :40], rectified(unit(queries)))


def test_the_similarity_is_the_mixture_of_cosine_and_votes(voting: Voting) -> None:
    rows = np.random.default_rng(6).standard_normal((40, 20))
    records, queries = voting.records(rows), voting.queries(rows)
    cosines = queries[:, :40] @ records[:, :40].T
    wanted = 0.25 * cosines + 0.75 * queries[:, 40:] @ records[:, 40:].T
    vectors, _ = voting.pairing.records(records)
    found = voting.pairing.queries(queries) @ vectors.T / LENGTH**2
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    assert found.min() >= 0
    assert found.max() <= 1


def test_a_record_that_cannot_be_read_has_no_votes_and_changes_no_other(voting: Voting) -> None:
    rows = np.random.default_rng(4).standard_normal((10, 20))
    odd = rows.copy()
    odd[3, 0] = np.nan
    found, wanted = voting.records(odd), voting.records(rows)
    assert np.isnan(found[3]).all()
    assert np.array_equal(np.delete(found, 3, 0), np.delete(wanted, 3, 0))
    assert np.isfinite(voting.queries(odd)).all()


def test_votes_certify_more_than_cosines(voting: Voting) -> None:
    draw = np.random.default_rng(5)
    labels = draw.integers(3, size=4000)
    rows = draw.standard_normal((3, 20))[labels] + 0.8 * draw.standard_normal((4000, 20))
    votes = CertifiedClassifier(voting, 3, epsilon=4.0).fit(rows, labels)
    split = np.concatenate([unit(rows).clip(0), (-unit(rows)).clip(0)], axis=1)
    plain = CertifiedClassifier("vectors:40", 3, epsilon=4.0).fit(split, labels)
    by_votes = votes.certified_accuracy(rows, labels, [0, 1000])
    by_cosine = plain.certified_accuracy(split, labels, [0, 1000])
    assert by_votes[0] > 0.9
    assert by_votes[1000] > by_cosine[1000] + 0.1
