"""Tapes: the contributions to every per-example gradient, collected in the backward pass."""

import copy
import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from prudent.training.gradients.factors.contributions import (
    Contribution,
    Dense,
    Outer,
    TableRows,
    Use,
    merged,
    of_people,
    sums_of_tables,
    weighted_sums,
)
from prudent.training.gradients.factors.layers import autocast_type
from prudent.training.gradients.factors.norms import SquaredNorms, is_small


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in a tree of tuples, lists and dictionaries."""
    found: list[Tensor] = []
    waiting = [tree]
    for each in waiting:  # which grows; a recursion would take as long as small operations
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (tuple, list, set, frozenset)):
            waiting.extend(each)
        elif isinstance(each, dict):
            waiting.extend(each.values())
    return found


_LEAF = "AccumulateGrad"


def leaves_behind(results: Iterable[Tensor]) -> Iterator[Tensor]:
    """Every leaf tensor that the results depend on through autograd, once each."""
    seen, waiting = set(), []
    for result in results:
        if result.grad_fn is None and result.requires_grad:
            yield result
        waiting.append(result.grad_fn)
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == _LEAF:
            yield node.variable
        else:
            waiting.extend([before for before, _ in node.next_functions])


def refuse_foreign(
    leaves: Iterable[Tensor], allowed: Iterable[Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """Raise an error if there is a leaf whose gradient would be silently left out."""
    known = {id(tensor) for tensor in allowed}
    for leaf in leaves:
        if id(leaf) not in known:
            names = [n for n, p in parameters.items() if p.data_ptr() == leaf.data_ptr()]
            what = f"parameter {names[0]!r}" if names else f"a tensor of shape {tuple(leaf.shape)}"
            raise RuntimeError(
                f"Expected every trained tensor behind the loss to be a parameter that the model "
                f"looks up while it runs, got {what} by another reference, such as a closure, a "
                "partial, or the model itself inside the loss: its gradient would be left out. Use "
                "self.weight within forward (a penalty may be one of the outputs), or detach() it."
            )


class Tape(ABC):
    """Receives, in the backward pass, the contributions announced in the forward pass.

    Args:
        parameters: The trained parameters by name: leaves that require a gradient.
        slots: Number of consecutive records whose gradients are added up to one, that of a person.
    """

    def __init__(self, parameters: Mapping[str, Tensor], slots: int = 1) -> None:
        self.slots = slots
        self.parameters = dict(parameters)
        self.anchor = next(iter(self.parameters.values())).new_zeros(()).requires_grad_()
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._detached = {id(parameter): parameter.detach() for parameter in parameters.values()}
        self._announces = True
        self._converted: tuple[weakref.ref[Tensor], int, Tensor] | None = None
        self._derived: dict[int, tuple[Tensor, list[Contribution]]] = {}
        self._behind: set[str] = set()
        self._uses = dict.fromkeys(self.parameters, 0)
        self._lookups = dict.fromkeys(self.parameters, 0)  # uses that add rows to a table
        self._contributions: dict[str, list[Contribution]] = {name: [] for name in parameters}

    def again(self) -> Self:
        """A view of this tape for a part that is recomputed, whose uses are already announced."""
        same = copy.copy(self)
        same._announces = False
        return same

    def use(self, shared: Tensor | None, *, looked_up: bool = False) -> Use | None:
        """Announce a use of a shared tensor; None if it is not trained."""
        if shared is None or not shared.requires_grad:
            return None
        name = self._names.get(id(shared))
        if name is None:
            if id(shared) not in self._derived:
                # Keep the tensor alive so that its id is not reused.
                self._derived[id(shared)] = shared, []
                self.refuse_foreign([shared])
                behind = map(id, leaves_behind([shared]))
                self._behind |= {self._names[leaf] for leaf in behind if leaf in self._names}
            return self._of_people(self._derived[id(shared)][1].append)
        if self._announces:
            self._uses[name] += 1
            self._lookups[name] += looked_up
        return self._of_people(lambda contribution: self._receive(name, contribution))

    def detached(self, shared: Tensor) -> Tensor:
        """The tensor without its gradient; under vmap to detach one takes as long as a layer."""
        known = self._detached.get(id(shared))
        return shared.detach() if known is None else known

    def stored(self, shared: Tensor) -> tuple[Tensor, bool]:
        """The parameter of which a tensor is the transposed view, and True; or itself, and False.

        A view of the whole parameter needs no gradient of its own.
        """
        node = shared.grad_fn
        if type(node).__name__ == "TransposeBackward0" and node is not None:
            parameter = getattr(node.next_functions[0][0], "variable", None)
            if id(parameter) in self._names and parameter is not None:
                view = parameter.mT
                if (view.shape, view.stride()) == (shared.shape, shared.stride()):
                    return parameter, True
        return shared, False

    def _of_people(self, receive: Use) -> Use:
        if self.slots == 1:
            return receive
        return lambda contribution: receive(of_people(contribution, self.slots))

    def converted(self, record: Tensor, values: Tensor) -> Tensor:
        """The values of a record as autocast converts them, contiguous.

        Query, key and value layers are given the same tensor one after another and then share what
        they keep of it.
        """
        wanted = autocast_type(values)
        if self._converted is not None:
            same, version, kept = self._converted
            if same() is record and version == values._version and kept.dtype == wanted:
                return kept
        kept = values.detach().to(wanted, memory_format=torch.contiguous_format)
        self._converted = weakref.ref(record), values._version, kept
        return kept

    def name(self, shared: Tensor) -> str:
        """A name for a shared tensor, for messages."""
        name = self._names.get(id(shared))
        return f"parameter {name!r}" if name else "a tensor derived from parameters"

    def collect(self, losses: Tensor) -> None:
        """Run backward from the losses; every path to a parameter must go through the tape."""
        if not losses.requires_grad:
            return
        self.refuse_foreign([losses])
        self._converted = None
        leaves = [self.anchor, *self.parameters.values()]
        _, *missed = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        self.refuse_missed(missed)
        self._carry_back_derived()

    def refuse_missed(self, gradients: Sequence[Tensor | None]) -> None:
        """Raise an error if autograd found a path to a parameter that bypasses the tape."""
        names = [n for n, g in zip(self.parameters, gradients, strict=True) if g is not None]
        if names:
            raise RuntimeError(
                f"Parameters {names} reach the loss on a way that book-keeping cannot follow. "
                "Use the Materialised engine."
            )

    def refuse_foreign(self, results: Iterable[Tensor], *others: Tensor) -> None:
        """Raise an error if the results have gradients for anything but the tape's and `others`."""
        allowed = self.anchor, *self.parameters.values(), *others
        refuse_foreign(leaves_behind(results), allowed, self.parameters)

    def _is_alone(self, name: str) -> bool:
        """Whether the parameter has a single use; in the backward pass all uses are announced."""
        return self._uses[name] == 1 and name not in self._behind

    @abstractmethod
    def _receive(self, name: str, contribution: Contribution) -> None: ...

    def _carry_back_derived(self) -> None:
        """Turn gradients of derived tensors into gradients of the parameters behind them."""
        for shared, contributions in self._derived.values():
            if not contributions:
                continue
            total = torch.stack([each.per_example() for each in contributions]).sum(0)
            leaves = list(self.parameters.values())
            options = {"is_grads_batched": True, "allow_unused": True, "retain_graph": True}
            gradients = torch.autograd.grad(shared, leaves, total, **options)
            for name, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    self._receive(name, Dense(gradient))


