"""Federated MNIST: private and robust strategies beside Flower's own, clean and under attack.

`python -m benchmarks.federated` runs every strategy against every attack and prints a table of
accuracies; `--out FILE` also writes JSON lines, `--plot FILE` draws them, `--only` and `--attacks`
pick some by name, `--seeds` repeats. Needs the extra `federated`.

All strategies are run by Flower's own loop on Flower's own messages. Clients are trained many at a
time by `VectorisedGrid`, which stands for the transport and the client apps; hostile clients know
the honest updates of the round. `--engine` runs one setting in Flower's simulation engine instead,
a client app for each message, to check that it makes no difference.
"""

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    MultiKrum,
    Strategy,
)
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy

from prudent.accounting import GaussianTest
from prudent.corruption import (
    ALittleIsEnough,
    ColludingDirection,
    GradientCorruption,
    InnerProductManipulation,
    corrupted_mask,
)
from prudent.federated import PrivateStrategy
from prudent.paper.datasets import load
from prudent.training import FixedTrim, Plan, ProposeTestRelease, Sum, TrimmedSum

CLIENTS, RATE, ROUNDS = 2000, 0.1, 40
DRAWN = round(CLIENTS * RATE)
EPSILON, DELTA = 8.0, 1e-5
HIDDEN = 32
SHAPES = {"w1": (HIDDEN, 196), "b1": (HIDDEN,), "w2": (10, HIDDEN), "b2": (10,)}
LOCAL_BATCH, LOCAL_EPOCHS, LOCAL_RATE = 10, 3, 0.2

Parameters = dict[str, Tensor]


class Federation:
    """MNIST at half resolution, dealt out to clients at random, 30 digits each."""

    def __init__(self, seed: int) -> None:
        data = load("mnist")
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(data.train_labels), generator=generator)
        self.features = _half(data.train_features)[order].view(CLIENTS, -1, 196)
        self.labels = data.train_labels[order].view(CLIENTS, -1)
        self.test_features, self.test_labels = _half(data.test_features), data.test_labels
        self.start = {
            name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5
            if len(shape) > 1
            else torch.zeros(shape)
            for name, shape in SHAPES.items()
        }

    def trained(self, model: Parameters, clients: Tensor) -> Parameters:
        """The model after training by each of some clients on its own data, clients first."""
        features, labels = self.features[clients], self.labels[clients]
        values = {
            name: value.expand(len(clients), *value.shape).clone().requires_grad_()
            for name, value in model.items()
        }
        rows = features.shape[1]
        for _ in range(LOCAL_EPOCHS):
            for first in range(0, rows, LOCAL_BATCH):
                batch = slice(first, first + LOCAL_BATCH)
                scores = _scores(values, features[:, batch])
                loss = cross_entropy(scores.flatten(0, 1), labels[:, batch].flatten(), reduction="sum")
                gradients = torch.autograd.grad(loss / LOCAL_BATCH, list(values.values()))
                with torch.no_grad():
                    for value, gradient in zip(values.values(), gradients, strict=True):
                        value -= LOCAL_RATE * gradient
        return {name: value.detach() for name, value in values.items()}

    def accuracy(self, arrays: ArrayRecord) -> float:
        model = {name: value[None] for name, value in read(arrays).items()}
        predicted = _scores(model, self.test_features[None])[0].argmax(1)
        return float((predicted == self.test_labels).double().mean())


def _half(images: Tensor) -> Tensor:
    return avg_pool2d(images, 2).flatten(1)


def _scores(model: Parameters, features: Tensor) -> Tensor:
    hidden = torch.baddbmm(model["b1"][:, None], features, model["w1"].mT).relu()
    return torch.baddbmm(model["b2"][:, None], hidden, model["w2"].mT)


def read(arrays: ArrayRecord) -> Parameters:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def write(model: Parameters) -> ArrayRecord:
    return ArrayRecord({name: Array(value.numpy()) for name, value in model.items()})


class VectorisedGrid(Grid):
    """Answers all messages of a round at once; bad clients send what the corruption says."""

    def __init__(self, federation: Federation, corruption: GradientCorruption | None) -> None:
        self.federation = federation
        self.corruption = corruption
        ratio = corruption.ratio if corruption else 0.0
        self.bad = corrupted_mask(CLIENTS, ratio, seed=0)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        return range(1, CLIENTS + 1)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        if not messages:
            return []
        model = read(messages[0].content["arrays"])
        clients = torch.tensor([message.metadata.dst_node_id - 1 for message in messages])
        trained = self.federation.trained(model, clients)
        if self.corruption:
            updates = {name: value - model[name] for name, value in trained.items()}
            updates = self.corruption(updates, self.bad[clients])
            trained = {name: model[name] + value for name, value in updates.items()}
        replies = []
        for row, message in enumerate(messages):
            metrics = MetricRecord({"num-examples": self.federation.labels.shape[1]})
            arrays = write({name: value[row] for name, value in trained.items()})
            content = RecordDict({"arrays": arrays, "metrics": metrics})
            replies.append(Message(content, reply_to=message))
        return replies

    def set_run(self, run: object) -> None:
        raise NotImplementedError("this grid has no runs")

    @property
    def run(self) -> None:
        raise NotImplementedError("this grid has no runs")

    def create_message(self, *args: object, **options: object) -> None:
        raise NotImplementedError("messages are created by strategies")

    def push_messages(self, messages: object) -> None:
        raise NotImplementedError("messages are sent and answered at once")

    def pull_messages(self, message_ids: object) -> None:
        raise NotImplementedError("messages are sent and answered at once")
