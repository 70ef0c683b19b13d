"""What one record may add in the directions the model has been moving in.

Records that act together push one way at every step. A single gradient cannot be told from theirs,
but a push that lasts must show in what was released, and honest gradients hardly point along it.
"""

import math
from functools import partial

import attrs
import torch
from torch import Tensor

from prudent import _validate
from prudent.training.gradients.answers import Values

_NEW = 1e-3


@attrs.frozen(kw_only=True)
class DirectionBound:
    """Shortens, in every clipped gradient, the part along what was released before.

    The directions are decaying sums of released gradients, so they are public. Each vector then
    depends on its own record alone and is no longer than it was: neither sensitivity nor price
    changes. Every gradient is formed, so a step needs room for a batch of them.

    Attributes:
        share: The part along these directions is no longer than this share of the clip.
        paces: What a step keeps of each sum; of 1, all: the way from the beginning.
    """

    share: float = 0.05
    paces: tuple[float, ...] = (0.9, 0.99, 1.0)

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1), "share")
        if not self.paces:
            raise ValueError("Expected paces one number or more, got none.")
        for pace in self.paces:
            _validate.between(0, 1, paces=pace)

    def bounded(self, gradients: Values, sums: Tensor, factor: Tensor, clip: float) -> Values:
        """Gradients of single records: scaled, clipped, and shortened along the sums.

        Args:
            gradients: By parameter name, records first.
            sums: Of what was released, one a row.
            factor: On every gradient.
            clip: R.
        """
        flat = factor * torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)
        flat = torch.renorm(flat, 2, 0, clip)
        directions = _orthonormal(sums)
        along = flat @ directions.T
        flat = flat - (along - torch.renorm(along, 2, 0, self.share * clip)) @ directions
        parts = torch.split(flat, [math.prod(g.shape[1:]) for g in gradients.values()], 1)
        return {
            name: part.view_as(gradient)
            for (name, gradient), part in zip(gradients.items(), parts, strict=True)
        }

    def next(self, sums: Tensor, released: Values) -> Tensor:
        """The sums after one more release."""
        flat = torch.cat([value.flatten() for value in released.values()])
        # Numbers, not a tensor of them: to copy one to a device a captured step must not wait.
        return torch.stack([row * pace + flat for row, pace in zip(sums, self.paces, strict=True)])


def _orthonormal(rows: Tensor) -> Tensor:
    """The same span, by Gram and Schmidt: a decomposition would wait for the device."""
    found: list[Tensor] = []
    for row in rows.unbind():
        rest = row
        for other in found:
            rest = rest - (rest @ other) * other
        length = torch.linalg.vector_norm(rest)
        # What is left of a row that says nothing new is rounding, and points anywhere.
        is_new = length > _NEW * torch.linalg.vector_norm(row)
        found.append(torch.where(is_new, rest / length, 0.0))
    return torch.stack(found)
