"""Running a batch again with the same dropout and in the same precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode


class Replay:
    """Remembers the state of torch's generators; `with replay.again():` starts from it.

    The norms of a batch bound its weighted sum only if both see the same random masks, and round
    alike under autocast. Afterwards the generators continue from where they were, so no noise is
    ever drawn twice.
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
        """How much a number may differ between both runs: some kernels add up in any order."""
        return 0.02 if self._autocast[2] else 1e-4

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw once more what was drawn after this object was made."""
        with torch.random.fork_rng(devices=self._devices), torch.autocast(*self._autocast):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
