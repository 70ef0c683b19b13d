"""Codes of images: exact products, statistics of glyphs, and the map in the package."""

from pathlib import Path

import attrs
import numpy as np
import pytest

from prudent.certify.features import feature_map
from prudent.certify.features.codes import (
    LinearCode,
    Recipe,
    basis_of,
    coefficients,
    make,
    read,
    shipped,
    whitening,
)
from prudent.certify.features.voting import Ballot, Voting


def images(count: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, 28, 28)).astype(np.uint8)


def test_coefficients_are_whole_and_their_groups_short() -> None:
    found = coefficients(images(5) / 255.0)
    assert (found == np.trunc(found)).all()
    for start, stop in ((0, 1), (1, 9), (9, 17), (17, 81)):
        lengths = np.square(found[:, 49 * start : 49 * stop].astype(float)).sum(axis=1)
        assert lengths.max() <= 1000**2
        assert lengths.min() > 950**2


def test_the_basis_is_that_of_a_singular_value_decomposition() -> None:
    rows = np.random.default_rng(0).standard_normal((12, 40)).astype(np.float32)
    mean, basis = basis_of(rows, 5)
    _, _, wanted = np.linalg.svd(rows - mean, full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(basis * wanted[:5].T, axis=0)), 1, atol=1e-5)


def test_the_covariance_within_classes_becomes_the_identity() -> None:
    draw = np.random.default_rng(1)
    spread = draw.standard_normal((4, 4))
    rows = np.repeat(5 * draw.standard_normal((200, 4)), 6, axis=0)
    rows += draw.standard_normal((1200, 4)) @ spread
    white = rows @ whitening(rows, 6, 0.0)
    groups = white.reshape(200, 6, 4)
    inner = (groups - groups.mean(axis=1, keepdims=True)).reshape(1200, 4)
    np.testing.assert_allclose(inner.T @ inner / 1000, np.eye(4), atol=1e-9)


def test_weights_that_float32_cannot_add_exactly_are_refused() -> None:
    ones = np.ones(1, dtype=np.float32)
    with pytest.raises(ValueError, match="exactly"):
        LinearCode(np.full((6000, 1), 127, dtype=np.int8), ones, ones)


@pytest.fixture(scope="module")
def scattering_map() -> Voting:
    return shipped("scattering")


def test_the_map_of_the_package_is_small_and_has_a_story(scattering_map: Voting) -> None:
    from importlib import resources

    file = resources.files("prudent.certify.features") / "scattering.npz"
    assert len(file.read_bytes()) < 2_000_000
    assert feature_map("scattering").digest == scattering_map.digest
    assert scattering_map.entries == 256
    assert scattering_map.ballot == Recipe().ballot


def test_the_code_of_an_image_is_the_same_bits_at_any_place(scattering_map: Voting) -> None:
    pictures = images(256)
    order = np.random.default_rng(1).permutation(256)
    codes = scattering_map.code(pictures)
    assert np.array_equal(scattering_map.code(pictures[order]), codes[order])
    assert np.array_equal(scattering_map.code((pictures / np.float32(255))[:, None]), codes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_not_finite_harms_its_own_image_only(
    scattering_map: Voting, value: float
) -> None:
    pictures = images(8) / 255.0
    odd = pictures.copy()
    odd[3, 5, 5] = value
    found, wanted = scattering_map.records(odd), scattering_map.records(pictures)
    assert np.isnan(found[3]).all()
    assert np.array_equal(np.delete(found, 3, 0), np.delete(wanted, 3, 0))


def test_a_map_is_made_from_glyphs_again_and_read(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="glyphs are drawn with torch")
    ballot = Ballot(tables=2, directions=16)
    small = Recipe(classes=4, copies=3, for_basis=3, for_statistics=4, entries=8, ballot=ballot)
    story = make(tmp_path / "one.npz", small)
    make(tmp_path / "two.npz", small)
    assert story == attrs.asdict(small)
    one, two = read(tmp_path / "one.npz", "x"), read(tmp_path / "two.npz", "x")
    assert one.ballot == two.ballot == ballot
    assert np.array_equal(one.records(images(3)), two.records(images(3)))
