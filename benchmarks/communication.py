"""What several processes say to each other in a step, and how long it takes.

    python -m benchmarks.communication --processes 2,4 --rounds 30

measures the collectives of a step, and whole steps, with gloo between processes of this machine.
`--write` puts them into benchmarks/README.md.
"""

import argparse
import math
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn

from benchmarks.models import tutorial_cnn
from prudent.accounting import GaussianTest
from prudent.training import Chunk, Key, Plan, PoissonSampler, ProposeTestRelease, Step
from prudent.training.aggregation import Decision
from prudent.training.parallel import DistributedGroup, Processes

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- processes: begin -->", "<!-- processes: end -->"
RECORDS, BATCH = 60_000, 256
SIZES = {"tutorial CNN": 26_010, "ResNet18": 11_173_962}
DOUBLE, SINGLE = 8, 4


@dataclass(frozen=True)
class Said:
    """Bytes that one process sends in a step, by ring algorithms.

    A norm and an id of each record of its own go round to all others; the decision, one weight for
    each record and four numbers, comes from the first; of the gradient, a ring all-reduce sends
    each byte twice, less the share of this process.
    """

    norms: float
    decision: float
    gradient: float


def said(parameters: int, batch: int, count: int) -> Said:
    rows = math.ceil(batch / count)
    return Said(
        2 * DOUBLE * rows * (count - 1),
        DOUBLE * (rows * count + 4),
        2 * SINGLE * parameters * (count - 1) / count,
    )


def timed(action: Callable[[], object], rounds: int) -> float:
    """Median seconds; all processes begin each round together."""
    taken = []
    for _ in range(rounds + 2):
        distributed.barrier()
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[2:])


def collectives(processes: DistributedGroup, rounds: int) -> dict[str, float]:
    rows = math.ceil(BATCH / processes.count)
    ids = torch.arange(rows) * processes.count + processes.rank
    norms, valid = torch.rand(rows), torch.ones(rows, dtype=torch.bool)

    def decide(norms: torch.Tensor, valid: torch.Tensor) -> Decision:
        scalar = torch.zeros(())
        return Decision(norms, scalar, scalar, scalar, scalar)

    found = {
        "norms and decision": timed(lambda: processes.decide(norms, valid, ids, decide), rounds),
    }
    for name, parameters in SIZES.items():
        flat = torch.zeros(parameters)
        found[f"gradient, {name}"] = timed(lambda flat=flat: processes.summed(flat), rounds)
    return found


def step_seconds(processes: Processes, rounds: int) -> float:
    """A step of the tutorial CNN and its update."""
    model = tutorial_cnn(1, 512)
    rule = ProposeTestRelease(clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(4.0))
    plan = Plan(sampling_rate=BATCH / RECORDS, steps=10**6, aggregation=rule)
    loss = nn.CrossEntropyLoss(reduction="none")
    step = Step(plan, model, loss, expected_batch=BATCH, processes=processes)
    key = Key.from_seed(1)
    sampler = PoissonSampler(RECORDS, plan.sampling_rate, key=key, processes=processes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(512, 1, 28, 28), torch.arange(512) % 10
    taken = []
    for number in range(rounds + 2):
        batch = sampler.batch(number)
        start = time.perf_counter()
        step(
            [
                Chunk(images[ids % 512], labels[ids % 512], valid, ids)
                for ids, valid in zip(batch.ids, batch.valid, strict=True)
            ]
        )
        optimizer.step()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[2:])


def worker(rank: int, count: int, port: int, rounds: int, found: "multiprocessing.Queue") -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=count,
        timeout=timedelta(minutes=5),
    )
    times = collectives(DistributedGroup(), rounds)
    times["step"] = step_seconds(DistributedGroup(), rounds)
    if rank == 0:
        found.put(times)
    distributed.destroy_process_group()


def measured(counts: list[int], rounds: int) -> list[str]:
    torch.set_num_threads(1)
    times = {1: {"step": step_seconds(Processes(), rounds)}}
    for count in counts:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        found = multiprocessing.get_context("spawn").SimpleQueue()
        multiprocessing.spawn(worker, (count, port, rounds, found), nprocs=count)
        times[count] = found.get()
    columns = ["norms and decision", *(f"gradient, {name}" for name in SIZES), "step"]
    lines = [
        "| processes | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for count, row in times.items():
        cells = (f"{1000 * row[name]:.2f} ms" if name in row else "–" for name in columns)
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return lines


def volumes(counts: list[int]) -> list[str]:
    lines = [
        f"| batch {BATCH}, sent by one process in a step | norms and ids | decision | gradient |",
        "|---|---|---|---|",
    ]
    for name, parameters in SIZES.items():
        for count in counts:
            total = said(parameters, BATCH, count)
            parts = (total.norms, total.decision, total.gradient)
            cells = " | ".join(f"{part / 1024:,.1f} KiB" for part in parts)
            lines.append(f"| {name}, {count} processes | {cells} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--write", action="store_true", help="put the tables into the README")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.processes.split(",")]
    text = "\n".join(
        [
            *volumes(counts),
            "",
            f"Measured with gloo between processes of one machine with {os.cpu_count()} cores and "
            f"a load of {os.getloadavg()[0]:.0f} from other work, one thread each; the step is "
            f"that of the tutorial CNN. Medians of {arguments.rounds} rounds. Beyond the number of "
            "cores further processes add only what talking and waiting costs:",
            "",
            *measured(counts, arguments.rounds),
        ]
    )
    print(text)
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN, 1)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
