"""What a model and its loss need before private training.

`check` probes for one kind of problem after another, `replace_unsupported_layers` does what
`make_private(..., fix=True)` promises, and `suggest_aggregation` chooses clip, proposal, trim and
test from the gradients of public records.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import attrs
import torch
from scipy import stats
from torch import Tensor, nn

from prudent import _validate
from prudent._torch_private import batch_norm, norm_base, pytree
from prudent._validate import ArgumentError, Choice
from prudent.accounting.events import GaussianTest
from prudent.records.containers import declared_form, tensors_of
from prudent.records.reader import Collate
from prudent.training.aggregation import AdaptiveTrim, ProposeTestRelease
from prudent.training.gradients import BookKeeping, Engine
from prudent.training.gradients.engine import Loss, count_records, run_on
from prudent.training.gradients.factors.tape import leaves_behind
from prudent.training.gradients.host_state import KeptRecordError
from prudent.training.gradients.output_guard import as_outputs
from prudent.training.gradients.unsupported import UnsupportedLayerError, unsupported
from prudent.training.gradients.unsupported import made_up as made_up_batch
from prudent.training.parallel import Processes
from prudent.training.run.execution import Execution
from prudent.training.run.reading import RunRecords
from prudent.training.step import check_parameter_types

BatchLoss = Callable[[Any, Any], Tensor]
_NEAR = 1e-3  # relative difference that rounding does not explain


class Severity(Choice):
    """What a finding means for private training."""

    ERROR = "error"  # it would be refused, or its guarantee would not hold
    WARNING = "warning"  # it is possible, but probably not what was meant
    NOTE = "note"  # nothing is wrong


class LossKind(Choice):
    """What a loss returns for a batch."""

    MEAN = "mean"
    SUM = "sum"
    PER_RECORD = "per record"

    def __str__(self) -> str:
        if self is LossKind.PER_RECORD:
            return "one value per record: use prudent.fit or prudent.Step"
        return f"a {self.value} over the records: loss_reduction={self.value!r} of make_private"


@attrs.frozen
class Finding:
    """One finding of a check."""

    where: str  # the layer, parameter or function concerned
    problem: str  # what was found
    fix: str  # what to do about it
    severity: Severity = Severity.ERROR  # what it means for private training

    def __str__(self) -> str:
        return f"[{self.severity.value}] {self.where}: {self.problem}\n    Fix: {self.fix}"


@attrs.frozen
class CheckReport:
    """What `check` found.

    Attributes:
        findings: Problems and remarks, each with a fix; the most severe first.
        loss: What the loss returns, None if that is not one of the known kinds. A mean or a sum is
            what `make_private` needs as `loss_reduction`; one value per record is what `fit` needs.
    """

    findings: tuple[Finding, ...]
    loss: LossKind | None

    @property
    def ok(self) -> bool:
        """Whether private training is possible: there is no finding of severity "error"."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    def __str__(self) -> str:
        head = "Ready for private training." if self.ok else "Not ready for private training."
        kind = "The loss is of no known kind." if self.loss is None else f"The loss is {self.loss}."
        return "\n".join([head, *(str(finding) for finding in self.findings), kind])


