"""Labels as numbers of classes: each label is of one class at most.

`labels == name` compares in the type of the labels: in float16 2048 equals 2049, and an object may
say that it equals everything. One record would then be in several classes. Here a label is
converted, alone and exactly, to a whole number, a fraction or a text, and looked up.
"""

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError

Whole = npt.NDArray[np.int64]

NONE = -1
"""The number of a label that is no class."""


class Classes:
    """A public list of different labels, in the order of their numbers.

    Args:
        labels: The labels: whole numbers, other numbers, truth values or texts.

    Raises:
        ArgumentError: If there are fewer than two, or two of them are the same.
    """

    def __init__(self, labels: Sequence[Any]) -> None:
        keys = [_key(label) for label in labels]
        if len(keys) < 2 or None in keys or len(set(keys)) < len(keys):
            raise ArgumentError("classes", "two or more different numbers or texts", got=labels)
        self.labels = tuple(labels)
        self._numbers = {key: number for number, key in enumerate(keys)}

    def __len__(self) -> int:
        return len(self.labels)

    def numbers(self, labels: Any) -> Whole:
        """The number of the class of each label, or `NONE`."""
        if hasattr(labels, "detach"):
            labels = labels.detach().cpu()
            labels = (labels.double() if labels.is_floating_point() else labels).numpy()
        listed = isinstance(labels, list | tuple) or not hasattr(labels, "__array__")
        given = list(labels) if listed else np.asarray(labels)
        if isinstance(given, list):
            return np.array([self._number(label) for label in given], dtype=np.int64)
        if given.ndim == 2 and given.shape[1] == 1:
            given = given[:, 0]
        if given.ndim != 1:
            raise ArgumentError("y", "one label per record", shown="an array of another shape")
        if given.dtype.kind not in "biufU":
            return np.array([self._number(label) for label in given.tolist()], dtype=np.int64)
        different, places = np.unique(given, return_inverse=True)
        found = np.array([self._number(label) for label in different], dtype=np.int64)
        return found[places] if len(found) else np.zeros(0, dtype=np.int64)

    def _number(self, label: Any) -> int:
        key = _key(label)
        return NONE if key is None else self._numbers.get(key, NONE)


def _key(label: Any) -> Hashable | None:
    """What a label is, exactly, as a value of a built-in type; None if it is no label.

    Methods of the built-in types are called, not those that a class of the label's own may define.
    """
    try:
        if hasattr(label, "detach") or type(label) is np.ndarray:  # of one number
            label = label.item()
        if isinstance(label, np.generic) and not isinstance(label, np.longdouble):
            label = label.item()
        if isinstance(label, np.longdouble):
            return Fraction(*label.as_integer_ratio())
        if isinstance(label, int):
            return Fraction(int.__index__(label))
        if isinstance(label, float):
            return Fraction(*float.as_integer_ratio(label))
        if isinstance(label, str):
            return str.__str__(label)
    except Exception:  # a NaN, an infinite number, or an object that raises
        return None
    return None
