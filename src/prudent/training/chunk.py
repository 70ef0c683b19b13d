"""What a step is given: chunks, the physical batches of records, with their checks and masks.

A hook replaces their gradients, to simulate faulty or hostile records. If memory runs out, that is
reported without a word about the data.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from prudent._validate import ArgumentError
from prudent.training.gradients.engine import Values
from prudent.training.gradients.record_streams import is_capturing


class Chunk(NamedTuple):
    """One physical batch. For an engine with slots, `valid` and `ids` are those of people.

    Attributes:
        inputs: A tensor or a tree of tensors, with records along the first dimension. Or a function
            that reads the inputs and the targets and returns the same values each time; an engine
            that recomputes then holds only one chunk in memory at a time.
        targets: The same for the targets; ignored if `inputs` is a function.
        valid: False for rows that are padding. None: no padding.
        ids: Record ids, in any order; no two of a batch are the same, except for padding. They
            break ties between norms and prove that no record counts twice. Required with a
            corruption and with several processes.
    """

    inputs: Any
    targets: Any = None
    valid: Tensor | None = None
    ids: Tensor | None = None

    def read(self) -> tuple[Any, Any]:
        """The inputs and the targets."""
        return self.inputs() if callable(self.inputs) else (self.inputs, self.targets)


class DeferredCheck:
    """A condition on a device that nothing waits for: its error is raised in the next step.

    Guarantee: An error may be late because what it is about does no harm until then: whoever uses
    this has masked it on the device.
    """

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error
        self._copy: tuple[Tensor, torch.cuda.Event] | None = None

    def __call__(self, wrong: Tensor) -> None:
        """Raise the error if the last condition was true, or this one is and was computed here."""
        if self._copy is not None:
            value, event = self._copy
            event.synchronize()
            self._copy = None
            if bool(value):
                raise self._error()
        if not wrong.is_cuda:
            if bool(wrong):
                raise self._error()
            return
        copy = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(wrong, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._copy = copy, event


def repeated_ids() -> DeferredCheck:
    """The check that no batch holds a record twice."""
    allowed, shown = "all different over the chunks of a batch", "repeated ids"
    more = {"why": "a repeated record would count twice", "hint": "Keep one row per record."}
    return DeferredCheck(lambda: ArgumentError("ids", allowed, shown=shown, **more))


def check_chunks(chunks: Sequence[Chunk], repeated: DeferredCheck) -> None:
    """Raise an error unless these are the chunks of one batch.

    `repeated`, see `repeated_ids`, is about the values of ids, which `counted_once` masks.
    """
    if isinstance(chunks, Chunk) or not chunks or not all(isinstance(c, Chunk) for c in chunks):
        allowed = "a non-empty sequence of Chunk(inputs, targets)"
        shown = "a bare Chunk" if isinstance(chunks, Chunk) else type(chunks).__name__
        hint = "Pass [Chunk(inputs, targets)]; an empty batch is a chunk of no rows."
        raise ArgumentError("chunks", allowed, shown=shown, hint=hint)
    for chunk in chunks:
        ids, valid = chunk.ids, chunk.valid
        if valid is not None and (valid.dtype != torch.bool or valid.ndim != 1):
            shown = f"{valid.dtype} of shape {tuple(valid.shape)}"
            raise ArgumentError("valid", "one boolean for each row of a chunk", shown=shown)
        if (ids is None) != (chunks[0].ids is None):
            allowed = "in every Chunk of a batch or in none"
            raise ArgumentError("ids", allowed, shown="ids in some")
        if ids is None:
            continue
        shape = ids.shape if valid is None else valid.shape
        if ids.ndim != 1 or ids.shape != shape or ids.is_floating_point():
            shown = f"{ids.dtype} of shape {tuple(ids.shape)}"
            raise ArgumentError("ids", "one integer for each row of a chunk", shown=shown)
    known = [chunk.ids for chunk in chunks if chunk.ids is not None]
    if not known or is_capturing():  # values cannot be read during capture; see counted_once
        return
    valid = valid_rows(chunks, known)
    repeated((counted_once(valid, torch.cat(known)) != valid).any())


def valid_rows(chunks: Sequence[Chunk], rows: Sequence[Tensor]) -> Tensor:
    """A mask of the rows that are records; `rows` has one entry per row of each chunk."""
    return torch.cat(
        [
            torch.ones_like(each, dtype=torch.bool) if chunk.valid is None else chunk.valid
            for chunk, each in zip(chunks, rows, strict=True)
        ]
    )


def record_ids(chunks: Sequence[Chunk]) -> Tensor | None:
    """The record ids of all rows; None if a chunk has none."""
    known = [chunk.ids for chunk in chunks if chunk.ids is not None]
    return torch.cat(known) if len(known) == len(chunks) else None


def counted_once(valid: Tensor, ids: Tensor | None) -> Tensor:
    """A mask of the rows that count: the first valid row of every id.

    Guarantee:
        The ids of counted rows are all different, so no record counts twice, on any device and also
        in a captured graph, where no error can be raised. Batches that pass `check_chunks` keep all
        rows.
    """
    if ids is None or not len(ids):
        return valid
    ordered, order = torch.where(valid, ids, -1).sort(stable=True)
    again = torch.zeros_like(valid)
    again[order[1:]] = ordered[1:] == ordered[:-1]
    return valid & ~again


Corrupt = Callable[[Values, Chunk, torch.Generator], Values]
"""Replaces the per-example gradients of a chunk, to simulate faulty or hostile records.

It draws random numbers from a torch generator that belongs to the step and is saved in checkpoints.
No guarantee depends on this generator.
"""


@runtime_checkable
class Corruption(Protocol):
    """Makes a fraction of the records bad, such as the corruptions in `prudent_lab.corruption`."""

    @property
    def per_record(self) -> bool:
        """Whether what a bad record sends depends on no other record.

        If not, no accounting covers the corruption.
        """

    def hook(self, records: int, device: torch.device) -> Corrupt:
        """The function that a step calls, for a data set of `records` records."""


def hook_of(
    corrupt: Corrupt | Corruption | None, records: int, device: torch.device
) -> Corrupt | None:
    """The function that a step calls for a corruption of a data set of `records` records."""
    return corrupt.hook(records, device) if isinstance(corrupt, Corruption) else corrupt


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
    act: Callable[[], Answer], argument: str, rows: int | None, hint: str = _SMALLER
) -> Answer:
    """Call a function that takes a step; if memory runs out, raise an error that says what to do.

    The original error states how many bytes were asked for, and so how many records were drawn or
    how long one of them is. The new one is raised outside the handler (and this is a function, not
    a context), so that not even `__context__` refers to it. It names the argument that sets how
    many records are processed at once, and its value, which is public.
    """
    try:
        return act()
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
    why = "a step ran out of memory and released nothing; the steps before it are paid for"
    hint = f"{hint} Then resume, if the run has checkpoints."
    raise ArgumentError(argument, "small enough for the memory", got=rows, why=why, hint=hint)