@attrs.define
class _Subject:
    """A model, a loss and public records."""

    model: nn.Module  # the model, which is never run: only copies of it are
    loss: BatchLoss
    inputs: Any  # inputs of the records
    targets: Any  # targets of the records
    records: int  # number of records
    kind: LossKind | None = None  # what the loss returns, as far as it is known

    def copied(self) -> nn.Module:
        return copy.deepcopy(self.model)

    def outputs(self) -> Any:
        return run_on(self.copied(), _cloned(self.inputs))

    def batch(self, rows: slice = slice(None)) -> Any:
        """A copy of the inputs and targets of some records."""
        given = self.inputs, self.targets
        return pytree.tree_map_only(Tensor, lambda leaf: leaf[rows].clone(), given)

    def first(self, tree: Any, *, everywhere: bool = False) -> Any:
        """A batch of the first record alone, or of copies of it; other tensors stay."""

        def change(leaf: Tensor) -> Tensor:
            if not self.has_rows(leaf):
                return leaf
            first = leaf.detach()[:1]
            return (first.expand_as(leaf) if everywhere else first).clone()

        return pytree.tree_map_only(Tensor, change, tree)

    def has_rows(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == self.records

    def record_loss(self, outputs: Any, targets: Any) -> Tensor:
        return self.loss(outputs, targets).reshape(1)


def _cloned(tree: Any) -> Any:
    """A copy of a tree of tensors, without their graph."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), tree)


def _same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors agree up to rounding."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        torch.allclose(a.double(), b.double(), rtol=_NEAR, atol=_NEAR * _scale(a), equal_nan=True)
        for a, b in pairs
        if isinstance(a, Tensor)
    )


def _scale(values: Tensor) -> float:
    """The largest finite magnitude; 0 if there is none."""
    finite = values[torch.isfinite(values)] if values.is_floating_point() else values
    return float(finite.abs().max()) if finite.numel() else 0.0


def listed(names: list[str], most: int = 5) -> str:
    """The first names, and how many there are more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def findings(subject: _Subject) -> Iterator[Finding]:
    """All that is found, until something makes the other probes pointless."""
    yield from _parameter_problems(subject)
    kept = "Keep no computed tensor in an attribute, and check a model that has not run yet."
    form = "Give inputs as the model takes them: a tensor, a tuple or a dictionary of arguments."
    for act, problem, fix in (
        (subject.copied, "It cannot be copied", kept),
        (subject.outputs, "It does not run on the batch", form),
    ):
        try:
            act()
        except Exception as error:
            yield Finding("model", f"{problem}: {type(error).__name__}: {error}", fix)
            return
    for probes in (
        (_changes_in_forward, _state_problems),
        (_mixed_records, _loss_problems, _other_paths),  # the engine would refuse the same
        (_engine_problems,),
        (_unmoved_parameters,),
    ):
        found = [finding for probe in probes for finding in probe(subject)]
        yield from found
        if any(finding.severity is Severity.ERROR for finding in found):
            return


def _loss_problems(subject: _Subject) -> Iterator[Finding]:
    """Sets the kind of the loss, and finds terms that depend on several records."""
    outputs = subject.outputs()
    losses = subject.loss(outputs, subject.targets)
    if not isinstance(losses, Tensor) or losses.shape not in ((), (subject.records,)):
        shown = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        problem = f"It returns {shown}, neither one number nor one value per record."
        fix = "Average or add up the positions of each record, and then the records."
    elif not losses.requires_grad:
        problem = "It does not depend on the model's outputs."
        fix = "Remove detach() or no_grad() from the model and the loss."
    else:
        subject.kind = _kind_of(subject, outputs, losses)
        problem = "The term of a record depends on other records, as with class weights in a mean, "
        problem += "or with a loss that compares records."
        fix = "Use reduction='none', average over the positions of each record, and take the mean "
        fix += "of the results. Make what is to be compared one record."
    if subject.kind is None:
        yield Finding("loss", problem, fix)


def _kind_of(subject: _Subject, outputs: Any, losses: Tensor) -> LossKind | None:
    """The kind of a loss; None if the term of a record depends on others."""
    everywhere = partial(subject.first, everywhere=True)
    with contextlib.suppress(ArgumentError):  # as make_private refuses the loss
        whole = _output_gradients(subject, outputs, subject.targets)
        if not (losses.ndim or any(subject.has_rows(leaf) and bool(leaf.any()) for leaf in whole)):
            return LossKind.MEAN  # computed by the model: make_private reduces it as declared
        repeated, alone = (
            _output_gradients(subject, change(outputs), change(subject.targets))
            for change in (everywhere, subject.first)
        )
        if _same(subject.first(whole), subject.first(repeated)):
            ratio = _ratio(subject.first(repeated), alone)
            factors = {LossKind.MEAN: 1 / subject.records, LossKind.SUM: 1.0}
            if losses.ndim:
                factors = {LossKind.PER_RECORD: 1.0}
            for kind, factor in factors.items():  # of the gradient of a record in a batch
                if abs(ratio - factor) <= _NEAR * factor:
                    return kind
    return None


def _other_paths(subject: _Subject) -> Iterator[Finding]:
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
        where, what = "loss", "a trained tensor that is not the model's"
        fix = "Move it into the model, and let forward return what the loss needs of it."
        if id(leaf) in names:
            where, what = names[id(leaf)], "this parameter"
            fix = "Use weight_decay of the optimizer, return the penalty, or detach() it."
        problem = f"The loss reaches {what} by another way than the outputs: its gradient would be "
        yield Finding(where, problem + "neither clipped nor noised.", fix)


def _output_gradients(subject: _Subject, outputs: Any, targets: Any) -> list[Tensor]:
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
    return factor if torch.allclose(a, factor * b, rtol=_NEAR, atol=_NEAR * _scale(a)) else math.nan


def _as_leaves(outputs: Any) -> tuple[list[Tensor], Any]:
    """The outputs as leaves of a new graph: the differentiable ones, and all in their tree."""
    leaves: list[Tensor] = []

    def one(leaf: Tensor) -> Tensor:
        leaf = leaf.detach().clone()
        if leaf.is_floating_point():
            leaves.append(leaf.requires_grad_())
        return leaf

    return leaves, pytree.tree_map_only(Tensor, one, outputs)


def _parameter_problems(subject: _Subject) -> Iterator[Finding]:
    """Parameters of unsuitable types, and frozen ones."""
    model = subject.model
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if len(frozen) == len(list(model.parameters())):
        fix = "Call requires_grad_(True) on what should be trained."
        yield Finding("model", "No parameter is trained.", fix)
    elif frozen:
        problem = f"{len(frozen)} parameters are frozen: {listed(frozen)}."
        fix = "None needed if that is meant; else call requires_grad_(True)."
        yield Finding("model", problem, fix, Severity.NOTE)
    try:
        check_parameter_types(model)
    except ValueError as error:
        yield Finding("model", str(error), "Call model.float() before training.")
    if not model.training:
        problem = "It is in evaluation mode, in which dropout and batch normalisation differ."
        yield Finding("model", problem, "Call model.train() before the check.", Severity.WARNING)


def _changes_in_forward(subject: _Subject) -> Iterator[Finding]:
    """Buffers, parameters and inputs that a forward pass changes."""
    model, inputs = subject.copied(), _cloned(subject.inputs)
    buffers = dict(model.named_buffers())
    before = _cloned(state := dict(model.named_parameters()) | buffers)
    with torch.no_grad():
        run_on(model, inputs)
    for name, value in state.items():
        layer = model.get_submodule(name.rpartition(".")[0])
        if torch.equal(value, before[name]) or isinstance(layer, norm_base):
            continue  # a normalisation in training mode is an unsupported layer
        kind, fix = "parameter", "Compute the changed weight in forward, without writing to it."
        if name in buffers:
            kind, fix = "buffer", "Call .eval() on that layer, or update it between steps."
        yield Finding(name, f"A forward pass changes this {kind}: state of a batch is kept.", fix)
    if not _same(inputs, subject.inputs):
        fix = "Clone them first: x = x.clone(). Otherwise a batch that is run in parts is refused."
        problem = "A forward pass changes its inputs in place."
        yield Finding("model", problem, fix, Severity.WARNING)


def _mixed_records(subject: _Subject) -> Iterator[Finding]:
    """Layers known to mix records; else the first whose results depend on others."""
    known = list(unsupported(subject.model))
    for layer in known:
        what = f"{layer.what} cannot give each record a gradient of its own."
        yield Finding(layer.path or "model", what, layer.instead)
    if known:
        return

    def first_rows(tree: Any) -> list[Tensor]:
        return [leaf[0] for leaf in pytree.tree_leaves(tree) if subject.has_rows(leaf)]

    others = subject.first(subject.inputs, everywhere=True)
    one, other = (_traced(subject, inputs) for inputs in (subject.inputs, others))
    for (path, *before), (_, *after) in zip(one, other, strict=False):
        got_same, gave_same = (
            _same(first_rows(a), first_rows(b)) for a, b in zip(before, after, strict=True)
        )
        if got_same and not gave_same:
            kind = type(subject.model.get_submodule(path)).__name__
            problem = f"{kind} mixes records: the result of one depends on the others."
            fix = "Compute each record's outputs from that record alone: no means, sorts or "
            yield Finding(path or "model", problem, fix + "products over the first axis.")
            return


def _traced(subject: _Subject, inputs: Any) -> list[tuple[str, Any, Any]]:
    """Arguments and results of every module as they finish, with fixed random numbers."""
    model, calls = subject.copied(), []

    def note(path: str, _: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        calls.append((path, _cloned((args, kwargs)), _cloned(outputs)))

    for path, module in model.named_modules():
        module.register_forward_hook(partial(note, path), with_kwargs=True)
    _run_seeded(model, inputs)
    return calls


def _run_seeded(model: nn.Module, inputs: Any, seed: int = 0) -> Any:
    """A copy of the outputs for the inputs, which are not changed, with fixed random numbers."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        return _cloned(run_on(model, _cloned(inputs)))


_FREE_OF_STATE = (
    "Pass the state on as an argument, or set it back to None before forward returns; change what "
    "is public between steps."
)


def _state_problems(subject: _Subject) -> Iterator[Finding]:
    """State on the host by which a call of the model or the loss depends on earlier calls."""
    model = subject.copied()
    try:
        BookKeeping(model, subject.record_loss).check_repeatable(model, subject.batch())
    except KeptRecordError as error:
        yield Finding("model", str(error), _FREE_OF_STATE)
    except (RuntimeError, TypeError, IndexError, ValueError):
        pass  # found by other probes


def _engine_problems(subject: _Subject) -> Iterator[Finding]:
    """Layers for which the engine cannot compute per-example gradients, or computes wrong ones."""
    try:
        model = subject.copied()
        engine = BookKeeping(model, subject.record_loss)
        norms = engine(model, *subject.batch()).norms
    except KeptRecordError as error:
        yield Finding("model", str(error), _FREE_OF_STATE)
        return
    except UnsupportedLayerError as error:
        where, fix = error.layer.path or "model", error.layer.instead
        yield Finding(where, f"No gradient per record: {error}", fix)
        return
    except Exception as error:
        fix = "Build the layer from torch.nn.Linear, Conv, Embedding and normalisation layers, or "
        fix += "freeze it with requires_grad_(False)."
        yield Finding("model", f"No gradient per record: {' '.join(str(error).split())}", fix)
        return
    try:
        engine(model, *made_up_batch(subject.batch(), 1, varied=True))
    except Exception as error:
        problem = f"It rejects the made-up records that replace rejected ones: {error}"
        yield Finding("model", problem, "Accept zeros, and numbers between -1 and 1.")
    if not bool(torch.isfinite(norms).all()):
        problem = "The gradient of some record is not finite; such records count as zero."
        fix = "Check inputs and labels for values out of range, and the loss for log(0) or 0/0."
        yield Finding("model", problem, fix, Severity.WARNING)
    # A model that draws random numbers has no norms to compare with.
    elif _same(*(_run_seeded(subject.copied(), subject.inputs, seed) for seed in range(2))) and (
        not torch.allclose(
            norms[:2], torch.stack([_norm_alone(subject, place) for place in range(2)]), rtol=1e-2
        )
    ):
        problem = "The norms of the gradients differ from those of one record at a time."
        fix = "Train with Execution(engine='materialised'), and report the model as a bug."
        yield Finding("model", problem, fix)


def _norm_alone(subject: _Subject, place: int) -> Tensor:
    """The norm of the gradient of one record, by autograd."""
    model, (inputs, targets) = subject.copied(), subject.batch(slice(place, place + 1))
    trained = [p for p in model.parameters() if p.requires_grad]
    loss = subject.loss(run_on(model, inputs), targets).sum()
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    found = [each.flatten() for each in gradients if each is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.cat(found))
    return norm


def _unmoved_parameters(subject: _Subject) -> Iterator[Finding]:
    """Trained parameters without a gradient: noise alone would move them."""
    engine = BookKeeping(subject.copied(), subject.record_loss)
    if unused := unreached(engine, *subject.batch()):
        problem = "No record has a gradient for it: only noise would move it."
        fix = "Freeze it with requires_grad_(False), or use it in forward: look for detach(), "
        fix += "no_grad() and outputs that the loss ignores."
        yield Finding(listed(unused), problem, fix, Severity.WARNING)


def unreached(engine: Engine, inputs: Any, targets: Any = ()) -> list[str]:
    """The trained parameters that the loss of no record reaches, of public records.

    Parameters are shifted first: an adapter whose second factor starts at zero has no gradient for
    the first one, but only until the first step.
    """
    left = {name: p for name, p in engine.model.named_parameters() if p.requires_grad}
    devices = [p.device for p in left.values() if p.is_cuda][:1]
    with torch.random.fork_rng(devices), torch.no_grad():
        values = dict((*engine.model.named_parameters(), *engine.model.named_buffers()))
        values |= {name: p + 0.02 * torch.randn_like(p) for name, p in left.items()}
        for place in range(count_records(inputs, targets)):
            row = itemgetter(slice(place, place + 1))
            record = pytree.tree_map_only(Tensor, row, (inputs, targets))
            with torch.enable_grad():
                found = engine.formed(values, *record).per_example
            left = {name: p for name, p in left.items() if not found[name].nan_to_num().any()}
            if not left:
                break
    return list(left)


def check(model: nn.Module, loss: BatchLoss, batch: Any, *, made_up: bool = False) -> CheckReport:
    """Check whether a model and a loss can be trained privately.

        print(prudent.check(model, nn.CrossEntropyLoss(), (inputs, targets)))

    The model is copied, so the check does not change it; torch's generators are restored.

    Args:
        model: The model in training mode.
        loss: Maps outputs and targets to the mean or the sum over a batch, or to one value per
            record.
        batch: Inputs and targets: a pair of tensors, or of trees of tensors with the records on
            their first axis. At least two records. The report depends on their values and is
            neither noised nor charged, so they must be public or made up.
        made_up: Use only the shapes and types of the batch, and make its records up; then any batch
            will do. Their integers are 0 or 1.
    """
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.function(loss=loss)
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        hint = "For a model with several arguments, inputs are a tuple or a dictionary."
        shown = type(batch).__name__
        raise ArgumentError("batch", "a pair of inputs and targets", shown=shown, hint=hint)
    inputs, targets = batch
    records = count_records(inputs, targets)
    if _validate.flag(made_up=made_up):
        records = max(records, 4)
        inputs, targets = made_up_batch((inputs, targets), records, varied=True)
        inputs, targets = pytree.tree_map_only(Tensor, _alternating, (inputs, targets))
    if records < 2:
        raise ArgumentError("batch", "of two records or more", shown=str(records))
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        subject = _Subject(model, loss, inputs, targets, records)
        order = list(Severity)
        found = sorted(findings(subject), key=lambda finding: order.index(finding.severity))
        return CheckReport(tuple(found), subject.kind)


def _alternating(leaf: Tensor) -> Tensor:
    """Integers that are 0 or 1, and differ between neighbouring records."""
    if leaf.is_floating_point() or leaf.dtype == torch.bool:
        return leaf
    rows = torch.arange(leaf.shape[0], device=leaf.device).view(-1, *[1] * (leaf.ndim - 1))
    places = torch.arange(leaf[0].numel(), device=leaf.device).view(leaf.shape[1:])
    return ((rows + places) % 2).to(leaf.dtype)


def replace_unsupported_layers(model: nn.Module) -> list[str]:
    """Replace in place what can be replaced of layers that no engine accepts; says what was done.

    Parameters stay the same objects under the same names, so an optimizer over them stays valid.
    A normalisation that was put into evaluation mode within a model in training mode uses its
    running statistics, as one may mean, and stays.

    | layer | what takes its place |
    |---|---|
    | batch normalisation of channels | `GroupNorm`, in groups of four channels or more |
    | batch normalisation of features (`BatchNorm1d`) | `GroupNorm` with one group |
    | `InstanceNorm` that tracks running statistics | the same without tracking |
    | `Embedding` with `max_norm` or `scale_grad_by_freq` | both are unset |
    | `RReLU` | `LeakyReLU` with its mean slope |
    | trained parameters in half precision | the model in single precision |
    """
    done, instead = [], {}
    for layer in model.modules():
        make = next((make for kind, make in _INSTEAD if isinstance(layer, kind)), None)
        stays = isinstance(layer, norm_base) and model.training and not layer.training
        new = None if make is None or stays or layer is model else make(layer)
        if new is not None:  # the model itself cannot be replaced
            for name, parameter in layer.named_parameters():
                setattr(new, name, parameter)
            instead[id(layer)] = new
    for path, layer in list(model.named_modules(remove_duplicate=False)):
        if id(layer) in instead:
            new = instead[id(layer)].train(layer.training)
            model.set_submodule(path, new)
            done.append(f"Replaced {layer} at {path!r} by {new}.")
        elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (
            layer.max_norm is not None or layer.scale_grad_by_freq
        ):
            layer.max_norm, layer.scale_grad_by_freq = None, False
            done.append(f"Unset max_norm and scale_grad_by_freq of {path or 'the model'!r}.")
    half = torch.float16, torch.bfloat16
    if any(p.requires_grad and p.dtype in half for p in model.parameters()):
        model.float()
        done.append("Converted the model to float32.")
    return done


def _group_norm(layer: Any) -> nn.Module | None:
    channels = layer.num_features
    flat = isinstance(layer, nn.BatchNorm1d)  # of one value in a group nothing would be left
    if flat and channels == 1:
        return None
    most = 1 if flat else min(32, max(1, channels // 4))
    groups = next(groups for groups in range(most, 0, -1) if channels % groups == 0)
    return nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)


def _untracked(layer: Any) -> nn.Module | None:
    tracks = layer.track_running_stats
    return type(layer)(layer.num_features, eps=layer.eps, affine=layer.affine) if tracks else None


_INSTEAD: tuple[tuple[type[nn.Module], Callable[..., nn.Module | None]], ...] = (
    (batch_norm, _group_norm),
    (norm_base, _untracked),
    (nn.RReLU, lambda layer: nn.LeakyReLU((layer.lower + layer.upper) / 2, layer.inplace)),
)


def gradient_norms(
    model: nn.Module,
    loss: Loss,
    public_set: Any,
    *,
    collate_fn: Collate | None = None,
    example: Any = None,
    execution: Execution | None = None,
    rows: int = 64,
) -> Tensor:
    """The gradient norm of every public record, at the present parameters of a model.

    The norms are as secret as the records: nothing is charged, and no noise is added. Measure them
    on public records that resemble the private ones, with the model that is to be trained: norms
    change while a model learns.

    Args:
        model: The model, on the device of `execution`; it is not changed.
        loss: As for `fit`.
        public_set: Public or made-up records, in any form that `fit` takes.
        collate_fn: As for `fit`.
        example: As for `fit`.
        execution: As for `fit`.
        rows: Records per pass.

    Returns:
        The norms on the host, without those that are not finite.
    """
    execution = Execution() if execution is None else execution
    _validate.instance(Execution, "an Execution", execution=execution)
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.function(loss=loss)
    rows = _validate.count(1, rows=rows)
    if example is None and tensors_of(public_set) is None and declared_form(public_set) is None:
        example = public_set[0]  # public, as all of them are
    records = RunRecords(public_set, execution, Processes(), collate_fn, example)
    engine = execution.engine_of(model, loss)
    values = dict((*model.named_parameters(), *model.named_buffers()))
    device = execution.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        batches = map(records.read, torch.split(torch.arange(records.count), rows))
        norms = torch.cat([engine(values, *batch).norms.detach().cpu() for batch in batches])
    return norms[norms.isfinite()]


def suggest_aggregation(
    norms: Tensor,
    *,
    expected_batch: float,
    trim: float = 0.25,
    above: float | None = None,
    propose: float = 0.5,
    failure: float = 1e-8,
    pass_probability: float = 0.9,
) -> ProposeTestRelease:
    """A `ProposeTestRelease` whose test passes on batches with such gradient norms.

    τ is the norm that a fraction `above` of the records exceeds, and R = τ/`propose`. The test is
    Gaussian, of the largest scale, hence the lowest price, at which a batch passes with
    `pass_probability`. The noise multiplier is 1: calibrate the plan.

    Args:
        norms: Gradient norms of public records (`gradient_norms`), or what was released and
            charged. Those of private records would be an uncharged release: the result is shown.
        expected_batch: The public batch size.
        trim: Fraction of the batch that is trimmed at the start.
        above: Fraction of the records with a norm above τ; below `trim`. Smaller values leave a
            larger margin, hence a cheaper test, but a larger τ, hence more noise. None: half of
            `trim`.
        propose: τ/R. R is the clip of steps whose test fails.
        failure: δ₀, the largest probability with which a margin of 0 passes.
        pass_probability: Probability with which a Poisson batch of such records passes at the
            start. Later the trim adapts, so that about this fraction of the steps pass.

    Raises:
        ArgumentError: If the batch is so small that only a test of scale below 1 would pass, which
            costs more than the sum itself.
    """
    try:
        values = torch.as_tensor(norms, dtype=torch.float64, device="cpu").flatten()
    except Exception:  # whatever an object raises that is no tensor
        raise ArgumentError("norms", "a tensor of numbers", shown=type(norms).__name__) from None
    values = values[values.isfinite()]
    _validate.positive(expected_batch=expected_batch)
    _validate.between(0, 1, ends="()", trim=trim)
    above = _validate.between(0, trim, ends="()", above=trim / 2 if above is None else above)
    _validate.between(0, 1, ends="()", propose=propose)
    _validate.between(0, 0.5, ends="()", failure=failure)
    chance = math.sqrt(_validate.between(0, 1, ends="()", pass_probability=pass_probability))
    longest = float(torch.quantile(values, 1 - above)) if len(values) else 0.0
    if not longest > 0:
        shown = f"{len(values)} that are finite"
        raise ArgumentError("norms", "with enough norms above 0", shown=shown)
    # The number of norms above τ in a batch is at most `many`, and a margin of trimmed − many
    # passes, each with probability `chance`; so both happen with `pass_probability`.
    many = float(stats.poisson.ppf(chance, above * expected_batch))
    margin = math.floor(trim * expected_batch) - many
    scale = margin / (GaussianTest(1.0).threshold(failure) + float(stats.norm.ppf(chance)))
    if scale < 1:
        allowed = "large enough for a test of scale 1 or more"
        why = f"a batch would leave a margin of {max(0.0, margin):g} records, which passes only "
        why += f"a test of scale {max(0.0, scale):.2g}"
        hint = "Use larger batches, a larger trim or failure, or prudent.Sum, which has no test."
        raise ArgumentError("expected_batch", allowed, got=expected_batch, why=why, hint=hint)
    return ProposeTestRelease(
        clip=longest / propose,
        propose=propose,
        noise_multiplier=1.0,
        test=GaussianTest(scale),
        failure=failure,
        trim=AdaptiveTrim(
            first=trim,
            up=0.02,
            down=0.02 * (1 - pass_probability) / pass_probability,
            most=max(0.5, trim),
        ),
    )
