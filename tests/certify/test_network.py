"""The network in whole numbers: exact, and equal to the one in floating point."""

import contextlib
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from prudent.certify import features
from prudent.certify.counts import SCALE
from prudent.certify.features import (
    Layer,
    Network,
    read_network,
    shipped_landmarks,
    shipped_network,
    write_network,
)

torch = pytest.importorskip("torch", reason="training needs the extra `train`")

from tools.feature_files import glyphs, letters  # noqa: E402

SMALL = letters.NetworkRecipe(
    steps=3, batch=16, width=32, channels=(4, 8, 8, 8), drop=0.0, sample=40, seed=3
)


@pytest.fixture(scope="module")
def made() -> tuple[letters.Convolutions, Network]:
    hand = glyphs.Hand.seeded(1)
    model = letters.Convolutions(SMALL, 5)
    for _ in range(3):  # so that the normalisation has seen images
        model(glyphs.glyphs(8, 8, hand))
    model.eval()
    return model, Network(letters.rounded(model, glyphs.glyphs(16, 8, hand)))


def images(count: int, seed: int = 5) -> np.ndarray:
    drawn = glyphs.glyphs(count, 1, glyphs.Hand.seeded(seed))
    return np.rint(255 * drawn.numpy()).astype(np.uint8)


@pytest.mark.unhurried
def test_whole_numbers_give_the_features_of_floating_point(
    made: tuple[letters.Convolutions, Network],
) -> None:
    model, network = made
    pictures = images(64)
    with torch.no_grad():
        exact = model.stages(torch.from_numpy(pictures / 255.0).float())[-1].numpy()
    found = network(pictures).clip(0)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1)
    assert ((exact * found).sum(axis=1) / lengths).min() > 0.995


def test_features_of_a_record_are_the_same_bits_in_any_company(
    made: tuple[letters.Convolutions, Network],
) -> None:
    _, network = made
    pictures = images(64)
    alone = np.concatenate([network(picture[None]) for picture in pictures])
    assert np.array_equal(network(pictures), alone)
    assert np.array_equal(network(pictures[::-1])[::-1], alone)
    assert np.array_equal(network(pictures.reshape(64, 784)), alone)
    assert np.array_equal(network((pictures / 255.0)[:, None]), alone)


