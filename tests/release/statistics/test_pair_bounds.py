"""Private bounds of pairs: whatever they are, there is an answer."""

import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("pandas", reason="frames of pandas are read")

import pandas as pd

from prudent.release import weighted_mean
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import pairs as module


def test_weights_that_are_all_negative_have_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0] * 50, "weight": [-1.0] * 100})
    noise = ReproducibleNoise(0)
    monkeypatch.setattr(module.Clipping, "ends", lambda *_: (-1.0, 0.0))
    assert -1 <= weighted_mean(frame, "x", "weight", epsilon=5.0, noise=noise).value <= 0
