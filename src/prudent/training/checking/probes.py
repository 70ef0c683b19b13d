"""Probes of a model and its loss on public records, each of which looks for one kind of problem."""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from prudent._torch_private import norm_base, pytree
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
from prudent.training.gradients import BookKeeping
from prudent.training.gradients.engine import run_on
from prudent.training.gradients.factors.tape import leaves_behind
from prudent.training.gradients.kept_records import KeptRecordError
from prudent.training.gradients.output_guard import as_outputs
from prudent.training.gradients.unsupported import UnsupportedLayerError, unsupported
from prudent.training.step import check_parameter_types


def loss_problems(subject: Subject) -> Iterator[Finding]:
    """Sets the kind of the loss, and finds terms that depend on several records."""
    outputs = subject.outputs()
    losses = subject.loss(outputs, subject.targets)
    if not isinstance(losses, Tensor) or losses.shape not in ((), (subject.records,)):
        shown = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        yield Finding(
            "loss",
            f"It returns {shown}, neither one number nor one value per record.",
            "Average or add up the positions of each record, and then the records.",
        )
        return
    if not losses.requires_grad:
        yield Finding(
            "loss",
            "It does not depend on the model's outputs.",
            "Remove detach() or no_grad() from the model and the loss.",
        )
        return
    if losses.ndim == 0 and not _has_rows(outputs, subject):
        subject.kind = LossKind.MEAN  # computed by the model: make_private reduces it as declared
        return
    with contextlib.suppress(ArgumentError):  # as make_private refuses the loss
        whole, repeated, alone = (
            _output_gradients(subject, change(outputs), change(subject.targets))
            for change in (cloned, subject.first_everywhere, subject.first)
        )
        if same(subject.first(whole), subject.first(repeated)):
            ratio = _ratio(subject.first(repeated), alone)
            factors = {LossKind.MEAN: 1 / subject.records, LossKind.SUM: 1.0}
            if losses.ndim:
                factors = {LossKind.PER_RECORD: 1.0}
            for kind, factor in factors.items():  # of the gradient of a record in a batch
                if abs(ratio - factor) <= NEAR * factor:
                    subject.kind = kind
    if subject.kind is None:
        yield Finding(
            "loss",
            "The term of a record depends on other records, as with class weights in a mean, or "
            "with a loss that compares records.",
            "Use reduction='none', average over the positions of each record, and take the mean "
            "of the results. Make what is to be compared one record.",
        )


def other_paths(subject: Subject) -> Iterator[Finding]:
    """Trained tensors that the loss reaches other than through the outputs."""
    leaves, outputs = _as_leaves(subject.outputs())
    losses = subject.loss(outputs, subject.targets)
    if not isinstance(losses, Tensor) or not losses.requires_grad:
        return
    known = {id(leaf) for leaf in leaves}
    names = {id(p): name for name, p in subject.model.named_parameters()}
    for leaf in leaves_behind([losses]):
        if id(leaf) in known:
            continue
        name = names.get(id(leaf))
        yield Finding(
            "loss" if name is None else name,
            "The loss reaches "
            + ("a trained tensor that is not the model's" if name is None else "this parameter")
            + " by another way than the outputs: its gradient would be neither clipped nor noised.",
            "Move it into the model, and let forward return what the loss needs of it."
            if name is None
            else "Use the optimizer's weight_decay, let forward return the penalty as an output, "
            "or detach() it.",
        )


def _output_gradients(subject: Subject, outputs: Any, targets: Any) -> list[Tensor]:
    """The gradients of the loss with respect to the differentiable outputs."""
    leaves, outputs = _as_leaves(outputs)
    guarded = pytree.tree_map_only(Tensor, as_outputs, outputs)  # as make_private returns them
    total = subject.loss(guarded, targets).sum()
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


def _ratio(one: list[Tensor], other: list[Tensor]) -> float:
    """The factor between two lists of tensors; NaN if they are not multiples of each other."""
    a, b = (torch.cat([leaf.double().flatten() for leaf in leaves]) for leaves in (one, other))
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
    leaves: list[Tensor] = []

    def one(leaf: Tensor) -> Tensor:
        leaf = leaf.detach().clone()
        if leaf.is_floating_point():
            leaves.append(leaf.requires_grad_())
        return leaf

    return leaves, pytree.tree_map_only(Tensor, one, outputs)


