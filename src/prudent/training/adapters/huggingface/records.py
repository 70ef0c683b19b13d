"""Poisson batches of a data set of dictionaries, read and collated one record at a time.

A collator that sees several records pads them to the longest. Then one long record changes the
rows of all others, and with them, through positions or rounding, their gradients; no clipping
bounds that. So the collator is called with one record at a time, and every row has the public
shapes of an example, or the shortest of a few public lengths that holds its tokens.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils.data import Dataset

from prudent._validate import ArgumentError
from prudent.records.people import Units
from prudent.records.reader import Collate
from prudent.training.sampling import Draw

_ROWS = 8  # parts have a multiple of so many rows, which suits the kernels of a GPU
_MASK = "attention_mask"
_IGNORED = -100  # the label that losses of transformers leave out

_EXAMPLES = 16
"""Number of public records that are looked at before training."""

Row = dict[str, Tensor]
"""The tensors of records by name, with the records on the first axis."""

Axes = Mapping[str, Sequence[int]]
"""The axes of each tensor of a row that follow the number of tokens."""


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
    """Reads the records of a draw.

    | case | what happens |
    |---|---|
    | padding of the draw | the example, not valid |
    | record longer than the example on its second axis | cut |
    | record that cannot be read, collated or converted to the form | not valid, as if absent |

    Args:
        units: The records of a map-style data set of dictionaries, or their people.
        collate: Maps a list of one record to its tensors.
        examples: The tensors of public records, of which the first has the form of all.
        whole: Keep all padding, so that every part has the same number of rows.
        lengths: Public numbers of tokens, ascending. Each record, or person, gets the smallest that
            holds all of its tokens, and is in a part of such: a function of the record alone.
        axes: What is cut to a length; by `token_axes` of the examples unless given.
    """

    def __init__(
        self,
        units: Units,
        collate: Collate,
        examples: Row,
        *,
        whole: bool = False,
        lengths: Sequence[int] = (),
        axes: Axes | None = None,
    ) -> None:
        self._count, self._lengths = len(units), lengths
        self._whole = whole or len(lengths) > 1  # pieces of a length have one shape
        self._axes = token_axes(examples, examples, lengths) if axes is None else axes
        like = {name: value[0] for name, value in examples.items()}
        self._reader = units.reader(collate, like=like, cut=True)
        if len(lengths) > 1 and (
            _MASK not in examples or examples[_MASK].shape[1:] != tuple(lengths[-1:])
        ):
            raise ArgumentError(
                "max_length",
                f"one number for records without {_MASK!r} of the greatest length",
                got=lengths,
                why="it says how long a record is",
            )

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, draw: Draw) -> LogicalBatch:
        """All parts of a draw; torch's loader calls this with what the batch sampler yields."""
        ids, valid = draw.ids, draw.valid
        rows: Any
        rows = self._reader.rows(ids.flatten().tolist(), valid.flatten().tolist(), draw.seeds)
        size = ids.shape[1]
        parts = [
            self._part(each, ids[place], int(valid[place].sum()))
            for place, each in enumerate(rows[i : i + size] for i in range(0, len(rows), size))
        ]
        if len(self._lengths) > 1:
            stand_in = dict(self._reader.batch([None]))
            given = self._lengths, self._axes, stand_in
            parts = [piece for part in parts for piece in divided(part, *given)]
        return LogicalBatch(draw.number, parts)

    def _part(self, rows: Any, ids: Tensor, drawn: int) -> PhysicalBatch:
        if not self._whole:  # padding comes last
            kept = max(1, -(-drawn // _ROWS)) * _ROWS
            rows, ids = rows[:kept], ids[:kept]
        known = torch.tensor([row is not None for row in rows])
        return PhysicalBatch(dict(self._reader.batch(rows)), known, ids, self._reader.shares(rows))


def divided(
    part: PhysicalBatch, lengths: Sequence[int], axes: Axes, stand_in: Row
) -> list[PhysicalBatch]:
    """The records of a part by the shortest length that holds them, shorter ones first.

    All pieces of a length have one shape, which is public, whatever was drawn: there are more or
    fewer of them.

    Args:
        part: Records of the greatest length.
        lengths: Public numbers of tokens, ascending.
        axes: What is cut to a length.
        stand_in: Rows in place of a record, of the greatest length.
    """
    mask, greatest = part.inputs[_MASK] != 0, lengths[-1]
    labels = part.inputs.get("labels")
    if labels is not None and labels.shape == mask.shape:
        mask = mask | (labels != _IGNORED)  # a loss may count labels of padding
    slots = len(mask) // len(part.ids)
    ends = (mask * torch.arange(1, greatest + 1)).amax(1).view(-1, slots).amax(1)
    places = torch.bucketize(ends, torch.tensor(lengths))
    # A power of two, so that about two pieces of each length hold a draw; not more rows than the
    # part has, which has padding and is what fits into memory.
    count = max(_ROWS, 1 << (len(part.ids) // (2 * len(lengths))).bit_length() >> 1)
    count = min(count, len(part.ids))
    pieces = []
    for place, length in enumerate(lengths):
        own = (part.valid & (places == place)).nonzero().flatten()
        empty = place == 0 and not part.valid.any()  # a step has a piece at least
        for chosen in torch.split(own, count) if len(own) or empty else ():
            more = count - len(chosen)
            rows = (chosen[:, None] * slots + torch.arange(slots)).flatten()
            inputs = {
                name: torch.cat([value[rows], *[stand_in[name]] * more])
                for name, value in part.inputs.items()
            }
            inputs = shortened(inputs, axes, length)
            shares = part.shares
            if shares is not None:
                shares = torch.cat([shares[rows], shares.new_zeros(more * slots)])
            ids = torch.cat([part.ids[chosen], part.ids.new_zeros(more)])
            pieces.append(PhysicalBatch(inputs, torch.arange(count) < len(chosen), ids, shares))
    return pieces


def token_axes(row: Row, longer: Row, lengths: Sequence[int]) -> Axes:
    """The axes that follow the number of tokens: those that more padding makes longer.

    Where it makes nothing longer, as of records that come padded, those of the greatest length.
    """
    wider = any(row[name].shape[1:] != longer[name].shape[1:] for name in row)

    def follows(size: int, other: int) -> bool:
        return size != other if wider else size in lengths[-1:]

    shapes = {name: zip(row[name].shape[1:], longer[name].shape[1:], strict=True) for name in row}
    return {
        name: [axis for axis, sizes in enumerate(pairs, 1) if follows(*sizes)]
        for name, pairs in shapes.items()
    }


def shortened(rows: Row, axes: Axes, length: int) -> Row:
    """Rows cut to a length along the axes of tokens."""

    def cut(name: str, axis: int) -> slice:
        return slice(length if axis in axes[name] else None)

    return {
        name: values[tuple(cut(name, axis) for axis in range(values.ndim))]
        for name, values in rows.items()
    }


def public_records(example: Any, evaluated: Any) -> list[Any]:
    """The given public record, or the first ones of the data set of evaluations."""
    if example is not None:
        return [example]
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
    return [evaluated[index] for index in range(min(_EXAMPLES, len(evaluated)))]


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


def padded(collator: Collate, length: int | None, *, several: bool = False) -> Collate:
    """The collator, set to pad every record to a public number of tokens.

    With several lengths, records that come padded to the greatest will do.
    """
    can_pad = hasattr(collator, "pad_to_multiple_of")
    if length is None or (several and not can_pad):
        return collator
    if not can_pad:
        raise ArgumentError(
            "max_length",
            "None with a collator that has no setting pad_to_multiple_of",
            got=length,
            hint="Let the collator itself pad to a fixed length.",
        )
    fixed = copy.copy(collator)
    setattr(fixed, "pad_to_multiple_of", length)  # noqa: B010 - a function type has none
    if hasattr(fixed, "padding"):
        fixed.padding = True
    made: Collate = fixed
    return made


def _shapes(row: Any) -> str:
    if not isinstance(row, Mapping):
        return type(row).__name__
    return ", ".join(
        f"{name} {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        for name, value in row.items()
    )
