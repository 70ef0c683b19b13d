"""Many training runs at once on one GPU, each on a stream of its own, from a single process.

A step of a small network leaves most of a GPU idle. Every run is captured as a graph and replayed
on its own stream, one step of each in turn, so that the kernels of different runs overlap. To
compile their steps gains a few percent and takes longer than most of them: not worth it.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from prudent.training import Execution, Plan, accuracy
from prudent.training.loop.metrics import Metrics
from prudent.training.loop.run import TrainingRun
from prudent.training.sampling import roomy_batch
from prudent.training.step import Corrupt

Work = Iterator[None]
"""Takes a step whenever it is asked for the next item."""


def in_turns(works: Iterable[Work], at_once: int, device: torch.device) -> None:
    """Takes one step of each work in turn; where one ends the next begins.

    Args:
        works: Prepared when they are reached, no earlier.
        at_once: How many are under way at a time.
        device: Of the streams.
    """
    coming = iter(works)
    under_way = deque(_next_ones(coming, at_once, device))
    while under_way:
        work, stream = under_way.popleft()
        with _on(stream):
            ended = next(work, _ENDED) is _ENDED
        if ended:
            under_way.extend(_next_ones(coming, 1, device, stream))
        else:
            under_way.append((work, stream))


def training(
    plan: Plan,
    model: nn.Module,
    train_set: tuple[torch.Tensor, torch.Tensor],
    test_set: tuple[torch.Tensor, torch.Tensor],
    marks: Iterable[int],
    record: Callable[[list[Metrics]], None],
    *,
    lr: float,
    momentum: float,
    seed: int,
    corrupt: Corrupt | None = None,
    average: float | None = None,
    device: torch.device,
) -> Work:
    """A run of `plan` that is evaluated at `marks`, then hands its metrics over.

    Args:
        plan: As for `fit`.
        model: Likewise.
        train_set: Inputs and labels.
        test_set: Likewise; on the device already, if it is to be quick.
        marks: Steps, ascending, the last of which ends the run.
        record: Called at the end.
        lr: Of SGD.
        momentum: Of SGD.
        seed: Of sampling and noise.
        corrupt: As for `fit`.
        average: Likewise.
        device: Where to train.
    """
    run = TrainingRun.prepare(
        plan,
        model,
        nn.CrossEntropyLoss(reduction="none"),
        train_set,
        torch.optim.SGD,
        {"lr": lr, "momentum": momentum},
        Execution(
            device=device,
            seed=seed,
            distributed=False,  # each run is one process's own, whoever started it
            # Where many runs fill a GPU padding is dear, and a second chunk once in 5,000 is not.
            physical_batch=roomy_batch(len(train_set[1]), plan.sampling_rate, 3.5),
        ),
        corrupt,
        average,
    )
    evaluate = accuracy(*test_set, batch=10_000)
    history, step = [], 0
    for mark in marks:
        for _ in run.steps(step, mark):
            yield
        step = mark
        with run.shown() as model:
            shown = dict(evaluate(model))
        history.append(run.metrics(step, shown, None, private=False))
    record(history)


_ENDED = object()


def _next_ones(
    coming: Iterator[Work], count: int, device: torch.device, stream: Any = None
) -> Iterator[tuple[Work, Any]]:
    for _ in range(count):
        own = _stream(device) if stream is None else stream
        with _on(own):
            work = next(coming, None)
        if work is None:
            return
        yield work, own


def _stream(device: torch.device) -> Any:
    """A stream of one's own; None on the host, which has none."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
