"""How a plan is carried out: everything that cannot change its guarantee."""

from functools import partial

import attrs
import torch
from torch import nn

from prudent import _validate
from prudent.training.gradients import BookKeeping, Engine, Materialised
from prudent.training.gradients.engine import Loss
from prudent.training.keystream import Key
from prudent.training.parallel.processes import Alone, Processes, join, local_device


class EngineChoice(_validate.Choice):
    """Which engine computes norms and sums."""

    BOOKKEEPING = "bookkeeping"
    MATERIALISED = "materialised"


_ENGINES: dict[EngineChoice, type[Engine]] = {
    EngineChoice.BOOKKEEPING: BookKeeping,
    EngineChoice.MATERIALISED: Materialised,
}


class Precision(_validate.Choice):
    """In what the model computes; parameters, norms, clipping and noise stay as they are."""

    FULL = "full"
    """In the type of its parameters."""

    BF16 = "bf16"
    """In bfloat16 wherever torch.autocast holds that to be enough."""


@attrs.frozen(kw_only=True)
class Execution:
    """Where and how fast, never what.

    Attributes:
        device: Where the model and the data live. Of several processes with "cuda", each has the
            GPU of its LOCAL_RANK.
        engine: How per-example norms are computed.
        physical_batch: Rows computed at a time, by each process; None: as many as nearly every draw
            has.
        recompute: Run each chunk twice instead of keeping what its weighted sum needs, reading it
            twice as well: memory does not grow with the logical batch. No CUDA graph is made. What
            the data set or the model draws must come from torch's default generators, which are
            set back; a second run with other records or losses is refused.
        precision: In what the model computes.
        cuda_graph: Capture the step as a CUDA graph; None: whenever on a CUDA device. Never with
            several processes, nor with a data set that is read on the host.
        compile: Let torch.compile fuse the step; pays for long runs.
        seed: Makes the key of sampling and noise from a number: the run is reproducible, and its
            noise predictable to whoever knows or guesses the number. None, the default, takes a
            key of 256 bits from the operating system.
        distributed: Whether to divide the work among processes; None: whenever torchrun started
            this one with others, or there is a process group. False: each process for itself.
    """

    device: torch.device = attrs.field(default=torch.device("cpu"), converter=torch.device)
    engine: EngineChoice = attrs.field(default=EngineChoice.BOOKKEEPING, converter=EngineChoice)
    physical_batch: int | None = None
    recompute: bool = False
    precision: Precision = attrs.field(default=Precision.FULL, converter=Precision)
    cuda_graph: bool | None = None
    compile: bool = False
    seed: int | None = None
    distributed: bool | None = None

    def __attrs_post_init__(self) -> None:
        if self.physical_batch is not None:
            _validate.fields(self, partial(_validate.count, 1), "physical_batch")
        if self.seed is not None:
            _validate.fields(self, _validate.count, "seed")

    @property
    def captures(self) -> bool:
        """Whether the step becomes a CUDA graph."""
        if self.recompute:
            return False
        return self.device.type == "cuda" if self.cuda_graph is None else self.cuda_graph

    def joined(self) -> tuple["Execution", Processes]:
        """The processes this one works with, and how this one does its part."""
        if self.distributed is False:
            return self, Alone()
        processes = join(local_device(self.device))
        if processes.count == 1:
            if self.distributed:
                raise _validate.ArgumentError(
                    "distributed",
                    "False or None in one process",
                    got=True,
                    hint="Start several: torchrun --nproc-per-node 2 ...",
                )
            return self, processes
        if self.cuda_graph:
            raise _validate.ArgumentError(
                "cuda_graph",
                f"False or None, since {processes.count} processes talk to each other "
                "within a step",
                got=True,
            )
        return attrs.evolve(self, device=local_device(self.device), cuda_graph=False), processes

    def key(self) -> Key:
        """The key of sampling and noise: of the seed if there is one, else new at every call."""
        return Key.random() if self.seed is None else Key.from_seed(self.seed)

    def engine_of(self, model: nn.Module, loss: Loss) -> Engine:
        """The chosen engine, for a model and its loss."""
        autocast = torch.bfloat16 if self.precision is Precision.BF16 else None
        return _ENGINES[self.engine](model, loss, recompute=self.recompute, autocast=autocast)
