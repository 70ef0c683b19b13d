"""Time, memory and the largest batch of private steps of large models, beside ordinary training.

    python -m benchmarks.large_models --device cuda --json large_models.json
    python -m benchmarks.large_models --device cpu --tiny

A step is `prudent.training.Step` with `ProposeTestRelease` and an SGD update on one synthetic
physical batch. Peaks are of memory allocated beyond the batch itself: model, gradients,
activations. Each row is compared with ordinary training in the same precision, with the same parts
checkpointed, as a CUDA graph or not; memory is compared without graphs, which have pools of their
own. The largest batch is the largest tried whose peak is within the cap, each next one predicted
from the last two.
"""

import argparse
import functools
import gc
import importlib.util
import json
import math
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import prudent.training
from benchmarks.large_networks import (
    Decoder,
    VisionTransformer,
    adapted,
    resnet18,
    resnet50,
    set_checkpointed,
)
from benchmarks.step_speed import graphed, opacus_ghost
from prudent.accounting import GaussianTest
from prudent.training.gradients import BookKeeping

CLIP, NOISE, RATE = 1.0, 1.1, 0.01
AGGREGATION = prudent.training.ProposeTestRelease(
    clip=CLIP, propose=0.5, noise_multiplier=NOISE, test=GaussianTest(4.0)
)
_TRIES = 3
PLAN = prudent.training.Plan(sampling_rate=RATE, steps=10**9, aggregation=AGGREGATION)

Step = Callable[[], object]
Build = Callable[[nn.Module, Tensor, Tensor], Step]


@dataclass(frozen=True)
class Case:
    """A model, its batch, how to draw inputs and targets; and the same at the size of a toy."""

    model: Callable[[bool], nn.Module]
    batch: int
    shape: Callable[[bool], tuple[int, ...]]
    tokens: bool = False
    peer: Callable[[bool], nn.Module] | None = None


def _decoder(tiny: bool, *, tied: bool = True) -> Decoder:
    toy = {"size": 32, "layers": 2, "heads": 2, "vocabulary": 97, "length": 16}
    return Decoder(**toy, tied=tied) if tiny else Decoder(tied=tied)


def _vision(tiny: bool) -> nn.Module:
    toy = {"size": 32, "layers": 2, "heads": 2, "image": 32, "patch": 8}
    return VisionTransformer(**toy) if tiny else VisionTransformer()


def _length(tiny: bool) -> tuple[int, ...]:
    return (16,) if tiny else (256,)