_ALONE = (
    "Pass the state on as an argument, or set it back to None before forward returns; change what "
    "is public between steps."
)
_SHOWN = 5  # names in a message
_FORMED = 1 << 28  # numbers in the gradients of single records that are held at a time


def parameter_problems(subject: Subject) -> Iterator[Finding]:
    """Parameters of unsuitable types, and frozen ones."""
    trained = [p for p in subject.model.parameters() if p.requires_grad]
    frozen = [name for name, p in subject.model.named_parameters() if not p.requires_grad]
    if not trained:
        yield Finding(
            "model",
            "No parameter is trained.",
            "Call requires_grad_(True) on what should be trained.",
        )
    elif frozen:
        yield Finding(
            "model",
            f"{len(frozen)} parameters are frozen: {_listed(frozen)}.",
            "None needed if that is meant; else call requires_grad_(True).",
            Severity.NOTE,
        )
    try:
        check_parameter_types(subject.model)
    except ValueError as error:
        yield Finding("model", str(error), "Call model.float() before training.")
    if not subject.model.training:
        yield Finding(
            "model",
            "It is in evaluation mode, in which dropout and batch normalisation act differently.",
            "Call model.train() before the check.",
            Severity.WARNING,
        )


def unsupported_layers(subject: Subject) -> Iterator[Finding]:
    """Layers that are known to mix records or to change by what they see."""
    for layer in unsupported(subject.model):
        yield Finding(
            layer.path or "model",
            f"{layer.what} cannot give each record a gradient of its own.",
            layer.instead,
        )


def changes_in_forward(subject: Subject) -> Iterator[Finding]:
    """Buffers, parameters and inputs that a forward pass changes."""
    model, inputs = subject.copied(), cloned(subject.inputs)
    before = {name: value.detach().clone() for name, value in _state(model).items()}
    with torch.no_grad():
        run_on(model, inputs)
    buffers = {name for name, _ in model.named_buffers()}
    for name, value in _state(model).items():
        layer = model.get_submodule(name.rpartition(".")[0])
        if torch.equal(value, before[name]) or isinstance(layer, norm_base):
            continue  # a normalisation in training mode is an unsupported layer
        if name in buffers:
            fix = "Call .eval() on that layer, or update the buffer between steps."
        else:
            fix = "Compute the changed weight anew in forward, without writing to the parameter."
        kind = "buffer" if name in buffers else "parameter"
        yield Finding(
            name,
            f"A forward pass changes this {kind}: state of a batch is kept.",
            fix,
        )
    if not same(inputs, subject.inputs):
        yield Finding(
            "model",
            "A forward pass changes its inputs in place.",
            "Clone them first: x = x.clone(). Otherwise a batch that is run in parts is refused.",
            Severity.WARNING,
        )


def mixed_records(subject: Subject) -> Iterator[Finding]:
    """The first layer in which the result of a record depends on others.

    The batch is run twice with the same random numbers, the second time with copies of the first
    record in place of all others. Nothing about the first record may change.
    """
    others = subject.first_everywhere(subject.inputs)
    one, other = (_traced(subject, inputs) for inputs in (subject.inputs, others))
    for (path, *before), (_, *after) in zip(one, other, strict=False):
        got_same, gave_same = (
            same(_first_rows(a, subject), _first_rows(b, subject))
            for a, b in zip(before, after, strict=True)
        )
        if got_same and not gave_same:
            layer = subject.model.get_submodule(path)
            yield Finding(
                path or "model",
                f"{type(layer).__name__} mixes records: the result of one depends on the others.",
                "Compute each record's outputs from that record alone: no means, sorts or "
                "products over the first axis.",
            )
            return


def state_problems(subject: Subject) -> Iterator[Finding]:
    """State on the host by which a call of the model or the loss depends on earlier calls."""
    model = subject.copied()
    try:
        with contextlib.suppress(RuntimeError, TypeError, IndexError):  # found by other probes
            BookKeeping(model, subject.record_loss).check_repeatable(model, subject.batch())
    except KeptRecordError as error:
        yield Finding("model", str(error), _ALONE)
    except ValueError:
        pass


