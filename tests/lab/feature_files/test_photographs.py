"""Statistics and landmarks of random images, and made-up reviews."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need the extra `train`")
import torch
from tools.feature_files import landmarks as photographs
from tools.feature_files.landmarks import whitened
from tools.feature_files.sentences import reviews

from prudent.certify.features import shipped_landmarks
from prudent_lab.features.resnet import ResNet18Embedding, ResNet18Features


def test_whitened_features_are_round_and_computed_row_by_row(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    rows = np.square(draw.standard_normal((3000, 40)) @ draw.standard_normal((40, 256)) + 9)
    found = whitened(rows)
    codes, present = found.codes(rows)
    assert present.all()
    assert codes.shape == (3000, 128)
    spread = codes[:, :30].std(axis=0)  # the directions in which these rows vary
    assert spread.max() / spread.min() < 1.6
    alone = np.concatenate([found.codes(row[None])[0] for row in rows[:40]])
    assert alone.tobytes() == codes[:40].tobytes()
    rows[1, 7] = np.nan
    assert found.codes(rows[:3])[1].tolist() == [True, False, True]
    rows[2] = 1e300
    assert np.isfinite(found.codes(rows[2:3])[0]).all()


def test_statistics_and_landmarks_of_random_images_are_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(photographs, "_IMAGES", 60)
    monkeypatch.setattr(photographs, "_LANDMARKS", 40)
    torch.manual_seed(0)
    embedding = ResNet18Embedding(ResNet18Features(3).eval(), "given", 256)
    provenance = photographs.make_photographs(tmp_path / "made.npz", embedding)
    made = np.load(tmp_path / "made.npz")
    assert made["rows"].shape == (40, 128)
    assert json.loads(str(made["provenance"]))["images"] == provenance["images"] == 60
    shipped = shipped_landmarks("resnet18")
    assert shipped.codes.shape == (8000, 128)
    assert shipped.features.name == "resnet18"


def test_made_up_reviews_alternate_and_repeat():
    texts, labels = reviews(40, seed=3)
    assert reviews(40, seed=3)[0] == texts != reviews(40, seed=4)[0]
    assert labels.tolist() == [0, 1] * 20
    assert not any("{" in text for text in texts)
