"""How a plan is executed: the settings that cannot change its guarantee."""

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
    """The engine that computes per-example norms and weighted sums."""

    BOOKKEEPING = "bookkeeping"
    MATERIALISED = "materialised"


_ENGINES: dict[EngineChoice, type[Engine]] = {
    EngineChoice.BOOKKEEPING: BookKeeping,
    EngineChoice.MATERIALISED: Materialised,
}


class Precision(_validate.Choice):
    """The number type of the model's layers.

    Parameters, norms, clipping and noise are unaffected.
    """

    FULL = "full"
    """The type of the parameters."""

    BF16 = "bf16"
    """bfloat16 wherever torch.autocast uses it."""


def _device(given: torch.device | str) -> torch.device:
    return _validate.device(device=given)


@attrs.frozen(kw_only=True)
class Execution:
    """Where and how a plan is executed, without influence on its guarantee.

    Attributes:
        device: Device of the model and the data. With several processes, "cuda" means the GPU
            numbered LOCAL_RANK in each.
        engine: The engine that computes per-example norms.
        physical_batch: Records, or people, that each process computes at a time. None: enough for
            most draws.
        recompute: Run each chunk twice instead of keeping what its weighted sum needs, so that
            memory of the device does not grow with the logical batch. No CUDA graph is captured.
            Random numbers of the model must come from torch's default generators, which are reset
            for the second run; a second run with different losses raises an error.
        precision: The number type of the model's layers.
        cuda_graph: Capture the step as a CUDA graph, with several processes as one for each part
            between exchanges. None: on every CUDA device.
        workers: Processes that read the items of a data set ahead of time. 0: this process reads
            them when they are needed. Tensors need none.
        prefetch: Physical batches that each worker reads ahead.
        compile: Compile the step into fused kernels; worthwhile for long runs.
        seed: Derive the key of sampling and noise from this number. The run is then reproducible,
            and its noise is predictable to whoever knows or guesses the number. None, the default:
            a 256-bit key from the operating system.
        distributed: Whether to divide the work among processes. None: if torchrun started this
            process with others, or a process group exists. False: each process trains on its own.
    """

    device: torch.device = attrs.field(default=torch.device("cpu"), converter=_device)
    engine: EngineChoice = attrs.field(default=EngineChoice.BOOKKEEPING, converter=EngineChoice)
    physical_batch: int | None = None
    recompute: bool = False
    precision: Precision = attrs.field(default=Precision.FULL, converter=Precision)
    cuda_graph: bool | None = None
    workers: int = 0
    prefetch: int = 2
    compile: bool = False
    seed: int | None = None
    distributed: bool | None = None

    def __attrs_post_init__(self) -> None:
        if self.physical_batch is not None:
            _validate.fields(self, partial(_validate.count, 1), "physical_batch")
        _validate.fields(self, _validate.count, "workers")
        _validate.fields(self, partial(_validate.count, 1), "prefetch")
        if self.seed is not None:
            _validate.fields(self, _validate.count, "seed")

    @property
    def captures(self) -> bool:
        """Whether the step is to be captured as a CUDA graph."""
        if self.recompute:
            return False
        return self.device.type == "cuda" if self.cuda_graph is None else self.cuda_graph

    @property
    def computation(self) -> tuple[str, ...]:
        """The settings that can change how a sum is rounded."""
        chosen = (self.engine, self.precision, self.recompute, self.compile)
        return tuple(str(setting) for setting in (*chosen, self.captures))

    def joined(self) -> tuple["Execution", Processes]:
        """The execution settings of this process, and the processes of the run."""
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise _validate.ArgumentError(
                "device", "'cpu', because no CUDA device is available", got=str(self.device)
            )
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
        return attrs.evolve(self, device=local_device(self.device)), processes

    def key(self) -> Key:
        """The key of sampling and noise: derived from the seed if given, else new at every call."""
        return Key.random() if self.seed is None else Key.from_seed(self.seed)

    def engine_of(self, model: nn.Module, loss: Loss, slots: int | None = None) -> Engine:
        """The chosen engine for a model and its loss; `slots` as for every engine."""
        autocast = torch.bfloat16 if self.precision is Precision.BF16 else None
        return _ENGINES[self.engine](
            model, loss, recompute=self.recompute, autocast=autocast, slots=slots
        )
