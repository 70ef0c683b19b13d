"""The form of a record, and the conversion of one record to it.

Stacking records as they come lets one of them decide for all: a float beside integers makes them
floats, and a row with another memory order changes the order of the batch, hence the kernel that
computes with it. Here a record is converted alone, and written into memory of a fixed order.

| a number of the record | is converted to | how |
|---|---|---|
| real | floating or complex type | rounded to the nearest, as `Tensor.to` does |
| real | integer or boolean type | exactly; a record with one that is not exact is absent |
| complex | complex type | as real ones; to a real type never: the record is absent |
| row of another shape, or structure, or not a number | | the record is absent |
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from prudent._validate import ArgumentError

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
        stacked = iter(
            _stacked(leaf, [row[place] for row in rows])
            for place, leaf in enumerate(_leaves(self.tree))
        )
        return _filled(self.tree, lambda _: next(stacked))

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
        return torch.as_tensor(np.ascontiguousarray(array).reshape(array.shape))
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


def _stacked(leaf: Leaf, tensors: Sequence[Tensor]) -> Tensor:
    # Memory that exists keeps its order, whatever that of the tensors.
    place = torch.empty((len(tensors), *leaf.shape), dtype=leaf.dtype)
    return torch.stack(list(tensors), out=place) if tensors else place


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
