"""Interception of the torch functions that a model calls on one record at a time."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.overrides import TorchFunctionMode

from prudent.training.gradients.domains import DOMAINS
from prudent.training.gradients.leftovers import Leftovers
from prudent.training.gradients.recurrent import RECURRENT, Scan, step_by_step


class Watch(TorchFunctionMode):
    """Makes functions total and tracks every tensor that a model computes from a record.

    Args:
        leftovers: Tracks these tensors.
    """

    def __init__(self, leftovers: Leftovers) -> None:
        super().__init__()
        self._leftovers = leftovers
        self._scan: Scan = step_by_step

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`."""
        kwargs = kwargs or {}
        if func in DOMAINS:
            result = DOMAINS[func](partial(self._call, func), *args, **kwargs)
        elif func in RECURRENT:
            result = RECURRENT[func](self._call, self._scan, *args, **kwargs)
        else:
            result = self._call(func, *args, **kwargs)
        self._leftovers.note(result)
        return result

    def _call(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)
