"""Corruptions of per-example gradients, during training.

A batch is `{name: (m, *shape)}`, one row a record. `mask` (m,) says which rows belong to bad
records, `valid` (m,) which rows are records at all: in a batch padded to a fixed shape the rest is
padding and is neither read nor written. Everything is masks and `where`, so the shape of the
computation does not depend on how many bad records a batch happens to hold, and an accelerator is
never asked for a number.

The attacks from the literature know the honest gradients of the batch: the strongest position an
attacker can be in. Names and defaults are the usual ones; where a paper has workers that send one
gradient a round, read records.

| situation | what happens |
| --- | --- |
| ratio 0, or no bad record in the batch | the values come back as they were |
| empty batch, m = 0 | comes back empty |
| every record bad | "honest" means the bad records' own true gradients, all they know |
| every row padding | the values come back as they were |
| a row both padding and bad | padding wins, it is left alone |
| padding or bad rows that hold NaN | never reach an honest statistic |
| one honest record | its standard deviation is 0: a little is enough sends the mean |
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from prudent import _validate
from prudent.corruption.records import VALUES, seeded_generator, valid_ratio

Gradients = Mapping[str, Tensor]


@runtime_checkable
class GradientCorruption(Protocol):
    """Something that makes the bad records of a batch send wrong gradients."""

    @property
    def ratio(self) -> float:
        """The share of records that are bad."""

    @property
    def per_record(self) -> bool:
        """Whether what a bad record sends depends on no other record.

        Only then does the accounting of the training cover the corrupted run as well: it counts
        on one record reaching the sum through one gradient.
        """

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """The gradients the aggregation gets to see.

        Args:
            gradients: per-example gradients by parameter name, each (m, *shape).
            mask: (m,) booleans, true for the rows of bad records (`corrupted_mask(...)[ids]`).
            valid: (m,) booleans, false for padding; without it every row is a record.
            generator: of what the corruption draws anew each step, on the gradients' device; the
                default generator of that device if not given.
        """


def _bad_and_known(
    gradients: Gradients, mask: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The rows to overwrite, and the rows an attacker takes for honest."""
    valid = torch.ones_like(mask) if valid is None else valid
    for name, rows in (("mask", mask), ("valid", valid)):
        if rows.dtype != torch.bool or rows.ndim != 1:
            raise ValueError(
                f"Expected {name} to be a vector of booleans, got {rows.dtype} of shape "
                f"{tuple(rows.shape)}."
            )
    for name, gradient in gradients.items():
        if not gradient.shape[:1] == mask.shape == valid.shape:
            raise ValueError(
                f"Expected one row of {name}, mask and valid for each record of the batch, got "
                f"shapes {tuple(gradient.shape)}, {tuple(mask.shape)} and {tuple(valid.shape)}."
            )
    honest = valid & ~mask
    return mask & valid, torch.where(honest.any(), honest, valid)


def _by_row(rows: Tensor, gradient: Tensor) -> Tensor:
    """A vector over records, shaped to broadcast against their gradients."""
    return rows.view(-1, *[1] * (gradient.ndim - 1))


def _overwrite(bad: Tensor, gradient: Tensor, replacement: Tensor) -> Tensor:
    return torch.where(_by_row(bad, gradient), replacement, gradient)


def _mean(known: Tensor, gradient: Tensor) -> Tensor:
    """The mean over the known rows; zero if there are none."""
    # Zero times NaN is NaN: what may not count is removed before it is summed.
    total = gradient.masked_fill(~_by_row(known, gradient), 0).sum(0)
    return total / known.sum().clamp(min=1)


@dataclass(frozen=True)
class GradientNoise:
    """Bad records send their gradient plus Gaussian noise on every coordinate, anew each step.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        variance: of the noise on one coordinate.
    """

    ratio: float
    variance: float = 100.0

    def __post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.positive(variance=self.variance)

    @property
    def per_record(self) -> bool:
        """The noise is independent of every record."""
        return True

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """See `GradientCorruption`."""
        bad, _ = _bad_and_known(gradients, mask, valid)
        return {name: self._noisy(bad, gradient, generator) for name, gradient in gradients.items()}

    def _noisy(self, bad: Tensor, gradient: Tensor, generator: torch.Generator | None) -> Tensor:
        deviation = self.variance**0.5
        if gradient.device.type == "cpu":
            # On the host a count is free and normals are dear: draw only the rows that need them.
            rows = bad.nonzero().squeeze(1)
            noise = torch.randn(
                len(rows), *gradient.shape[1:], dtype=gradient.dtype, generator=generator
            )
            return gradient.index_add(0, rows, noise.mul_(deviation))
        noise = torch.empty_like(gradient).normal_(0, deviation, generator=generator)
        return _overwrite(bad, gradient, gradient + noise)


