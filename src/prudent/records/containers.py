"""Sets of records: what is accepted as one, its length, and the fingerprint that recognises it.

If two processes had the records in different orders, both could get the same record, which would
then count twice. A run resumed on other records would release their sums with the old noise.
"""

import hashlib
import pickle
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.records import PUBLIC, generators_kept, seed_generators

_BYTES = 16


def tensors_of(records: Any) -> tuple[Any, Any] | None:
    """Inputs and targets, if they are given as tensors; None for a data set of items."""
    if isinstance(records, TensorDataset) and len(records.tensors) == 2:
        inputs, targets = records.tensors
        return inputs, targets
    if not isinstance(records, tuple | list) or len(records) != 2:
        return None
    # A list of two is a pair if one of them is a tensor, and two items otherwise.
    if isinstance(records, list) and not any(isinstance(part, Tensor) for part in records):
        return None
    return records[0], records[1]


def declared_form(items: Any) -> list[Tensor] | None:
    """An item of the form that a data set declares, as one of tensors does; None: it does not."""
    if type(items) is Subset:
        return declared_form(items.dataset)
    tensors = items.tensors if type(items) is TensorDataset else tensors_of(items)
    if tensors is None or not all(isinstance(part, Tensor) for part in tensors):
        return None
    return [tensor.new_zeros(tensor.shape[1:]) for tensor in tensors]


def count_of(records: Any, tensors: tuple[Any, Any] | None) -> int:
    """The number of records of a set, given what `tensors_of` returned for it."""
    if tensors is None:
        cannot = isinstance(records, IterableDataset | Mapping | Tensor | str | bytes)
        if not cannot and hasattr(records, "__getitem__") and hasattr(records, "__len__"):
            return len(records)
        raise ArgumentError(
            "train_set",
            "a pair (inputs, targets) of tensors, or a data set of items with __len__ and "
            "__getitem__",
            shown=type(records).__name__,
            hint="A stream cannot be Poisson sampled: load it into a list or a map-style data set. "
            "Of a dictionary of splits, pass one.",
        )
    leaves = pytree.tree_leaves(tensors)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                "train_set",
                "a pair (inputs, targets) of tensors",
                shown=f"one that contains {type(leaf).__name__}",
                hint="torch.as_tensor converts arrays to tensors.",
            )
    sizes = {len(leaf) for leaf in leaves}
    if len(sizes) != 1:
        raise ValueError(f"Expected inputs and targets of the same length, got {sorted(sizes)}.")
    return sizes.pop()


def fingerprint(records: Any) -> str:
    """A fingerprint of a sequence of records, in hexadecimal; equal records have equal ones.

    | records | what is hashed |
    |---|---|
    | object with the attribute `fingerprint`, a text | that text and the number of records |
    | Hugging Face data set | the fingerprint that it keeps of itself, and the number of records |
    | pair of tensors, `TensorDataset` | types, shapes and values |
    | `Subset` of any of these | the indices, and the fingerprint of the whole |
    | other data sets and lists | every item, read one at a time, each with a seed of its own |

    The last reads all records once. A data set for which that takes too long can declare an
    attribute `fingerprint`, which must change whenever a record does. An item that cannot be read
    is hashed as such. Guarantee: the fingerprint is as secret as the records.
    """
    found = hashlib.blake2b(digest_size=_BYTES)
    for name in ("fingerprint", "_fingerprint"):
        declared = getattr(records, name, None)
        if isinstance(declared, str) and declared:
            found.update(repr((declared, len(records))).encode())
            return found.hexdigest()
    tensors = tensors_of(records)
    if tensors is not None:
        for leaf in pytree.tree_leaves(tensors):
            _add(found, leaf)
    elif isinstance(records, Subset) and _is_cheap(records.dataset):
        found.update(repr([int(index) for index in records.indices]).encode())
        found.update(fingerprint(records.dataset).encode())
    else:
        with generators_kept():
            for number in range(len(records)):
                seed_generators(PUBLIC.of(number))
                try:
                    item = digest(records[number])
                except Exception:
                    item = b"unreadable"
                found.update(struct.pack("<q", len(item)) + item)
    return found.hexdigest()


def digest(value: Any) -> bytes:
    """A digest of one value: equal bytes if and, but for collisions, only if it is the same."""
    found = hashlib.blake2b(digest_size=_BYTES)
    _add(found, value)
    return found.digest()


def _is_cheap(records: Any) -> bool:
    """Whether the fingerprint of a whole set takes less than reading every item of it."""
    # Inside a subset, a list or tuple is a sequence of items, not a pair of tensors.
    if isinstance(records, tuple | list):
        return False
    if isinstance(records, Subset):
        return _is_cheap(records.dataset)
    declared = (getattr(records, name, None) for name in ("fingerprint", "_fingerprint"))
    return tensors_of(records) is not None or any(isinstance(name, str) for name in declared)


def _add(found: "hashlib.blake2b", value: Any) -> None:
    """Add a value to a hash, in a form that no other value has."""
    if isinstance(value, Tensor):
        plain = value.detach().as_subclass(Tensor).cpu().contiguous()
        _add_bytes(found, repr((plain.dtype, tuple(plain.shape))).encode())
        found.update(plain.flatten().view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        _add_bytes(found, repr((array.dtype.str, value.shape)).encode())
        _add_bytes(found, array.tobytes())
    elif isinstance(value, Mapping):
        _add_bytes(found, f"mapping {len(value)}".encode())
        for key, part in value.items():
            _add(found, key)
            _add(found, part)
    elif isinstance(value, tuple | list):
        _add_bytes(found, f"{type(value).__name__} {len(value)}".encode())
        for part in value:
            _add(found, part)
    elif value is None or type(value) in (bool, int, float, str, bytes):
        _add_bytes(found, repr((type(value).__name__, value)).encode("utf-8", "surrogatepass"))
    else:
        _add_bytes(found, type(value).__qualname__.encode())
        _add_bytes(found, pickle.dumps(value, protocol=4))


def _add_bytes(found: "hashlib.blake2b", content: bytes) -> None:
    found.update(struct.pack("<q", len(content)) + content)