CASES = {
    "ResNet18-GN 32×32": Case(
        lambda tiny: resnet18((32, 32)) if tiny else resnet18(),
        256,
        lambda tiny: (3, 8, 8) if tiny else (3, 32, 32),
    ),
    "ResNet50-GN 224×224": Case(
        lambda tiny: resnet50(width=8, counts=(1, 1, 1, 1)) if tiny else resnet50(),
        32,
        lambda tiny: (3, 32, 32) if tiny else (3, 224, 224),
    ),
    "ViT-S/16 224×224": Case(_vision, 64, lambda tiny: (3, 32, 32) if tiny else (3, 224, 224)),
    "GPT-2 small, 256 tokens": Case(
        _decoder, 16, _length, tokens=True, peer=lambda tiny: _decoder(tiny, tied=False)
    ),
    "LoRA on GPT-2 small": Case(lambda tiny: adapted(_decoder(tiny)), 16, _length, tokens=True),
}


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy by record; of a sequence, the mean over its positions."""
    each = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


class PeerLoss(nn.Module):
    """The same, in the form in which Opacus calls it; it sets the reduction to none."""

    reduction = "mean"

    def forward(self, outputs: Tensor, targets: Tensor, *rest: object) -> Tensor:
        return losses(outputs, targets)


def ours(
    *, bf16: bool = False, checkpointed: bool = False, recompute: bool = False, chunks: int = 1
) -> Build:
    def build(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        set_checkpointed(model, checkpointed)
        autocast = torch.bfloat16 if bf16 else None
        engine = BookKeeping(model, losses, recompute=recompute, autocast=autocast)
        release = prudent.training.Step(
            PLAN, model, losses, expected_batch=len(targets), engine=engine
        )
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
        parts = zip(inputs.chunk(chunks), targets.chunk(chunks), strict=True)
        batch = [prudent.training.Chunk(*part) for part in parts]

        def step() -> None:
            release(batch)
            optimizer.step()

        return step

    return build


def plain(*, bf16: bool = False, checkpointed: bool = False) -> Build:
    def build(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        set_checkpointed(model, checkpointed)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16):
                loss = losses(model(inputs), targets).mean()
            loss.backward()
            optimizer.step()

        return step

    return build


@dataclass(frozen=True)
class Contender:
    """How to build a step, and the name of the ordinary training it is compared with."""

    build: Build
    beside: str
    capped: bool = False
    peer: bool = False
    graph: bool = False


CONTENDERS = {
    "plain": Contender(plain(), "plain", capped=True),
    "plain, bf16": Contender(plain(bf16=True), "plain, bf16"),
    "plain, graph": Contender(graphed(plain()), "plain, graph", graph=True),
    "plain, bf16, graph": Contender(graphed(plain(bf16=True)), "plain, bf16, graph", graph=True),
    "plain, checkpointed": Contender(plain(checkpointed=True), "plain, checkpointed"),
    "ours": Contender(ours(), "plain", capped=True),
    "ours, run twice": Contender(ours(recompute=True), "plain"),
    "ours, bf16": Contender(ours(bf16=True), "plain, bf16", capped=True),
    "ours, graph": Contender(graphed(ours()), "plain, graph", graph=True),
    "ours, bf16, graph": Contender(graphed(ours(bf16=True)), "plain, bf16, graph", graph=True),
    "ours, checkpointed, run twice": Contender(
        ours(checkpointed=True, recompute=True), "plain, checkpointed", capped=True
    ),
    "ours, 4 chunks, run twice": Contender(ours(recompute=True, chunks=4), "plain"),
    "opacus ghost": Contender(
        functools.partial(opacus_ghost, loss=PeerLoss()), "plain", capped=True, peer=True
    ),
}


def draw(case: Case, batch: int, device: str, tiny: bool) -> tuple[Tensor, Tensor]:
    shape = case.shape(tiny)
    if case.tokens:
        values = torch.randint(0, 97, (batch, *shape), device=device)
        return values, values.roll(-1, 1)
    return torch.randn(batch, *shape, device=device), torch.randint(0, 10, (batch,), device=device)


class DoesNotFitError(Exception):
    """The batch does not fit the memory."""


def once(
    case: Case, contender: Contender, batch: int, steps: int, device: str, tiny: bool
) -> tuple[float, float]:
    """Seconds of a step (the median of some, after a first), and the peak in GiB of the first two.

    Raises:
        DoesNotFitError: With nothing of the attempt left alive.
    """
    try:
        return _once(case, contender, batch, steps, device, tiny)
    except torch.OutOfMemoryError:
        pass  # the traceback holds the tensors: let go of it first
    raise DoesNotFitError


def _once(
    case: Case, contender: Contender, batch: int, steps: int, device: str, tiny: bool
) -> tuple[float, float]:
    torch.manual_seed(0)
    make = case.peer if contender.peer and case.peer else case.model
    clear(device)
    inputs, targets = draw(case, batch, device, tiny)
    if device == "cpu":
        step = contender.build(make(tiny), inputs, targets)
        step()
        peak = host_peak(step)
        return statistics.median(timed(step, device) for _ in range(max(1, steps))), peak
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = contender.build(make(tiny).to(device), inputs, targets)
    step()
    step()  # now with the gradients of the last step there
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - base) / 2**30
    times = [timed(step, device) for _ in range(steps)]
    return statistics.median(times) if times else math.nan, peak


def clear(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def timed(step: Step, device: str) -> float:
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def host_peak(step: Step) -> float:
    """GiB that a step allocates at most, on the CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**30


