"""Corruptions of per-example gradients, during training: what they share, and plain faults.

A batch is `{name: (m, *shape)}`, one row a record. `mask` (m,) says which rows belong to bad
records, `valid` (m,) which rows are records at all: in a batch padded to a fixed shape the rest is
padding and is neither read nor written. Everything is masks and `where`, so the shape of the
computation does not depend on how many bad records a batch happens to hold, and an accelerator is
never asked for a number.

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from prudent import _validate
from prudent.corruption.records import corrupted_mask, valid_ratio

Gradients = Mapping[str, Tensor]


class Rows(Protocol):
    """A physical batch, as far as a corruption looks at it."""

    @property
    def ids(self) -> Tensor | None:
        """Record ids."""

    @property
    def valid(self) -> Tensor | None:
        """False for padding."""


Hook = Callable[[Gradients, Rows, torch.Generator], dict[str, Tensor]]
"""From the gradients of a batch, the batch and the generator of the step to what is sent."""


@attrs.frozen
class GradientCorruption(ABC):
    """Something that makes the bad records of a batch send wrong gradients.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        seed: of the choice of bad records that a `hook` makes.
    """

    ratio: float
    seed: int = attrs.field(default=0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.count(seed=self.seed)

    @property
    @abstractmethod
    def per_record(self) -> bool:
        """Whether what a bad record sends depends on no other record.

        Only then does the accounting of the training cover the corrupted run as well: it counts
        on one record reaching the sum through one gradient.
        """

    @abstractmethod
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """What bad records send in place of their gradients: one for each row, or one for all.

        Args:
            gradients: as for a call.
            bad: (m,) booleans, the rows that will be overwritten.
            known: (m,) booleans, the rows an attacker takes for honest.
            generator: as for a call.
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
        bad, known = _bad_and_known(gradients, mask, valid)
        if not gradients or not len(mask):
            return dict(gradients)
        sent = self.sent(gradients, bad, known, generator)
        return {
            name: torch.where(by_row(bad, gradient), sent[name], gradient)
            for name, gradient in gradients.items()
        }

    def hook(self, records: int, device: torch.device | str) -> Hook:
        """The corruption as a training step takes it, of the records `corrupted_records` chooses.

        `prudent.fit(corrupt=...)` calls this itself; `prudent.Step(corrupt=...)` takes the result.

        Args:
            records: how many records the training set has.
            device: where the training takes place.
        """
        is_bad = corrupted_mask(records, self.ratio, self.seed, device)

        def corrupt(
            gradients: Gradients, chunk: Rows, generator: torch.Generator
        ) -> dict[str, Tensor]:
            if chunk.ids is None:
                raise _validate.ArgumentError(
                    "ids", "in every Chunk, which say whose gradients are bad", got=None
                )
            return self(gradients, is_bad[chunk.ids], valid=chunk.valid, generator=generator)

        return corrupt


def _bad_and_known(
    gradients: Gradients, mask: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The rows to overwrite, and the rows an attacker takes for honest."""
    valid = torch.ones_like(mask) if valid is None else valid
    for name, rows in (("mask", mask), ("valid", valid)):
        if rows.dtype != torch.bool or rows.ndim != 1:
            raise _validate.ArgumentError(
                name,
                "to be a vector of booleans",
                shown=f"{rows.dtype} of shape {tuple(rows.shape)}",
            )
    for name, gradient in gradients.items():
        if not gradient.shape[:1] == mask.shape == valid.shape:
            raise ValueError(
                f"Expected one row of {name}, mask and valid for each record of the batch, got "
                f"shapes {tuple(gradient.shape)}, {tuple(mask.shape)} and {tuple(valid.shape)}."
            )
    honest = valid & ~mask
    return mask & valid, torch.where(honest.any(), honest, valid)


def by_row(rows: Tensor, gradient: Tensor) -> Tensor:
    """A vector over records, shaped to broadcast against their gradients."""
    return rows.view(-1, *[1] * (gradient.ndim - 1))


def masked_mean(known: Tensor, gradient: Tensor) -> Tensor:
    """The mean over the known rows; zero if there are none."""
    # Zero times NaN is NaN: what may not count is removed before it is summed.
    total = gradient.masked_fill(~by_row(known, gradient), 0).sum(0)
    return total / known.sum().clamp(min=1)


@attrs.frozen
class GradientNoise(GradientCorruption):
    """Bad records send their gradient plus Gaussian noise on every coordinate, anew each step.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        variance: of the noise on one coordinate.
    """

    variance: float = 100.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        _validate.positive(variance=self.variance)

    @property
    def per_record(self) -> bool:
        """The noise is independent of every record."""
        return True

    @override
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
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
        return gradient + torch.empty_like(gradient).normal_(0, deviation, generator=generator)


@attrs.frozen
class GradientSignFlip(GradientCorruption):
    """Bad records send the negative of their gradient: a flipped sign bit."""

    @property
    def per_record(self) -> bool:
        """The gradient is the record's own."""
        return True

    @override
    def sent(
        self, gradients: Gradients, bad: Tensor, known: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        return {name: -gradient for name, gradient in gradients.items()}
