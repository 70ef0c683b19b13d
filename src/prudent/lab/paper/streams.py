"""Many concurrent training runs on one GPU, each on its own stream, from a single process.

A step of a small network leaves most of a GPU idle. Every run is captured as a graph and replayed
on its own stream, one step of each in turn, so that the kernels of different runs overlap.
Compiling the steps is not worthwhile: it gains a few percent and takes longer than most runs.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from prudent.training import Execution, Plan
from prudent.training.chunk import Corrupt, Corruption
from prudent.training.run.metrics import Metrics
from prudent.training.run.training_run import TrainingRun
from prudent.training.sampling import roomy_batch

Work = Iterator[None]
"""Takes one step per item requested."""


def in_turns(works: Iterable[Work], at_once: int, device: torch.device) -> None:
    """Take one step of each work in turn; when one ends, start the next.

    A work is prepared only when it starts.
    """
    coming, on_gpu = iter(works), device.type == "cuda"
    waiting: deque[tuple[Work, Any]] = deque()  # of each stream its work, at first an empty one
    for _ in range(at_once):
        stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        waiting.append((iter(()), stream))
    while waiting:
        work, stream = waiting.popleft()
        with torch.cuda.stream(stream) if on_gpu else contextlib.nullcontext():
            if next(work, _ENDED) is not _ENDED:
                waiting.append((work, stream))
            elif (following := next(coming, None)) is not None:
                waiting.append((following, stream))


def training(
    plan: Plan,
    model: nn.Module,
    train_set: tuple[torch.Tensor, torch.Tensor],
    evaluate: Callable[[nn.Module], Mapping[str, float]],
    marks: Iterable[int],
    record: Callable[[list[Metrics]], None],
    *,
    lr: float,
    momentum: float,
    seed: int,
    corrupt: Corrupt | Corruption | None = None,
    average: float | None = None,
    device: torch.device,
) -> Work:
    """A run of `plan` that is evaluated at `marks` and passes its metrics to `record`.

    Marks are steps in ascending order, the last of which ends the run; what else is given is as
    for `fit`.
    """
    run = TrainingRun.prepare(
        plan,
        model,
        nn.CrossEntropyLoss(reduction="none"),
        train_set,
        options={"lr": lr, "momentum": momentum},
        execution=Execution(
            device=device,
            seed=seed,
            distributed=False,  # each run uses this process only, even under torchrun
            # When many runs fill a GPU, padding is expensive; a second chunk in one of 5,000 steps
            # is not.
            physical_batch=roomy_batch(len(train_set[1]), plan.sampling_rate, 3.5),
        ),
        corrupt=corrupt,
        average=average,
    )
    history, step = [], 0
    for mark in marks:
        for number in range(step, mark):
            run.take(number)
            yield
        step = mark
        with run.shown() as model:
            shown = dict(evaluate(model))
        history.append(run.metrics(step, shown, None, private=False))
    record(history)


_ENDED = object()
