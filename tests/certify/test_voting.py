"""Votes for random directions: exact, each record by itself, and a steep similarity."""

import hashlib

import attrs
import numpy as np
import pytest

from prudent import ArgumentError
from prudent.certify import CertifiedClassifier
from prudent.certify.features.voting import SCALE, Ballot, Voting, rectified, rounded
from prudent.certify.vectors import LENGTH

BALLOT = Ballot(tables=8, directions=50, low=0.6, high=1.0)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


@pytest.fixture(scope="module")
def voting() -> Voting:
    return Voting("test", "", np.asarray, 20, BALLOT)


def test_a_record_votes_for_the_nearest_direction_of_each_table(voting: Voting) -> None:
    rows = np.random.default_rng(1).standard_normal((50, 20))
    votes = voting.records(rows).reshape(50, 8, 50)
    signs = BALLOT.signs(20).astype(np.int64).T.reshape(8, 50, 20)
    for row, vote in zip(rounded(rows).astype(np.int64), votes, strict=True):
        assert vote.argmax(axis=1).tolist() == (signs @ row).argmax(axis=1).tolist()
        assert vote.sum() == 1
        assert vote.max() == 0.125


def test_codes_are_whole_and_short_so_that_products_are_exact() -> None:
    codes = rounded(np.random.default_rng(2).standard_normal((300, 256)) * 1e5)
    assert (codes == np.trunc(codes)).all()
    lengths = np.square(codes.astype(np.float64)).sum(axis=1)
    assert 0.95 * SCALE**2 < lengths.min() < lengths.max() <= SCALE**2
    assert np.abs(codes.astype(np.int64)).sum(axis=1).max() < 1 << 24  # with any signs
    assert not rounded(np.zeros((1, 3))).any()


def test_directions_are_the_same_in_every_version() -> None:
    drawn = Ballot().signs(256)
    assert set(np.unique(drawn)) == {-1, 1}
    digest = hashlib.sha256(drawn.astype(np.int8).tobytes()).hexdigest()
    assert digest.startswith("8aaf895d2dbb6dcc")


def test_weights_follow_the_product_between_their_bounds(voting: Voting) -> None:
    queries = np.random.default_rng(3).standard_normal((30, 20))
    products = unit(queries) @ BALLOT.signs(20)
    np.testing.assert_allclose(
        voting.queries(queries), ((products - 0.6) / 0.4).clip(0, 1), atol=0.03
    )


def test_the_similarity_is_a_steep_function_of_the_cosine() -> None:
    """About the chance that a normal number around m·cos, m the largest of 128, exceeds 0.8."""
    voting = Voting("test", "", np.asarray, 256, Ballot(tables=64))
    draw, found = np.random.default_rng(6), []
    rows = unit(draw.standard_normal((100, 256)))
    across = draw.standard_normal((100, 256))
    across = unit(across - (across * rows).sum(axis=1, keepdims=True) * rows)
    for cosine in (0.0, 0.2, 0.4, 0.8):
        queries = cosine * rows + np.sqrt(1 - cosine**2) * across
        found.append(float((voting.queries(queries) * voting.records(rows)).sum(axis=1).mean()))
    np.testing.assert_allclose(found, [0.23, 0.41, 0.61, 0.96], atol=0.03)


def test_a_record_that_cannot_be_read_has_no_votes_and_changes_no_other(voting: Voting) -> None:
    rows = np.random.default_rng(4).standard_normal((10, 20))
    odd = rows.copy()
    odd[3, 0] = np.nan
    found, wanted = voting.records(odd), voting.records(rows)
    assert np.isnan(found[3]).all()
    assert np.array_equal(np.delete(found, 3, 0), np.delete(wanted, 3, 0))
    assert not voting.queries(odd)[3].any()


def test_votes_certify_more_than_cosines() -> None:
    draw = np.random.default_rng(5)
    labels = draw.integers(3, size=4000)
    rows = draw.standard_normal((3, 20))[labels] + 1.5 * draw.standard_normal((4000, 20))
    voting = Voting("test", "", np.asarray, 20, Ballot())
    votes = CertifiedClassifier(voting, 3, epsilon=4.0).fit(rows, labels)
    plain = CertifiedClassifier("vectors:40", 3, epsilon=4.0).fit(rectified(unit(rows)), labels)
    by_votes = votes.certified_accuracy(rows, labels, [0, 500])
    by_cosine = plain.certified_accuracy(rectified(unit(rows)), labels, [0, 500])
    assert by_votes[0] > by_cosine[0] - 0.02
    assert by_votes[500] > by_cosine[500] + 0.1


def test_votes_are_votes_on_the_lattice(voting: Voting) -> None:
    rows = np.random.default_rng(7).standard_normal((40, 20))
    vectors, finite = voting.pairing.records(voting.records(rows))
    assert finite.all()
    assert (vectors.sum(axis=1) == LENGTH).all()


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError):
        Ballot(tables=3)
    with pytest.raises(ArgumentError):
        Ballot(directions=1)


@pytest.mark.parametrize("both", [False, True])
def test_a_share_of_the_similarity_is_the_cosine_of_parts(both: bool) -> None:
    rows = np.random.default_rng(6).standard_normal((40, 20))
    mixed = Voting("test", "", np.asarray, 20, attrs.evolve(BALLOT, share=0.25, both=both))
    votes = Voting("test", "", np.asarray, 20, BALLOT)
    parts = unit(np.hstack([rows.clip(0), -rows.clip(max=0)]) if both else rows.clip(0))
    cosines = parts @ parts.T
    assert mixed.width == votes.width + parts.shape[1]
    wanted = 0.25 * cosines + 0.75 * votes.queries(rows) @ votes.records(rows).T
    vectors, _ = mixed.pairing.records(mixed.records(rows))
    found = mixed.pairing.queries(mixed.queries(rows)) @ vectors.T / LENGTH**2
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    assert 0 <= found.min() < found.max() <= 1
    again, _ = mixed.pairing.records(vectors / LENGTH)
    assert np.array_equal(again, vectors)
