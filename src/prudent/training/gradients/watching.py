"""Interception of the torch functions that a model calls on one record at a time."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from prudent.training.gradients.domains import DOMAINS
from prudent.training.gradients.embedding_bag import DECOMPOSED
from prudent.training.gradients.leftovers import Leftovers, is_record
from prudent.training.gradients.record_streams import RANDOM, Draws
from prudent.training.gradients.recurrent import RECURRENT, Scan, step_by_step
from prudent.training.gradients.tracing import records_are_traced


class Watch(TorchFunctionMode):
    """Makes functions total and tracks every tensor that a model computes from a record.

    Args:
        leftovers: Tracks these tensors.
        draws: Makes the random calls of the model.
    """

    def __init__(self, leftovers: Leftovers, draws: Draws) -> None:
        super().__init__()
        self._draws = draws
        self._leftovers = leftovers
        self._scan: Scan = step_by_step
        self._contexts = ExitStack()

    def __enter__(self) -> Self:
        """Start watching."""
        super().__enter__()  # type: ignore[no-untyped-call]
        self._contexts.enter_context(records_are_traced())
        if "torch._dynamo" in sys.modules:
            # Compiled parts of the model run as they are: their kernels know nothing of records.
            self._contexts.enter_context(torch.compiler.set_stance("force_eager"))
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop watching."""
        self._contexts.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`."""
        kwargs = kwargs or {}
        if func is Tensor.requires_grad_ and is_record(args[0]):
            # Some libraries require gradients on the input of a checkpointed part; that is not
            # needed here, and vmap does not allow it.
            return args[0]
        if func in DOMAINS:
            result = DOMAINS[func](partial(self._call, func), *args, **kwargs)
        elif func in DECOMPOSED:
            result = DECOMPOSED[func](self._call, *args, **kwargs)
        elif func in RECURRENT:
            result = RECURRENT[func](self._call, self._scan, *args, **kwargs)
        else:
            result = self._call(func, *args, **kwargs)
        self._leftovers.note(result)
        return result

    def _call(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if func in RANDOM:
            return self._draws.run(partial(self._apply, func), *args, **kwargs)
        return self._apply(func, *args, **kwargs)

    def _apply(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)
