"""The positions of the patches of a convolution and their layout as matrices."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from torch import Tensor
from torch.nn import functional


class Geometry:
    """The geometry of a convolution: the positions of its patches and their matrix layouts."""

    def __init__(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.kernel, self.stride, self.padding = list(kernel), list(stride), list(padding)
        self.dilation, self.groups, self.dimensions = list(dilation), groups, len(kernel)

    def output_size(self, size: Sequence[int]) -> list[int]:
        """The number of output positions along each axis."""
        axes = zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in axes]

    def windows(self, values: Tensor) -> Tensor:
        """Unfold (images, channels, *size) to a view (groups, images, channels, *size, *kernel)."""
        images, channels = values.shape[:2]
        if any(self.padding):
            values = functional.pad(values, [p for p in reversed(self.padding) for _ in (0, 1)])
        for axis, (k, t, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            values = values.unfold(2 + axis, d * (k - 1) + 1, t)[..., ::d]
        grouped = images, self.groups, channels // self.groups
        return values.reshape(*grouped, *values.shape[2:]).transpose(0, 1)

    def strips(self, values: Tensor) -> tuple[Tensor, list[int]]:
        """Unfold all axes but the first: (images, channels · rest of kernel, rows · rest of size).

        The patches that start `offset` rows further down are a slice, so offsets along the first
        axis of the kernel need no copies. Rows that belong to different residues modulo the stride
        are stored separately. Also returns where the slice of each offset begins. One group only.
        """
        kernel, stride, dilation = self.kernel[0], self.stride[0], self.dilation[0]
        rest = Geometry(
            [1, *self.kernel[1:]], [1, *self.stride[1:]], [0] * self.dimensions, self.dilation, 1
        )
        below = -(values.shape[2] + 2 * self.padding[0]) % stride
        sides = [(p, p) for p in self.padding]
        sides[0] = self.padding[0], self.padding[0] + below
        values = functional.pad(values, [side for pair in reversed(sides) for side in pair])
        windows = rest.windows(values)[0].squeeze(2 + self.dimensions)
        kernels = range(2 + self.dimensions, windows.ndim)
        windows = windows.movedim(list(kernels), list(range(2, 2 + len(kernels))))
        split = windows.unflatten(2 + len(kernels), (-1, stride))  # type: ignore[no-untyped-call]
        apart = split.movedim(3 + len(kernels), 2 + len(kernels))
        rows, positions = apart.shape[3 + len(kernels)], math.prod(apart.shape[4 + len(kernels) :])
        begins = [
            (residue * rows + start) * positions
            for start, residue in (divmod(offset * dilation, stride) for offset in range(kernel))
        ]
        return apart.flatten(2 + len(kernels)).flatten(1, -2), begins

    def patches(self, values: Tensor) -> Tensor:
        """Patches of shape (groups, images · positions, kernel · channels of a group)."""
        return self.copied(self.overlapping(values))

    def overlapping(self, values: Tensor) -> Tensor:
        """A view of the patches: (groups, images, *size, *kernel, channels of a group).

        The channels come last, so that copying patches copies contiguous memory.
        """
        return self.windows(values.movedim(1, -1).contiguous().movedim(-1, 1)).movedim(2, -1)

    def copied(self, windows: Tensor) -> Tensor:
        """Copy `overlapping` patches to matrices: one product covers all of their images."""
        positions = windows.shape[1 : 2 + self.dimensions].numel()
        return windows.reshape(self.groups, positions, -1)

    def fold(self, patches: Tensor, shape: Sequence[int]) -> Tensor:
        """Sum patches into (images, channels, *size): the adjoint of `patches`."""
        images, channels, *size = shape
        per_group = channels // self.groups
        output = self.output_size(size)
        windows = patches.view(self.groups, images, *output, *self.kernel, per_group)
        windows = windows.movedim(0, -2)
        padded = [s + 2 * p for s, p in zip(size, self.padding, strict=True)]
        total = patches.new_zeros(images, *padded, self.groups, per_group)
        for offset in product(*map(range, self.kernel)):
            starts = [o * d for o, d in zip(offset, self.dilation, strict=True)]
            spans = zip(starts, output, self.stride, strict=True)
            inside = [slice(s, s + t * (n - 1) + 1, t) for s, n, t in spans]
            window: tuple[Any, ...] = (..., *offset, slice(None), slice(None))
            total[(slice(None), *inside)] += windows[window]
        inside = [slice(p, p + s) for s, p in zip(size, self.padding, strict=True)]
        return total[(slice(None), *inside)].flatten(-2).movedim(-1, 1)

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as (groups, outputs of a group, kernel · channels of a group)."""
        grouped = weight.reshape(self.groups, -1, *weight.shape[1:])
        return grouped.movedim(2, -1).flatten(2)

    def form(self, weight_shape: Sequence[int]) -> Callable[[Tensor], Tensor]:
        """Undo `matrix` on the last three axes."""
        channels = weight_shape[1]
        kernel = tuple(self.kernel)

        def shaped(matrix: Tensor) -> Tensor:
            split = matrix.reshape(*matrix.shape[:-1], *kernel, channels)
            back = split.movedim(-1, -1 - len(kernel))
            return back.flatten(-3 - len(kernel), -2 - len(kernel))

        return shaped

    def by_image(self, result: Tensor, shape: Sequence[int]) -> Tensor:
        """A product over patches as (images, channels, *size); channels stay last in memory."""
        output = self.output_size(shape[2:])
        images = result.view(self.groups, shape[0], *output, result.shape[-1])
        return images.movedim(0, -2).flatten(-2).movedim(-1, 1)
