"""What unpredictable noise costs: the keystream beside torch's generator, in the same run.

    python -m benchmarks.keystream --device cuda
    OMP_NUM_THREADS=1 python -m benchmarks.keystream --device cpu --sizes 26010,1000000

First the time to add Gaussian noise to a vector, then that of a whole private step of a small
network and of GPT-2 small. "torch" draws the noise with `torch.randn` and a generator of the
device, as before the keystream; the rest of the step is the same. Both run in turns.
"""

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import prudent.training
from benchmarks.large_models import losses
from benchmarks.large_networks import Decoder
from benchmarks.models import tutorial_cnn
from benchmarks.step_speed import AGGREGATION, timed
from prudent.training.gradients import BookKeeping
from prudent.training.keystream import Key
from prudent.training.noise import DeviceNoise, HostNoise, StepState, noise_on

PLAN = prudent.training.Plan(sampling_rate=0.05, steps=10**9, aggregation=AGGREGATION)
SIZES = "26010,1000000,124000000"

Act = Callable[[], object]


class TorchNoise:
    """Noise from the generator of the device: linear or of a short seed, and so predictable."""

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.Generator(device)
        self.generator.seed()

    def test_words(self, state: StepState) -> Tensor:
        words = torch.empty(2, dtype=torch.int64, device=state.number.device)
        return words.random_(-(2**63), None, generator=self.generator)

    def add_(self, total: Tensor, deviation: Tensor, state: StepState) -> None:
        noise = torch.empty_like(total).normal_(generator=self.generator)
        total.add_(noise.mul_(deviation))


Source = TorchNoise | HostNoise | DeviceNoise


def sources(device: torch.device) -> dict[str, Source]:
    return {"torch": TorchNoise(device), "keystream": noise_on(device, Key.random())}


@dataclass(frozen=True)
class Case:
    """A model and a batch for it."""

    name: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    autocast: torch.dtype | None = None


def cases(device: torch.device, names: str) -> Iterator[Case]:
    torch.manual_seed(0)
    if "cnn" in names:
        images, labels = torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,))
        yield Case("tutorial CNN, 256 images", tutorial_cnn(1, 512), images, labels)
    if "gpt2" in names:
        size = 16 if device.type == "cuda" else 4
        tokens = torch.randint(0, 50_000, (size, 256))
        autocast = torch.bfloat16 if device.type == "cuda" else None
        name = f"GPT-2 small, {size} × 256 tokens"
        yield Case(name, Decoder(), tokens, tokens.roll(-1, 1), autocast)


def stepping(case: Case, source: Source, device: torch.device) -> Act:
    """A private step and an SGD update of a copy of the model."""
    model = copy.deepcopy(case.model).to(device)
    inputs, targets = case.inputs.to(device), case.targets.to(device)
    engine = BookKeeping(model, losses, autocast=case.autocast)
    release = prudent.training.Step(PLAN, model, losses, expected_batch=len(targets), engine=engine)
    release.noise = source  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        release([prudent.training.Chunk(inputs, targets)])
        optimizer.step()

    return step


def captured(step: Act, source: Source) -> Act:
    """The step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if isinstance(source, TorchNoise):
        graph.register_generator_state(source.generator)
    with torch.cuda.graph(graph):
        step()

    def replay(held: Act = step) -> None:
        """Replays; the graph reads the memory that `held` keeps alive."""
        graph.replay()

    return replay


def compare(name: str, acts: dict[str, Act], rounds: int, device: torch.device) -> None:
    """One row: median milliseconds of each, and the median ratio of the same round."""
    repeats = 20 if device.type == "cuda" else 1
    for act in acts.values():
        timed(act, 2, device.type)
    times: dict[str, list[float]] = {key: [] for key in acts}
    for _ in range(rounds):
        for key, act in acts.items():
            times[key].append(timed(act, repeats, device.type))
    before, after = (1e3 * statistics.median(times[key]) for key in ("torch", "keystream"))
    pairs = zip(times["torch"], times["keystream"], strict=True)
    ratio = statistics.median(new / old for old, new in pairs)
    print(f"| {name} | {before:.3f} | {after:.3f} | {ratio:.3f} |", flush=True)


def adding(size: int, source: Source, device: torch.device) -> Act:
    """Adds noise to a vector."""
    total, one = torch.zeros(size, device=device), torch.ones((), device=device)
    state = StepState.start(0.0, device)
    return lambda: source.add_(total, one, state)


def table(name: str, make: Callable[[Source], Act], rounds: int, device: torch.device) -> None:
    """A row of the steps as they are and, on a GPU, one of them as graphs."""
    for graph in (False, True) if device.type == "cuda" else (False,):
        acts = {key: (make(source), source) for key, source in sources(device).items()}
        compare(
            f"{name}, graph" if graph else name,
            {key: captured(*pair) if graph else pair[0] for key, pair in acts.items()},
            rounds,
            device,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", default=SIZES, help="lengths of vectors, comma separated")
    parser.add_argument("--steps", default="cnn,gpt2", help="models, comma separated")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    device, rounds = torch.device(arguments.device), arguments.rounds
    print(f"| {device}, ms | torch | keystream | ratio |\n|---|---|---|---|")
    for size in (int(size) for size in arguments.sizes.split(",") if size):
        table(f"{size:,} numbers", partial(adding, size, device=device), rounds, device)
    for case in cases(device, arguments.steps):
        table(case.name, partial(stepping, case, device=device), rounds, device)


if __name__ == "__main__":
    main()
