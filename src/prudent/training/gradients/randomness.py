"""Rerunning a batch with the same dropout and in the same precision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

from prudent.training.gradients.contributions import by_record


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured; no value can be read during a capture."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def restarting(device: torch.device) -> Callable[[], None]:
    """A function that sets torch's default generators back to where they are now."""
    if is_capturing() or get_proxy_mode() is not None:
        return lambda: None  # nothing is run twice in a captured or a traced step
    host = torch.get_rng_state()
    own = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restart() -> None:
        torch.set_rng_state(host)
        if own is not None:
            torch.cuda.set_rng_state(own, device)

    return restart


class Replay:
    """Saves the state of torch's generators; `with replay.again():` restarts from it.

    The norms of a batch bound its weighted sum only if both use the same random masks and round in
    the same way under autocast. Afterwards the generators continue from where they were, so no
    noise is ever drawn twice.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "A CUDA graph cannot repeat random numbers, as running a part of the model again "
                "must. Set Execution(cuda_graph=False)."
            )
        if get_proxy_mode() is not None:
            raise RuntimeError("A traced program would not repeat its random numbers.")
        kind = device.type
        self._autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self._devices = [device] if device.type == "cuda" else []
        self._cpu: Tensor = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(device) for device in self._devices]

    @property
    def near(self) -> float:
        """Allowed difference between the runs, since some kernels sum in any order."""
        return 0.02 if self._autocast[2] else 1e-4

    @contextmanager
    def again(self) -> Iterator[None]:
        """Repeat the random draws made since this object was created."""
        with torch.random.fork_rng(devices=self._devices), torch.autocast(*self._autocast):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


def sketch(batch: Any) -> list[Tensor]:
    """A checksum per record and tensor of a batch, which other values are unlikely to match.

    Comparing losses is not enough: they do not depend on a feature whose weight is still zero.
    """
    found = []
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor):
            rows = by_record(leaf.detach())
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
            places = torch.arange(rows.shape[1], device=rows.device, dtype=torch.float64)
            with torch.autocast(rows.device.type, enabled=False):
                found.append(rows @ (places + 1).sin().to(rows.dtype))
    return found


def is_same(one: Sequence[Tensor], other: Sequence[Tensor], near: float) -> bool:
    """Whether the numbers of two runs agree up to differences from the order of summation."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=near, atol=near, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )
