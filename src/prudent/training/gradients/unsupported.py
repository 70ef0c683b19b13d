"""Layers and records that a model cannot be trained on.

Some layers mix records, or change by what they see, which is known before a model runs. Others fail
under vmap, with an error of torch that names neither the layer nor a way out; both are added.

Under vmap no code can branch on a record. So an error that one batch raises and another of the same
shapes does not comes from a kernel that inspects values, such as a singular matrix. Passing it on
would let one record stop the run, and may quote it. So the records that fail on their own count as
having a gradient that is not finite. An error that made-up records raise, too, is one of the code;
theirs is raised, so no message depends on data.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from traceback import walk_tb
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from prudent._torch_private import batch_norm, norm_base, pytree
from prudent.training.gradients.host_state import KeptRecordError
from prudent.training.gradients.record_streams import active_streams, again


@attrs.frozen
class Unsupported:
    """A layer of a model that cannot be trained as it is."""

    path: str  # its name in the model, as in `model.named_modules()`
    what: str  # its kind, with the setting that matters
    instead: str  # what to do, as a sentence

    def __str__(self) -> str:
        return f"{self.what} at {self.path!r}. {self.instead}"


class UnsupportedLayerError(RuntimeError):
    """A layer that fails when it is run on one record at a time.

    Attributes:
        layer: The layer and what to use instead.
        reason: The error of torch, as one line.
    """

    def __init__(self, layer: Unsupported, error: Exception) -> None:
        self.layer = layer
        place = f"at {layer.path!r}" if layer.path else "itself"
        self.reason = " ".join(str(error).split())
        super().__init__(
            f"Expected layers that run on one record at a time, got {layer.what} {place}. "
            f"{layer.instead} torch's reason: {self.reason}"
        )


def unsupported(model: nn.Module) -> Iterator[Unsupported]:
    """The layers of a model that no engine accepts, in the order of the model."""
    for path, module in model.named_modules():
        for is_wrong, what, instead in _WRONG:
            if is_wrong(module):
                yield Unsupported(path, what.format(type(module).__name__), instead)


def refuse_unsupported(model: nn.Module) -> None:
    """Raise an error for the first unsupported layer."""
    for layer in unsupported(model):
        raise ValueError(f"Expected layers that keep records apart, got {layer}")


def named(error: Exception, model: nn.Module) -> Exception:
    """The error with the layer in which it occurred, or as it is if vmap is not the reason."""
    text = str(error)
    by_record = any(sign in text for sign in _SIGNS)
    unfit = next((fix for sign, fix in _UNFIT.items() if sign in text), None)
    if not (isinstance(error, RuntimeError) and (by_record or unfit)):
        return error
    paths = {id(module): path for path, module in model.named_modules()}
    running = [(f.f_locals.get("self"), f.f_locals) for f, _ in walk_tb(error.__traceback__)]
    layers = [
        (layer, seen)
        for layer, seen in running
        if isinstance(layer, nn.Module) and id(layer) in paths
    ]
    if not layers:
        if unfit is not _TYPE:
            return error
        reason = " ".join(text.split())
        return ValueError(f"Expected records of the type that the loss takes. {unfit} {reason}")
    layer, seen = layers[-1]
    if not by_record and unfit is not None:
        shown, given = "another", seen.get("input")
        if isinstance(given, Tensor):  # of which shape and type are public
            shown = f"one of shape {tuple(given.shape)} and type {given.dtype}"
        return ValueError(
            f"Expected an input that fits {layer} at {paths[id(layer)]!r}, got {shown}. {unfit} "
            f"torch's reason: {' '.join(text.split())}"
        )
    by_kind = (advice for kind, advice in _INSTEAD.items() if isinstance(layer, kind))
    by_text = (advice for sign, advice in _ADVICE.items() if sign in text)
    instead = next(chain(by_kind, by_text), _OTHERWISE)
    unsupported_layer = Unsupported(paths[id(layer)], type(layer).__name__, instead)
    return UnsupportedLayerError(unsupported_layer, error)


_WRONG: tuple[tuple[Callable[[nn.Module], bool], str, str], ...] = (
    (
        lambda module: (
            (isinstance(module, norm_base) and module.training)
            and (isinstance(module, batch_norm) or module.track_running_stats)
        ),
        "{} in training mode",
        "Replace it by torch.nn.GroupNorm, as make_private(..., fix=True) does, or call .eval() on "
        "it to use its running statistics.",
    ),
    (
        lambda module: (
            isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and (module.max_norm is not None or module.scale_grad_by_freq)
        ),
        "{} with max_norm or scale_grad_by_freq",
        "Leave both unset: one changes the table by the tokens of a batch, the other divides by "
        "their counts.",
    ),
    (
        lambda module: isinstance(module, nn.parallel.DistributedDataParallel),
        "{}",
        "Use the module inside it: the private sum is added up over the processes instead.",
    ),
    (
        lambda module: isinstance(module, LazyModuleMixin) and module.has_uninitialized_params(),
        "{} without a shape",
        "Run the model once on any batch before it is trained.",
    ),
)

_SIGNS = (
    *("vmap", "atching rule", "functorch", "doesn't match the broadcast shape"),
    "doesn't have storage",  # .tolist() and .numpy()
)
_TYPE = (
    "Convert records to the type of the weights, as .float() does, and labels to that of the loss: "
    ".long() for classes."
)
_UNFIT = {
    **dict.fromkeys(["same dtype", "xpected dtype", "target dtype", "scalar type"], _TYPE),
    **dict.fromkeys(
        [
            "shapes cannot be multiplied",
            "xpected input",
            "number of channels",
            "normalized_shape",
            "must match the size",
            "size mismatch",
        ],
        "Give the layer the width of the records, or of the layer before it.",
    ),
}
"""Parts of torch's messages about inputs that do not fit a layer or a loss, and what to do."""

