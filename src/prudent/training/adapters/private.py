"""Private training in a loop of your own: the model, optimizer and loader of `make_private`."""

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import attrs
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.relations import ZERO_OUT
from prudent.budget import LedgerLike
from prudent.records.people import Unit, Units
from prudent.training.adapters.private_optimizer import (
    Preparation,
    PrivateOptimizer,
    check_capturable,
)
from prudent.training.aggregation import Aggregation, Sum
from prudent.training.checking.check import refuse_untrainable, replace_unsupported_layers
from prudent.training.gradients.caller_loss import Reduction
from prudent.training.gradients.engine import Loss
from prudent.training.keystream import Key, given_or_random
from prudent.training.plan import HeldOut, LossRelease, Plan, warn_of_delta
from prudent.training.run.charging import RunCharge
from prudent.training.run.held_out import HeldOutRecords
from prudent.training.sampling import PoissonLoader, PoissonSampler, check_replaceable

Model = TypeVar("Model", bound=nn.Module)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_OPACUS = {
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


def opacus_migration_errors(**own: str | None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A decorator of functions that answer the names of Opacus with their own.

    `own` are answers that are not the usual ones; None for an argument in common with Opacus.
    """
    table = {name: ours for name, ours in (_OPACUS | own).items() if ours is not None}

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


@opacus_migration_errors(noise_multiplier=None)
def make_private(
    model: Model,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    clip: float | None = None,
    noise_multiplier: float | None = None,
    aggregation: Aggregation | None = None,
    num_bands: int | None = None,
    plan: Plan | None = None,
    watch: LossRelease | None = None,
    held_out: HeldOut | None = None,
    held_out_set: Any = None,
    held_out_loss: Loss | None = None,
    held_out_unit: Any = None,
    loss_reduction: str = "mean",
    max_physical_batch: int | None = None,
    example: Any = None,
    unit: Any = None,
    records_per_person: int | None = None,
    per_unit: str | None = None,
    fix: bool = False,
    key: Key | None = None,
    ledger: LedgerLike | None = None,
) -> tuple[Model, PrivateOptimizer, PoissonLoader]:
    """Make a training loop private: returns its model, optimizer and loader, to use as before.

        model, optimizer, loader = prudent.make_private(
            model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=10
        )
        for epoch in range(10):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()

    Give either `epsilon`, `delta` and `epochs`, for which the least noise is found; or
    `noise_multiplier` and `epochs`; or a `plan`.

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
        noise_multiplier: The standard deviation of the noise divided by `clip`, instead of
            `epsilon`: `optimizer.plan.epsilon(delta)` then tells what the run costs.
        aggregation: What a step releases, such as `ProposeTestRelease`; its noise is replaced.
            Clipped sums with noise, as in DP-SGD, unless given.
        num_bands: Correlated noise over so many steps, as in `Plan`; 1 unless given.
        plan: Prescribes everything: rate, steps, aggregation with its noise, and relation.
        watch: The training loss as a release, as in a plan, if there is none: pass the losses of
            each batch to `optimizer.watch(losses)` before the step, one for each row, and find
            their noisy mean in `optimizer.released` after it.
        held_out: The accuracy or loss on held-out records as a release, as in a plan, if there is
            none; it is in `optimizer.released` after the steps in which it is released.
        held_out_set: The private records of which it is released, as for `fit`: pairs of the
            model's inputs and targets, read by the loader's `collate_fn`.
        held_out_loss: Maps outputs and targets to one loss per record, for `metric="loss"`.
        held_out_unit: As for `fit`.
        loss_reduction: Whether the loss of a batch is the "mean" or the "sum" over its records.
        max_physical_batch: Largest number of records whose activations are in memory. A larger
            batch is run in parts, which takes three to four times as long; the loop stays the same.
        example: A public item, as for `fit`, which declares the form of items: required unless the
            data set is a `TensorDataset`. With a `collate_fn` that pads to the longest item, every
            record is padded to the example's length.
        unit: Who each record belongs to, as for `fit`. Batches are then drawn of people, of whom
            `batch_size` are expected, and a person's gradient is clipped once. A batch holds
            `records_per_person` rows for each of them, one person after another: keep the rows in
            this order. Rows that a person has no record for repeat one of hers and count nothing.
        records_per_person: As for `fit`.
        per_unit: As for `fit`.
        fix: Replace layers that mix records, such as batch normalisation, by others where that is
            possible (`prudent.training.checking.check`), and print each replacement. Parameters
            stay the same objects.
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
        whether a model and a loss meet the conditions. With a `unit`, neighbours differ in one
        person, with any number of records.

    | case | what happens |
    |---|---|
    | evaluation mode, or no gradients enabled | the model runs as it always did |
    | empty batch | only noise is released, and charged |
    | layer that mixes records, as batch normalisation | refused at once; `fix=True` replaces it |
    | two backward passes before a step, two steps on a batch | refused |
    | rows that are not one per drawn record | refused |
    | mean with class weights, of whatever is computed from the outputs | refused |
    | mean with ignored labels (`ignore_index`) | divided by the number of all labels |
    | record that cannot be read, or whose form differs from most | as if it had not been drawn |
    | parameter that the loss reaches other than through the model's outputs | refused |
    | batch of the loader without a step on it before the next | refused |
    | step that releases the loss, without `optimizer.watch` | refused |
    | step after the plan's last | refused |
    | record whose gradient is not finite | counts as zero |

    Raises:
        ArgumentError: If an argument is missing or does not fit the others.
    """
    given = dict(locals())  # all but the optimizer are arguments of `prepare`
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.instance(torch.optim.Optimizer, "a torch optimizer", optimizer=given.pop("optimizer"))
    preparation = prepare(**given)
    return model, PrivateOptimizer(optimizer, preparation), preparation.loader


@attrs.frozen(kw_only=True)
class PrivacyTarget:
    """What a plan is to be, where none is given; None: nothing is said of it."""

    epsilon: float | None = None
    delta: float | None = None
    epochs: int | None = None
    clip: float | None = None
    noise_multiplier: float | None = None
    aggregation: Aggregation | None = None
    num_bands: int | None = None
    watch: LossRelease | None = None
    held_out: HeldOut | None = None

    def refuse_beside_plan(self) -> None:
        """Raise an error for what a plan prescribes itself."""
        for name, value in attrs.asdict(self, recurse=False).items():
            if value is not None:
                raise ArgumentError(name, "None with a plan, which prescribes it", got=value)

    def in_epochs(self, batch: int, count: int, batches: int) -> Plan:
        """The plan for epochs of so many batches, of an expected size, of `count` records."""
        given = self.noise_multiplier is not None
        for name in ("epochs",) if given else ("epsilon", "delta", "epochs"):
            if getattr(self, name) is None:
                raise ArgumentError(
                    name,
                    "to be given",
                    got=None,
                    why="epsilon, delta and epochs are all needed, or noise_multiplier and epochs, "
                    "unless there is a plan",
                )
        for name in ("epsilon", "aggregation") if given else ():
            if getattr(self, name) is not None:
                raise ArgumentError(
                    name, "None with a noise_multiplier, which prescribes the noise", shown="one"
                )
        if self.aggregation is not None and self.clip is not None:
            raise ArgumentError(
                "clip", "None with an aggregation, which has its own", got=self.clip
            )
        if not (count and batches):  # both are public: the rate says so
            raise ArgumentError("loader", "with at least one batch of records", shown="none")
        steps = _validate.count(1, epochs=self.epochs) * batches
        clip = 1.0 if self.clip is None else self.clip
        public: Any = {"expected_batch": min(batch, count), "relation": ZERO_OUT}
        return self.plan(min(1.0, batch / count), steps, clip, count, **public)

    def plan(self, rate: float, steps: int, clip: float, count: int, **more: Any) -> Plan:
        """The plan with the noise given, or the least for (ε, δ); the clip is that of a sum."""
        noise = 1.0 if self.noise_multiplier is None else self.noise_multiplier
        plan = Plan(
            sampling_rate=rate,
            steps=steps,
            aggregation=self.aggregation or Sum(clip=clip, noise_multiplier=noise),
            num_bands=1 if self.num_bands is None else self.num_bands,
            watch=self.watch,
            held_out=self.held_out,
            **more,
        )
        if self.noise_multiplier is None:
            assert self.epsilon is not None
            assert self.delta is not None
            epsilon = _validate.positive(epsilon=self.epsilon)
            plan = plan.calibrate(epsilon=epsilon, delta=self.delta)
        warn_of_delta(self.delta, count)
        return plan


def prepare(
    model: nn.Module,
    loader: DataLoader[Any],
    *,
    plan: Plan | None = None,
    held_out_set: Any = None,
    held_out_loss: Loss | None = None,
    held_out_unit: Any = None,
    loss_reduction: str = "mean",
    max_physical_batch: int | None = None,
    example: Any = None,
    unit: Any = None,
    records_per_person: int | None = None,
    per_unit: str | None = None,
    fix: bool = False,
    key: Key | None = None,
    ledger: LedgerLike | None = None,
    **target: Any,
) -> Preparation:
    """Check the arguments of `make_private`, mend the model, find the noise, make the loader.

    `target` are those of a `PrivacyTarget`.
    """
    wanted = PrivacyTarget(**target)
    check_capturable(model)
    for done in replace_unsupported_layers(model) if _validate.flag(fix=fix) else ():
        print(done, file=sys.stderr)
    refuse_untrainable(model)
    check_replaceable(loader)
    if plan is not None:
        _validate.instance(Plan, "a Plan", plan=plan)
    units = Units.of(loader.dataset, Unit.given(unit, records_per_person, per_unit))
    if plan is None:
        assert loader.batch_size is not None
        batches = len(loader) if units.people is None else -(-len(units) // loader.batch_size)
        plan = wanted.in_epochs(loader.batch_size, len(units), batches)
    else:
        wanted.refuse_beside_plan()
        plan.refuse_allocation()
        batches = max(1, round(1 / plan.sampling_rate))
    if max_physical_batch is not None:
        _validate.count(1, max_physical_batch=max_physical_batch)
    charge = RunCharge(ledger, plan, wanted.delta, protected=units.protected)
    key = given_or_random(key)
    return Preparation(
        model,
        charge,
        PoissonLoader(
            loader,
            PoissonSampler(len(units), plan.turn_rate, key=key, num_bands=plan.num_bands),
            batches,
            example,
            charge=charge,
            units=units,
        ),
        Reduction(_validate.one_of(("mean", "sum"), loss_reduction=loss_reduction)),
        max_physical_batch,
        key,
        HeldOutRecords.of(
            plan,
            held_out_set,
            held_out_loss,
            trained=units,
            ids=held_out_unit,
            collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
            example=example,
            batch=max_physical_batch,
        ),
    )
