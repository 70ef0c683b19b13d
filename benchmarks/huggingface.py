"""Private steps of networks as they are, next to ordinary training and Opacus in the same run.

    python -m benchmarks.huggingface --only "plain;ours, default;ours, no graph;ours, torchrun"
    torchrun --nproc-per-node 2 -m benchmarks.huggingface --only "plain;ours, torchrun"

The networks are those of `network_cases`, most of them Hugging Face's; the last table has them all.

Every model has random weights of its usual size; a record is a sequence of 256 tokens or an image.
A step is forward, backward and an SGD update; ours also has norms, test, trimmed sum and noise.
Both are in the same precision: bfloat16 under autocast, or float32 with TF32 products in the
layers. Times are medians; memory is the peak beyond the batch. "default" is what `Step` does by
itself on a GPU: it replays the step as a CUDA graph.
"torchrun" is a step of several processes, here of those that torchrun started, else of one alone:
norms, decision and sum go through NCCL all the same.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.profiler import ProfilerActivity, profile

import prudent.training
from benchmarks import large_models
from benchmarks.network_cases import CASES, LARGE
from benchmarks.step_speed import opacus_ghost
from prudent.accounting import GaussianTest
from prudent.training.gradients import BookKeeping
from prudent.training.gradients.engine import run_on
from prudent.training.parallel import DistributedGroup, Processes, is_first, local_device

CLIP, RATE = 1.0, 0.01
_SLOW = 300.0  # milliseconds from which a step is repeated less often
PLAN = prudent.training.Plan(
    sampling_rate=0.01,
    steps=10**9,
    aggregation=prudent.training.ProposeTestRelease(
        clip=CLIP, propose=0.5, noise_multiplier=1.1, test=GaussianTest(4.0)
    ),
)
ALL = CASES | LARGE
Run = Callable[[], object]


def losses(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy by record, of logits or of a model's outputs."""
    return large_models.losses(outputs if isinstance(outputs, Tensor) else outputs.logits, targets)


class Called(nn.Module):
    """A model with its outputs as a plain tensor and its inputs as one argument, for Opacus."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Tensor:
        outputs = run_on(self.model, inputs)
        return outputs if isinstance(outputs, Tensor) else outputs.logits


def plain(model: nn.Module, inputs: Any, targets: Tensor, bf16: bool, compiled: bool) -> Run:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    called = Called(model)
    forward = torch.compile(called) if compiled else called

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(targets.device.type, torch.bfloat16, enabled=bf16):
            loss = losses(forward(inputs), targets).mean()
        loss.backward()
        optimizer.step()

    return step


def joined() -> Processes:
    """The processes that torchrun started, or a process group of this one."""
    if not distributed.is_initialized():
        alone = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
        os.environ.update({name: os.environ.get(name, value) for name, value in alone.items()})
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return DistributedGroup()


def ours(
    model: nn.Module,
    inputs: Any,
    targets: Tensor,
    bf16: bool,
    graph: bool | None,
    processes: Processes | None = None,
) -> Run:
    engine = BookKeeping(model, losses, autocast=torch.bfloat16 if bf16 else None)
    options = {} if graph is None else {"cuda_graph": graph}
    release = prudent.training.Step(
        PLAN,
        model,
        losses,
        expected_batch=len(targets),
        engine=engine,
        processes=processes,
        **options,
    )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    rank, count = (0, 1) if processes is None else (processes.rank, processes.count)
    ids = torch.arange(len(targets), device=targets.device) * count + rank
    chunk = prudent.training.Chunk(inputs, targets, ids=None if processes is None else ids)

    def step() -> None:
        release([chunk])
        optimizer.step()

    return step


def checkpointed(model: nn.Module) -> nn.Module:
    """The model with its layers run again on the way back."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def divided(model: nn.Module) -> nn.Module:
    """The model divided among the processes (FSDP2), by its layers."""
    from torch.distributed.fsdp import fully_shard

    joined()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def peer(model: nn.Module, inputs: Any, targets: Tensor, bf16: bool) -> Run:
    inner = opacus_ghost(Called(model), inputs, targets, large_models.PeerLoss())

    def step() -> None:
        with torch.autocast(targets.device.type, torch.bfloat16, enabled=bf16):
            inner()

    return step


