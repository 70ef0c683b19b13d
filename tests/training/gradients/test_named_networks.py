"""The networks of the GPU table, at the size of toys in double precision: gradients are right."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.gradients.oracle import alone

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="needs the extra `huggingface`"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
NAMES = (
    *("gpt2", "llama", "qwen3", "mamba", "t5", "bert", "roberta", "deberta", "vit", "swin"),
    *("convnext", "efficientnet", "mobilenetv3", "resnet18", "resnet50", "unet", "audio"),
    *("clicks", "graph", "whisper", "segformer", "neox"),
    *("bart", "wav2vec", "olmoe", "albert", "dinov2", "patchtst", "gemma3"),
)
QUICK = "clicks", "graph"  # no other test has their like
RECORDS = 2


def doubled(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def test_all_are_here() -> None:
    from benchmarks.network_cases import CASES

    assert tuple(CASES) == NAMES


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in NAMES]
)
def test_gradients_of_each_record(name: str) -> None:
    from benchmarks.huggingface import losses
    from benchmarks.network_cases import CASES

    from prudent._torch_private import pytree
    from prudent.training.gradients import BookKeeping

    torch.manual_seed(0)
    case = CASES[name]
    model = case.model(True).double().eval()
    inputs, targets = pytree.tree_map(doubled, case.draw(RECORDS, True, "cpu"))
    truth = alone(model, losses, inputs, targets, RECORDS)
    norms = torch.cat([g.flatten(1) for g in truth.values()], 1).norm(dim=1)
    weights = torch.tensor([0.5, 2.0]).double()
    gradients = BookKeeping(model, losses)(model, inputs, targets)
    torch.testing.assert_close(gradients.norms, norms, rtol=1e-9, atol=0)
    total = gradients.weighted_sum(weights)
    assert list(total) == list(truth)
    for parameter, gradient in truth.items():
        expected = torch.einsum("m,m...->...", weights, gradient)
        assert (total[parameter] - expected).norm() < 1e-10 * norms.sum(), parameter
