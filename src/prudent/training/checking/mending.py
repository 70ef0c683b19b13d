"""Layers that keep records apart in place of those that mix them: `make_private(..., fix=True)`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from prudent._torch_private import batch_norm, norm_base
from prudent.training.evaluation.held_out import modes_kept
from prudent.training.gradients.unsupported import refuse_unsupported

_MOST_GROUPS, _LEAST_CHANNELS = 32, 4


def refuse_untrainable(model: nn.Module) -> None:
    """Raise an error for a layer that training mode would let mix records, before it runs."""
    with modes_kept(model):
        if not model.training:
            model.train()
        refuse_unsupported(model)


def mend(model: nn.Module) -> list[str]:
    """Replace in place what can be replaced of layers that no engine accepts.

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

    Returns:
        What was done, a sentence per layer.
    """
    done, instead = [], dict(_replacements(model))
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


def _replacements(model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """What takes the place of layers, by their identity; the model itself cannot be replaced."""
    for layer in model.modules():
        make = next((make for kind, make in _INSTEAD if isinstance(layer, kind)), None)
        stays = isinstance(layer, norm_base) and model.training and not layer.training
        new = None if make is None or stays or layer is model else make(layer)
        if new is not None:
            for name, parameter in layer.named_parameters():
                setattr(new, name, parameter)
            yield id(layer), new


def _group_norm(layer: Any) -> nn.Module | None:
    channels = layer.num_features
    flat = isinstance(layer, nn.BatchNorm1d)  # of one value in a group nothing would be left
    if flat and channels == 1:
        return None
    most = 1 if flat else min(_MOST_GROUPS, max(1, channels // _LEAST_CHANNELS))
    groups = next(groups for groups in range(most, 0, -1) if channels % groups == 0)
    return nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)


def _untracked(layer: Any) -> nn.Module | None:
    if not layer.track_running_stats:
        return None
    new: nn.Module = type(layer)(layer.num_features, eps=layer.eps, affine=layer.affine)
    return new


def _leaky(layer: Any) -> nn.Module | None:
    return nn.LeakyReLU((layer.lower + layer.upper) / 2, layer.inplace)


_INSTEAD: tuple[tuple[type[nn.Module], Callable[..., nn.Module | None]], ...] = (
    (batch_norm, _group_norm),
    (norm_base, _untracked),
    (nn.RReLU, _leaky),
)