def test_sums_are_those_of_whole_numbers(made: tuple[letters.Convolutions, Network]) -> None:
    layer = made[1].layers[1]
    values = np.random.default_rng(0).integers(0, 256, (2, 14, 14, 4)).astype(np.float32)
    kernel = layer.weight.astype(np.int64).reshape(4, 3, 3, 8)
    padded = np.pad(values.astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = np.zeros((2, 14, 14, 8), dtype=np.int64)
    for row in range(3):
        for column in range(3):
            part = padded[:, row : row + 14, column : column + 14]
            wanted += np.einsum("nhwc,cd->nhwd", part, kernel[:, row, column])
    pooled = wanted.reshape(2, 7, 2, 7, 2, 8).max(axis=(2, 4))
    assert np.array_equal(layer.sums(values), pooled)


def test_weights_that_float32_cannot_add_exactly_are_refused() -> None:
    ones = np.ones(1, dtype=np.float32)
    with pytest.raises(ValueError, match="exactly"):
        Layer(np.full((520, 1), 127, dtype=np.int8), ones, ones, size=0)
    with pytest.raises(ValueError, match="positive"):
        Layer(np.ones((9, 1), dtype=np.int8), -ones, ones, size=3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_not_finite_harms_its_own_image_only(
    made: tuple[letters.Convolutions, Network], value: float
) -> None:
    pictures = images(8) / 255.0
    odd = pictures.copy()
    odd[3, 5, 5] = value
    found, wanted = made[1](odd), made[1](pictures)
    assert np.isnan(found[3]).all()
    assert np.array_equal(np.delete(found, 3, 0), np.delete(wanted, 3, 0))


def test_a_network_is_written_and_read(
    made: tuple[letters.Convolutions, Network], tmp_path: Path
) -> None:
    write_network(tmp_path / "x.npz", made[1].layers, {"loss": 1.0})
    again, header = read_network(tmp_path / "x.npz")
    assert again.entries == 32
    assert header["provenance"] == {"loss": 1.0}
    assert np.array_equal(again(images(4)), made[1](images(4)))


@pytest.mark.parametrize(("name", "width"), [("letters", 512), ("glyphs", 256)])
def test_maps_and_landmarks_come_with_the_package(name: str, width: int) -> None:
    shipped = shipped_landmarks(name)
    pictures = images(20)
    codes, present = shipped.features.codes(pictures)
    assert codes.shape == (20, width)
    assert present.all()
    assert (np.square(codes.astype(np.int64)).sum(axis=1) <= SCALE**2).all()
    alone = [shipped.features.codes(picture[None])[0] for picture in pictures]
    assert codes.tobytes() == np.concatenate(alone).tobytes()
    cells = shipped.cells(pictures)
    assert cells.shape == (20, 1)
    assert ((cells >= 0) & (cells < shipped.sizes[0])).all()
    provenance = json.loads(
        str(np.load(resources.files(features) / f"{name}-landmarks.npz")["provenance"])
    )
    assert provenance["count"] + provenance["digits"] == len(shipped.codes)
    assert shipped.crowding is not None
    assert "held" in provenance["saw"] or "MNIST" in provenance["saw"]


@pytest.mark.parametrize("name", ["letters", "glyphs"])
def test_an_image_is_its_numbers_whatever_holds_them(name: str) -> None:
    pictures = images(12)
    shipped = shipped_landmarks(name)
    wanted = shipped.cells(pictures)
    units = pictures / 255.0
    mixed = [units[i] if i % 3 == 1 else pictures[i] for i in range(12)]
    mixed[4] = np.full((28, 28), np.nan)
    mixed[7] = torch.from_numpy(units[7]).float()
    found = shipped.cells(mixed)
    assert (found[4] == -1).all()
    assert np.array_equal(np.delete(found, 4, 0), np.delete(wanted, 4, 0))
    for same in (
        units,
        units.astype(np.float32),
        pictures.astype(np.int64),
        pictures.astype(float),
        pictures.reshape(12, 784),
        np.asfortranarray(pictures),
        torch.from_numpy(pictures)[:, None],
    ):
        assert np.array_equal(shipped.cells(same), wanted)


@contextlib.contextmanager
def onednn_set(enabled: bool) -> Iterator[None]:
    """Convolutions of torch with or without oneDNN."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", enabled)
        yield


@pytest.mark.unhurried
@pytest.mark.parametrize("onednn", [False, True], ids=["without oneDNN", "with oneDNN"])
@pytest.mark.parametrize("name", ["letters", "glyphs"])
def test_a_code_is_that_of_its_image_alone_whatever_the_batch(name: str, onednn: bool) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (64, 28, 28)).astype(np.uint8)
    codes_of = shipped_landmarks(name).features.codes
    with onednn_set(onednn):
        alone = np.concatenate([codes_of(picture[None])[0] for picture in pictures])
        for size in (15, 16, 64):
            assert np.array_equal(codes_of(pictures[:size])[0], alone[:size]), size


@pytest.mark.parametrize("name", ["letters", "glyphs"])
def test_the_layout_of_a_container_changes_no_code(name: str) -> None:
    network, _ = shipped_network(name)
    pictures = images(20)
    wanted = network(pictures)
    units = torch.from_numpy(pictures)[:, None] / 255
    wide = np.zeros((40, 56, 28), np.uint8)
    wide[::2, ::2] = pictures
    for same in (
        np.asfortranarray(pictures),
        pictures.transpose(0, 2, 1).copy().transpose(0, 2, 1),
        wide[::2, ::2],
        units.contiguous(memory_format=torch.channels_last).numpy(),
        np.asfortranarray(units.numpy()),
    ):
        assert np.array_equal(network(same), wanted)
        assert np.array_equal(np.concatenate([network(each[None]) for each in same]), wanted)


def test_a_library_whose_products_are_not_exact_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = shipped_network("glyphs")
    network.check()

    def short(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """A product with shorter mantissas, as some libraries choose for many rows."""
        found = rows @ weight.astype(rows.dtype)
        short = len(rows) > 9 and rows.dtype == np.float32
        return 4 * np.rint(found / 4) if short else found

    monkeypatch.setattr(features, "_product", short)
    with pytest.raises(RuntimeError, match="exact"):
        network.check()
    shipped_network.cache_clear()
    with pytest.raises(RuntimeError, match="exact"):
        shipped_network("glyphs")
    shipped_network.cache_clear()


def test_what_comes_with_the_package_is_small() -> None:
    folder = resources.files(features)
    sizes = [each.stat().st_size for each in Path(str(folder)).glob("*.npz")]
    assert sum(sizes) < 8_000_000
