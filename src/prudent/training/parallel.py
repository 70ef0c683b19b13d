"""Several processes that execute one plan: they divide the records and make one joint release.

Every process draws the same batch (the draw is a function of the key) and keeps its own records:
record i belongs to process i modulo the number of processes. Then, in every step:

1. each process computes the norms of its own records;
2. norms and record ids are gathered, so that all records can be ordered by (norm, id);
3. the first process tests and decides, and sends its decision to the others. If each process
   decided for itself with the same noise, a rounding difference between two devices could send them
   into different branches;
4. each process sums its own records with the weights it was given;
5. the parts are added up in the first process, which adds the noise and sends the result to all.

The noise is drawn once, by one process, from the keystream that a single process would have read,
so the sum contains it exactly once, whatever the devices are. (If every process added a share of
the noise, each would have to be trusted to do so.) It is added last, because the noisy sum is
rounded to a lattice: a part that was added afterwards would show its low bits. A run of any number
of processes therefore releases what one process would have released, up to the rounding of sums.

All processes belong to the owner of the data: they exchange norms, ids and noiseless sums,
unencrypted.

A model may be sharded among the processes (FSDP2, `fully_shard`). A step needs all parameters at
once, because the engines pass every layer its parameters by name. So they are gathered for a step
and freed after it: with P bytes of parameters and W processes, Adam stores 4P/W per process between
steps, and a step needs P more. Gradients and the optimizer state remain sharded.
"""

import atexit
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from typing_extensions import override

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.training.aggregation import Decision
from prudent.training.captured import exchanged
from prudent.training.chunk import DeferredCheck, lacks_memory


def is_sharded(value: Any) -> bool:
    """Whether a value is a DTensor. If their module was never imported, there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def has_shards(model: nn.Module) -> bool:
    """Whether any parameter is sharded."""
    imported = "torch.distributed.tensor" in sys.modules
    return imported and any(is_sharded(parameter) for parameter in model.parameters())


def check_mesh(model: nn.Module, processes: int) -> None:
    """Raise an error if a model is sharded over another number of processes than the run has."""
    for name, parameter in model.named_parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        if mesh is not None and mesh.size() != processes:
            allowed = f"sharded over the {processes} processes of the run"
            hint = "Shard it with fully_shard(model) over all of them, without tensor parallelism."
            raise ArgumentError("model", allowed, shown=f"{mesh} for {name!r}", hint=hint)


def reshard(model: nn.Module) -> None:
    """Reshard the parameters, which an evaluation may have left gathered."""
    if "torch.distributed.fsdp" not in sys.modules:
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(value: Tensor) -> Tensor:
    """The whole tensor, gathered from all processes."""
    gathered: Tensor = value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]
    return gathered.detach()


def local(value: Any) -> Tensor:
    """What this process has of a tensor."""
    own: Tensor = value.to_local() if is_sharded(value) else value
    return own


def own_shard(value: Tensor, parameter: Any) -> Tensor:
    """This process's shard of a tensor that every process holds, sharded like a parameter."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = parameter.device_mesh
    replicas = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicas.redistribute(placements=parameter.placements)


@contextmanager
def without_gathering(model: nn.Module) -> Iterator[None]:
    """Disable FSDP's hooks, which would replace the parameters of every layer."""
    with ExitStack() as stack:
        for module in model.modules() if has_shards(model) else ():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                stack.callback(hooks.update, dict(hooks))
                stack.callback(hooks.clear)
                for key, hook in list(hooks.items()):
                    if getattr(hook, "__module__", "").startswith("torch.distributed.fsdp"):
                        del hooks[key]
        yield