class NormTape(Tape):
    """Accumulates squared norms and optionally keeps the contributions for a weighted sum."""

    def __init__(self, parameters: Mapping[str, Tensor], *, keep: bool, slots: int = 1) -> None:
        super().__init__(parameters, slots)
        self._keep = keep
        self._squares = SquaredNorms()

    def norms(self, losses: Tensor) -> Tensor:
        """Norms over all parameters, one per loss; zero if no parameter was reached."""
        for name, contributions in self._contributions.items():
            if contributions and not self._is_alone(name):
                contributions[:] = merged(contributions)
                self._squares.add(contributions)
                self._forget(name)
        return self._squares.total(losses).clamp_min_(0).sqrt_()

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        """Σᵢ wᵢ gᵢ for every parameter, zero for those not reached; frees all contributions."""
        tape = SumTape(self.parameters, weights)
        for name, contributions in self._contributions.items():
            while contributions:
                tape._sum(name, contributions.pop())
        return tape.sums()

    def _receive(self, name: str, contribution: Contribution) -> None:
        self._contributions[name].append(contribution)
        if self._is_alone(name):
            self._squares.add([contribution])
            self._forget(name)

    def _forget(self, name: str) -> None:
        if not self._keep:
            self._contributions[name].clear()


class SumTape(Tape):
    """Accumulates the weighted sum as contributions arrive.

    Those that are merged for the norm of a parameter are kept and merged here, too: where terms
    cancel, they must be rounded as in the norm, and before other records are added.
    """

    def __init__(self, parameters: Mapping[str, Tensor], weights: Tensor, slots: int = 1) -> None:
        super().__init__(parameters, slots)
        self._weights = weights
        self._sums: dict[str, Tensor] = {}
        self._together: dict[object, list[tuple[str, Any]]] = {}

    def sums(self) -> dict[str, Tensor]:
        """Σᵢ wᵢ gᵢ for every parameter, zero for those that were not reached.

        All in double precision: graphs of other branches write to the same sums.
        """
        for name, contributions in self._contributions.items():
            for contribution in merged(contributions) if contributions else ():
                self._sum(name, contribution)
            contributions.clear()
        for together in self._together.values():
            names, parts = zip(*together, strict=True)
            sums = weighted_sums if isinstance(parts[0], Dense) else sums_of_tables
            for name, added in zip(names, sums(parts, self._weights), strict=True):
                self._add(name, added)
        self._together.clear()
        zero = functools.partial(torch.zeros_like, dtype=torch.float64)
        return {
            name: self._sums.pop(name) if name in self._sums else zero(p.detach())
            for name, p in self.parameters.items()
        }

    def _receive(self, name: str, contribution: Contribution) -> None:
        joins = isinstance(contribution, Dense | Outer)
        alone = self._uses[name] - self._lookups[name] <= 1 and name not in self._behind
        if alone or not joins:
            self._sum(name, contribution)
        else:
            self._contributions[name].append(contribution)

    def _sum(self, name: str, contribution: Contribution) -> None:
        if isinstance(contribution, Dense) and is_small(contribution):
            self._together.setdefault(contribution.values.dtype, []).append((name, contribution))
        elif isinstance(contribution, TableRows) and contribution.is_joined:
            self._together.setdefault(contribution.kind, []).append((name, contribution))
        else:
            self._add(name, contribution.weighted_sum(self._weights))

    def _add(self, name: str, added: Tensor) -> None:
        kind = torch.promote_types(added.dtype, self.parameters[name].dtype)
        added = added.to(kind)
        self._sums[name] = self._sums[name] + added if name in self._sums else added


class FormTape(Tape):
    """Forms every record's gradient by accumulating contributions as they arrive."""

    def __init__(self, parameters: Mapping[str, Tensor], records: int, slots: int = 1) -> None:
        super().__init__(parameters, slots)
        self._records = records // slots
        self._formed: dict[str, Tensor] = {}

    def formed(self) -> dict[str, Tensor]:
        """Gradients of shape (records, *shape), zero for parameters that were not reached."""
        return {
            name: self._formed.pop(name)
            if name in self._formed
            else torch.zeros_like(p.detach()).expand(self._records, *p.shape)
            for name, p in self.parameters.items()
        }

    def _receive(self, name: str, contribution: Contribution) -> None:
        added = contribution.per_example().to(self.parameters[name].dtype)
        self._formed[name] = self._formed[name] + added if name in self._formed else added
