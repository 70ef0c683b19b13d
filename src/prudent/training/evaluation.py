"""Looking at a model with public data, and at the metrics of a run."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Evaluate = Callable[[nn.Module], Mapping[str, float]]


def accuracy(features: Tensor, labels: Tensor, batch: int = 1000) -> Evaluate:
    """An evaluation: the share of labels a classifier gets right. Give it public data."""

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        was_training = model.training
        model.eval()
        device = next(model.parameters()).device
        right = 0
        for start in range(0, len(labels), batch):
            guesses = model(features[start : start + batch].to(device)).argmax(-1)
            right += int((guesses == labels[start : start + batch].to(device)).sum())
        model.train(was_training)
        return {"accuracy": right / len(labels)}

    return evaluate


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The recorded metrics of a run."""
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
