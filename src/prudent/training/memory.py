"""Steps that run out of memory: recognised, and reported without a word about the data."""

from collections.abc import Callable
from typing import TypeVar

import torch

from prudent._validate import ArgumentError

Answer = TypeVar("Answer")

# What torch's allocator of host memory says; it has no error type of its own.
_HOST = ("can't allocate memory", "not enough memory")
_SMALLER = "Choose a smaller one, which changes neither the result nor its price."


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be allocated, on the host or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _HOST)


def within_memory(
    act: Callable[[], Answer], argument: str, rows: int, hint: str = _SMALLER
) -> Answer:
    """Call a function that takes a step; if memory runs out, raise an error that says what to do.

    The original error states how many bytes were asked for, and so how many records were drawn or
    how long one of them is. The new one is raised outside the handler (and this is a function, not
    a context), so that not even `__context__` refers to it.

    Args:
        act: The function to call.
        argument: The argument that sets how many records are processed at once.
        rows: Its value, or what it is by default; public.
        hint: How to choose another value.

    Raises:
        ArgumentError: If memory ran out. The sum of the step was not released.
    """
    try:
        return act()
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
    raise ArgumentError(
        argument,
        "small enough for the memory",
        got=rows,
        why="a step ran out of memory and released nothing; the steps before it are paid for",
        hint=f"{hint} Then resume, if the run has checkpoints.",
    )
