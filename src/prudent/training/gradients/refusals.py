"""Handling of records for which a model or a loss raises an error.

Under vmap no code of the model can branch on a record. An error that one batch raises and another
of the same shapes does not comes from a kernel that inspects values: a singular matrix, an index
out of range. Passing it on would let one record stop the run, and its text may quote the record. So
the records that fail on their own are identified and treated as records whose gradient is not
finite, which count as zero. That is a function of each record and the public model, like every
other gradient.

An error in the code itself, such as a wrong shape, also occurs with made-up records. It is the
error from made-up records that is raised, so no message ever depends on data.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

from prudent.training.gradients.leftovers import KeptRecordError
from prudent.training.gradients.record_streams import active_streams, again

Run = Callable[[Any], Any]
"""Runs a batch: a tree of tensors with records along the first axis."""

Explain = Callable[[Exception], Exception]


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


class Spared:
    """The records of a batch that fail, and a made-up record that replaces them.

    Args:
        run: The function that fails on some record.
        batch: The batch.
        explain: Maps an error to the one to raise.

    Attributes:
        refused: True for the records that fail on their own.

    Raises:
        Exception: The error that `run` raises on made-up records, if it accepts none of them.
    """

    def __init__(self, run: Run, batch: Any, explain: Explain = lambda error: error) -> None:
        if get_proxy_mode() is not None:
            raise RuntimeError("A record was refused while the step was traced.")
        first = next(leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))
        with torch.random.fork_rng([first.device] if first.is_cuda else []):
            self._record = _accepted(run, batch, explain)
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

    def marked(self, values: Tensor) -> Tensor:
        """Norms or losses, with NaN for every refused record."""
        return values.masked_fill(self.refused, torch.nan)


def _accepted(run: Run, batch: Any, explain: Explain) -> Any:
    """A made-up record that `run` accepts; if there is none, raises the first error."""
    first: Exception | None = None
    for varied in (True, False):
        record = made_up(batch, 1, varied=varied)
        try:
            run(record)
        except Exception as error:
            first = first or error
        else:
            return record
    assert first is not None
    raise explain(first)


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
