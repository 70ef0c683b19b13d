"""A whole run in Flower's simulation engine, as a program: prints what came out as JSON.

Client apps run in processes of their own, by ray. Of twelve clients three are hostile and all send
the same vector of length 50, and one fails whenever it is asked.
"""

import json

import numpy as np
import ray
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from prudent.accounting import GaussianTest
from prudent.training import FixedTrim, Plan, ProposeTestRelease
from prudent.training.adapters.federated import PrivateStrategy
from prudent_lab.corruption import ColludingDirection

CLIENTS, HOSTILE, ROUNDS = 12, 3, 6
TRUTH = [0.2, -0.1, 0.1, 0.3]

clients = ClientApp()
server = ServerApp()


@clients.train()
def train(message, context):
    partition = int(context.node_config["partition-id"])
    if partition == CLIENTS - 1:
        raise RuntimeError("this client always fails")
    model = message.content["arrays"]["mean"].numpy()
    points = TRUTH + 0.1 * np.random.default_rng(partition).standard_normal((20, 4))
    update = torch.tensor(points.mean(0) - model, dtype=torch.float32)[None]
    attack = ColludingDirection(ratio=HOSTILE / CLIENTS, norm=50.0)
    sent = attack({"mean": update}, torch.tensor([partition < HOSTILE]))["mean"][0]
    reply = RecordDict(
        {
            "arrays": ArrayRecord({"mean": Array(model + sent.numpy())}),
            "metrics": MetricRecord({"num-examples": 20, "loss": float(update.norm())}),
        }
    )
    return Message(reply, reply_to=message)


@server.main()
def main(grid, context):
    aggregation = ProposeTestRelease(
        clip=1.0,
        propose=0.5,
        noise_multiplier=0.02,
        test=GaussianTest(0.2),
        failure=1e-6,
        trim=FixedTrim(0.5),
    )
    plan = Plan(sampling_rate=0.9, steps=ROUNDS, aggregation=aggregation)
    strategy = PrivateStrategy(plan, clients=CLIENTS, seed=1)
    start = ArrayRecord({"mean": Array(np.zeros(4, np.float32))})
    result = strategy.start(grid, start, num_rounds=ROUNDS, timeout=600)
    metrics = [dict(entry) for entry in result.train_metrics_clientapp.values()]
    mean = result.arrays["mean"].numpy().tolist()
    answer = {"mean": mean, "truth": TRUTH, "metrics": metrics, "taken": strategy.taken}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        run_simulation(
            server,
            clients,
            CLIENTS,
            backend_config={
                "init_args": {"num_cpus": 2, "include_dashboard": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    finally:
        ray.shutdown()
