"""Private steps of Hugging Face models as they are, next to ordinary training in the same run.

    python -m benchmarks.huggingface --models gpt2,vit --precisions bf16,tf32

Every model has random weights of its usual size; a record is a sequence of 256 tokens or an image.
A step is forward, backward and an SGD update; ours also has norms, test, trimmed sum and noise.
Eager is compared with eager and compiled with compiled, in the same precision: bfloat16 under
autocast, or float32 with TF32 products in the layers. Times are medians; memory is the peak beyond
the batch. "default" is what `Step` does by itself on a GPU: it replays the step as a CUDA graph.
"""

import argparse
import gc
import json
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import prudent.training
from benchmarks import large_models
from benchmarks.large_networks import resnet18
from benchmarks.step_speed import opacus_ghost
from prudent.accounting import GaussianTest
from prudent.training.gradients import BookKeeping

CLIP, RATE = 1.0, 0.01
PLAN = prudent.training.Plan(
    sampling_rate=0.01,
    steps=10**9,
    aggregation=prudent.training.ProposeTestRelease(
        clip=CLIP, propose=0.5, noise_multiplier=1.1, test=GaussianTest(4.0)
    ),
)
Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A model, its batch, and how its inputs and targets look."""

    model: Callable[[bool], nn.Module]
    batch: int
    draw: Callable[[int, bool, str], tuple[Any, Tensor]]


def _tokens(batch: int, tiny: bool, device: str) -> Tensor:
    return torch.randint(0, 97, (batch, 16 if tiny else 256), device=device)


def _language(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    ids = _tokens(batch, tiny, device)
    return {"input_ids": ids}, ids.roll(-1, 1)


def _sentences(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    ids = _tokens(batch, tiny, device)
    lengths = torch.randint(ids.shape[1] // 2, ids.shape[1] + 1, (batch, 1), device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths).long()
    labels = torch.randint(0, 2, (batch,), device=device)
    return {"input_ids": ids, "attention_mask": mask}, labels


def _images(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    side = 32 if tiny else 224
    labels = torch.randint(0, 10, (batch,), device=device)
    return {"pixel_values": torch.randn(batch, 3, side, side, device=device)}, labels


def _small_images(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    side = 8 if tiny else 32
    labels = torch.randint(0, 10, (batch,), device=device)
    return torch.randn(batch, 3, side, side, device=device), labels


def _gpt2(tiny: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    toy = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 97, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**(toy if tiny else {}), use_cache=False))


def _llama(tiny: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    full = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    full |= {"num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 32000}
    toy = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    toy |= {"num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 97}
    return LlamaForCausalLM(LlamaConfig(**(toy if tiny else full), use_cache=False))


def _bert(tiny: bool) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    toy = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    toy |= {"intermediate_size": 64, "vocab_size": 97}
    return BertForSequenceClassification(BertConfig(**(toy if tiny else {})))


def _vit(tiny: bool) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    toy = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    toy |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
    return ViTForImageClassification(ViTConfig(**(toy if tiny else {}), num_labels=10))


CASES = {
    "gpt2": Case(_gpt2, 16, _language),
    "llama": Case(_llama, 16, _language),
    "bert": Case(_bert, 32, _sentences),
    "vit": Case(_vit, 32, _images),
    "resnet18": Case(lambda tiny: resnet18((32, 32)) if tiny else resnet18(), 1024, _small_images),
}


def losses(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy by record, of logits or of a model's outputs."""
    return large_models.losses(outputs if isinstance(outputs, Tensor) else outputs.logits, targets)


class Called(nn.Module):
    """A model with its outputs as a plain tensor and its inputs as one argument, for Opacus."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Tensor:
        outputs = self.model(**inputs) if isinstance(inputs, dict) else self.model(inputs)
        return outputs if isinstance(outputs, Tensor) else outputs.logits


def plain(model: nn.Module, inputs: Any, targets: Tensor, bf16: bool, compiled: bool) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    called = Called(model)
    forward = torch.compile(called) if compiled else called

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(targets.device.type, torch.bfloat16, enabled=bf16):
            loss = losses(forward(inputs), targets).mean()
        loss.backward()
        optimizer.step()

    return step


def ours(
    model: nn.Module, inputs: Any, targets: Tensor, bf16: bool, compiled: bool, graph: bool | None
) -> Run:
    engine = BookKeeping(model, losses, autocast=torch.bfloat16 if bf16 else None)
    options = {} if graph is None else {"cuda_graph": graph}
    release = prudent.training.Step(
        PLAN,
        model,
        losses,
        expected_batch=len(targets),
        engine=engine,
        compile=compiled,
        **options,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    chunk = prudent.training.Chunk(inputs, targets)

    def step() -> None:
        release([chunk])
        optimizer.step()

    return step


def peer(model: nn.Module, inputs: Any, targets: Tensor, bf16: bool) -> Run:
    inner = opacus_ghost(Called(model), inputs, targets, large_models.PeerLoss())

    def step() -> None:
        with torch.autocast(targets.device.type, torch.bfloat16, enabled=bf16):
            inner()

    return step


CONTENDERS: dict[str, tuple[str, Callable[..., Run]]] = {
    "plain": ("plain", lambda *args: plain(*args, compiled=False)),
    "ours, default": ("plain", lambda *args: ours(*args, compiled=False, graph=None)),
    "ours, no graph": ("plain", lambda *args: ours(*args, compiled=False, graph=False)),
    "opacus ghost": ("plain", peer),
    "plain, compiled": ("plain, compiled", lambda *args: plain(*args, compiled=True)),
    "ours, compiled": ("plain, compiled", lambda *args: ours(*args, compiled=True, graph=None)),
}


def made(name: str, label: str, batch: int, bf16: bool, options: argparse.Namespace) -> Run:
    case = CASES[name]
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
    step = made(name, label, options.batch or CASES[name].batch, bf16, options)
    for _ in range(5):
        step()
    row: dict[str, Any] = {"prepared s": time.perf_counter() - begun}
    if device == "cuda":
        torch.cuda.synchronize()
        row["GiB"] = (torch.cuda.max_memory_allocated() - base) / 2**30
    row["ms"] = statistics.median(timed(step, 5, device) for _ in range(options.rounds))
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

    batch = CASES[name].batch
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
    parser.add_argument("--only", default=";".join(CONTENDERS), help="separated by semicolons")
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
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))


def line(row: dict[str, Any], beside: dict[str, Any]) -> str:
    cells = [row["engine"]]
    for key, form in (("ms", ".1f"), ("GiB", ".2f")):
        cells.append(f"{row[key]:{form}}" if key in row else "–")
        cells.append(f"{row[key] / beside[key]:.2f}" if key in row and key in beside else "–")
    cells.append(str(row.get("note") or row.get("largest") or "–"))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
