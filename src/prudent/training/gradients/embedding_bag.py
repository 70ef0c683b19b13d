"""`torch.nn.EmbeddingBag` on records, as an embedding that is summed over each bag.

torch's kernel would need one table of gradients per record; an embedding adds a row per token.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prudent.training.gradients.domains import DOMAINS
from prudent.training.gradients.leftovers import is_record


def embedding_bag(
    call: Callable[..., Any],
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bags of equal size, the rows of a matrix of tokens, reduced as torch does.

    Raises:
        ValueError: If the bags of a record are given by offsets, which decide about shapes.
    """
    if not is_record(input):
        rest = norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights
        result: Tensor = call(
            *(functional.embedding_bag, input, weight, offsets, max_norm),
            *(*rest, include_last_offset, padding_idx),
        )
        return result
    if input.ndim != 2 or offsets is not None:
        raise ValueError(
            "Expected the bags of torch.nn.EmbeddingBag as a matrix of tokens, one row per bag, "
            "got offsets, which differ from record to record. Pad the bags to equal size and set "
            "padding_idx."
        )
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    look_up = partial(DOMAINS[functional.embedding], partial(call, functional.embedding))
    rows: Tensor = look_up(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        weighted: Tensor = call(torch.mul, rows, per_sample_weights[..., None])
        rows = weighted
    counted = torch.ones_like(input) if padding_idx is None else (input != padding_idx).long()
    inside = counted.bool()[..., None]
    if mode == "max":
        found = rows.masked_fill(~inside, -torch.inf).amax(1)
        return torch.where(inside.any(1), found, 0)
    total = torch.where(inside, rows, 0).sum(1)
    return total / counted.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else total


DECOMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {functional.embedding_bag: embedding_bag}
"""Maps a function to one that takes `call`, which calls other functions in its place."""