_INSTEAD: dict[type[nn.Module], str] = {
    nn.RReLU: "Use torch.nn.LeakyReLU or torch.nn.PReLU.",
    nn.AdaptiveLogSoftmaxWithLoss: (
        "Use its log_prob in the loss, or torch.nn.Linear and cross_entropy."
    ),
    torch.jit.ScriptModule: "Use the module from which it was scripted.",
}

_BRANCH = (
    "No branch may depend on a record: use torch.where instead of if, and no .item() or bool()."
)
_IN_PLACE = (
    "A record cannot be written into a tensor that does not depend on it: write out of place, or "
    "make the tensor with record.new_zeros. If it is a cache, set model.config.use_cache = False."
)
_ADVICE = {
    "setup_context": (
        "Give the torch.autograd.Function a setup_context and generate_vmap_rule = True, or write "
        "it in torch's own operations."
    ),
    "dynamic shape": (
        "The number of selected elements would depend on the record: use torch.where and masks "
        "instead of boolean indices and nonzero, and torch.nn.functional.grouped_mm for a mixture "
        "of experts."
    ),
    "data-dependent": _BRANCH,
    ".item()": _BRANCH,
    "doesn't have storage": _BRANCH.replace(".item()", ".tolist()"),
    "inplace": _IN_PLACE,
    "in-place": _IN_PLACE,
    "broadcast shape": _IN_PLACE,
    "`data`": "Use detach() instead of .data.",
}

_OTHERWISE = (
    "Build the layer from torch.nn.Linear, Conv, Embedding and normalisation layers, or freeze it "
    "and call it under torch.no_grad()."
)


Run = Callable[[Any], Any]
"""Runs a batch: a tree of tensors with records along the first axis."""


def attempt(run: Run, batch: Any) -> Any:
    """The result of `run(batch)`, or None if it raises an error that may come from the records."""
    try:
        return run(batch)
    except (torch.OutOfMemoryError, MemoryError, KeptRecordError):
        raise
    except Exception:
        return None


def made_up(batch: Any, records: int, *, varied: bool) -> Any:
    """Made-up records with the shapes and types of a batch.

    Args:
        batch: The batch to imitate; only its shapes, types and devices are used.
        records: Number of records to make up.
        varied: Whether floating-point values vary between −1 and 1; otherwise they are zero.
            Integers are always zero, because index 0 is always valid.
    """

    def one(leaf: Tensor) -> Tensor:
        zeros = leaf.new_zeros(records, *leaf.shape[1:])
        if not (varied and leaf.is_floating_point()):
            return zeros
        places = torch.arange(zeros.numel(), device=leaf.device, dtype=torch.float64)
        return (places + 1).sin().view_as(zeros).to(leaf.dtype)

    return pytree.tree_map_only(Tensor, one, batch)


_ON_MADE_UP = (
    "This is of made-up records, of zeros and of numbers between -1 and 1. They take the place of "
    "records that the model or the loss rejects, so both must accept them: add a multiple of the "
    "identity to a matrix that is to be factored, for example."
)


class RejectedRecords:
    """The records of a batch that fail, and a made-up record that replaces them.

    Attributes:
        refused: True for the records that fail on their own.

    Raises:
        Exception: The error that `run` raises on made-up records, if it accepts none of them.
    """

    def __init__(self, run: Run, batch: Any, model: nn.Module) -> None:
        first = next(leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))
        with torch.random.fork_rng([first.device] if first.is_cuda else []):
            first_error: Exception | None = None
            for varied in (True, False):
                self._record = made_up(batch, 1, varied=varied)
                try:
                    run(self._record)
                    break
                except Exception as error:
                    first_error = first_error or error
            else:
                assert first_error is not None
                found = named(first_error, model)
                if found is first_error:
                    found.add_note(_ON_MADE_UP)
                raise found
            rows = _refused_rows(run, batch, range(len(first)))
        self.refused = torch.zeros(len(first), dtype=torch.bool, device=first.device)
        self.refused[rows] = True

    def replaced(self, batch: Any) -> Any:
        """The batch with every refused record replaced by the made-up one."""

        def one(leaf: Any, other: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return torch.where(self.refused.view(-1, *[1] * (leaf.ndim - 1)), other, leaf)

        return pytree.tree_map(one, batch, self._record)


def _refused_rows(run: Run, batch: Any, rows: range) -> list[int]:
    """The indices of the records on which `run` fails, found by bisecting the batch."""
    part = pytree.tree_map_only(Tensor, lambda leaf: leaf[rows.start : rows.stop], batch)
    streams = active_streams()
    with again(None if streams is None else streams.part(rows.start)):
        if attempt(run, part) is not None:
            return []
    if len(rows) == 1:
        return [rows.start]
    middle = len(rows) // 2
    return _refused_rows(run, batch, rows[:middle]) + _refused_rows(run, batch, rows[middle:])
