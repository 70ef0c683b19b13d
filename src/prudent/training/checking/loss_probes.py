"""Probes of a loss: what it reduces, and what it reaches."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.training.checking.subject import (
    NEAR,
    Finding,
    LossKind,
    Severity,
    Subject,
    cloned,
    same,
    scale,
)
from prudent.training.gradients.factors.tape import leaves_behind
from prudent.training.gradients.output_guard import as_outputs


def loss_problems(subject: Subject) -> Iterator[Finding]:
    """Sets the kind of the loss, and finds terms that depend on several records."""
    outputs = subject.outputs()
    found = subject.loss(outputs, subject.targets)
    if not isinstance(found, Tensor) or found.shape not in ((), (subject.records,)):
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        yield Finding(
            Severity.ERROR,
            "loss",
            f"It returns {shown}, neither one number nor one value per record.",
            "Average or add up the positions of each record, and then the records.",
        )
        return
    if not found.requires_grad:
        yield Finding(
            Severity.ERROR,
            "loss",
            "It does not depend on the model's outputs.",
            "Remove detach() or no_grad() from the model and the loss.",
        )
        return
    if found.ndim == 0 and not _has_rows(outputs, subject):
        subject.kind = LossKind.MEAN  # computed by the model: make_private reduces it as declared
        return
    with contextlib.suppress(ArgumentError):  # as make_private refuses the loss
        whole, repeated, alone = (
            _output_gradients(subject, change(outputs), change(subject.targets))
            for change in (cloned, subject.first_everywhere, subject.first)
        )
        if same(subject.first(whole), subject.first(repeated)):
            ratio = _ratio(subject.first(repeated), alone)
            kinds = (kind for kind in _kinds(found, subject) if _close(ratio, kind[1]))
            subject.kind = next(kinds, (None,))[0]
    if subject.kind is None:
        yield Finding(
            Severity.ERROR,
            "loss",
            "The term of a record depends on other records, as with class weights in a mean, or "
            "with a loss that compares records.",
            "Use reduction='none', average over the positions of each record, and take the mean "
            "of the results. Make what is to be compared one record.",
        )


def other_paths(subject: Subject) -> Iterator[Finding]:
    """Trained tensors that the loss reaches other than through the outputs."""
    leaves, outputs = _as_leaves(subject.outputs())
    found = subject.loss(outputs, subject.targets)
    if not isinstance(found, Tensor) or not found.requires_grad:
        return
    known = {id(leaf) for leaf in leaves}
    names = {id(p): name for name, p in subject.model.named_parameters()}
    for leaf in leaves_behind([found]):
        if id(leaf) in known:
            continue
        name = names.get(id(leaf))
        yield Finding(
            Severity.ERROR,
            "loss" if name is None else name,
            "The loss reaches "
            + ("a trained tensor that is not the model's" if name is None else "this parameter")
            + " by another way than the outputs: its gradient would be neither clipped nor noised.",
            "Move it into the model, and let forward return what the loss needs of it."
            if name is None
            else "Use the optimizer's weight_decay, let forward return the penalty as an output, "
            "or detach() it.",
        )


def _kinds(found: Tensor, subject: Subject) -> list[tuple[LossKind, float]]:
    """Possible kinds of a loss, and how each scales the gradient of a record in a batch."""
    if found.ndim:
        return [(LossKind.PER_RECORD, 1.0)]
    return [(LossKind.MEAN, 1 / subject.records), (LossKind.SUM, 1.0)]


def _output_gradients(subject: Subject, outputs: Any, targets: Any) -> list[Tensor]:
    """The gradients of the loss with respect to the differentiable outputs."""
    leaves, outputs = _as_leaves(outputs)
    guarded = pytree.tree_map_only(Tensor, as_outputs, outputs)  # as make_private returns them
    total = subject.loss(guarded, targets).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    ]


def _ratio(one: list[Tensor], other: list[Tensor]) -> float:
    """The factor between two lists of tensors; NaN if they are not multiples of each other."""
    a, b = (torch.cat([leaf.double().flatten() for leaf in each]) for each in (one, other))
    factor = float(a @ b / (b @ b))
    return factor if torch.allclose(a, factor * b, rtol=NEAR, atol=NEAR * scale(a)) else math.nan


def _has_rows(outputs: Any, subject: Subject) -> bool:
    """Whether the loss uses an output that has the records on its first axis."""
    try:
        gradients = _output_gradients(subject, outputs, subject.targets)
    except ArgumentError:  # only a loss of such outputs is refused
        return True
    return any(subject.has_rows(leaf) and bool(leaf.any()) for leaf in gradients)


def _as_leaves(outputs: Any) -> tuple[list[Tensor], Any]:
    """The outputs as leaves of a new graph: the differentiable ones, and all in their tree."""
    found: list[Tensor] = []

    def one(leaf: Tensor) -> Tensor:
        leaf = leaf.detach().clone()
        if leaf.is_floating_point():
            found.append(leaf.requires_grad_())
        return leaf

    return found, pytree.tree_map_only(Tensor, one, outputs)


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= NEAR * abs(other)