CONTENDERS: dict[str, tuple[str, Callable[..., Run]]] = {
    "plain": ("plain", lambda *args: plain(*args, compiled=False)),
    "ours, default": ("plain", lambda *args: ours(*args, graph=None)),
    "ours, no graph": ("plain", lambda *args: ours(*args, graph=False)),
    "ours, torchrun": (
        "plain",
        lambda *args: ours(*args, graph=None, processes=joined()),
    ),
    "opacus ghost": ("plain", peer),
    "plain, checkpointed": (
        "plain, checkpointed",
        lambda model, *args: plain(checkpointed(model), *args, compiled=False),
    ),
    "ours, checkpointed": (
        "plain, checkpointed",
        lambda model, *args: ours(checkpointed(model), *args, graph=False),
    ),
    "plain, FSDP2": (
        "plain, FSDP2",
        lambda model, *args: plain(divided(model), *args, compiled=False),
    ),
    "ours, FSDP2": (
        "plain, FSDP2",
        lambda model, *args: ours(divided(model), *args, graph=None, processes=joined()),
    ),
    "plain, compiled": ("plain, compiled", lambda *args: plain(*args, compiled=True)),
}


def made(name: str, label: str, batch: int, bf16: bool, options: argparse.Namespace) -> Run:
    case = ALL[name]
    torch.manual_seed(0)
    inputs, targets = case.draw(batch, options.tiny, options.device)
    model = case.model(options.tiny).to(options.device).train()
    return CONTENDERS[label][1](model, inputs, targets, bf16)


