"""Physical batches of records: the chunks of a step, their checks and their masks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prudent import _validate
from prudent.training.gradients.record_streams import is_capturing


class Chunk(NamedTuple):
    """One physical batch.

    Attributes:
        inputs: A tensor or a tree of tensors, with records along the first dimension. Or a function
            that reads the inputs and the targets and returns the same values each time; an engine
            that recomputes then holds only one chunk in memory at a time.
        targets: The same for the targets; ignored if `inputs` is a function.
        valid: False for rows that are padding. None: no padding.
        ids: Record ids, strictly ascending over the chunks of a batch except for padding. They
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


def check_chunks(chunks: Sequence[Chunk]) -> None:
    """Raise an error unless these are the chunks of one batch, ordered by record id."""
    if isinstance(chunks, Chunk) or not chunks or not all(isinstance(c, Chunk) for c in chunks):
        raise _validate.ArgumentError(
            "chunks",
            "a non-empty sequence of Chunk(inputs, targets)",
            shown="a bare Chunk" if isinstance(chunks, Chunk) else type(chunks).__name__,
            hint="Pass [Chunk(inputs, targets)]; an empty batch is a chunk of no rows.",
        )
    for chunk in chunks:
        valid = chunk.valid
        if valid is not None and (valid.dtype != torch.bool or valid.ndim != 1):
            raise _validate.ArgumentError(
                "valid",
                "one boolean for each row of a chunk",
                shown=f"{valid.dtype} of shape {tuple(valid.shape)}",
            )
    _check_ids(chunks)


def _check_ids(chunks: Sequence[Chunk]) -> None:
    """Raise an error if a batch holds a record twice or is not ordered by record id."""
    for chunk in chunks:
        ids, valid = chunk.ids, chunk.valid
        if (ids is None) != (chunks[0].ids is None):
            raise _validate.ArgumentError(
                "ids", "in every Chunk of a batch or in none", shown="ids in some"
            )
        if ids is None:
            continue
        shape = ids.shape if valid is None else valid.shape
        if ids.ndim != 1 or ids.shape != shape or ids.is_floating_point():
            raise _validate.ArgumentError(
                "ids",
                "one integer for each row of a chunk",
                shown=f"{ids.dtype} of shape {tuple(ids.shape)}",
            )
    known = [chunk.ids for chunk in chunks if chunk.ids is not None]
    if not known or is_capturing():  # values cannot be read during capture; see counted_once
        return
    valid = valid_rows(chunks, known)
    if bool((counted_once(valid, torch.cat(known)) != valid).any()):
        raise _validate.ArgumentError(
            "ids",
            "strictly ascending over the chunks of a batch",
            shown="repeated or unordered ids",
            why="a repeated record would count twice, and another order would break ties between "
            "equal norms differently",
            hint="Sort the batch by id and keep one row per record.",
        )


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
    """A mask of the rows that count: those whose id exceeds the ids of all counted rows before.

    Guarantee:
        The ids of counted rows are strictly ascending, so no record counts twice, on any device and
        also in a captured graph, where no error can be raised. Batches that pass `_check_ids` keep
        all rows.
    """
    if ids is None or not len(ids):
        return valid
    known = torch.where(valid, ids, -1)
    before = torch.nn.functional.pad(known, (1, 0), value=-1)[:-1].cummax(0).values
    return valid & (ids > before)
