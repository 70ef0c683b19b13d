"""Conversion between Flower's records of named arrays and one flat vector."""

import math
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor

from prudent._validate import ArgumentError
from prudent.records.form import Form, Leaf


class _Entry(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class Layout:
    """The names, shapes and types of a model's arrays, in order.

    Args:
        arrays: The model.

    Attributes:
        dimension: Number of values in the model.
    """

    def __init__(self, arrays: ArrayRecord) -> None:
        self._entries = {
            name: _Entry(values.shape, values.dtype)
            for name, values in ((name, array.numpy()) for name, array in arrays.items())
        }
        for name, entry in self._entries.items():
            if not np.issubdtype(entry.dtype, np.floating):
                raise ArgumentError(
                    "arrays",
                    "of floating-point numbers",
                    shown=f"{entry.dtype} for {name!r}",
                    why="noise cannot be added to integers",
                    hint="Do not send it; replace layers that count, such as batch normalisation.",
                )
        self.dimension = sum(math.prod(entry.shape) for entry in self._entries.values())
        if not self.dimension:
            raise ArgumentError("initial_arrays", "with at least one number", shown="none")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def flatten(self, arrays: ArrayRecord) -> Tensor:
        """All values as one double-precision vector; raises an error if the layout differs."""
        if list(arrays) != list(self._entries):
            raise ArgumentError(
                "arrays", "with the names of the model's arrays", shown="other names"
            )
        parts = []
        for name, entry in self._entries.items():
            values = arrays[name].numpy()
            row = Form(Leaf(torch.float64, entry.shape)).row(values)
            if row is None or not np.issubdtype(values.dtype, np.floating):
                raise ValueError(f"Expected {name!r} of shape {entry.shape}, got another array.")
            parts.append(row[0].reshape(-1))
        return torch.cat(parts)

    def unflatten(self, vector: Tensor) -> ArrayRecord:
        """The named arrays of a vector, with the model's shapes and types."""
        sizes = [math.prod(entry.shape) for entry in self._entries.values()]
        parts = torch.split(vector.detach(), sizes)
        return ArrayRecord(
            {
                name: Array(part.numpy().reshape(entry.shape).astype(entry.dtype))
                for (name, entry), part in zip(self._entries.items(), parts, strict=True)
            }
        )

    def read(self, reply: Message) -> Tensor | None:
        """The model that a client sent back, or None if the reply does not hold one.

        A client may send anything. What it sends must affect only its own update, so this never
        raises: an error would let one client stop the round for all.
        """
        try:
            if reply.has_error():
                return None
            (arrays,) = reply.content.array_records.values()
            return self.flatten(arrays)
        except Exception:
            return None