def clear(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timed(step: Run, repeats: int, device: str) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / repeats


def measured(name: str, label: str, bf16: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step and GiB at its peak."""
    device = options.device
    clear(device)
    base = torch.cuda.memory_allocated() if device == "cuda" else 0
    begun = time.perf_counter()
    step = made(name, label, options.batch or ALL[name].batch, bf16, options)
    # Layers that are dropped at random make branches, each of which gets a graph as it recurs.
    branches = ALL[name].warm_up if "default" in label and not options.tiny else 5
    for _ in range(branches):
        step()
    row: dict[str, Any] = {"prepared s": time.perf_counter() - begun}
    if device == "cuda":
        torch.cuda.synchronize()
        row["GiB"] = (torch.cuda.max_memory_allocated() - base) / 2**30
    slow = timed(step, 1, device) > _SLOW
    repeats, rounds = (1, 2) if slow else (max(5, branches // 8), options.rounds)
    row["ms"] = statistics.median(timed(step, repeats, device) for _ in range(rounds))
    if options.profile and label in options.profile.split(";"):
        show_profile(step, options.top)
    return row


def show_profile(step: Run, top: int) -> None:
    """Print where the device's time of a step goes, by kernel."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    kernels = [e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    totals: dict[str, list[float]] = {}
    for event in kernels:
        totals.setdefault(event.name, []).append(event.self_device_time_total / 1e3)
    print(f"  {len(kernels)} launches, {sum(map(sum, totals.values())):.1f} ms on the device")
    for kernel, each in sorted(totals.items(), key=lambda item: -sum(item[1]))[:top]:
        print(f"  {sum(each):7.2f} ms {len(each):5d} × {kernel[:150]}")


def largest(name: str, label: str, bf16: bool, options: argparse.Namespace) -> int:
    """The largest batch of those tried that fits the cap: each next one from the slope of two."""

    def peak(batch: int) -> float:
        clear("cuda")
        base = torch.cuda.memory_allocated()
        step = made(name, label, batch, bf16, options)
        for _ in range(5 if "default" in label else 2):
            step()
        return (torch.cuda.max_memory_allocated() - base) / 2**30

    batch = ALL[name].batch
    tried = {batch: peak(batch), 2 * batch: peak(2 * batch)}
    for _ in range(3):
        (one, low), (two, high) = sorted(tried.items())[-2:]
        guess = int(two + (options.cap - high) * (two - one) / max(high - low, 1e-6))
        guess = max(1, guess)
        if guess in tried:
            break
        try:
            tried[guess] = peak(guess)
        except torch.OutOfMemoryError:
            break
    return max((b for b, peak in tried.items() if peak <= options.cap), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--precisions", default="bf16,tf32")
    usual = [name for name in CONTENDERS if "checkpointed" not in name and "FSDP2" not in name]
    parser.add_argument("--only", default=";".join(usual), help="separated by semicolons")
    parser.add_argument("--batch", type=int, help="records in a batch; each model's own if unset")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", default="", help="contenders to find the largest batch of")
    parser.add_argument("--cap", type=float, default=24.0, help="GiB for the largest batch")
    parser.add_argument("--profile", default="", help="contenders to profile")
    parser.add_argument("--top", type=int, default=25, help="kernels to show of a profile")
    parser.add_argument("--trace", action="store_true", help="show where a contender failed")
    parser.add_argument("--tiny", action="store_true", help="toys, to see that every line works")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds after which to stop")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus|torch|transformers")
    if options.device == "cuda":
        local_device("cuda")
    if not is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    deadline, rows = time.monotonic() + options.budget, []
    for precision in options.precisions.split(","):
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        for name in options.models.split(","):
            print(f"\n| {name}, {precision} | ms | ratio | GiB | ratio | largest |")
            print("|---|---|---|---|---|---|", flush=True)
            found: dict[str, dict[str, Any]] = {}
            for label in options.only.split(";"):
                row: dict[str, Any] = {"model": name, "precision": precision, "engine": label}
                rows.append(row)
                if time.monotonic() > deadline:
                    row["note"] = "no time left"
                    continue
                try:
                    row |= measured(name, label, precision == "bf16", options)
                    if label in options.largest.split(";"):
                        row["largest"] = largest(name, label, precision == "bf16", options)
                except Exception as error:  # whatever fails, the table goes on
                    if options.trace:
                        traceback.print_exc()
                    row["note"] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                found[label] = row
                print(line(row, found.get(CONTENDERS[label][0], {})), flush=True)
                torch._dynamo.reset()
            if options.json and is_first():
                options.json.write_text(json.dumps(rows, indent=1))
        print_table(precision, [row for row in rows if row["precision"] == precision])
    if distributed.is_initialized():
        distributed.destroy_process_group()


def print_table(precision: str, rows: list[dict[str, Any]]) -> None:
    """Print all networks: milliseconds and GiB, in brackets relative to ordinary training."""
    labels = list(dict.fromkeys(row["engine"] for row in rows))
    print(f"\n| {precision} | {' | '.join(labels)} |\n|---|{'---|' * len(labels)}")
    for name in dict.fromkeys(row["model"] for row in rows):
        found = {row["engine"]: row for row in rows if row["model"] == name}
        cells = [cell(row, found.get(CONTENDERS[label][0], {})) for label, row in found.items()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def cell(row: dict[str, Any], beside: dict[str, Any]) -> str:
    """Milliseconds and GiB of a contender, or why there are none."""
    if "ms" not in row:
        return str(row.get("note", "–")).split(":")[0]
    parts = []
    for key, form in (("ms", ".1f"), ("GiB", ".2f")):
        if key in row:
            ratio = (
                f" ({row[key] / beside[key]:.2f})" if key in beside and row is not beside else ""
            )
            parts.append(f"{row[key]:{form}}{ratio}")
    return ", ".join(parts)


def line(row: dict[str, Any], beside: dict[str, Any]) -> str:
    cells = [row["engine"]]
    for key, form in (("ms", ".1f"), ("GiB", ".2f")):
        cells.append(f"{row[key]:{form}}" if key in row else "–")
        cells.append(f"{row[key] / beside[key]:.2f}" if key in row and key in beside else "–")
    cells.append(str(row.get("note") or row.get("largest") or "–"))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
