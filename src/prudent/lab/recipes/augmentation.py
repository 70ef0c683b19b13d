"""Augmentation multiplicity: several views of a record, averaged before its gradient is clipped.

The views of a record are on the second axis of its features. A record is still one row, with one
loss, the mean over its views, and so one gradient: clipping and accounting are those of a record.
"""

import torch
from torch import Tensor
from torch.nn import functional

from prudent import _validate

_NEAR = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))


def shifts(copies: int) -> tuple[tuple[int, int], ...]:
    """The first `copies` of nine shifts by at most one pixel, as (rows, columns); none comes first.

    They are public and the same for every record.
    """
    return _NEAR[: _validate.count(1, len(_NEAR), copies=copies)]


def shifted(images: Tensor, shift: tuple[int, int]) -> Tensor:
    """Images (…, height, width) moved by whole pixels, with zeros from outside."""
    rows, columns = shift
    height, width = images.shape[-2:]
    reach = max(abs(rows), abs(columns))
    padded = functional.pad(images, (reach, reach, reach, reach))
    top, left = reach - rows, reach - columns
    return padded[..., top : top + height, left : left + width]


def loss_over_views(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy per record: of outputs (n, classes), or the mean over views (n, views, …)."""
    if outputs.ndim == 2:
        return functional.cross_entropy(outputs, targets, reduction="none")
    views = outputs.shape[1]
    each = functional.cross_entropy(
        outputs.flatten(0, 1), targets.repeat_interleave(views), reduction="none"
    )
    return each.view(-1, views).mean(1)


def stacked(views: list[Tensor]) -> Tensor:
    """Views of the same records as one tensor, with the views on its second axis."""
    return torch.stack(views, dim=1)
