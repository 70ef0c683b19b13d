"""The network in whole numbers: exact, equal to the one in floating point, and made by a recipe."""

from pathlib import Path

import attrs
import numpy as np
import pytest

from prudent.certify.features.network import Layer, Network, read, write

torch = pytest.importorskip("torch", reason="training needs pip install 'prudent[train]'")

from prudent.certify.features import glyphs, training  # noqa: E402

SMALL = training.Recipe(
    "glyphs", steps=3, width=32, channels=(4, 8, 8, 8), classes=6, copies=4, seed=3
)


@pytest.fixture(scope="module")
def made() -> tuple[training.Convolutions, Network]:
    hand = glyphs.Hand.seeded(1)
    model = training.Convolutions(SMALL)
    for _ in range(3):  # so that the normalisation has seen images
        model(glyphs.glyphs(8, 8, hand))
    model.eval()
    return model, Network("x", "", training.rounded(model, glyphs.glyphs(16, 8, hand)), {})


def images(count: int, seed: int = 5) -> np.ndarray:
    drawn = glyphs.glyphs(count, 1, glyphs.Hand.seeded(seed))
    return np.rint(255 * drawn.numpy()).astype(np.uint8)


def test_whole_numbers_give_the_features_of_floating_point(
    made: tuple[training.Convolutions, Network],
) -> None:
    model, network = made
    pictures = images(64)
    with torch.no_grad():
        exact = model(torch.from_numpy(pictures / 255.0).float()).numpy()
    cosines = (exact * network(pictures)).sum(axis=1)
    assert cosines.min() > 0.995


def test_features_of_a_record_are_the_same_bits_in_any_company(
    made: tuple[training.Convolutions, Network],
) -> None:
    _, network = made
    pictures = images(64)
    alone = np.concatenate([network(picture[None]) for picture in pictures])
    assert np.array_equal(network(pictures), alone)
    assert np.array_equal(network(pictures[::-1])[::-1], alone)
    assert np.array_equal(network(pictures.reshape(64, 784)), alone)
    assert np.array_equal(network((pictures / 255.0)[:, None]), alone)


def test_sums_are_those_of_whole_numbers(made: tuple[training.Convolutions, Network]) -> None:
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
    made: tuple[training.Convolutions, Network], value: float
) -> None:
    pictures = images(8) / 255.0
    odd = pictures.copy()
    odd[3, 5, 5] = value
    found, wanted = made[1](odd), made[1](pictures)
    assert np.isnan(found[3]).all()
    assert np.array_equal(np.delete(found, 3, 0), np.delete(wanted, 3, 0))


def test_a_network_is_written_and_read(
    made: tuple[training.Convolutions, Network], tmp_path: Path
) -> None:
    write(tmp_path / "x.npz", made[1].layers, {"loss": 1.0})
    again = read(tmp_path / "x.npz", "x")
    assert again.story == {"loss": 1.0}
    assert again.digest
    assert np.array_equal(again(images(4)), made[1](images(4)))


def test_a_recipe_makes_the_same_network_again() -> None:
    one, story = training.trained(SMALL)
    two, _ = training.trained(SMALL)
    assert story["data"] == "glyphs"
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a.weight, b.weight)


def test_letters_are_drawn_class_by_class() -> None:
    pictures = torch.from_numpy(images(40) / 255.0).float()
    labels = torch.arange(40) % 4
    draw = training.Letters(pictures, labels, glyphs.Hand.seeded(1), warped=0.5, jitter=1.0)
    batch = draw(6, 5)
    assert batch.shape == (30, 28, 28)
    assert 0 <= batch.min() <= batch.max() <= 1 + 1e-6
    recipe = attrs.evolve(SMALL, data="both")
    assert training.trained(recipe, (pictures, labels))[1]["data"] == "both"


def test_the_loss_leaves_the_copy_itself_out() -> None:
    features = torch.nn.functional.normalize(torch.rand(12, 5), dim=1)
    wanted = 0.0
    for i in range(12):
        means = []
        for kind in range(3):
            others = [j for j in range(4 * kind, 4 * kind + 4) if j != i]
            means.append(torch.stack([features[i] @ features[j] for j in others]).mean())
        wanted -= torch.log_softmax(8 * torch.stack(means), 0)[i // 4].item() / 12
    assert training.similarity_loss(features, 3, 4, 8.0).item() == pytest.approx(wanted, rel=1e-5)
