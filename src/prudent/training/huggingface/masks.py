"""Attention masks that a Hugging Face model builds without inspecting a record.

Before it builds a mask, transformers looks whether every position of the batch is visible, in which
case no mask is needed. Under vmap a record cannot decide that: no code may branch on its values,
and a mask that only some records have could not be batched.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

Build = Callable[..., Tensor | None]
_BUILDERS = ("sdpa", "eager")


@contextmanager
def record_masks() -> Iterator[None]:
    """A context in which models build their attention masks in full for per-example gradients.

    `PrivateTrainer` uses it by itself. A loop around `prudent.Step` or `prudent.fit` needs it if
    the records have an `attention_mask`. Outside vmap, masks are built as always.
    """
    before = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in _BUILDERS}
    for name, build in before.items():
        ALL_MASK_ATTENTION_FUNCTIONS[name] = _in_full(build)
    try:
        yield
    finally:
        for name, build in before.items():
            ALL_MASK_ATTENTION_FUNCTIONS[name] = build


def _in_full(build: Build) -> Build:
    """The same builder, which never leaves out the mask of a record."""

    @functools.wraps(build)
    def built(*args: Any, **options: Any) -> Tensor | None:
        mask = options.get("attention_mask")
        if isinstance(mask, torch.Tensor) and is_batchedtensor(mask):
            options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return build(*args, **options)

    return built
