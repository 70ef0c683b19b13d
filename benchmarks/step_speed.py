"""The time of one private optimizer step, next to an ordinary one in the same run.

    python -m benchmarks.step_speed --device cpu --models A,B,E,D --rounds 5

A step is `prudent.training.Step` with `ProposeTestRelease` and an SGD update, on a fixed synthetic
batch: forward, per-example norms, clipping, the private test, the trimmed sum and its noise. All
engines of a model run round by round, so that a busy machine slows them alike; the table gives the
median of the ratio to eager, non-private SGD of the same round. On CUDA the graph variants are
captured once and replayed. Set OMP_NUM_THREADS=1 before starting to measure one thread.
"""

import argparse
import copy
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import prudent.training
from benchmarks.models import CASES
from prudent.accounting import GaussianTest
from prudent.training.gradients import BookKeeping, Engine, Materialised

CLIP, NOISE, RATE = 1.0, 1.1, 0.05
AGGREGATION = prudent.training.ProposeTestRelease(
    clip=CLIP, propose=0.5, noise_multiplier=NOISE, test=GaussianTest(4.0)
)

Step = Callable[[], object]
Build = Callable[[nn.Module, Tensor, Tensor], Step]


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def private(make: Callable[[nn.Module], Engine]) -> Build:
    def build(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        records = len(targets)
        release = prudent.training.Step(
            prudent.training.Plan(sampling_rate=RATE, steps=10**9, aggregation=AGGREGATION),
            model,
            losses,
            expected_batch=records,
            engine=make(model),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        batch = [prudent.training.Chunk(inputs, targets)]

        def step() -> None:
            release(batch)
            optimizer.step()

        return step

    return build


def plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        losses(model(inputs), targets).mean().backward()
        optimizer.step()

    return step


def opacus_hooks(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=len(targets),
    )

    def step() -> None:
        optimizer.zero_grad()
        losses(wrapped(inputs), targets).mean().backward()
        optimizer.step()

    return step


def opacus_ghost(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: nn.Module | None = None
) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=len(targets),
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, loss or nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        criterion(wrapped(inputs), targets).backward()
        optimizer.step()

    return step


def graphed(build: Build) -> Build:
    """The step as one CUDA graph."""

    def build_graph(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        step = build(model, inputs, targets)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

        def replay(held: Step = step) -> None:
            """Replay; the graph reads the memory of the model that `held` keeps alive."""
            graph.replay()

        return replay

    return build_graph


def contenders(device: str) -> dict[str, Build]:
    book_keeping = private(lambda model: BookKeeping(model, losses))
    materialised = private(lambda model: Materialised(model, losses))
    builds = {
        "plain": plain,
        "book-keeping": book_keeping,
        "materialised": materialised,
    }
    if importlib.util.find_spec("opacus"):
        builds |= {"opacus hooks": opacus_hooks, "opacus ghost": opacus_ghost}
    if device == "cuda":
        builds |= {
            "plain, graph": graphed(plain),
            "book-keeping, graph": graphed(book_keeping),
            "materialised, graph": graphed(materialised),
        }
    return builds


def timed(step: Step, repeats: int, device: str) -> float:
    # One thread is timed by the processor, which other programs on the machine disturb less.
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    start = clock()
    for _ in range(repeats):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / repeats


def measure(case: str, batch: int | None, device: str, rounds: int, only: list[str]) -> None:
    chosen = CASES[case]
    batch = batch or chosen.batch
    torch.manual_seed(0)
    inputs, targets = chosen.draw(batch).to(device), torch.randint(0, 10, (batch,), device=device)
    model = chosen.model().to(device)
    steps: dict[str, Step] = {}
    peaks: dict[str, float] = {}
    for name, build in contenders(device).items():
        if only and name not in only and name != "plain":
            continue
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            base = torch.cuda.memory_allocated()
        try:
            steps[name] = build(copy.deepcopy(model), inputs, targets)
            steps[name]()
        except (RuntimeError, NotImplementedError) as error:
            print(f"{case}:{batch} {name}: {type(error).__name__}: {str(error)[:200]}")
            steps.pop(name, None)
            continue
        if device == "cuda":
            torch.cuda.synchronize()
            peaks[name] = (torch.cuda.max_memory_allocated() - base) / 2**30
    repeats = 20 if device == "cuda" else 1
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(timed(step, repeats, device))
    print(f"\n| {case}:{batch} ({device}) | ratio | samples/s | peak GiB |\n|---|---|---|---|")
    for name, each in times.items():
        ratio = statistics.median(t / p for t, p in zip(each, times["plain"], strict=True))
        peak = f"{peaks[name]:.2f}" if name in peaks else "–"
        print(f"| {name} | {ratio:.2f} | {batch / statistics.median(each):,.0f} | {peak} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", default="A,B,E,D", help="comma separated: A, B, D, E")
    parser.add_argument("--batch", type=int, help="records in a batch; each model's own if unset")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="engines by name, separated by semicolons; plain always runs"
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus|torch")
    only = [name for name in arguments.only.split(";") if name]
    for case in arguments.models.split(","):
        measure(case, arguments.batch, arguments.device, arguments.rounds, only)


if __name__ == "__main__":
    main()
