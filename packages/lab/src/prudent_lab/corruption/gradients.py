"""Corruptions of per-example gradients during training: the base class and simple faults.

A batch is `{name: (m, *shape)}`, one row per record. `mask` (m,) marks the rows of bad records,
`valid` (m,) the rows that are records at all; the others are padding and are neither read nor
written. Everything is computed with masks and `where`, so the shape of the computation does not
depend on the number of bad records in a batch, and no value is read back from an accelerator.

| situation | what happens |
| --- | --- |
| ratio 0, or no bad record in the batch | the values come back as they were |
| empty batch, m = 0 | comes back empty |
| every record bad | "honest" means the bad records' own true gradients |
| every row padding | the values come back as they were |
| a row both padding and bad | padding wins, it is left alone |
| padding or bad rows that hold NaN | never reach an honest statistic |
| one honest record | its standard deviation is 0: a little is enough sends the mean |

Attackers that act together see the honest gradients of the batch, the strongest threat model. Names
are those of the literature; the workers of those papers, one gradient a round, are records here.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import torch
from attrs.validators import optional
from torch import Tensor
from typing_extensions import override

from prudent import _validate
from prudent.training.chunk import Chunk, Corrupt
from prudent_lab.corruption.records import VALUES, corrupted_mask, seeded_generator

Gradients = Mapping[str, Tensor]
_POSITIVE = _validate.by(_validate.positive)
_POSITIVE_OR_NONE: Any = optional(_POSITIVE)


@attrs.frozen(eq=False)
class AttackedBatch:
    """A batch as the attacker sees it."""

    gradients: Gradients  # per-example gradients by parameter name, each (m, *shape)
    bad: Tensor  # (m,) booleans, the rows to overwrite
    known: Tensor  # (m,) booleans, the rows that the attacker considers honest
    # Of the random numbers of this step; None: the device's default generator.
    generator: torch.Generator | None

    def honest_mean(self) -> dict[str, Tensor]:
        """The mean of the gradients of the known rows."""
        return {name: masked_mean(self.known, rows) for name, rows in self.gradients.items()}

    def honest_norm(self) -> Tensor:
        """The mean L2 norm of the gradients of the known rows."""
        squares = [
            gradient.flatten(1).square().sum(1) if gradient.ndim > 1 else gradient.square()
            for gradient in self.gradients.values()
        ]
        return masked_mean(self.known, torch.stack(squares).sum(0).sqrt())


@attrs.frozen
class GradientCorruption(ABC):
    """Makes the bad records of a batch send wrong gradients.

    The `ratio` is the share of bad records, in [0, 0.5]; the seed says which a `hook` makes bad.
    """

    ratio: float = attrs.field(validator=_validate.by(_validate.between, 0, 0.5))
    seed: int = attrs.field(default=0, kw_only=True, validator=_validate.by(_validate.count))

    @property
    @abstractmethod
    def per_record(self) -> bool:
        """Whether what a bad record sends depends on no other record.

        Only then does the accounting also cover the corrupted run, because it assumes that a record
        affects the sum only through its own gradient.
        """

    @abstractmethod
    def sent(self, batch: AttackedBatch) -> dict[str, Tensor]:
        """What bad records send instead of their gradients: one vector per row, or one for all."""

    def __call__(
        self,
        gradients: Gradients,
        mask: Tensor,
        *,
        valid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """The gradients with those of bad records replaced, as the aggregation receives them.

        Args:
            gradients: per-example gradients by parameter name, each (m, *shape).
            mask: (m,) booleans, true for the rows of bad records (`corrupted_mask(...)[ids]`).
            valid: (m,) booleans, false for padding; without it every row is a record.
            generator: source of the random numbers drawn in each step, on the gradients' device;
                the default generator of that device if not given.
        """
        valid = torch.ones_like(mask) if valid is None else valid
        for name, rows in (("mask", mask), ("valid", valid)):
            if rows.dtype != torch.bool or rows.ndim != 1:
                shown = f"{rows.dtype} of shape {tuple(rows.shape)}"
                raise _validate.ArgumentError(name, "to be a vector of booleans", shown=shown)
        for name, gradient in gradients.items():
            if not gradient.shape[:1] == mask.shape == valid.shape:
                raise ValueError(
                    f"Expected one row of {name}, mask and valid for each record of the batch, got "
                    f"shapes {tuple(gradient.shape)}, {tuple(mask.shape)} and {tuple(valid.shape)}."
                )
        if not gradients or not len(mask):
            return dict(gradients)
        bad, honest = mask & valid, valid & ~mask
        known = torch.where(honest.any(), honest, valid)
        sent = self.sent(AttackedBatch(gradients, bad, known, generator))
        return {
            name: torch.where(by_row(bad, gradient), sent[name], gradient)
            for name, gradient in gradients.items()
        }

    def hook(self, records: int, device: torch.device | str) -> Corrupt:
        """The corruption as a function for a training step, for the records of `corrupted_records`.

        `prudent.fit(corrupt=...)` calls this itself; `prudent.Step(corrupt=...)` takes the result.
        """
        is_bad = corrupted_mask(records, self.ratio, self.seed, device)

        def corrupt(
            gradients: Gradients, chunk: Chunk, generator: torch.Generator
        ) -> dict[str, Tensor]:
            if chunk.ids is None:
                why = "in every Chunk, to tell whose gradients are bad"
                raise _validate.ArgumentError("ids", why, got=None)
            return self(gradients, is_bad[chunk.ids], valid=chunk.valid, generator=generator)

        return corrupt


def by_row(rows: Tensor, gradient: Tensor) -> Tensor:
    """A vector over records, shaped to broadcast against their gradients."""
    return rows.view(-1, *[1] * (gradient.ndim - 1))


def masked_mean(known: Tensor, gradient: Tensor) -> Tensor:
    """The mean over the known rows; zero if there are none."""
    # Zero times NaN is NaN, so other rows must be masked before summing, not weighted by zero.
    total = gradient.masked_fill(~by_row(known, gradient), 0).sum(0)
    return total / known.sum().clamp(min=1)


@attrs.frozen
class GradientNoise(GradientCorruption):
    """Bad records send their gradient plus new Gaussian noise on every coordinate at each step."""

    variance: float = attrs.field(default=100.0, validator=_POSITIVE)
    per_record: ClassVar[bool] = True  # the noise does not depend on any record

    @override
    def sent(self, batch: AttackedBatch) -> dict[str, Tensor]:
        return {name: self._noisy(gradient, batch) for name, gradient in batch.gradients.items()}

    def _noisy(self, gradient: Tensor, batch: AttackedBatch) -> Tensor:
        deviation, generator = self.variance**0.5, batch.generator
        if gradient.device.type == "cpu":
            # Sampling normals is expensive on the CPU and counting rows is free, so draw only the
            # rows that are needed.
            rows = batch.bad.nonzero().squeeze(1)
            noise = torch.randn(
                len(rows), *gradient.shape[1:], dtype=gradient.dtype, generator=generator
            )
            return gradient.index_add(0, rows, noise.mul_(deviation))
        return gradient + torch.empty_like(gradient).normal_(0, deviation, generator=generator)


@attrs.frozen
class GradientSignFlip(GradientCorruption):
    """Bad records send the negative of their gradient, as after a flipped sign bit."""

    per_record: ClassVar[bool] = True  # each record negates its own gradient

    @override
    def sent(self, batch: AttackedBatch) -> dict[str, Tensor]:
        return {name: -gradient for name, gradient in batch.gradients.items()}


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


@attrs.frozen
class ColludingDirection(GradientCorruption):
    """All bad records send the same constant vector at every step.

    Attributes:
        norm: the L2 norm of the vector; if None, the mean norm of the honest gradients of the
            batch, which cannot be distinguished from an honest record by its norm.
        direction_seed: the seed of the direction, uniform on the sphere.
    """

    norm: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    direction_seed: int = attrs.field(default=0, validator=_validate.by(_validate.count))

    @property
    def per_record(self) -> bool:
        """True if the norm is given; a matched norm is read from the honest records."""
        return self.norm is not None

    @override
    def sent(self, batch: AttackedBatch) -> dict[str, Tensor]:
        names, rows = zip(*batch.gradients.items(), strict=True)
        like, shapes = rows[0], tuple(each.shape[1:] for each in rows)
        directions = _unit_direction(self.direction_seed, shapes, like.dtype, like.device)
        norm = batch.honest_norm() if self.norm is None else like.new_full((), self.norm)
        sent = ((norm * d).to(each.dtype) for d, each in zip(directions, rows, strict=True))
        return dict(zip(names, sent, strict=True))


@attrs.frozen
class InnerProductManipulation(GradientCorruption):
    """Bad records send −scale times the mean of the honest gradients (Xie et al., 2020).

    With a scale of at most 1 the vector is no longer than the honest mean, so it is not
    conspicuous; the aggregate points in the wrong direction as soon as the bad records outweigh the
    honest ones. If honest gradients point in many directions, their mean is short, so under
    clipping a longer vector has more weight.

    Attributes:
        scale: the factor, ε in that paper; if None, the one that gives the vector the mean norm of
            the honest gradients of the batch.
    """

    scale: float | None = attrs.field(default=0.5, validator=_POSITIVE_OR_NONE)
    per_record: ClassVar[bool] = False  # the mean is that of the honest records

    @override
    def sent(self, batch: AttackedBatch) -> dict[str, Tensor]:
        means = batch.honest_mean()
        scale: Tensor | float | None = self.scale
        if scale is None:
            length = torch.stack([mean.square().sum() for mean in means.values()]).sum().sqrt()
            scale = torch.where(length > 0, batch.honest_norm() / length, 0.0)
        return {name: -scale * mean for name, mean in means.items()}


@attrs.frozen
class ALittleIsEnough(GradientCorruption):
    """Bad records send mean − deviations·std of the honest, by coordinate (Baruch et al., 2019).

    Each coordinate stays within the spread of the honest ones, but all deviate to the same side.

    Attributes:
        deviations: number of standard deviations from the mean, z in that paper.
    """

    deviations: float = attrs.field(default=1.0, validator=_POSITIVE)
    per_record: ClassVar[bool] = False  # mean and deviation are those of the honest records

    @override
    def sent(self, batch: AttackedBatch) -> dict[str, Tensor]:
        sent = {}
        for name, mean in batch.honest_mean().items():
            squares = (batch.gradients[name] - mean).square()
            sent[name] = mean - self.deviations * masked_mean(batch.known, squares).sqrt()
        return sent


@attrs.frozen
class Mimic(GradientCorruption):
    """All bad records copy one honest record of the batch (Karimireddy et al., 2022).

    Nothing they send is an outlier, but one record counts many times. They copy the first honest
    row, which in a batch ordered by record id is the honest record with the lowest id.
    """

    per_record: ClassVar[bool] = False  # bad records copy an honest one

    @override
    def sent(self, batch: AttackedBatch) -> dict[str, Tensor]:
        first = batch.known.to(torch.int32).argmax(0, keepdim=True)
        return {name: rows.index_select(0, first) for name, rows in batch.gradients.items()}
