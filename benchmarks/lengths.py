"""Steps on text of changing lengths: padded to one public length, or each record to one of a few.

    python -m benchmarks.lengths --models gpt2,bert

A batch has the records of the GPU table, of 32 to 256 tokens each, all lengths equally likely.
Ordinary training pads a batch to its longest record. Times are means over the last steps, when most
shapes have a graph; `divided` makes the parts, as `PrivateTrainer(max_length=(64, 128, ...))` does.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import prudent.training
from benchmarks.huggingface import PLAN, RATE, clear, losses
from benchmarks.huggingface import plain as plain_step
from benchmarks.network_cases import CASES, LENGTH
from prudent.training.adapters.huggingface.records import PhysicalBatch, divided
from prudent.training.gradients import BookKeeping

LENGTHS = {
    "one length": (LENGTH,),
    "two lengths": (160, LENGTH),
    "three lengths": (96, 160, LENGTH),
    "five lengths": (64, 112, 160, 208, LENGTH),
}


def batches(name: str, count: int) -> list[PhysicalBatch]:
    """Batches with masks and targets; labels of a language model are its own tokens."""
    draw = torch.Generator().manual_seed(0)
    size, made = CASES[name].batch, []
    for _ in range(count):
        ids = torch.randint(3, 97, (size, LENGTH), generator=draw)
        ends = torch.randint(32, LENGTH + 1, (size, 1), generator=draw)
        mask = (torch.arange(LENGTH) < ends).long()
        targets = ids.roll(-1, 1) if name == "gpt2" else ids[:, 0] % 2
        inputs = {"input_ids": ids, "attention_mask": mask, "targets": targets}
        made.append(PhysicalBatch(inputs, torch.ones(size, dtype=torch.bool), torch.arange(size)))
    return made


def split(part: PhysicalBatch) -> tuple[dict[str, Tensor], Tensor]:
    inputs = {name: value.cuda(non_blocking=True) for name, value in part.inputs.items()}
    return inputs, inputs.pop("targets")


def mean_time(step: Callable[[PhysicalBatch], object], drawn: Sequence[PhysicalBatch]) -> float:
    """Milliseconds of a step, over the last third of the batches."""
    begin = 2 * len(drawn) // 3
    for batch in drawn[:begin]:
        step(batch)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in drawn[begin:]:
        step(batch)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / (len(drawn) - begin)


def plain(name: str) -> Callable[[PhysicalBatch], object]:
    model = CASES[name].model(False).cuda().train()

    def step(batch: PhysicalBatch) -> None:
        longest = int(batch.inputs["attention_mask"].sum(1).max())
        inputs, targets = split(batch)
        inputs = {key: value[:, :longest] for key, value in inputs.items()}
        targets = targets[:, :longest] if targets.ndim > 1 else targets
        plain_step(model, inputs, targets, bf16=True, compiled=False)()

    return step


def ours(name: str, lengths: Sequence[int]) -> Callable[[PhysicalBatch], list[Any]]:
    model = CASES[name].model(False).cuda().train()
    engine = BookKeeping(model, losses, autocast=torch.bfloat16)
    batch = CASES[name].batch
    release = prudent.training.Step(PLAN, model, losses, expected_batch=batch, engine=engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(part: PhysicalBatch) -> list[Any]:
        stand_in = {key: value[:1] for key, value in part.inputs.items()}
        pieces = divided(part, lengths, stand_in) if len(lengths) > 1 else [part]
        chunks = [
            prudent.training.Chunk(*split(piece), piece.valid.cuda(), piece.ids.cuda())
            for piece in pieces
        ]
        release(chunks)
        optimizer.step()
        return [*release._run._graphs, *release._in_turn.captured._graphs]

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gpt2,bert")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    for name in options.models.split(","):
        drawn = batches(name, options.steps)
        base = mean_time(plain(name), drawn)
        print(f"\n| {name}, bf16 | ms | ratio | graphs |\n|---|---|---|---|")
        print(f"| plain, padded to the longest of a batch | {base:.1f} | 1.00 | – |", flush=True)
        for label, lengths in LENGTHS.items():
            clear("cuda")
            step = ours(name, lengths)
            time_of = mean_time(step, drawn)
            row = f"{time_of:.1f} | {time_of / base:.2f} | {len(step(drawn[0]))}"
            print(f"| ours, {label} | {row} |", flush=True)
            del step


if __name__ == "__main__":
    main()
