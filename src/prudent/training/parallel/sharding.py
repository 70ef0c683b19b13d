"""Models whose parameters are sharded among processes (FSDP2, `fully_shard`).

A step needs all parameters at once, because the engines pass every layer its parameters by name. So
they are gathered for the duration of a step and freed after it. The stored parameters, their
gradients and the optimizer state remain sharded at all times. With P bytes of parameters and W
processes, Adam then stores 4P/W per process between steps instead of 4P, and a step needs P more
for the gathered parameters.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from prudent._torch_private import pytree
from prudent._validate import ArgumentError


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
            raise ArgumentError(
                "model",
                f"sharded over the {processes} processes of the run",
                shown=f"{mesh} for {name!r}",
                hint="Shard it with fully_shard(model) over all of them, without tensor "
                "parallelism.",
            )


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
        for module in model.modules():
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

    Tensors with the shape of their parameter are sharded like it.
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
    optimizer.load_state_dict({**state, "state": moments})


def _like(value: Tensor, model: Any) -> Tensor:
    if not is_sharded(model):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh = model.device_mesh
    value = value.to(model.device)
    return distribute_tensor(value, mesh, model.placements, src_data_rank=None)
