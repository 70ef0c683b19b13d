"""Reading the records of a data set of items, one at a time.

A batch is secret and so is everything about its items, errors included. So reading never fails
because of records:

| case | what happens |
|---|---|
| a record that cannot be read, collated or converted to the form | counts as absent |
| no declared form | an error at the start, whatever the records are |
| more than a quarter of the first eight change when they are read again | an error at the start |

The form is declared: by an example, or by a data set of tensors. It is never taken from records,
of which one more or less could then decide whether a run starts. So whether a record counts depends
on that record and the form, and one that does not has the effect and the price of one that is
absent, even if no record has the form.

**Conversion.** Stacking records as they come lets one of them decide for all: a float beside
integers makes them floats, and a row with another memory order changes the order of the batch,
hence the kernel that computes with it. Here a record is converted alone, and written into memory of
a fixed order.

| a number of the record | is converted to | how |
|---|---|---|
| real | floating or complex type | rounded to the nearest, as `Tensor.to` does |
| real | integer or boolean type | exactly; a record with one that is not exact is absent |
| complex | complex type | as real ones; to a real type never: the record is absent |
| row of another shape, or structure, or not a number | | the record is absent |
"""

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from prudent._validate import ArgumentError
from prudent.records import PUBLIC, Seeds, generators_kept, seed_generators
from prudent.records.containers import digest

Row = list[Tensor]  # the tensors of one record, in the order of the form's leaves
_EXACT = 2.0**53  # integers up to here are exact in double precision
_TARGETS = "labels"


class StructureError(ArgumentError):
    """Records or batches of a structure that cannot be used. The message quotes no record."""


class _MisfitError(Exception):
    """A record that does not have the form. It never leaves this package."""


@attrs.frozen
class Leaf:
    """One tensor of a record."""

    dtype: torch.dtype  # its number type
    shape: tuple[int, ...]  # its shape, without an axis for the records

    def of(self, value: Any, *, cut: bool = False) -> Tensor:
        """A value as this tensor; raises some error if it does not fit."""
        tensor = tensor_of(value)
        if cut and tensor.ndim and self.shape:
            tensor = tensor[: self.shape[0]]
        if tensor.shape != self.shape:
            raise _MisfitError
        return tensor if tensor.dtype == self.dtype else _converted(tensor, self.dtype)


@attrs.frozen
class Node:
    """A mapping or a sequence in a record."""

    kind: type  # its type, in which batches are returned
    keys: tuple[Any, ...] | None  # the keys of a mapping; None for a sequence
    parts: tuple["Leaf | Node", ...]  # what it holds

    def parts_of(self, value: Any) -> list[Any]:
        """The parts of a value of this structure; raises some error if it has another."""
        if self.keys is not None:
            if not isinstance(value, Mapping):
                raise _MisfitError
            return [value[key] for key in self.keys]
        if not isinstance(value, (tuple, list)) or len(value) != len(self.parts):
            raise _MisfitError
        return list(value)

    def build(self, parts: Sequence[Any]) -> Any:
        """A value of this structure."""
        if self.keys is not None:
            content = dict(zip(self.keys, parts, strict=True))
            try:
                return self.kind(content)
            except Exception:  # a mapping that is made in another way
                return content
        if hasattr(self.kind, "_fields"):
            return self.kind(*parts)
        return tuple(parts) if issubclass(self.kind, tuple) else list(parts)


Tree = Leaf | Node


@attrs.frozen
class Form:
    """The form of one record: public."""

    tree: Tree  # structure, number types and shapes
    # Cut tensors that are longer than the form along their first axis, such as texts.
    cut: bool = attrs.field(default=False, eq=False)

    @classmethod
    def of(cls, value: Any, *, cut: bool = False) -> "Form":
        """The form of a value: a tensor, an array, a number, or a tree of them."""
        tree = _tree_of(value)
        if not _leaves(tree):
            raise _no_tensor()
        return cls(tree, cut)

    def row(self, value: Any) -> Row | None:
        """A value converted to this form; None if it does not fit."""
        found: Row = []
        try:
            self._collect(self.tree, value, found)
        except Exception:  # its text may quote the record
            return None
        return found

    def batch(self, rows: Sequence[Row]) -> Any:
        """Rows as one value of the form's structure, with the records on the first axis."""
        places = itertools.count()  # of the leaves, in the order in which they are filled

        def stacked(leaf: Leaf) -> Tensor:
            place = next(places)
            tensors = [row[place] for row in rows]
            # Memory that exists keeps its order, whatever that of the tensors.
            memory = torch.empty((len(rows), *leaf.shape), dtype=leaf.dtype)
            return torch.stack(tensors, out=memory) if tensors else memory

        return _filled(self.tree, stacked)

    def _collect(self, tree: Tree, value: Any, found: Row) -> None:
        if isinstance(tree, Leaf):
            found.append(tree.of(value, cut=self.cut))
            return
        for part, inner in zip(tree.parts, tree.parts_of(value), strict=True):
            self._collect(part, inner, found)