def whole_state(state: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
    """A state dictionary with gathered tensors. All processes must call this, even without `keep`.

    Tensors are gathered one at a time and kept on the host.
    """

    def gather(leaf: Any) -> Any:
        if not is_sharded(leaf):
            return leaf
        gathered = whole(leaf)
        return gathered.cpu() if keep else None

    gathered: dict[str, Any] = pytree.tree_map(gather, dict(state))
    return gathered


def load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load gathered tensors into a model; each process keeps its shards."""
    current = model.state_dict()
    if differing := sorted(state.keys() ^ current.keys()):
        raise ValueError(
            "Expected the model with which this run was started, got another: only one of them has "
            f"{differing[0]!r}. Resume with that model, or start again in an empty folder."
        )
    model.load_state_dict({name: _like(value, current[name]) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load gathered tensors into an optimizer.

    Tensors with the shape of their parameter are sharded like it. Whether a graph includes the
    optimizer follows from this machine, and not from the one that saved it.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        index: {
            name: _like(value, parameters[index])
            if isinstance(value, Tensor) and value.shape == parameters[index].shape
            else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    groups = [
        saved | {name: own[name] for name in own if name == "capturable"}
        for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=False)
    ] + state["param_groups"][len(optimizer.param_groups) :]  # torch refuses another number of them
    optimizer.load_state_dict({**state, "state": moments, "param_groups": groups})


def _like(value: Tensor, model: Any) -> Tensor:
    if not is_sharded(model):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh = model.device_mesh
    value = value.to(model.device)
    return distribute_tensor(value, mesh, model.placements, src_data_rank=None)


Answer = TypeVar("Answer")
Decide = Callable[[Tensor, Tensor], Decision]
"""Maps the norms and validity of a whole batch, ordered by record id, to the decision."""

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others before it considers them lost."""


class ProcessLostError(ConnectionError):
    """Another process of the run ended, or did not answer in time."""


class Processes:
    """The processes that execute one plan together, as one of them sees them: here, only itself.

    Attributes:
        rank: Index of this process, from 0.
        count: Number of processes.
    """

    rank = 0
    count = 1

    def largest(self, ids: Tensor | None) -> int:
        """The number of rows that the largest part of a batch has; 0 if there is one part only."""
        return 0

    def decide(
        self, norms: Tensor, valid: Tensor, ids: Tensor | None, rows: int, decide: Decide
    ) -> Decision:
        """Decide once for the whole batch and return the decision with this process's weights.

        Given are norms, validity and record ids of its own part, and what `largest` returned.
        `decide` is called in one process, with the whole batch ordered by record id.
        """
        if ids is None:
            return decide(norms, valid)
        order = ids.argsort(stable=True)
        decided = decide(norms[order], valid[order])
        return decided._replace(
            weights=torch.empty_like(decided.weights).scatter_(0, order, decided.weights)
        )

    def summed(self, part: Tensor) -> Tensor:
        """The sum of the parts of all processes; may overwrite `part`."""
        return part

    def collected(self, part: Tensor) -> Tensor:
        """In the first process the sum of all parts, elsewhere anything; may overwrite `part`."""
        return part

    def sent(self, value: Tensor) -> Tensor:
        """The value of the first process, in every process; may overwrite `value`."""
        return value

    def gathered(self, value: Answer) -> list[Answer]:
        """The values of all processes, ordered by rank."""
        return [value]

    def first(self, function: Callable[[], Answer]) -> Answer:
        """Call a function in the first process only.

        All processes return its result or raise its error.
        """
        return function()

    def align(self, model: nn.Module) -> None:
        """Copy the parameters and buffers of the first process to all others."""

    def check_same(self, **values: Any) -> None:
        """Raise an error unless the values are the same in every process."""

    def watched(self) -> AbstractContextManager[None]:
        """A context for communication that raises `ProcessLostError` if another process is lost."""
        return nullcontext()


class DistributedGroup(Processes):
    """The processes of torch's default process group."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.count = distributed.get_world_size()
        # What the hosts say to each other must not wait for their devices.
        on_device = distributed.get_backend() == "nccl"
        self._hosts = distributed.new_group(backend="gloo", timeout=PATIENCE) if on_device else None
        self._shared = DeferredCheck(_shared)

    @override
    def largest(self, ids: Tensor | None) -> int:
        if ids is None:
            allowed = f"in every Chunk, because {self.count} processes order their records jointly"
            raise ArgumentError("ids", allowed, got=None, hint="Pass the ids of the sampled batch.")
        largest = torch.tensor(len(ids))
        with self.watched():
            distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=self._hosts)
        return int(largest)

    @override
    def decide(
        self, norms: Tensor, valid: Tensor, ids: Tensor | None, rows: int, decide: Decide
    ) -> Decision:
        assert ids is not None  # see `largest`
        mine = torch.full((2, rows), -1.0, dtype=torch.float64, device=norms.device)
        mine[0, : len(norms)] = norms
        mine[1, : len(norms)] = torch.where(valid, ids, -1)  # doubles are exact up to 2^53
        whole = mine.new_empty(self.count, 2, rows)
        exchanged(self._gather, whole, mine)
        all_norms, all_ids = whole[:, 0].flatten().to(norms.dtype), whole[:, 1].flatten()
        order = all_ids.sort().indices  # padding comes first
        ordered = all_ids[order]
        repeated = torch.zeros_like(ordered, dtype=torch.bool)
        repeated[1:] = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
        answer = mine.new_empty(len(order) + 4)
        if self.rank == 0:
            decided = decide(all_norms[order], (ordered >= 0) & ~repeated)
            answer[:-4].scatter_(0, order, decided.weights.to(answer.dtype))
            answer[-4:] = torch.stack([field.to(answer.dtype) for field in decided[1:]])
        exchanged(self._agree, repeated, answer)
        start = self.rank * rows
        noise, passed, noisy_margin, scale = answer[-4:].unbind()
        return Decision(
            answer[start : start + len(norms)].to(norms.dtype),
            noise,
            passed.bool(),
            noisy_margin,
            scale.to(norms.dtype),
        )

    def _exchanged(self, exchange: Callable[..., object], value: Tensor, *first: int) -> Tensor:
        with self.watched():
            exchange(value, *first)
        return value

    @override
    def summed(self, part: Tensor) -> Tensor:
        return self._exchanged(distributed.all_reduce, part)

    @override
    def collected(self, part: Tensor) -> Tensor:
        return self._exchanged(distributed.reduce, part, 0)

    @override
    def sent(self, value: Tensor) -> Tensor:
        return self._exchanged(distributed.broadcast, value, 0)

    @override
    def gathered(self, value: Answer) -> list[Answer]:
        values: list[Any] = [None] * self.count
        with self.watched():
            distributed.all_gather_object(values, value)
        return values

    @override
    def first(self, function: Callable[[], Answer]) -> Answer:
        answer: list[Any] = [None, None]
        failure: Exception | None = None
        if self.rank == 0:
            try:
                answer[0] = function()
            except Exception as error:  # all processes must stop, whatever the error
                failure, answer[1] = error, _portable(error)
        with self.watched():
            distributed.broadcast_object_list(answer, 0)
        if answer[1] is not None:
            raise failure or answer[1]
        value: Answer = answer[0]
        return value

    @override
    def align(self, model: nn.Module) -> None:
        with self.watched(), torch.no_grad():
            for value in (*model.parameters(), *model.buffers()):
                if not is_sharded(value):  # each process keeps its own shard
                    distributed.broadcast(value, 0)

    @override
    def check_same(self, **values: Any) -> None:
        everywhere = self.gathered(values)
        for name in values:
            given = [others[name] for others in everywhere]
            if any(value != given[0] for value in given):
                raise ArgumentError(name, "the same in every process", got=given)

    @contextmanager
    @override
    def watched(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if lacks_memory(error):  # of this process
                raise
            raise ProcessLostError(
                "A process of this run was lost, so the others stop. What was taken is paid for: "
                "start the run again with resume (--resume), and it goes on from its last "
                "checkpoint. As many processes as before repeat the steps since then with the same "
                "noise; for another number they count among the steps of the plan as lost."
            ) from None  # it may say how many records of a batch were to be exchanged

    def _gather(self, whole: Tensor, mine: Tensor) -> None:
        with self.watched():
            distributed.all_gather(list(whole.unbind()), mine)

    def _agree(self, repeated: Tensor, answer: Tensor) -> None:
        """Send the decision of the first process to all, unless a record is in two of them.

        On a GPU the error comes in the next step, for which the device need not be waited for: a
        record that is in two processes counts in one of them, as the decision has masked the other.
        """
        self._shared(repeated.any())
        with self.watched():
            distributed.broadcast(answer, 0)


def join(device: torch.device, timeout: timedelta = PATIENCE) -> Processes:
    """The processes of the run: those of the process group, or those started by torchrun.

    If there is no group yet, the device determines its backend: nccl for CUDA, otherwise gloo.
    """
    if not distributed.is_available():
        return Processes()
    if not distributed.is_initialized():
        if not distributed.is_torchelastic_launched():
            return Processes()
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=timeout)
        atexit.register(
            lambda: distributed.is_initialized() and distributed.destroy_process_group()
        )
    return DistributedGroup() if distributed.get_world_size() > 1 else Processes()


def local_device(device: torch.device | str) -> torch.device:
    """The device of this process: under torchrun, "cuda" means the GPU numbered LOCAL_RANK."""
    device = torch.device(device)
    if str(device) != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def is_first() -> bool:
    """Whether this is the first process, the only one that prints and writes files."""
    return int(os.environ.get("RANK", "0")) == 0


def unwrapped(model: nn.Module, processes: Processes) -> nn.Module:
    """The model wrapped by a DistributedDataParallel, which would average the gradients again."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return model
    copies = distributed.get_world_size(model.process_group)
    if copies != processes.count:
        allowed = f"a DistributedDataParallel of the {processes.count} processes of the run"
        hint = "Pass processes=join(device), or the wrapped model itself."
        raise ArgumentError("model", allowed, shown=f"one of {copies}", hint=hint)
    inner: nn.Module = model.module
    return inner


def _shared() -> ValueError:
    return ValueError(
        "Expected every record in one process alone, got a record id in two places of a batch: "
        "it would count twice. Draw with PoissonSampler(..., processes=...), the same key in "
        "every process."
    )


def _portable(error: Exception) -> Exception:
    """The error, or its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
