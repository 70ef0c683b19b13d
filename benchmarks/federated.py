"""Federated MNIST: private and robust strategies beside Flower's own, clean and under attack.

`python -m benchmarks.federated` runs every strategy against every attack and prints accuracies;
`--out FILE` adds them to JSON lines, `--plot FILE` draws all lines of that file instead of running,
`--only` and `--attacks` pick some by name; `--track` measures centring on made-up updates. Needs
the extra `federated`.

All strategies are run by Flower's own loop on Flower's own messages. Clients are trained a hundred
at a time by `VectorisedGrid`, which stands for the transport and the client apps; hostile clients
know the honest updates of their round. `--engine` runs in Flower's simulation engine instead, a
client app for every message; hostile clients then know their own update alone.
"""

import argparse
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import attrs
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
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
from prudent.training import Fallback, FixedTrim, Key, Plan, ProposeTestRelease, Sum, TrimmedSum
from prudent.training.adapters.federated import PrivateStrategy, RoundRelease
from prudent.training.adapters.federated.release import RoundOutcome
from prudent.training.aggregation import Aggregation
from prudent_lab.corruption import (
    ALittleIsEnough,
    GradientCorruption,
    InnerProductManipulation,
    corrupted_mask,
)
from prudent_lab.datasets import load

CLIENTS, RATE, ROUNDS = 1000, 0.1, 30
DRAWN = round(CLIENTS * RATE)
EPSILON, DELTA = 3.0, 1e-5
HIDDEN = 16
SHAPES = {"w1": (HIDDEN, 196), "b1": (HIDDEN,), "w2": (10, HIDDEN), "b2": (10,)}
LOCAL_BATCH, LOCAL_EPOCHS, LOCAL_RATE = 20, 2, 0.4

Parameters = dict[str, Tensor]


class Federation:
    """MNIST at half resolution, dealt out to clients at random, 60 digits each."""

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
                loss = cross_entropy(
                    scores.flatten(0, 1), labels[:, batch].flatten(), reduction="sum"
                )
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
    """The model, which travels as one vector."""
    vector = torch.from_numpy(arrays["model"].numpy().copy())
    parts = vector.split([math.prod(shape) for shape in SHAPES.values()])
    return {
        name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
    }


def write(model: Parameters) -> ArrayRecord:
    vector = torch.cat([value.flatten() for value in model.values()])
    return ArrayRecord({"model": Array(vector.numpy())})


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
        clients = torch.tensor([message.metadata.dst_node_id - 1 for message in messages])
        return self.answers(messages, clients) if messages else []

    def answers(self, messages: list[Message], clients: Tensor) -> list[Message]:
        """What clients, by their position, answer to the messages of one round."""
        model = read(messages[0].content["arrays"])
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


TRIM = FixedTrim(0.5)  # of 100 expected clients; up to 30 of them hostile
SUM = Sum(clip=1.0, noise_multiplier=1.0)
TRIMMED = TrimmedSum(clip=1.2, noise_multiplier=1.0, trim=TRIM)
PTR = ProposeTestRelease(
    clip=2.0,
    propose=0.6,  # as long as most honest updates
    noise_multiplier=1.0,
    test=GaussianTest(2.5),
    failure=1e-7,
    trim=TRIM,
    fallback=Fallback.TRIMMED,
)


class CentredRelease:
    """Measures updates from a running mean c of the updates released so far.

    That is post-processing and a constant shift, so it costs nothing: with vᵢ = uᵢ − c, one client
    still adds one summand of norm at most R. Momentum of the server gains nearly as much, so this
    is not part of the package.

    Args:
        release: Releases the mean of a round.
        centring: How fast the centre follows the released updates, in [0, 1].
    """

    def __init__(self, release: RoundRelease, centring: float) -> None:
        self.release, self.centring = release, centring
        self.centre = torch.zeros(release.dimension, dtype=torch.float64)

    @property
    def taken(self) -> int:
        return self.release.taken

    def __call__(self, updates: Sequence[Tensor]) -> tuple[Tensor, RoundOutcome]:
        moved, outcome = self.release([update - self.centre for update in updates])
        released = self.centre + moved
        self.centre += self.centring * moved
        return released, outcome