def tensor_of(value: Any) -> Tensor:
    """A value as a tensor on the host, as torch's `default_collate` makes one of it."""
    if type(value) is Tensor and value.layout is torch.strided and value.is_cpu:
        return value.detach() if value.requires_grad else value
    if type(value) is int:
        return _integer(value)
    if isinstance(value, Tensor):
        plain = value.detach().as_subclass(Tensor)
        if plain.layout != torch.strided:
            raise _MisfitError
        return plain if plain.device.type == "cpu" else plain.cpu()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        # A copy: to share an array that is read-only would warn of this record.
        return torch.from_numpy(np.array(array, order="C"))
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if isinstance(value, int):
        return torch.tensor(value)
    raise _no_tensor()


@functools.lru_cache(maxsize=1 << 10)
def _integer(value: int) -> Tensor:
    """A number that many records hold, such as a label; it is only ever read."""
    return torch.tensor(value)


def row_of(batch: Any, rows: int) -> Any:
    """The last of the rows of a collated batch, in the batch's structure.

    Raises:
        StructureError: If the batch does not consist of tensors with this many rows.
    """

    def last(leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise _no_tensor()
        if not leaf.ndim or len(leaf) != rows:
            raise StructureError(
                "collate_fn",
                "to return tensors with one row per item",
                shown="another number of rows",
                why="a row is one record, whose gradient is clipped",
            )
        return leaf[-1]

    return _mapped(batch, last)


def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """The two parts of a batch: of a pair, or of a mapping with the key `labels`."""
    if isinstance(batch, Mapping) and _TARGETS in batch:
        return {k: v for k, v in batch.items() if k != _TARGETS}, batch[_TARGETS]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, targets = (dict(part) if isinstance(part, Mapping) else part for part in batch)
        return inputs, targets
    raise StructureError(
        "train_set",
        f"of items (inputs, targets), or of dictionaries with the key {_TARGETS!r}",
        shown="dictionaries without it" if isinstance(batch, Mapping) else "other items",
        hint="A collate_fn may return a pair (inputs, targets) of any items.",
    )


def _no_tensor() -> StructureError:
    return StructureError(
        "train_set",
        "of items that collate to tensors alone",
        shown="other values",
        hint="Leave out texts and the like, with a collate_fn or in the data set.",
    )


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another number type, by the rules of this module."""
    if tensor.is_complex() and not dtype.is_complex:
        raise _MisfitError
    found = tensor.to(dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        if tensor.is_floating_point() and not bool((tensor.abs() <= _EXACT).all()):
            raise _MisfitError
        if not torch.equal(found.to(tensor.dtype), tensor):
            raise _MisfitError
    return found


def _tree_of(value: Any) -> Tree:
    if isinstance(value, Mapping):
        keys = tuple(value)
        return Node(type(value), keys, tuple(_tree_of(value[key]) for key in keys))
    if isinstance(value, tuple | list):
        return Node(type(value), None, tuple(map(_tree_of, value)))
    tensor = tensor_of(value)
    return Leaf(tensor.dtype, tuple(tensor.shape))


def _leaves(tree: Tree) -> list[Leaf]:
    if isinstance(tree, Leaf):
        return [tree]
    return [leaf for part in tree.parts for leaf in _leaves(part)]


def _filled(tree: Tree, fill: Callable[[Leaf], Any]) -> Any:
    if isinstance(tree, Leaf):
        return fill(tree)
    return tree.build([_filled(part, fill) for part in tree.parts])


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with every leaf changed."""
    if isinstance(value, Mapping):
        keys = tuple(value)
        return Node(type(value), keys, ()).build([_mapped(value[key], change) for key in keys])
    if isinstance(value, tuple | list):
        return Node(type(value), None, ()).build([_mapped(part, change) for part in value])
    return change(value)


Collate = Callable[[list[Any]], Any]  # makes a batch of a list of items
TRIES = 8  # so many records are read again before a run
_REPEATS = 3


class RecordReader:
    """Reads records by id and converts each of them, alone, to one form.

    Every record is read and collated by itself, after the generators of torch, `random` and numpy
    were seeded with its own seed. `__getitems__` is not used. With an example, the collator gets
    the example and the record, and the row of the example is dropped: a collator that pads to the
    longest of a batch then pads to the example's length.

    Args:
        items: Anything with `__getitem__`.
        collate_fn: Makes a batch of items; None: items are stacked as they are.
        first: Ids of the first records, which are read several times to see whether they stay the
            same.
        example: A public record that has the form, as an item.
        like: Or a public value that has it, as the collator makes one of a record.
        cut: Cut tensors that are longer than the form along their first axis.
        check: Called with a batch of one record; raises a `StructureError` if the caller cannot
            use batches of its structure.

    Attributes:
        form: The form of a record.
        stand_in: A row that has the form, for padding, which has weight zero.

    Raises:
        ArgumentError: If no form is declared, or too few of the first records stay the same when
            they are read again with the same seed.
    """

    def __init__(
        self,
        items: Any,
        collate_fn: Collate | None,
        first: Iterable[int],
        *,
        example: Any = None,
        like: Any = None,
        cut: bool = False,
        check: Callable[[Any], object] = lambda batch: None,
    ) -> None:
        self.items = items
        self._collate = None if collate_fn is default_collate else collate_fn
        self._example = example
        if example is None and like is None:
            raise ArgumentError(
                "example",
                "a public item in the form of the records",
                got=None,
                why="the form of items is declared, not taken from records, of which one could "
                "then decide whether training starts",
                hint="Made-up values of the right shapes and types will do, such as "
                "example=(torch.zeros(3, 32, 32), 0); or pass a pair of tensors or a "
                "TensorDataset, whose form is known.",
            )
        with generators_kept():
            if example is not None:
                seed_generators(0)
                like = self._value(example)
            self.form = Form.of(like, cut=cut)
            stand_in = self.form.row(like)
            assert stand_in is not None
            check(self.form.batch([stand_in]))
            self.stand_in = stand_in
            tried = list(itertools.islice(first, TRIES))
            steady = [
                len({digest(self.row(n, PUBLIC.of(n))) for _ in range(_REPEATS)}) == 1
                for n in tried
            ]
        if 4 * sum(steady) < 3 * len(tried):
            raise ArgumentError(
                "train_set",
                "with items that stay the same when they are read again with the same seeds",
                shown="others",
                why="a random generator that runs on from record to record makes each depend on "
                "the ones before it",
                hint="Draw from the default generators of torch, numpy or random, which are seeded "
                "for every record; or seed your own with torch.initial_seed() in __getitem__ or "
                "the collate_fn.",
            )

    def rows(self, ids: Sequence[int], valid: Sequence[bool], seeds: Seeds) -> list[Row | None]:
        """The rows of records; None for padding, which is not read, and for absent records."""
        with generators_kept():
            return [
                self.row(number, seeds.of(number)) if real else None
                for number, real in zip(ids, valid, strict=True)
            ]

    def batch(self, rows: Sequence[Row | None]) -> Any:
        """Rows as one value in the form's structure, with the stand-in in place of None."""
        return self.form.batch([self.stand_in if row is None else row for row in rows])

    def shares(self, rows: Sequence[Row | None]) -> Tensor | None:
        """What the loss in each row of a batch is multiplied by; None: a record counts as one."""
        return None

    def content(self, number: int) -> bytes | None:
        """A digest of a record, read with one seed for all; None if it is absent."""
        row = self.row(number, PUBLIC.of(0))
        return None if row is None else digest(row)

    def row(self, number: int, seed: int) -> Row | None:
        """The row of a record, read after the generators were seeded; None if it is absent."""
        seed_generators(seed)
        try:
            value = self._value(self.items[number])
        except Exception:  # its text may quote the record
            return None
        return self.form.row(value)

    def _value(self, item: Any) -> Any:
        """One record, as the collator makes it."""
        if self._collate is None:
            return list(item) if type(item) is tuple else item  # as torch's default_collate does
        together = [item] if self._example is None else [self._example, item]
        # A collator may change what it gets.
        return row_of(self._collate([copy.copy(each) for each in together]), len(together))
