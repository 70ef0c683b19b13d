"""Records that no one expects: each must count as itself or as absent, and change no other."""

from typing import Any

import numpy as np
import torch

SECRET = "secret 918273"


class Raising:
    """Whatever is asked of it is an error that quotes a record."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(SECRET)

    def __len__(self) -> int:
        raise RuntimeError(SECRET)


class EqualToAll:
    """Equals every label."""

    def __eq__(self, other: object) -> Any:
        return True

    __hash__ = None  # type: ignore[assignment]


class Marked(torch.Tensor):
    """A subclass that does something else with every operation."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(SECRET)


def _row(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((4,), value, dtype=dtype)


VALUES: dict[str, Any] = {
    "not a number": (_row(torch.nan), 1),
    "infinite": (_row(-torch.inf), 1),
    "huge": (_row(3e38), 1),
    "tiny": (_row(1e-45), 1),
    "far": (_row(1e4), 1),
    "zero": (_row(0), 0),
    "ignored label": (_row(1), -100),
    "no class": (_row(1), 7),
    "very negative label": (_row(1), -(2**62)),
}
"""Odd by their values alone: they fit into one tensor with the others."""

ITEMS: dict[str, Any] = VALUES | {
    "half": (_row(0.5), 1),
    "double": (_row(0.1, torch.float64), 1),
    "bfloat16": (_row(3, torch.bfloat16), 1),
    "integers": (torch.full((4,), 2**60 + 1), 1),
    "truths": (torch.ones(4, dtype=torch.bool), 1),
    "complex": (_row(1j, torch.complex64), 1),  # type: ignore[arg-type]
    "longer": (torch.ones(5), 1),
    "matrix": (torch.ones(2, 4), 1),
    "scalar": (torch.tensor(1.0), 1),
    "empty": (torch.ones(0), 1),
    "sparse": (torch.ones(4).to_sparse(), 1),
    "trained": (torch.ones(4, requires_grad=True), 1),
    "meta": (torch.ones(4, device="meta"), 1),
    "strided": (torch.ones(8)[::2], 1),
    "array": (np.ones(4, dtype=np.float32), np.int64(1)),
    "reversed": (np.arange(4, dtype=np.float32)[::-1], 1),
    "big-endian": (np.ones(4, dtype=">f4"), 1),
    "objects": (np.array([None] * 4), 1),
    "texts": (np.array(["a"] * 4), 1),
    "list": ([1.0, 2.0, 3.0, 4.0], 1),
    "text": ("abcd", 1),
    "none": None,
    "nothing at all": (),
    "raising": Raising(),
    "raising label": (_row(1), Raising()),
    "raising tensor": (torch.ones(4).as_subclass(Marked), 1),
    "triple": (_row(1), 1, 1),
    "dictionary": {"x": _row(1), "labels": 1},
    "half label": (_row(1), 0.5),
    "label that is no number": (_row(1), float("nan")),
    "huge label": (_row(1), 2**70),
    "label of all classes": (_row(1), EqualToAll()),
    "labels": (_row(1), torch.tensor([0, 1])),
    "truth": (_row(1), True),
    "float label": (_row(1), 1.0),
}
"""Odd in any way: items of a data set."""