class CentredStrategy(PrivateStrategy):
    """A private strategy whose updates are measured from a running mean of those released."""

    def __init__(self, plan: Plan, *, centring: float, **options: Any) -> None:
        super().__init__(plan, **options)
        self._centring = centring

    def _set_model(self, arrays: ArrayRecord) -> None:
        super()._set_model(arrays)
        if not isinstance(self._release, CentredRelease):
            self._release = CentredRelease(self._release, self._centring)  # type: ignore[assignment]


@cache
def priced(aggregation: Aggregation) -> Plan:
    """The plan with the least noise for the ε of all."""
    plan = Plan(sampling_rate=RATE, steps=ROUNDS, aggregation=aggregation)
    return plan.calibrate(epsilon=EPSILON, delta=DELTA)


def private(aggregation: Aggregation, **options: Any) -> Callable[[int], Strategy]:
    kind = CentredStrategy if "centring" in options else PrivateStrategy
    return lambda seed: kind(priced(aggregation), clients=CLIENTS, seed=seed, **options)


def flowers_wrapper(seed: int) -> Strategy:
    """The noise of DP-FedAvg, which is as much as ε needs if clients are drawn by coins."""
    noise = priced(SUM).aggregation.noise_multiplier  # type: ignore[attr-defined]
    return DifferentialPrivacyServerSideFixedClipping(plain(FedAvg)(seed), noise, SUM.clip, DRAWN)


def plain(kind: type[FedAvg], **options: float) -> Callable[[int], Strategy]:
    return lambda seed: kind(fraction_train=RATE, fraction_evaluate=0.0, **options)


# Half of the clients are trimmed, so a sum has half its length: without a centre, the rate is 2.
STRATEGIES = {
    "DP-FedAvg": private(SUM),
    "DP-FedAvg, centred": private(SUM, centring=0.2),
    "trimmed": private(TRIMMED, lr=2.0),
    "trimmed, centred": private(TRIMMED, centring=0.2),
    "PTR": private(PTR, lr=2.0),
    "PTR, centred": private(PTR, centring=0.2),
    "Flower, DP wrapper": flowers_wrapper,
    "Flower, FedAvg": plain(FedAvg),
    "Flower, FedMedian": plain(FedMedian),
    "Flower, FedTrimmedAvg": plain(FedTrimmedAvg, beta=0.3),
    "Flower, MultiKrum": plain(MultiKrum, num_malicious_nodes=30, num_nodes_to_select=50),
}

ATTACKS: dict[str, GradientCorruption | None] = {"clean": None}
for _share in (0.3, 0.2, 0.1):
    ATTACKS[f"loud {_share:.0%}"] = InnerProductManipulation(_share, scale=10.0)
    ATTACKS[f"quiet {_share:.0%}"] = ALittleIsEnough(_share, deviations=1.0)


def run(strategy: Strategy, federation: Federation, grid: Grid) -> dict[str, float]:
    began = time.perf_counter()
    result = strategy.start(grid, write(federation.start), num_rounds=ROUNDS)
    released = [m for m in result.train_metrics_clientapp.values() if "passed" in m]
    answer = {
        "accuracy": federation.accuracy(result.arrays),
        "seconds": time.perf_counter() - began,
    }
    if isinstance(strategy, PrivateStrategy):
        answer["passed"] = sum(m["passed"] for m in released) / len(released)
        answer["noise"] = sum(m["noise"] for m in released) / len(released) / DRAWN
    return answer


@cache
def federation_of(seed: int) -> Federation:
    torch.set_num_threads(1)
    return Federation(seed)


def in_the_engine(
    strategy: Strategy, seed: int, corruption: GradientCorruption | None
) -> dict[str, float]:
    """The same run with a client app for every message, in processes of ray."""
    import ray
    from flwr.simulation import run_simulation

    clients, server = ClientApp(), ServerApp()
    answers = []

    @clients.train()
    def train(message: Message, context: Context) -> Message:
        one = VectorisedGrid(federation_of(seed), corruption)
        client = int(context.node_config["partition-id"])
        return one.answers([message], torch.tensor([client]))[0]

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        answers.append(run(strategy, federation_of(seed), grid))

    try:
        resources = {"num_cpus": 1, "num_gpus": 0.0}
        machine = {"num_cpus": 2, "include_dashboard": False}
        run_simulation(
            server,
            clients,
            CLIENTS,
            backend_config={"init_args": machine, "client_resources": resources},
        )
    finally:
        ray.shutdown()
    return answers[0]


