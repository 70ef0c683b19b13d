"""Layers that cannot give each record a gradient of its own, and what to use instead of them.

Some are known before a model runs: they mix records, or change their weights by what they see. The
others fail under vmap, with an error of torch that names neither the layer nor a way out; it is
raised again with both.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from traceback import walk_tb
from typing import NoReturn

import attrs
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.lazy import LazyModuleMixin


@attrs.frozen
class Unsupported:
    """A layer of a model that cannot be trained as it is.

    Attributes:
        path: Its name in the model, as in `model.named_modules()`.
        what: Its kind, with the setting that matters.
        instead: What to do, as a sentence.
    """

    path: str
    what: str
    instead: str

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
    """Raise an error for the first unsupported layer.

    Raises:
        ValueError: Names the layer and what to use instead.
    """
    for layer in unsupported(model):
        raise ValueError(f"Expected layers that keep records apart, got {layer}")


def refuse_packed() -> NoReturn:
    """Raise an error for a packed sequence, whose layout depends on the lengths of all records."""
    raise ValueError(
        "Expected padded sequences, got a packed one: it mixes the time steps of all records, in "
        "an order that depends on their lengths. Leave out pack_padded_sequence, give the layer "
        "the padded tensor, and mask its padded outputs, or gather the output at position "
        "length - 1. For a bidirectional layer, use one layer per direction and reverse each "
        "sequence by indexing, so that its padding stays at the end."
    )


def named(error: Exception, model: nn.Module) -> Exception:
    """The error with the layer in which it occurred, or as it is if vmap is not the reason."""
    text = str(error)
    if not (isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)):
        return error
    paths = {id(module): path for path, module in model.named_modules()}
    running = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    layers = [each for each in running if isinstance(each, nn.Module) and id(each) in paths]
    if not layers:
        return error
    layer = layers[-1]
    by_kind = (advice for kind, advice in _INSTEAD.items() if isinstance(layer, kind))
    by_text = (advice for sign, advice in _ADVICE.items() if sign in text)
    instead = next(chain(by_kind, by_text), _OTHERWISE)
    found = Unsupported(paths[id(layer)], type(layer).__name__, instead)
    return UnsupportedLayerError(found, error)


def _uses_batch_statistics(module: nn.Module) -> bool:
    if not (isinstance(module, _NormBase) and module.training):
        return False
    return isinstance(module, _BatchNorm) or module.track_running_stats


def _changes_rows(module: nn.Module) -> bool:
    if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return False
    return module.max_norm is not None or module.scale_grad_by_freq


def _is_lazy(module: nn.Module) -> bool:
    return isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()


_WRONG: tuple[tuple[Callable[[nn.Module], bool], str, str], ...] = (
    (
        _uses_batch_statistics,
        "{} in training mode",
        "Replace it by torch.nn.GroupNorm, or call .eval() on it to use its running statistics.",
    ),
    (
        _changes_rows,
        "{} with max_norm or scale_grad_by_freq",
        "Leave both unset: one changes the table by the tokens of a batch, the other divides by "
        "their counts.",
    ),
    (
        lambda module: isinstance(module, nn.parallel.DistributedDataParallel),
        "{}",
        "Use the module inside it: the private sum is added up over the processes instead.",
    ),
    (_is_lazy, "{} without a shape", "Run the model once on any batch before it is trained."),
)

_SIGNS = "vmap", "atching rule", "functorch", "doesn't match the broadcast shape"

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
    "make the tensor with record.new_zeros."
)
_ADVICE = {
    "setup_context": (
        "Give the torch.autograd.Function a setup_context and generate_vmap_rule = True, or write "
        "it in torch's own operations."
    ),
    "dynamic shape": (
        "The number of selected elements would depend on the record: use torch.where and masks "
        "instead of boolean indices and nonzero."
    ),
    "data-dependent": _BRANCH,
    ".item()": _BRANCH,
    "inplace": _IN_PLACE,
    "in-place": _IN_PLACE,
    "broadcast shape": _IN_PLACE,
    "`data`": "Use detach() instead of .data.",
}

_OTHERWISE = (
    "Build the layer from torch.nn.Linear, Conv, Embedding and normalisation layers, or freeze it "
    "and call it under torch.no_grad()."
)