def engine_problems(subject: Subject) -> Iterator[Finding]:
    """Layers for which the engine cannot compute per-example gradients, or computes wrong ones."""
    try:
        model = subject.copied()
        norms = BookKeeping(model, subject.record_loss)(model, *subject.batch()).norms
    except KeptRecordError as error:
        yield Finding(
            "model",
            str(error),
            _ALONE,
        )
        return
    except UnsupportedLayerError as error:
        layer = error.layer
        where = layer.path or "model"
        yield Finding(where, f"No gradient per record: {error}", layer.instead)
        return
    except Exception as error:
        yield Finding(
            "model",
            f"No gradient per record: {' '.join(str(error).split())}",
            "Build the layer from torch.nn.Linear, Conv, Embedding and normalisation layers, or "
            "freeze it with requires_grad_(False).",
        )
        return
    if not bool(torch.isfinite(norms).all()):
        yield Finding(
            "model",
            "The gradient of some record is not finite; such records count as zero.",
            "Check the inputs and labels for values out of range, and the loss for log(0) or 0/0.",
            Severity.WARNING,
        )
    elif _is_deterministic(subject) and not torch.allclose(
        norms[:2], _norms_one_by_one(subject, 2), rtol=1e-2
    ):
        yield Finding(
            "model",
            "The norms of the gradients differ from those of one record at a time.",
            "Train with Execution(engine='materialised'), and report the model as a bug.",
        )


def unmoved_parameters(subject: Subject) -> Iterator[Finding]:
    """Trained parameters without a gradient: noise alone would move them.

    Parameters are shifted first: an adapter whose second factor starts at zero has no gradient for
    the first one, but only until the first step.
    """
    model = subject.copied()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    some = max(2, min(subject.records, _FORMED // max(1, size)))
    engine = BookKeeping(model, subject.record_loss)
    formed = engine.formed(model, *subject.batch(slice(some))).per_example
    still = {name: (g.flatten(1) == 0).all(0) for name, g in formed.items()}
    unused = [name for name, zero in still.items() if bool(zero.all())]
    if unused:
        yield Finding(
            _listed(unused),
            "No record has a gradient for it: only noise would move it.",
            "Freeze it with requires_grad_(False), or use it in forward: look for detach(), "
            "no_grad() and outputs that the loss ignores.",
            Severity.WARNING,
        )
    tables = {
        f"{path}.weight".lstrip(".")
        for path, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    for name, zero in still.items():
        share = float(zero.float().mean())
        if name not in tables and 0.5 <= share < 1:
            yield Finding(
                name,
                f"{share:.0%} of its coordinates have no gradient from any of the {some} records.",
                "Check for inputs that are always zero and units that never activate. On a larger "
                "or more varied batch this may disappear.",
                Severity.WARNING,
            )


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _traced(subject: Subject, inputs: Any) -> list[tuple[str, Any, Any]]:
    """Arguments and results of every module as they finish, with fixed random numbers."""
    model, calls = subject.copied(), []

    def note(path: str, _: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        calls.append((path, cloned((args, kwargs)), cloned(outputs)))

    for path, module in model.named_modules():
        module.register_forward_hook(partial(note, path), with_kwargs=True)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        run_on(model, cloned(inputs))
    return calls


def _first_rows(outputs: Any, subject: Subject) -> list[Tensor]:
    """The first record's part of all tensors that have the records on their first axis."""
    return [leaf[0] for leaf in pytree.tree_leaves(outputs) if subject.has_rows(leaf)]


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_deterministic(subject: Subject) -> bool:
    """Whether the model draws no random numbers."""
    outputs = []
    for seed in range(2):
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(seed)
            outputs.append(cloned(subject.outputs()))
    return same(*outputs)


def _norms_one_by_one(subject: Subject, records: int) -> Tensor:
    """The norms of the gradients of the first records, by autograd."""
    model = subject.copied()
    trained = [p for p in model.parameters() if p.requires_grad]
    norms = []
    for place in range(records):
        inputs, targets = subject.batch(slice(place, place + 1))
        loss = subject.loss(run_on(model, inputs), targets).sum()
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        lengths = [torch.linalg.vector_norm(g) for g in gradients if g is not None]
        norms.append(torch.linalg.vector_norm(torch.stack(lengths)))
    return torch.stack(norms)
