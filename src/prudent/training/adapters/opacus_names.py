"""Answers to the argument names of Opacus, where ours differ."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OURS = {
    "module": "model",
    "data_loader": "loader",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "max_grad_norm": "clip=…, or aggregation=prudent.Sum(clip=…, noise_multiplier=1.0)",
    "noise_multiplier": "plan=prudent.Plan(sampling_rate=…, steps=…, "
    "aggregation=prudent.Sum(clip=…, noise_multiplier=…)); without a plan, epsilon, delta and "
    "epochs determine the noise",
    "poisson_sampling": "nothing: batches are always Poisson samples, which the price assumes",
    "sample_rate": "sampling_rate of a plan; without one, the batch size divided by the records",
    "expected_batch_size": "expected_batch of a plan; without one, the loader's batch_size",
    "clipping": "aggregation; gradients are clipped as a whole (flat)",
    "max_physical_batch_size": "max_physical_batch",
    "batch_first": "nothing: records are on the first axis",
    "criterion": "nothing: the loss stays in your loop",
    "grad_sample_mode": "nothing: norms come from book-keeping, without stored gradients",
    "noise_generator": "key; the default comes from the operating system",
    "secure_mode": "nothing: noise always comes from a ChaCha20 keystream",
    "accountant": "nothing: optimizer.plan.epsilon(delta, accountant=…) prices by any accountant",
}


def answering_opacus(**own: str | None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A decorator of functions that answer the names of Opacus with their own.

    Args:
        own: The answers of this function where they are not the usual ones; None for an argument
            that it has in common with Opacus.
    """
    table = {name: ours for name, ours in (_OURS | own).items() if ours is not None}

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def answering(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            foreign = [name for name in kwargs if name in table]
            if foreign:
                answers = "".join(f"\n  instead of {name}: {table[name]}" for name in foreign)
                raise TypeError(
                    f"{function.__qualname__.removesuffix('.__init__')} has other names for what "
                    f"Opacus calls {', '.join(foreign)}:{answers}"
                )
            return function(*args, **kwargs)

        return answering

    return decorate