@dataclass(frozen=True)
class GradientSignFlip:
    """Bad records send the negative of their gradient: a flipped sign bit.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
    """

    ratio: float

    def __post_init__(self) -> None:
        valid_ratio(self.ratio)

    @property
    def per_record(self) -> bool:
        """The gradient is the record's own."""
        return True

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """See `GradientCorruption`."""
        bad, _ = _bad_and_known(gradients, mask, valid)
        return {name: _overwrite(bad, gradient, -gradient) for name, gradient in gradients.items()}


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


@dataclass(frozen=True)
class ColludingDirection:
    """Bad records all send the same vector, at every step: one constant direction.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        norm: the L2 norm of the vector; if None, the mean norm of the honest gradients of the
            batch, which no test on norms can tell from an honest record.
        direction_seed: the seed of the direction, uniform on the sphere.
    """

    ratio: float
    norm: float | None = None
    direction_seed: int = 0

    def __post_init__(self) -> None:
        valid_ratio(self.ratio)
        if self.norm is not None:
            _validate.positive(norm=self.norm)
        _validate.count(direction_seed=self.direction_seed)

    @property
    def per_record(self) -> bool:
        """A given norm is a constant; a matched one is read from the honest."""
        return self.norm is not None

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """See `GradientCorruption`."""
        if not gradients:
            return {}
        bad, known = _bad_and_known(gradients, mask, valid)
        first = next(iter(gradients.values()))
        directions = _unit_direction(
            self.direction_seed,
            tuple(gradient.shape[1:] for gradient in gradients.values()),
            first.dtype,
            first.device,
        )
        if self.norm is None:
            squares = [
                gradient.flatten(1).square().sum(1) if gradient.ndim > 1 else gradient.square()
                for gradient in gradients.values()
            ]
            norm = _mean(known, torch.stack(squares).sum(0).sqrt())
        else:
            norm = torch.full((), self.norm, dtype=first.dtype, device=first.device)
        return {
            name: _overwrite(bad, gradient, (norm * direction).to(gradient.dtype))
            for (name, gradient), direction in zip(gradients.items(), directions, strict=True)
        }


@dataclass(frozen=True)
class InnerProductManipulation:
    """Bad records send −scale times the mean of the honest gradients (Xie et al., 2020).

    With scale at most 1 the vector is no longer than the honest mean, so it passes as small; the
    aggregate then points the wrong way as soon as the bad outweigh the honest.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        scale: the factor, the ε of that paper.
    """

    ratio: float
    scale: float = 0.5

    def __post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.positive(scale=self.scale)

    @property
    def per_record(self) -> bool:
        """The mean is of the honest records."""
        return False

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """See `GradientCorruption`."""
        bad, known = _bad_and_known(gradients, mask, valid)
        return {
            name: _overwrite(bad, gradient, -self.scale * _mean(known, gradient))
            for name, gradient in gradients.items()
        }


@dataclass(frozen=True)
class ALittleIsEnough:
    """Bad records send mean − deviations·std of the honest, by coordinate (Baruch et al., 2019).

    Each coordinate stays inside the spread of the honest ones, all of them on the same side.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        deviations: how many standard deviations from the mean, the z of that paper.
    """

    ratio: float
    deviations: float = 1.0

    def __post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.positive(deviations=self.deviations)

    @property
    def per_record(self) -> bool:
        """Mean and deviation are of the honest records."""
        return False

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """See `GradientCorruption`."""
        bad, known = _bad_and_known(gradients, mask, valid)
        corrupted = {}
        for name, gradient in gradients.items():
            mean = _mean(known, gradient)
            deviation = _mean(known, (gradient - mean).square()).sqrt()
            corrupted[name] = _overwrite(bad, gradient, mean - self.deviations * deviation)
        return corrupted


@dataclass(frozen=True)
class Mimic:
    """Bad records all copy one honest record of the batch (Karimireddy et al., 2022).

    Nothing they send is an outlier; they make one record count many times. They copy the first
    honest row, which in a batch ordered by record id is the honest record of lowest id.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
    """

    ratio: float

    def __post_init__(self) -> None:
        valid_ratio(self.ratio)

    @property
    def per_record(self) -> bool:
        """The copy is of an honest record."""
        return False

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """See `GradientCorruption`."""
        bad, known = _bad_and_known(gradients, mask, valid)
        if not len(mask):
            return dict(gradients)
        first = known.to(torch.int32).argmax(0, keepdim=True)
        return {
            name: _overwrite(bad, gradient, gradient.index_select(0, first))
            for name, gradient in gradients.items()
        }
