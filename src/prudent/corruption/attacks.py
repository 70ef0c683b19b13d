"""Attacks on per-example gradients by records that act together.

All know the honest gradients of the batch: the strongest position an attacker can be in. Names are
those of the literature; where a paper has workers that send one gradient a round, read records. The
table of edge cases is in `prudent.corruption.gradients`.
"""

import functools

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from prudent import _validate
from prudent.corruption.gradients import GradientCorruption, Gradients, masked_mean
from prudent.corruption.records import VALUES, seeded_generator


@functools.lru_cache(maxsize=8)
def _unit_direction(
    seed: int, shapes: tuple[torch.Size, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """One uniformly random unit vector over all parameters jointly, the same on every device.

    Kept between steps: it is constant, and copying it to an accelerator at each step would stop
    the step from being captured as a graph.
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
    """Bad records all send the same vector, at every step: one constant direction.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        norm: the L2 norm of the vector; if None, the mean norm of the honest gradients of the
            batch, which no test on norms can tell from an honest record.
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
        """A given norm is a constant; a matched one is read from the honest."""
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

    With scale at most 1 the vector is no longer than the honest mean, so it passes as small; the
    aggregate then points the wrong way as soon as the bad outweigh the honest. Honest gradients
    that point many ways have a short mean: where vectors are clipped, a longer one weighs more.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        scale: the factor, the ε of that paper; if None, the one that makes the vector as long as
            honest gradients of the batch are on average.
    """

    scale: float | None = 0.5

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.scale is not None:
            _validate.positive(scale=self.scale)

    @property
    def per_record(self) -> bool:
        """The mean is of the honest records."""
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

    Each coordinate stays inside the spread of the honest ones, all of them on the same side.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        deviations: how many standard deviations from the mean, the z of that paper.
    """

    deviations: float = 1.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        _validate.positive(deviations=self.deviations)

    @property
    def per_record(self) -> bool:
        """Mean and deviation are of the honest records."""
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
    """Bad records all copy one honest record of the batch (Karimireddy et al., 2022).

    Nothing they send is an outlier; they make one record count many times. They copy the first
    honest row, which in a batch ordered by record id is the honest record of lowest id.
    """

    @property
    def per_record(self) -> bool:
        """The copy is of an honest record."""
        return False

    @override
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        first = known.to(torch.int32).argmax(0, keepdim=True)
        return {name: gradient.index_select(0, first) for name, gradient in gradients.items()}
