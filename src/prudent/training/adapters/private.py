"""Private training in a loop of your own: the model, optimizer and loader of `make_private`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.chargeable import LedgerLike
from prudent.accounting.relations import ZERO_OUT
from prudent.training.adapters.planned_optimizer import PlannedOptimizer
from prudent.training.aggregation import Aggregation, Sum
from prudent.training.gradients import Gradients
from prudent.training.gradients.caller_loss import OutsideLoss, Pass, Reduction
from prudent.training.gradients.engine import count_records
from prudent.training.keystream import Key, given_or_random
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge
from prudent.training.sampling import PoissonLoader, PoissonSampler, check_replaceable

Model = TypeVar("Model", bound=nn.Module)


def make_private(
    model: Model,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    clip: float | None = None,
    aggregation: Aggregation | None = None,
    plan: Plan | None = None,
    loss_reduction: str = "mean",
    max_physical_batch: int | None = None,
    example: Any = None,
    key: Key | None = None,
    ledger: LedgerLike | None = None,
) -> tuple[Model, "CapturingOptimizer", PoissonLoader]:
    """Make a training loop private: returns its model, optimizer and loader, to use as before.

        model, optimizer, loader = prudent.make_private(
            model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=10
        )
        for epoch in range(10):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()

    Give either `epsilon`, `delta` and `epochs`, for which the least noise is found, or a `plan`.

    Args:
        model: Any module whose layers do not mix records. The same object is returned, with the
            same parameters and names. Only its forward in training mode changes; copies and pickles
            of it are ordinary models.
        optimizer: Any torch optimizer over parameters of the model.
        loader: Any loader over a map-style data set. Its `batch_size` is the expected size of the
            Poisson batches. A record is one item of the data set and one row of a batch.
        epsilon: ε of the whole run.
        delta: δ of the whole run.
        epochs: Number of passes over the loader.
        clip: The L2 bound on every gradient; 1 unless given. With `aggregation`, use its own.
        aggregation: What a step releases, such as `ProposeTestRelease`; its noise is replaced.
            Clipped sums with noise, as in DP-SGD, unless given.
        plan: Prescribes everything: rate, steps, aggregation with its noise, and relation.
        loss_reduction: Whether the loss of a batch is the "mean" or the "sum" over its records.
        max_physical_batch: Largest number of records whose activations are in memory. A larger
            batch is run in parts, which takes three to four times as long; the loop stays the same.
        example: A public item of the data set, as for `fit`: with a `collate_fn` that pads to the
            longest item, every record is padded to the example's length.
        key: The key of the noise and the draws; a new one from the operating system unless given.
            Never use a key twice.
        ledger: A `prudent.Ledger` that is charged for the whole plan before the loader draws its
            first batch. A run that goes on from a saved state of the optimizer, loaded before that,
            is not charged again.

    Guarantee:
        If every step is taken on the next batch of the loader, and the loss is a mean or a sum, as
        declared, of terms that each depend on one record and its outputs, then everything derived
        from the parameters is, over the whole run, (ε, δ)-DP for ε = `optimizer.plan.epsilon(δ)`
        and the neighbours of `optimizer.plan.relation`. Without a plan, the rate is the batch size
        divided by the number of records, which `ZERO_OUT` treats as public. `prudent.check` tells
        whether a model and a loss meet the conditions.

    | case | what happens |
    |---|---|
    | evaluation mode, or no gradients enabled | the model runs as it always did |
    | empty batch | only noise is released, and charged |
    | two backward passes before a step, two steps on a batch | refused |
    | rows that are not one per drawn record | refused |
    | mean with class weights, of whatever is computed from the outputs | refused |
    | mean with ignored labels (`ignore_index`) | divided by the number of all labels |
    | record that cannot be read, or whose form differs from most | as if it had not been drawn |
    | parameter that the loss reaches other than through the model's outputs | refused |
    | step after the plan's last | refused |
    | record whose gradient is not finite | counts as zero |

    Raises:
        ArgumentError: If an argument is missing or does not fit the others.
    """
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.instance(torch.optim.Optimizer, "a torch optimizer", optimizer=optimizer)
    check_capturable(model)
    preparation = prepare(
        loader,
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        clip=clip,
        aggregation=aggregation,
        plan=plan,
        loss_reduction=loss_reduction,
        max_physical_batch=max_physical_batch,
        example=example,
        key=key,
        ledger=ledger,
    )
    return model, preparation.optimizer(model, optimizer), preparation.loader


@attrs.frozen
class Preparation:
    """What `make_private` knows before there is an optimizer.

    Attributes:
        charge: What the run is charged to, with its plan, calibrated.
        loader: The private loader.
        reduction: How the loss combines the records of a batch.
        physical_batch: Largest number of records whose activations are in memory.
        key: The key of the noise and the draws.
    """

    charge: RunCharge
    loader: PoissonLoader
    reduction: Reduction
    physical_batch: int | None
    key: Key

    def optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> "CapturingOptimizer":
        """The private optimizer; call it once, because a second one would repeat its noise."""
        return CapturingOptimizer(
            optimizer,
            self.charge,
            model,
            self.loader,
            reduction=self.reduction,
            physical_batch=self.physical_batch,
            key=self.key,
        )


def prepare(
    loader: DataLoader[Any],
    *,
    epsilon: float | None,
    delta: float | None,
    epochs: int | None,
    clip: float | None,
    aggregation: Aggregation | None,
    plan: Plan | None,
    loss_reduction: str,
    max_physical_batch: int | None,
    example: Any,
    key: Key | None,
    ledger: LedgerLike | None,
) -> Preparation:
    """Check the arguments of `make_private`, find the noise and replace the loader."""
    check_replaceable(loader)
    if plan is not None:
        _validate.instance(Plan, "a Plan", plan=plan)
    if plan is None:
        plan, batches = _calibrated(loader, epsilon, delta, epochs, clip, aggregation), len(loader)
    else:
        _refuse_with_plan(
            epsilon=epsilon, delta=delta, epochs=epochs, clip=clip, aggregation=aggregation
        )
        batches = max(1, round(1 / plan.sampling_rate))
    if max_physical_batch is not None:
        _validate.count(1, max_physical_batch=max_physical_batch)
    charge, key = RunCharge(ledger, plan, delta), given_or_random(key)
    records = len(loader.dataset)  # type: ignore[arg-type]
    sampler = PoissonSampler(records, plan.sampling_rate, key=key)
    return Preparation(
        charge,
        PoissonLoader(loader, sampler, batches, example, charge.pay),
        Reduction(loss_reduction),
        max_physical_batch,
        key,
    )


class CapturingOptimizer(PlannedOptimizer):
    """The optimizer that `make_private` returns.

    It captures the model's forward passes in training mode; a step releases the gradients of the
    one pass whose backward has run since the last step.

    Args:
        optimizer: As for `PlannedOptimizer`.
        charge: What the run is charged to, with its plan.
        model: Its forward passes are captured from now on.
        loader: The loader that the batches come from.
        reduction: How the loss combines the records of a batch.
        physical_batch: As for `OutsideLoss`.
        key: The key of the noise.

    Attributes:
        plan: What is released; `plan.epsilon(delta)` is the price of the whole run.
        outcome: Outcome of the last step, None before the first; its loss is NaN. See `StepOutcome`
            for the private fields.
        original_optimizer: The wrapped optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        charge: RunCharge,
        model: nn.Module,
        loader: PoissonLoader,
        *,
        reduction: Reduction = Reduction.MEAN,
        physical_batch: int | None = None,
        key: Key,
    ) -> None:
        records = len(loader.dataset)  # type: ignore[arg-type]
        batch = charge.plan.sampling_rate * records
        super().__init__(
            optimizer, charge.plan, model, expected_batch=batch, key=key, charge=charge
        )
        self._loader = loader
        self._ready: list[Pass] = []
        self._before: dict[str, tuple[Tensor | None, int]] = {}
        own = type(model).forward
        self._run_outside = OutsideLoss(
            model, functools.partial(own, model), reduction, physical_batch
        )
        _capture(model, self._forward)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, including those of records that no step has used."""
        self._ready.clear()
        super().zero_grad(set_to_none=True)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a batch, one record at a time, in place of its own forward."""
        trained = self.trained()
        self._before = {
            name: (p.grad, 0 if p.grad is None else p.grad._version) for name, p in trained.items()
        }
        drawn = self._release.randomness.at(self.steps + 1)
        ids = self._loader.ids(count_records(args, kwargs))
        with drawn.seeded(), drawn.records(ids).active():
            outputs, passed = self._run_outside(trained, args, kwargs)
        passed.received = self._ready.append
        return outputs

    @override
    def _take(self) -> Sequence[Gradients]:
        ready = self._ready.copy()
        self._ready.clear()
        self._refuse_other_gradients()
        if len(ready) != 1:
            raise ValueError(
                "Expected one backward pass through the outputs of the model before step(), got "
                f"{len(ready) or 'none'}. Run the model in training mode, call backward() once "
                "and then step(): two Poisson batches in one step can hold a record twice. To "
                "save memory, use max_physical_batch."
            )
        self._loader.spend(ready[0].records)
        return ready[0].gradients()

    def _refuse_other_gradients(self) -> None:
        """Raise an error if backward has written to the parameters themselves."""
        found = []
        for name, parameter in self.trained().items():
            gradient, version = self._before.get(name, (None, 0))
            if parameter.grad is not None and (
                parameter.grad is not gradient or parameter.grad._version != version
            ):
                found.append(name)
        if found:
            raise ValueError(
                f"Expected the loss to depend on the parameters through the model's outputs alone, "
                f"got a gradient of {found} by another way, such as a penalty, a call of a part "
                "of the model, or a model in evaluation mode: it would be neither clipped nor "
                "noised. Use the optimizer's weight_decay for a penalty, call the model as a "
                "whole and in training mode, or make the part private that you call."
            )


