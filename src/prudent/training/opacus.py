"""An Opacus optimizer with this package's aggregations and accounting.

Opacus provides per-example gradients (`GradSampleModule`), Poisson batches (`DPDataLoader`) and
physical batches (`BatchMemoryManager`). A `Plan` determines what is released for each logical batch
and what that costs. Requires the extra `opacus`.
"""

import math
from typing import Any

import attrs
import torch
from opacus.data_loader import CollateFnWithEmpty
from opacus.grad_sample import AbstractGradSampleModule, GradSampleHooks
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleHooksFastGradientClipping,
)
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader
from typing_extensions import override

from prudent._validate import ArgumentError
from prudent.training.gradients import Formed, Gradients
from prudent.training.keystream import Key, Purpose, given_or_random
from prudent.training.plan import Plan
from prudent.training.planned_optimizer import PlannedOptimizer

_TWISTER_WORDS = 624
_TWISTER = slice(24, 24 + 8 * _TWISTER_WORDS)  # place in the generator's state, 8 bytes each


class PrivateOptimizer(PlannedOptimizer):
    """Replaces Opacus's `DPOptimizer` and releases gradients as a plan prescribes.

    A step reads the per-example gradients that Opacus stored on the parameters, releases their sum
    as the plan's aggregation decides, and runs the wrapped optimizer on it. Ties between norms are
    broken by position in the batch. Opacus's sampler lists records by ascending index, so the order
    of any two records does not depend on which others are in the batch.

    | case | what happens |
    |---|---|
    | empty batch | only noise is released, and charged |
    | physical batches of a `BatchMemoryManager` | held back until the logical batch is complete |
    | two backward passes before a step | refused: their union is no Poisson sample |
    | step after the plan's last | refused |
    | ghost clipping, several processes | refused |
    | loader that is not Poisson, or of another rate | refused |
    | loader that makes up a record for an empty batch | refused |

    Args:
        optimizer: Any torch optimizer over parameters of the module.
        plan: Prescribes what is released. Its `sampling_rate` is the loader's `sample_rate`.
        module: The `GradSampleModule` (or `GradSampleHooks`), in any mode that forms gradients.
        data_loader: The `DPDataLoader` the batches come from. Unless its sampler has a generator,
            it gets one with a secret state: outputs of torch's default generator are visible in the
            initial model and would reveal which records were drawn.
        key: The key of the noise and of that generator; a new one from the operating system unless
            given. Never use a key twice, not even to continue from a saved state.

    Attributes:
        plan: The plan with the rate at which the loader actually draws, see `realised_rate`.
        outcome: Outcome of the last step, None before the first; its loss is NaN. See `StepOutcome`
            for the private fields.
        original_optimizer: The wrapped optimizer.

    Guarantee:
        If every step is taken on the next logical batch of `data_loader`, everything derived from
        the parameters is, over the whole run, (ε, δ)-DP for ε = `optimizer.plan.epsilon(δ)` and
        the neighbours of `optimizer.plan.relation`. `DPDataLoader.from_data_loader` takes its rate
        from the number of records, which is then public. For `ADD_REMOVE`, build the loader with a
        `sample_rate` that does not depend on it, and give the plan an `expected_batch`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        module: AbstractGradSampleModule | GradSampleHooks,
        data_loader: DataLoader[Any],
        *,
        key: Key | None = None,
    ) -> None:
        model = _formed_gradients(module)
        sampler = _poisson_sampler(data_loader)
        if not math.isclose(plan.sampling_rate, sampler.sample_rate, rel_tol=1e-9):
            raise ValueError(
                f"Expected plan.sampling_rate equal to the loader's sample_rate "
                f"{sampler.sample_rate!r}, got {plan.sampling_rate!r}. DPDataLoader turns a batch "
                "size into 1 / len(loader); give the plan sampling_rate=data_loader.sample_rate."
            )
        key = given_or_random(key)
        if sampler.generator is None:
            sampler.generator = _secret_generator(key)
        super().__init__(
            optimizer,
            attrs.evolve(plan, sampling_rate=realised_rate(sampler.sample_rate)),
            model,
            expected_batch=plan.sampling_rate * sampler.num_samples,
            key=key,
        )
        self._held: list[Gradients] = []
        self._skips: list[bool] = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, including per-example gradients that no step has used."""
        for parameter in self._names:
            parameter.grad_sample = None  # type: ignore[attr-defined]
        super().zero_grad(set_to_none)

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Queue whether a physical batch is incomplete, that is, not the last of its logical batch.

        Called by `BatchMemoryManager`.
        """
        self._skips.append(do_skip)

    @override
    def _take(self) -> list[Gradients] | None:
        # Weights depend on the norms of the whole logical batch: whether a gradient is among the
        # largest is known only after the last one. So physical batches are kept, unsummed, until
        # then.
        self._held.append(self._formed())
        if self._skips and self._skips.pop(0):
            return None
        held, self._held = self._held, []
        return held

    def _formed(self) -> Formed:
        """Move the per-example gradients of one physical batch off the parameters."""
        trained = self.trained()
        formed: dict[str, Any] = {
            name: getattr(parameter, "grad_sample", None) for name, parameter in trained.items()
        }
        for name, gradients in formed.items():
            if gradients is None:
                raise ValueError(
                    f"Expected a per-example gradient of {name!r}, got none. Run the module in "
                    "training mode and call backward() before step(); freeze what it does not use."
                )
            if isinstance(gradients, list):
                raise ValueError(
                    f"Expected one backward pass before step(), got {len(gradients)}. Two Poisson "
                    "batches in one step can hold a record twice; to split one batch, use "
                    "BatchMemoryManager with this optimizer."
                )
        for parameter in trained.values():
            parameter.grad_sample = None  # type: ignore[attr-defined]
        values = {name: formed[name].to(p.dtype) for name, p in trained.items()}
        some = next(iter(values.values()))
        return Formed(values, some.new_full((len(some),), math.nan))


def realised_rate(sample_rate: float) -> float:
    """An upper bound of the probability with which Opacus's sampler draws a record.

    The sampler compares a uniform number of the default precision, a multiple of 2⁻²⁴ in single
    precision, with the rate rounded to that precision, so the probability can exceed the rate by as
    much.
    """
    precision = torch.finfo(torch.get_default_dtype()).eps
    return min(1.0, sample_rate * (1 + precision) + precision)


def _secret_generator(key: Key) -> torch.Generator:
    """A host generator whose whole state is secret; seeding it would use only 32 bits of the seed.

    Its draws decide which records are in a batch and are never released, so an observer has no
    outputs from which to predict them.
    """
    words = key.stream(Purpose.SAMPLING).words(_TWISTER_WORDS, step=0) & (2**32 - 1)
    generator = torch.Generator()
    state = generator.get_state()
    state[_TWISTER] = words.view(torch.uint8)
    generator.set_state(state)
    return generator


def _formed_gradients(module: AbstractGradSampleModule | GradSampleHooks) -> torch.nn.Module:
    """The wrapped model; raises an error unless Opacus computes its per-example gradients."""
    if isinstance(module, GradSampleHooksFastGradientClipping):
        raise ArgumentError(
            "module",
            "with per-example gradients",
            shown=type(module).__name__,
            hint="Ghost clipping computes each weight from a record's own norm, before a test "
            "or a trim can compare it with the others. Use GradSampleModule, or prudent.Step, "
            "whose default engine needs no per-example gradients.",
        )
    if not isinstance(module, AbstractGradSampleModule | GradSampleHooks):
        raise ArgumentError(
            "module",
            "a GradSampleModule",
            shown=type(module).__name__,
            hint="Wrap the model: opacus.GradSampleModule(model).",
        )
    model: torch.nn.Module = module._module
    return model


def _poisson_sampler(data_loader: DataLoader[Any]) -> Any:
    """The loader's sampler.

    Raises an error unless it draws every record independently and allows empty batches.
    """
    sampler = data_loader.batch_sampler
    if type(sampler) is not UniformWithReplacementSampler:
        raise ArgumentError(
            "data_loader",
            "with Opacus's UniformWithReplacementSampler",
            shown=type(sampler).__name__,
            why="the plan's epsilon holds for Poisson sampling in one process",
            hint="Use opacus.data_loader.DPDataLoader.from_data_loader(data_loader).",
        )
    collate = data_loader.collate_fn
    if isinstance(collate, CollateFnWithEmpty) and collate.rand_on_empty:
        raise ArgumentError(
            "data_loader",
            "with rand_on_empty=False",
            got=True,
            hint="Otherwise an empty batch gets a made-up record, so that removing the only "
            "real record replaces it, and the sum can change by twice the clipping norm.",
        )
    return sampler