def largest_batch(
    case: Case, contender: Contender, low: tuple[int, float], high: tuple[int, float], cap: float
) -> int:
    """The largest batch tried whose peak is within the cap; the first two are given with theirs."""
    tried = [low, high]
    for _ in range(_TRIES):
        (one, peak), (other, other_peak) = tried[-2:]
        slope = (other_peak - peak) / (other - one)
        batch = max(1, int(other + (cap - other_peak) / max(slope, 1e-9)))
        if batch in dict(tried):
            break
        tried.append((batch, once(case, contender, batch, 0, "cuda", False)[1]))
    return max(batch for batch, peak in tried if peak <= cap)


def measure(name: str, options: argparse.Namespace, deadline: float) -> Iterator[dict[str, object]]:
    """One row for each engine, as soon as it is there."""
    case, device, tiny = CASES[name], options.device, options.tiny
    batch = 4 if tiny else options.batch or case.batch
    found: list[dict[str, object]] = []
    asked = options.only.split(";") if options.only else list(CONTENDERS)
    wanted = {*asked, *(CONTENDERS[label].beside for label in asked)}
    for label, contender in CONTENDERS.items():
        if label not in wanted:
            continue
        if contender.peer and not importlib.util.find_spec("opacus"):
            continue
        if contender.graph and device == "cpu":
            continue
        row: dict[str, object] = {"model": name, "engine": label, "batch": batch}
        found.append(row)
        if time.monotonic() > deadline:
            row["note"] = "no time left"
            yield row
            continue
        try:
            seconds, peak = once(case, contender, batch, options.steps, device, tiny)
            row |= {"ms": 1e3 * seconds} | ({} if contender.graph else {"GiB": peak})
            if contender.capped and device == "cuda" and not options.quick:
                half = batch // 2, once(case, contender, batch // 2, 0, device, tiny)[1]
                row["largest"] = largest_batch(case, contender, half, (batch, peak), options.cap)
        except DoesNotFitError:
            row["note"] = "out of memory"
        except Exception as error:  # whatever fails, the table goes on
            if not contender.peer:
                traceback.print_exc()
            row["note"] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        beside = next((r for r in found if r["engine"] == contender.beside), {})
        for key in ("ms", "GiB"):
            if key in row and key in beside:
                row[f"{key} ratio"] = row[key] / beside[key]
        yield row


def header(name: str, batch: int, cap: float) -> str:
    return (
        f"\n| {name}, batch {batch} | ms | ratio | peak GiB | ratio "
        f"| largest batch in {cap:g} GiB |\n|---|---|---|---|---|---|"
    )


def line(row: dict[str, object]) -> str:
    cells = [
        f"{row[key]:{form}}" if key in row else "–"
        for key, form in (("ms", ".1f"), ("ms ratio", ".2f"), ("GiB", ".3g"), ("GiB ratio", ".2f"))
    ]
    last = row.get("note") or row.get("largest") or "–"
    return f"| {row['engine']} | {' | '.join(cells)} | {last} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", default="", help="parts of their names, comma separated")
    parser.add_argument("--only", default="", help="engines, separated by semicolons")
    parser.add_argument("--batch", type=int, help="records in a batch; each model's own if unset")
    parser.add_argument("--steps", type=int, default=5, help="steps timed for each engine")
    parser.add_argument("--cap", type=float, default=24.0, help="GiB for the largest batch")
    parser.add_argument("--quick", action="store_true", help="no search for the largest batch")
    parser.add_argument("--tiny", action="store_true", help="toys, to see that every line works")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds after which to stop")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus|torch")
    deadline = time.monotonic() + options.budget
    rows: list[dict[str, object]] = []
    wanted = [part for part in options.models.split(",") if part]
    for name in CASES:
        if wanted and not any(part.lower() in name.lower() for part in wanted):
            continue
        for number, row in enumerate(measure(name, options, deadline)):
            if number == 0:
                print(header(name, row["batch"], options.cap))
            print(line(row), flush=True)
            rows.append(row)
    print(f"\n{json.dumps(rows)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