def check_capturable(model: nn.Module) -> None:
    """Raise an error if the forward passes of a model cannot be captured."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ArgumentError(
            "model",
            "in one process",
            shown="DistributedDataParallel",
            hint="Use prudent.fit, which several processes may call.",
        )
    if getattr(type(model), "_is_captured", False):
        raise ArgumentError(
            "model",
            "an ordinary model",
            shown="one that is already private",
            hint="copy.deepcopy(model) is an ordinary copy of it.",
        )


def _capture(model: nn.Module, forward: Callable[..., Any]) -> None:
    """Replace the model's forward in training mode."""
    own = type(model).forward
    running = False

    @functools.wraps(own)
    def captured(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal running
        if running or not (self.training and torch.is_grad_enabled()):
            return own(self, *args, **kwargs)
        running = True
        try:
            return forward(*args, **kwargs)
        finally:
            running = False

    specialise(model, forward=captured, _is_captured=True)


def specialise(model: nn.Module, **members: Any) -> None:
    """Give one object methods of its own, by a subclass that no other object has.

    Its parameters, attributes and repr stay as they are, and copies and pickles are of its own
    class, without these methods.
    """
    base = type(model)
    original = getattr(base, "_original", base)

    def reduced_to_original(self: nn.Module, protocol: Any) -> Any:
        reduced: Any = original.__reduce_ex__(self, protocol)
        make, args, *rest = reduced
        own = tuple(original if arg is type(self) else arg for arg in args)
        return _made, (make, own), *rest  # pickle refuses `make` itself for another class

    kept = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {"__reduce_ex__": reduced_to_original, "_original": original}
    model.__class__ = type(base.__name__, (base,), kept | own | members)


def _made(make: Callable[..., nn.Module], args: tuple[Any, ...]) -> nn.Module:
    """A copy of a specialised model, of the model's own class."""
    return make(*args)


def _calibrated(
    loader: DataLoader[Any],
    epsilon: float | None,
    delta: float | None,
    epochs: int | None,
    clip: float | None,
    aggregation: Aggregation | None,
) -> Plan:
    """The plan with the least noise for (ε, δ) over this many epochs of the loader."""
    if epsilon is None or delta is None or epochs is None:
        given = {"epsilon": epsilon, "delta": delta, "epochs": epochs}
        missing = [name for name, value in given.items() if value is None]
        raise ArgumentError(
            missing[0],
            "to be given",
            got=None,
            why="epsilon, delta and epochs are all needed, unless there is a plan",
        )
    if aggregation is None:
        aggregation = Sum(clip=1.0 if clip is None else clip, noise_multiplier=1.0)
    elif clip is not None:
        raise ArgumentError("clip", "None with an aggregation, which has its own", got=clip)
    records, batch = len(loader.dataset), loader.batch_size  # type: ignore[arg-type]
    assert batch is not None
    return Plan(
        sampling_rate=min(1.0, batch / records),
        steps=_validate.count(1, epochs=epochs) * len(loader),
        aggregation=aggregation,
        expected_batch=min(batch, records),
        relation=ZERO_OUT,
    ).calibrate(epsilon=epsilon, delta=delta)


def _refuse_with_plan(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(name, "None with a plan, which prescribes it", got=value)
