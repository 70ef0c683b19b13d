"""Networks, glyphs and digits that are made without data, again by their recipes."""

import json
from pathlib import Path

import attrs
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `train`")

from tools.feature_files import glyphs, landmarks, letters  # noqa: E402
from tools.feature_files.__main__ import main  # noqa: E402
from tools.feature_files.glyphs import FORMS, digits  # noqa: E402

from prudent.certify.features import read_network  # noqa: E402

SMALL = letters.NetworkRecipe(
    steps=3, batch=16, width=32, channels=(4, 8, 8, 8), drop=0.0, sample=40, seed=3
)
FEW = glyphs.GlyphRecipe(classes=6, others=12, copies=5, training=SMALL)


def images(count: int, seed: int = 5) -> np.ndarray:
    drawn = glyphs.glyphs(count, 1, glyphs.Hand.seeded(seed))
    return np.rint(255 * drawn.numpy()).astype(np.uint8)


def public() -> "tuple[torch.Tensor, torch.Tensor]":
    return torch.from_numpy(images(60)), torch.arange(60) % 3


def test_a_recipe_makes_the_same_network_again() -> None:
    one, provenance = letters.trained(SMALL, *public())
    two, _ = letters.trained(SMALL, *public())
    assert provenance["steps"] == 3
    assert len(one) == 6  # four convolutions, a dense layer, and whitening
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a.weight, b.weight)


def test_every_turn_and_mirror_image_is_a_class_of_its_own() -> None:
    pictures, labels = public()
    turned, names = letters.turned(pictures, labels)
    assert len(turned) == 8 * len(pictures)
    assert sorted(set(names.tolist())) == list(range(24))
    assert torch.equal(turned[:60], pictures)


def test_whitening_makes_the_spread_within_classes_round() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(4000) % 7
    mixed = random.normal(size=(4000, 8)) @ random.normal(size=(8, 8))
    rows = (100 + 20 * mixed + 5 * labels[:, None]).clip(0, 255).astype(np.float32)
    layer = letters.whitening(rows, labels, 0.0)
    found = rows.astype(np.float64) @ (layer.weight * layer.gain) + layer.bias
    means = np.stack([found[labels == each].mean(axis=0) for each in range(7)])
    covariance = np.cov((found - means[labels]).T)
    assert np.abs(covariance / covariance[0, 0] - np.eye(8)).max() < 0.1


def test_a_network_of_glyphs_is_made_again_by_its_recipe(tmp_path: Path) -> None:
    provenance = glyphs.make(tmp_path / "one.npz", FEW, steps=2)
    glyphs.make(tmp_path / "two.npz", FEW, steps=2)
    assert (provenance["training"]["steps"], provenance["loops"]) == (2, 0.25)
    one, two = (read_network(tmp_path / f"{each}.npz")[0] for each in ("one", "two"))
    assert one.entries == 32
    assert np.array_equal(one(images(4)), two(images(4)))


def test_glyphs_are_drawn_class_by_class_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "_KEPT_AT_ONCE", 10)  # two characters
    pictures, labels = FEW.drawn(5, 1, "cpu")
    assert (pictures.shape, pictures.dtype) == ((25, 28, 28), torch.uint8)
    assert labels.tolist() == [each for each in range(5) for _ in range(5)]


def test_loops_are_closed_curves() -> None:
    def ends(loops: float) -> "torch.Tensor":
        control, _ = glyphs._characters(40, glyphs.Hand.seeded(4), loops)
        return (control[:, :, 3] - control[:, :, 0]).norm(dim=-1)

    assert (ends(0.0) > 0).all()
    assert (ends(1.0) == 0).all()
    assert 0.1 < (ends(0.25) == 0).float().mean() < 0.4


def test_glyphs_without_loops_are_those_of_the_shipped_statistics() -> None:
    one, two = (glyphs.glyphs(3, 2, glyphs.Hand.seeded(1), loops=each) for each in (0.0, 1.0))
    assert torch.equal(one, glyphs.glyphs(3, 2, glyphs.Hand.seeded(1)))
    assert not torch.equal(one, two)


@pytest.mark.thorough
def test_digits_by_strokes_are_drawn_again_and_fill_their_box() -> None:
    drawn = digits(200, 7)
    assert torch.equal(drawn, digits(200, 7))
    assert drawn.shape == (200, 28, 28)
    inked = (drawn > 0.5).flatten(1).sum(1)
    assert inked.min() > 15
    assert inked.max() < 400
    high = (drawn > 0.5).any(2).sum(1)
    assert high.float().median() > 16
    assert all(abs(x) <= 1 and abs(y) <= 1 for form in FORMS for line in form for x, y in line)


def test_landmarks_are_made_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = attrs.evolve(landmarks.RECIPES["glyphs"], count=6, digits=4)
    monkeypatch.setitem(landmarks.RECIPES, "glyphs", few)
    main(["glyphs-landmarks", "--out", str(tmp_path / "x.npz")])
    assert json.loads(capsys.readouterr().out)["digits"] == 4
    with np.load(tmp_path / "x.npz") as made:
        assert made["rows"].shape == (10, 256)


def test_the_map_of_glyphs_is_made_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = letters.NetworkRecipe(batch=8, width=16, channels=(4, 4, 4, 4))
    few = glyphs.GlyphRecipe(classes=3, others=6, copies=4, training=training)
    monkeypatch.setattr(glyphs, "GlyphRecipe", lambda: few)
    main(["glyphs", "--steps", "1", "--out", str(tmp_path / "glyphs.npz")])
    assert json.loads(capsys.readouterr().out)["training"]["steps"] == 1
    assert (tmp_path / "glyphs.npz").stat().st_size > 0
