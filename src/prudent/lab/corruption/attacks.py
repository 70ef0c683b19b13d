"""Attacks on per-example gradients by records that act together.

All attackers see the honest gradients of the batch, which is the strongest threat model. Names are
those of the literature; the workers of those papers, which send one gradient per round, are records
here. The table of edge cases is in `prudent.lab.corruption.gradients`.
"""

import functools

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from prudent import _validate
from prudent.lab.corruption.gradients import GradientCorruption, Gradients, masked_mean
from prudent.lab.corruption.records import VALUES, seeded_generator


@functools.lru_cache(maxsize=8)
def _unit_direction(
    seed: int, shapes: tuple[torch.Size, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """A uniformly random unit vector over all parameters jointly, the same on every device.

    Cached between steps, because copying it to an accelerator at each step would prevent capturing
    the step as a CUDA graph.
    """
    generator = seeded_generator(seed, VALUES)
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    length = sum(float(part.square().sum()) for part in parts) ** 0.5
    return tuple((part / max(length, 1e-300)).to(device, dtype) for part in parts)


def _mean_norm(known: Tensor, gradients: Gradients) -> Tensor:
    """The mean L2 norm of the known records' gradients."""
    squares = [
        gradient.flatten(1).square().sum(1) if gradient.ndim > 1 else gradient.square()
        for gradient in gradients.values()
    ]
    return masked_mean(known, torch.stack(squares).sum(0).sqrt())


@attrs.frozen
class ColludingDirection(GradientCorruption):
    """All bad records send the same constant vector at every step.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        norm: the L2 norm of the vector; if None, the mean norm of the honest gradients of the
            batch, which cannot be distinguished from an honest record by its norm.
        direction_seed: the seed of the direction, uniform on the sphere.
    """

    norm: float | None = None
    direction_seed: int = 0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.norm is not None:
            _validate.positive(norm=self.norm)
        _validate.count(direction_seed=self.direction_seed)

    @property
    def per_record(self) -> bool:
        """True if the norm is given; a matched norm is read from the honest records."""
        return self.norm is not None

    @override
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        first = next(iter(gradients.values()))
        directions = _unit_direction(
            self.direction_seed,
            tuple(gradient.shape[1:] for gradient in gradients.values()),
            first.dtype,
            first.device,
        )
        if self.norm is None:
            norm = _mean_norm(known, gradients)
        else:
            norm = torch.full((), self.norm, dtype=first.dtype, device=first.device)
        return {
            name: (norm * direction).to(gradient.dtype)
            for (name, gradient), direction in zip(gradients.items(), directions, strict=True)
        }


@attrs.frozen
class InnerProductManipulation(GradientCorruption):
    """Bad records send −scale times the mean of the honest gradients (Xie et al., 2020).

    With a scale of at most 1 the vector is no longer than the honest mean, so it is not
    conspicuous; the aggregate points in the wrong direction as soon as the bad records outweigh the
    honest ones. If honest gradients point in many directions, their mean is short, so under
    clipping a longer vector has more weight.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        scale: the factor, ε in that paper; if None, the one that gives the vector the mean norm of
            the honest gradients of the batch.
    """

    scale: float | None = 0.5

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.scale is not None:
            _validate.positive(scale=self.scale)

    @property
    def per_record(self) -> bool:
        """False: the mean is that of the honest records."""
        return False

    @override
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        means = {name: masked_mean(known, gradient) for name, gradient in gradients.items()}
        scale: Tensor | float | None = self.scale
        if scale is None:
            length = torch.stack([mean.square().sum() for mean in means.values()]).sum().sqrt()
            scale = torch.where(length > 0, _mean_norm(known, gradients) / length, 0.0)
        return {name: -scale * mean for name, mean in means.items()}


@attrs.frozen
class ALittleIsEnough(GradientCorruption):
    """Bad records send mean − deviations·std of the honest, by coordinate (Baruch et al., 2019).

    Each coordinate stays within the spread of the honest ones, but all deviate to the same side.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        deviations: number of standard deviations from the mean, z in that paper.
    """

    deviations: float = 1.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        _validate.positive(deviations=self.deviations)

    @property
    def per_record(self) -> bool:
        """False: mean and deviation are those of the honest records."""
        return False

    @override
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        sent = {}
        for name, gradient in gradients.items():
            mean = masked_mean(known, gradient)
            deviation = masked_mean(known, (gradient - mean).square()).sqrt()
            sent[name] = mean - self.deviations * deviation
        return sent


@attrs.frozen
class Mimic(GradientCorruption):
    """All bad records copy one honest record of the batch (Karimireddy et al., 2022).

    Nothing they send is an outlier, but one record counts many times. They copy the first honest
    row, which in a batch ordered by record id is the honest record with the lowest id.
    """

    @property
    def per_record(self) -> bool:
        """False: bad records copy an honest one."""
        return False

    @override
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        first = known.to(torch.int32).argmax(0, keepdim=True)
        return {name: gradient.index_select(0, first) for name, gradient in gradients.items()}
