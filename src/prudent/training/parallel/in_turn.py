"""Chunks of different forms, such as texts of a few lengths, each form captured as a graph once.

A batch has more or fewer chunks of each form, so a graph of a whole step would be one for every
combination. Here each chunk has a graph of its own, divided where the weights of its records are
needed. There it runs the graph of the next chunk, and the last one decides for all of them: every
chunk has its norms before any computes its sum.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from prudent.training.chunk import Chunk
from prudent.training.compiled import Captured, kind_of
from prudent.training.gradients.recording import exchanged
from prudent.training.gradients.results import Gradients, Values

Answer = TypeVar("Answer")
Decide = Callable[[list[Tensor], list[Tensor]], tuple[Sequence[Tensor], Any]]
"""Maps norms and losses of each chunk to the weights of each, and what else was decided."""


class InTurn:
    """Adds up the weighted gradients of several chunks.

    Args:
        gradients: Returns the gradients of a chunk, given the parameters, the chunk, and the number
            of rows before it.
        setting: As for `Captured`; None: nothing is captured.
    """

    def __init__(
        self,
        gradients: Callable[[Values, Chunk, int], Gradients],
        setting: Callable[[], Hashable] | None,
    ) -> None:
        self._gradients = gradients
        self._run: Callable[..., Any] = self._halves
        if setting is not None:
            self._run = Captured(self._halves, setting, shares=False)
        self._total: Values = {}  # always the same tensors, to which graphs add

    def __call__(
        self, values: Values, trained: Sequence[str], chunks: Sequence[Chunk], decide: Decide
    ) -> tuple[Values, Any]:
        """The weighted sum by parameter name, overwritten by the next call, and the decision."""
        if list(self._total) != list(trained):  # at first, and when layers are (un)frozen
            self._total = {
                name: torch.zeros_like(values[name], dtype=torch.float64) for name in trained
            }
        for total in self._total.values():
            total.zero_()
        forms: list[Any] = []
        self._waiting = []
        for chunk in chunks:
            forms.append(kind_of(chunk))
            # Two chunks of one form are worked on at once, so the second has a graph of its own.
            self._waiting.append((chunk, forms.count(forms[-1])))
        self._values, self._decide = values, decide
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []
        self._next()
        return self._total, self._answer

    def _next(self) -> None:
        chunk, number = self._waiting.pop(0)
        self._run((self._values, self._total), chunk, number)

    def _halves(self, fixed: tuple[Values, Values], chunk: Chunk, number: int) -> tuple[()]:
        values, total = fixed
        before = sum(len(norms) for norms, _, _ in self._seen)
        gradients = self._gradients(values, chunk, before)
        weights = torch.zeros_like(gradients.norms, dtype=torch.float64)
        exchanged(self._rest, gradients.norms, gradients.losses, weights)
        for name, value in gradients.weighted_sum(weights).items():
            total[name].add_(value)
        return ()

    def _rest(self, norms: Tensor, losses: Tensor, weights: Tensor) -> None:
        """Run the other chunks, and write the weights of the records of this one."""
        self._seen.append((norms, losses, weights))
        if self._waiting:
            self._next()
            return
        parts, self._answer = self._decide(
            [norms for norms, _, _ in self._seen], [losses for _, losses, _ in self._seen]
        )
        for (_, _, place), part in zip(self._seen, parts, strict=True):
            place.copy_(part)
