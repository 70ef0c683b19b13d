"""Poisson batches of a data set of dictionaries, read and collated one record at a time.

A collator that sees several records pads them to the longest. Then one long record changes the
rows of all others, and with them, through positions or rounding, their gradients; no clipping
bounds that. So the collator is called with one record at a time, and every row has the public
shapes of an example.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils.data import Dataset

from prudent._validate import ArgumentError
from prudent.records.people import Units, without
from prudent.records.reader import Collate
from prudent.training.sampling import Draw

_ROWS = 8  # parts have a multiple of so many rows, which suits the kernels of a GPU

_EXAMPLES = 16  # public records that are looked at before training

Row = dict[str, Tensor]
"""The tensors of records by name, with the records on the first axis."""


@attrs.frozen(eq=False)
class PhysicalBatch:
    """One physical batch on the host: inputs by name, validity and ids; with people, shares."""

    inputs: Row
    valid: Tensor
    ids: Tensor
    shares: Tensor | None = None


@attrs.frozen(eq=False)
class LogicalBatch:
    """The records of one step. Secret."""

    number: int
    parts: list[PhysicalBatch]


class LogicalRecords(Dataset[Any]):
    """Reads the records of a draw, of the form of the first of some public examples.

    | case | what happens |
    |---|---|
    | padding of the draw | the example, not valid; left out unless `whole` |
    | record longer than the example on its second axis | cut |
    | record that cannot be read, collated or converted to the form | not valid, as if absent |
    """

    def __init__(
        self, units: Units, collate: Collate, examples: Row, *, whole: bool = False
    ) -> None:
        self._count, self._whole = len(units), whole
        like = {name: value[0] for name, value in examples.items()}
        self._reader = units.reader(collate, like=like, cut=True)

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, draw: Draw) -> LogicalBatch:
        """All parts of a draw; torch's loader calls this with what the batch sampler yields."""
        found: Any = self._reader.rows(
            draw.ids.flatten().tolist(), draw.valid.flatten().tolist(), draw.seeds
        )
        size, parts = draw.ids.shape[1], []
        for place, (ids, valid) in enumerate(zip(draw.ids, draw.valid, strict=True)):
            # Padding comes last.
            kept = size if self._whole else max(1, -(-int(valid.sum()) // _ROWS)) * _ROWS
            rows = found[place * size : (place + 1) * size][:kept]
            known = torch.tensor([row is not None for row in rows])
            inputs, shares = dict(self._reader.batch(rows)), self._reader.shares(rows)
            parts.append(PhysicalBatch(inputs, known, ids[:kept], shares))
        return LogicalBatch(draw.number, parts)


def public_records(example: Any, evaluated: Any, column: str | None) -> list[Any]:
    """The given public record, or the first ones of the data set of evaluations.

    Without the column that says whose they are.
    """
    if example is not None:
        return [without(example, column)]
    if isinstance(evaluated, Mapping):
        evaluated = next(iter(evaluated.values()), None)
    if evaluated is None or not hasattr(evaluated, "__len__") or not len(evaluated):
        raise ArgumentError(
            "example",
            "a public record in the form of the training records",
            got=None,
            why="the shapes of records must be public",
            hint="Or pass an eval_dataset of public records.",
        )
    count = min(_EXAMPLES, len(evaluated))
    return [without(evaluated[index], column) for index in range(count)]


def examples_of(records: Sequence[Any], collate: Collate, length: int | None = None) -> Row:
    """The tensors of some public records, cut to a public length, after checking their shapes."""
    rows: list[Row] = []
    for record in records:
        row = collate([record])
        if not isinstance(row, Mapping) or not all(
            isinstance(value, Tensor) and value.ndim and len(value) == 1 for value in row.values()
        ):
            raise ArgumentError(
                "data_collator",
                "to return a dictionary of tensors with the records on the first axis",
                shown=f"one that makes {_shapes(row)} of one record",
            )
        rows.append({n: v if v.ndim < 2 else v[:, :length] for n, v in row.items()})
    for row in rows:
        if _shapes(row) != _shapes(rows[0]):
            raise ArgumentError(
                "data_collator",
                "to make records of one shape",
                shown=f"{_shapes(rows[0])} and {_shapes(row)} of two public records",
                why="records that are padded to the longest of a batch depend on each other",
                hint="Give PrivateTrainer max_length, the public number of tokens to which every "
                "record is padded or cut; or pad while tokenising, with padding='max_length'.",
            )
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def padded(collator: Collate, length: int | None) -> Collate:
    """The collator, set to pad every record to a public number of tokens."""
    if length is None:
        return collator
    if not hasattr(collator, "pad_to_multiple_of"):
        raise ArgumentError(
            "max_length",
            "None with a collator that has no setting pad_to_multiple_of",
            got=length,
            hint="Let the collator itself pad to a fixed length.",
        )
    fixed: Any = copy.copy(collator)
    fixed.pad_to_multiple_of = length
    if hasattr(fixed, "padding"):
        fixed.padding = True
    return fixed  # type: ignore[no-any-return]


def _shapes(row: Any) -> str:
    if not isinstance(row, Mapping):
        return type(row).__name__
    return ", ".join(
        f"{name} {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        for name, value in row.items()
    )
