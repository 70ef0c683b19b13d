"""The autograd leaves of a result, and an error for those that no gradient is computed for."""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor


def leaves_behind(results: Iterable[Tensor]) -> Iterator[Tensor]:
    """Every leaf tensor that the results depend on through autograd, once each."""
    seen, waiting = set(), []
    for result in results:
        if result.grad_fn is None and result.requires_grad:
            yield result
        waiting.append(result.grad_fn)
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        waiting += [before for before, _ in node.next_functions]


def refuse_foreign(
    leaves: Iterable[Tensor], allowed: Iterable[Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """Raise an error if there is a leaf whose gradient would be silently left out.

    Args:
        leaves: The leaves of the losses.
        allowed: The leaves whose gradients are computed.
        parameters: Trained values by name, which share memory with their parameters; used for the
            message.
    """
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