def plot(lines: list[dict[str, object]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for panel, kind in zip(panels, ("loud", "quiet"), strict=True):
        for name in STRATEGIES:
            points = sorted(
                (
                    0 if line["attack"] == "clean" else int(str(line["attack"]).split()[1][:-1]),
                    line["accuracy"],
                )
                for line in lines
                if line["strategy"] == name
                and (line["attack"] == "clean" or str(line["attack"]).startswith(kind))
            )
            style = "--" if name.startswith("Flower") else "-"
            panel.plot(*zip(*points, strict=True), style, marker="o", markersize=3, label=name)
        panel.set(xlabel="hostile clients, %", title=f"{kind} collusion")
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="test accuracy", ylim=(0.7, 0.9))  # what falls below has failed
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", fontsize="small")
    figure.savefig(path)


def tracking(name: str, aggregation: Aggregation, centring: float, hostile: float) -> None:
    """How far the released update is from the honest mean, where honest updates agree.

    Made-up updates of 100 numbers: a common part of length 5, another one after half of the rounds,
    and a spread of length 0.5 around it. Hostile clients send the common part with its sign turned.
    """
    expected, dimension = 200, 100
    plan = attrs.evolve(priced(aggregation), expected_batch=expected)
    chance = torch.Generator().manual_seed(0)
    release = CentredRelease(RoundRelease(plan, dimension, key=Key.from_seed(0)), centring)
    errors, passes = [], 0
    for number in range(ROUNDS):
        common = torch.zeros(dimension)
        common[0 if number < ROUNDS / 2 else 1] = 5.0
        drawn = int(torch.poisson(torch.tensor(float(expected)), generator=chance))
        spread = 0.5 / dimension**0.5 * torch.randn(drawn, dimension, generator=chance)
        turned = torch.rand(drawn, 1, generator=chance) < hostile
        released, outcome = release(list(torch.where(turned, -common, common + spread)))
        errors.append(float((released - common).norm()))
        passes += outcome.passed
    first = sum(errors) / ROUNDS
    late = errors[ROUNDS // 2 - 1]
    print(
        f"{name:36s} hostile {hostile:3.0%} error {first:5.2f}, before the turn {late:5.2f}, "
        f"passed {passes / ROUNDS:4.0%}"
    )


def track_all() -> None:
    trim = FixedTrim(0.4)
    test = ProposeTestRelease(
        clip=5.0,
        propose=0.2,
        noise_multiplier=1.0,
        test=GaussianTest(4.0),
        failure=1e-7,
        trim=trim,
    )
    for hostile in (0.0, 0.2):
        tracking("sum, clip 5", attrs.evolve(SUM, clip=5.0), 0.0, hostile)
        tracking("sum, clip 5, centred", attrs.evolve(SUM, clip=5.0), 0.5, hostile)
        tracking("sum, clip 1, centred", SUM, 0.5, hostile)
        trimmed = attrs.evolve(TRIMMED, clip=1.0, trim=trim)
        tracking("trimmed, clip 1, centred", trimmed, 0.5, hostile)
        for fallback in (Fallback.SUM, Fallback.TRIMMED):
            either = attrs.evolve(test, fallback=fallback)
            tracking(f"PTR, clip 5, τ 1, {fallback.value}", either, 0.0, hostile)
            tracking(f"PTR, clip 5, τ 1, {fallback.value}, centred", either, 0.5, hostile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--track", action="store_true", help="made-up updates that agree")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.plot:
        plot([json.loads(line) for line in options.out.read_text().splitlines()], options.plot)
        return
    if options.track:
        track_all()
        return
    logging.getLogger("flwr").setLevel(logging.ERROR)
    federation = federation_of(options.seed)
    for attack in options.attacks:
        for name in options.only:
            strategy = STRATEGIES[name](options.seed)
            if options.engine:
                answer = in_the_engine(strategy, options.seed, ATTACKS[attack])
            else:
                answer = run(strategy, federation, VectorisedGrid(federation, ATTACKS[attack]))
            line = {"strategy": name, "attack": attack, "seed": options.seed} | answer
            print(json.dumps(line), flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    from benchmarks import federated  # by its name, so that processes of ray find it

    federated.main()
