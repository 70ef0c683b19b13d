"""The time and memory of one private step of a recurrent model, next to an ordinary one.

    python -m benchmarks.recurrent --rounds 5

A step is as in `benchmarks.step_speed`: a table of tokens, one recurrent layer (batch first), a
linear head on its last output. Opacus gets its own DPLSTM, DPGRU or DPRNN in place of torch's
layer. All contenders of a case run round by round; memory is the most that torch's allocator held
at a time during one step. Set OMP_NUM_THREADS=1 before starting to measure one thread.
"""

import argparse
import importlib
import importlib.util
import statistics
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.step_speed import Step, losses, opacus_hooks, plain, private, timed
from prudent.training.gradients import BookKeeping

TOKENS, CLASSES = 1_000, 10
BUILDS = {"plain": plain, "book-keeping": private(lambda model: BookKeeping(model, losses))}


class Reader(nn.Module):
    def __init__(self, layer: nn.Module, size: int) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(TOKENS, size), layer
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(self.table(tokens))[0][:, -1])
        return outputs


def peak_mebibytes(run: Callable[[], object]) -> float:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    held = peak = 0
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


def contenders(kind: str, size: int, options: dict[str, int], batch: Tensor) -> dict[str, Step]:
    targets = torch.randint(0, CLASSES, (len(batch),))
    steps, builds = {}, dict.fromkeys(BUILDS, nn)
    if importlib.util.find_spec("opacus"):
        builds["opacus hooks"] = importlib.import_module("opacus.layers")
    for name, layers in builds.items():
        made = getattr(layers, f"DP{kind}" if "opacus" in name else kind)
        build = BUILDS.get(name, opacus_hooks)
        torch.manual_seed(0)
        model = Reader(made(size, size, batch_first=True, **options), size)
        model(batch[:1])
        steps[name] = build(model, batch, targets)
        steps[name]()
    return steps


def measure(kind: str, size: int, time: int, batch: int, rounds: int, **options: int) -> None:
    steps = contenders(kind, size, options, torch.randint(0, TOKENS, (batch, time)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(timed(step, 1, "cpu"))
    shape = f"{kind}({size}) {options or ''}, {batch} × {time} tokens"
    print(f"\n| {shape} | ratio | ms | peak MiB |\n|---|---|---|---|")
    for name, each in times.items():
        ratio = statistics.median(t / p for t, p in zip(each, times["plain"], strict=True))
        milliseconds = 1e3 * statistics.median(each)
        print(f"| {name} | {ratio:.2f} | {milliseconds:.0f} | {peak_mebibytes(steps[name]):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    warnings.filterwarnings("ignore")
    measure("LSTM", 128, 64, 64, rounds)
    measure("LSTM", 128, 64, 64, rounds, num_layers=2, bidirectional=True)
    measure("LSTM", 512, 32, 32, rounds)
    measure("GRU", 128, 64, 64, rounds)
    measure("RNN", 128, 64, 64, rounds)


if __name__ == "__main__":
    main()
