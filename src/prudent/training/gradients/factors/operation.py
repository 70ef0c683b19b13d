"""Functions that a traced program keeps as one operation of torch."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from prudent._torch_private import is_intercepted

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


def operation(
    name: str, schema: str | None = None, *, like: Callable[Arguments, Answer]
) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """A decorator of functions that launch kernels of their own.

    torch's way to such an operation takes the host longer than most kernels take, so only a traced
    program goes it.

    Args:
        name: The name of the operation.
        schema: Its schema, for versions of torch that cannot derive it.
        like: Returns empty tensors like the results.
    """

    def made(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        registered = torch.library.custom_op(name, function, mutates_args=(), schema=schema)
        registered.register_fake(like)

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            answer: Answer = (registered if is_intercepted() else function)(*args, **kwargs)
            return answer

        return call

    return made
