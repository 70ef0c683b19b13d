"""The card of a model: valid on the Hub, bounds rounded outward, nothing that could break it."""

import math

import dp_accounting as dp
import pytest

from prudent.accounting.relations import ADD_REMOVE, ZERO_OUT
from prudent.receipts.pages import ModelCard

EVENT = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)), 100)
FACTS = {
    "name": "Net",
    "event": EVENT,
    "epsilon": 1.23400001,
    "delta": 1e-5,
    "relation": ZERO_OUT,
    "protected": "record",
    "steps": 1000,
}


def test_the_hub_reads_it():
    hub = pytest.importorskip("huggingface_hub")
    odd = 'a "quoted" \\ name: #\n- x'
    card = hub.ModelCard(str(ModelCard(**FACTS, base_model=odd, library="transformers")))
    assert card.data.library_name == "transformers"
    assert card.data.base_model == odd.replace("\n", " ")
    assert card.data.tags == ["differential-privacy", "prudent"]


def test_bounds_are_printed_outward_with_what_they_are_for(tmp_path):
    ModelCard(**FACTS).write(tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "**ε = 1.2341 at δ = 1e-05** (upper bound), for zeroing out one record" in text
    assert "every record in the training data" in text
    assert "100 × each record with probability 0.01: Gaussian noise, multiplier 1.1" in text
    for part in ("What was released", "What is not protected", "## Data"):
        assert part in text
    assert "seeded" not in text


def test_what_voids_the_guarantee_is_said():
    assert "The noise was seeded" in str(ModelCard(**FACTS | {"predictable": True}))
    nothing = str(ModelCard(**FACTS | {"epsilon": math.inf, "relation": ADD_REMOVE}))
    assert "no finite ε at δ = 1e-05: nothing is guaranteed" in nothing
