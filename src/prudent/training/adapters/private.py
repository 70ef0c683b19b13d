"""Private training in a loop of your own: `make_private`, and the optimizer that it returns."""

import functools
import operator
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from prudent import _validate
from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent._warning import warn_of_delta
from prudent.accounting.calibration import Accountant
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.relations import ZERO_OUT
from prudent.budget import LedgerLike
from prudent.records.people import Unit, Units
from prudent.training.aggregation import Aggregation, Sum
from prudent.training.checking import replace_unsupported_layers
from prudent.training.chunk import Chunk
from prudent.training.gradients import Engine, Formed, Gradients
from prudent.training.gradients.caller_loss import OutsideLoss, Pass, Reduction, computed_outside
from prudent.training.gradients.engine import (
    Loss,
    Parameters,
    Read,
    Values,
    by_person,
    count_records,
    modes_kept,
)
from prudent.training.gradients.output_guard import plain
from prudent.training.gradients.unsupported import refuse_unsupported
from prudent.training.keystream import Key, NoCopyMixin, given_or_random
from prudent.training.plan import HeldOut, LossRelease, Plan
from prudent.training.run.charging import RunCharge
from prudent.training.run.execution import check_step
from prudent.training.run.reading import HeldOutRecords
from prudent.training.sampling import Drawn, PoissonLoader, PoissonSampler, check_replaceable
from prudent.training.step import Step, StepOutcome, refuse_anomaly_detection

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
            if foreign := [name for name in kwargs if name in table]:
                answers = "".join(f"\n  instead of {name}: {table[name]}" for name in foreign)
                own_name = function.__qualname__.removesuffix(".__init__")
                common = f"{own_name} has other names for what Opacus calls {', '.join(foreign)}"
                raise TypeError(f"{common}:{answers}")
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
) -> tuple[Model, "PrivateOptimizer", PoissonLoader]:
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
            `epsilon`: `optimizer.plan.epsilon(delta)` then tells the price.
        aggregation: What a step releases, such as `ProposeTestRelease`; its noise is replaced.
            Clipped sums with noise, as in DP-SGD, unless given.
        num_bands: Correlated noise over so many steps, as in `Plan`; 1 unless given.
        plan: Prescribes everything: rate, steps, aggregation with its noise, and relation.
        watch: The training loss as a release, as in a plan: pass the losses of each batch to
            `optimizer.watch(losses)` before the step, one for each row.
        held_out: The accuracy or loss on held-out records as a release, as in a plan. What a step
            has released is in `optimizer.released` after it.
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
            possible (`prudent.training.checking`), and print each replacement. Parameters
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
        person, with any number of records. A run that goes on from a saved state has not counted
        the steps that were taken after it was saved: save after every step that is shown, and go
        on from a state once.

    | case | what happens |
    |---|---|
    | evaluation mode, or no gradients enabled | the model runs as it always did |
    | empty batch | only noise is released, and charged |
    | layer that mixes records, as batch normalisation | refused at once; `fix=True` replaces it |
    | two backward passes before a step, two steps on a batch | refused |
    | rows that are not one per drawn record | refused |
    | mean with class weights, or a loss computed after a value of the batch was read | refused |
    | mean with ignored labels (`ignore_index`) | divided by the number of all labels |
    | label out of range, of `cross_entropy`, `gather` or an index | contributes nothing |
    | record that cannot be read, or whose form differs from most | as if it had not been drawn |
    | parameter that the loss reaches other than through the model's outputs | refused |
    | batch of the loader without a step on it before the next | refused |
    | step that releases the loss, without `optimizer.watch` | refused |
    | step after the plan's last | refused |
    | record whose gradient is not finite | counts as zero |

    Raises:
        ArgumentError: If an argument is missing or does not fit the others.
    """
    given = dict(locals())  # all but the optimizer are arguments of a `Preparation`
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.instance(torch.optim.Optimizer, "a torch optimizer", optimizer=given.pop("optimizer"))
    preparation = Preparation(**given)
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
        why = "epsilon, delta and epochs are all needed, or noise_multiplier and epochs, unless "
        why += "there is a plan"
        for name in ("epochs",) if given else ("epsilon", "delta", "epochs"):
            if getattr(self, name) is None:
                raise ArgumentError(name, "to be given", got=None, why=why)
        for name in ("epsilon", "aggregation") if given else ():
            if getattr(self, name) is not None:
                allowed = "None with a noise_multiplier, which prescribes the noise"
                raise ArgumentError(name, allowed, shown="one")
        if self.aggregation is not None and self.clip is not None:
            allowed = "None with an aggregation, which has its own"
            raise ArgumentError("clip", allowed, got=self.clip)
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


class Preparation:
    """A private loop before there is an optimizer: its arguments are those of `make_private`.

    They are checked, the model is mended, the noise is found. `target` are those of a
    `PrivacyTarget`.
    """

    def __init__(
        self,
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
    ) -> None:
        wanted = PrivacyTarget(**target)
        check_capturable(model)
        for done in replace_unsupported_layers(model) if _validate.flag(fix=fix) else ():
            print(done, file=sys.stderr)
        with modes_kept(model):  # a layer that training mode would let mix records, before it runs
            if not model.training:
                model.train()
            refuse_unsupported(model)
        check_replaceable(loader)
        units = Units.of(loader.dataset, Unit.given(unit, records_per_person, per_unit))
        if plan is None:
            assert loader.batch_size is not None
            batches = len(loader) if units.people is None else -(-len(units) // loader.batch_size)
            plan = wanted.in_epochs(loader.batch_size, len(units), batches)
        else:
            _validate.instance(Plan, "a Plan", plan=plan).refuse_allocation()
            wanted.refuse_beside_plan()
            batches = max(1, round(1 / plan.sampling_rate))
        if max_physical_batch is not None:
            _validate.count(1, max_physical_batch=max_physical_batch)
        self.charge = charge = RunCharge(ledger, plan, wanted.delta, protected=units.protected)
        self.key = given_or_random(key)
        sampler = PoissonSampler(len(units), plan.turn_rate, key=self.key, num_bands=plan.num_bands)
        self.held_out = HeldOutRecords.of(
            plan,
            held_out_set,
            held_out_loss,
            trained=units,
            ids=held_out_unit,
            collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
            example=example,
            batch=max_physical_batch,
        )
        self.loader = PoissonLoader(loader, sampler, batches, example, charge=charge, units=units)
        self.reduction = Reduction(_validate.one_of(("mean", "sum"), loss_reduction=loss_reduction))
        self.model, self.physical_batch = model, max_physical_batch


_RELEASED: dict[str, dict[str, int]] = {}
"""Steps of each run that this process knows of, by the random name of the optimizer that took
them."""

_TESTED: dict[str, set[int]] = {}
"""Numbers of steps of each run after which its held-out records were used."""


class PrivateOptimizer(NoCopyMixin, torch.optim.Optimizer):
    """The optimizer that `make_private` returns: each step releases a batch as a plan prescribes.

    It captures the model's forward passes in training mode; a step releases the gradients of the
    one pass whose backward has run since the last step. Parameter groups and state are those of the
    wrapped optimizer, so schedulers act on it. A second optimizer of a preparation would repeat its
    noise.

    Attributes:
        plan: What is released; `plan.epsilon(delta)` is the price of the whole run.
        outcome: Outcome of the last step, None before the first; its loss is NaN. See `StepOutcome`
            for the private fields.
        released: What the last step has released besides the gradient, by name, each with its
            noise: `train_loss` of a `LossRelease`, `held_out_accuracy` or `held_out_loss` of a
            `HeldOut`. Empty in all other steps.
        original_optimizer: The wrapped optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, preparation: Preparation) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._charge, self._key = preparation.charge, preparation.key
        self._held_out, self._loader = preparation.held_out, preparation.loader
        self.plan, model = self._charge.plan, preparation.model
        self.outcome: StepOutcome | None = None
        self.released: dict[str, float] = {}
        self._watched: Tensor | None = None
        self._shares: Tensor | None = None
        self._own = secrets.token_hex(8)
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._release = Step(
            self.plan,
            model,
            computed_outside,
            expected_batch=self.plan.sampling_rate * self._loader.count,
            engine=_Prepared(model, computed_outside),
            key=self._key,
            cuda_graph=False,  # the gradients of a batch are new objects
        )
        self.wrap(optimizer)
        self._ready: list[tuple[Pass, Drawn | None]] = []
        self._before: dict[str, tuple[Tensor | None, int]] = {}
        forward = functools.partial(type(model).forward, model)
        self._run_outside = OutsideLoss(
            model, forward, preparation.reduction, preparation.physical_batch
        )
        _capture(model, self._forward)
        if self._held_out is not None:
            self._held_out.rehearse(self._release)

    def wrap(self, optimizer: torch.optim.Optimizer) -> None:
        """Wrap another optimizer from now on; the steps taken so far still count."""
        check_step(optimizer)
        self.original_optimizer = optimizer
        self._share()
        self.trained()

    def __repr__(self) -> str:
        kind = type(self.original_optimizer).__name__
        return f"PrivateOptimizer({kind}, {self._charge.priced()})"

    @property
    def steps(self) -> int:
        """Number of logical batches released so far."""
        return self._release.taken

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Release the batch and update the parameters.

        Args:
            closure: Called once; runs the forward and backward passes.

        Returns:
            What the closure returned, if there is one.
        """
        self._count()
        self.plan.refuse_beyond(self.steps)
        self._charge.pay()
        answer = None
        if closure is not None:
            with torch.enable_grad():
                answer = closure()
        gradients = self._with_losses(self._take())
        # Autograd's own sums are neither clipped nor noisy, so all of them must be removed.
        self.original_optimizer.zero_grad(set_to_none=True)
        try:
            self.outcome = self._release([Chunk(each) for each in gradients])
        finally:
            self._count(self.steps - self._charge.taken)
        self._charge.note_release()
        self.original_optimizer.step()
        self.released = self._shown()
        return answer

    def watch(self, losses: Tensor) -> None:
        """Hand over the losses of a batch, before the step in which the plan releases their mean.

        Args:
            losses: One for each row of the batch, each a function of that row and its outputs, as
                `cross_entropy(outputs, targets, reduction="none")` returns them.
        """
        self._watched = plain(losses.detach()).reshape(-1)

    def _with_losses(self, gradients: Sequence[Gradients]) -> Sequence[Gradients]:
        """The gradients of a batch with the losses that were handed over, if this step needs them.

        Of a person it is the sum of her rows' losses times their shares.
        """
        watch, losses, self._watched = self.plan.watch, self._watched, None
        if watch is None or self.steps % watch.loss_every:
            return gradients
        slots, shares = self._loader.slots or 1, self._shares
        counts = [len(each.norms) for each in gradients]
        if losses is None or len(losses) != sum(counts) * slots:
            raise ValueError(
                "Expected optimizer.watch(losses) with one loss for each row of the batch before "
                "this step, in which the plan releases their mean, got none or another number."
            )
        if shares is not None:
            losses = losses * shares.to(losses.device, losses.dtype)
        parts = torch.split(by_person(losses, slots).sum(1), counts)
        both = zip(gradients, parts, strict=True)
        return [Gradients(g.norms, own.to(g.norms.device), g.weighted_sum) for g, own in both]

    def _shown(self) -> dict[str, float]:
        """What this step has released besides the gradient."""
        watch, held_out, outcome = self.plan.watch, self._held_out, self.outcome
        shown: dict[str, float] = {}
        if watch is not None and outcome is not None and (self.steps - 1) % watch.loss_every == 0:
            noise = watch.deviation(self._release.expected_batch)
            shown |= {"train_loss": float(outcome.watched), "train_loss_noise": noise}
        if held_out is not None and held_out.settings.is_due(self.steps, self.plan.steps):
            # Two optimizers of a run with bands may arrive at one step, which is paid for once.
            tested = _TESTED.setdefault(self._charge.name, set())
            if self.steps not in tested:
                tested.add(self.steps)
                shown |= held_out.release(self._release, self._key)
        return shown

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, including those of records that no step has used."""
        self._ready.clear()
        self.original_optimizer.zero_grad(set_to_none=True)

    def epsilon(self, delta: float, *, accountant: Accountant = PldAccountant) -> float:
        """The ε of the steps taken so far, for `plan.relation`.

        If the decision to stop depended on the model, use `plan.epsilon` instead: only that bound
        holds.
        """
        return self.plan.epsilon_after(self.steps, delta, accountant=accountant)

    def state_dict(self) -> dict[str, Any]:
        """The states of the wrapped optimizer and the step, and the number of charged steps."""
        return {
            "plan": repr(self.plan),
            "run": self._charge.name,
            "steps": dict(self._released),
            "tested": sorted(_TESTED.get(self._charge.name, ())),
            "trim": self._release.trim.clone(),
            "optimizer": self.original_optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state of the same plan; steps already taken here still count.

        So do those that any other optimizer has taken, here or in what the state was saved from:
        each is counted once, whichever states are loaded, and in whatever order.
        """
        if "plan" not in state_dict:
            raise ValueError(
                "Expected the state of a private optimizer, got one without a plan and its steps. "
                "Load the state of an ordinary optimizer before make_private."
            )
        if state_dict["plan"] != repr(self.plan):
            raise ValueError(
                "Expected the state of a run of this plan, got one of another: "
                f"{state_dict['plan']}. Its steps have another price; begin with that plan."
            )
        self.original_optimizer.load_state_dict(state_dict["optimizer"])
        self._share()
        run, own = state_dict["run"], self._released
        known = _RELEASED.setdefault(run, {})
        for name, taken in (*own.items(), *state_dict["steps"].items()):
            known[name] = max(known.get(name, 0), int(taken))
        own_tests = _TESTED.get(self._charge.name, set())
        _TESTED.setdefault(run, set()).update(own_tests, state_dict["tested"])
        self._charge.resume(run)
        self._release.state.load_state_dict({"trim": state_dict["trim"], "taken": self.steps})
        self._count()

    @property
    def _released(self) -> dict[str, int]:
        """The steps of the run by who took them."""
        return _RELEASED.setdefault(self._charge.name, {})

    def _count(self, more: int = 0) -> None:
        """Count steps of this optimizer, and go to where all of the run have arrived.

        Those of others are whole cycles: their records have parts of their own, which take turns.
        """
        released, cycle = self._released, self.plan.cycle
        released[self._own] = released.get(self._own, 0) + more
        others = (taken for name, taken in released.items() if name != self._own)
        steps = released[self._own] + sum(taken + -taken % cycle for taken in others)
        self._charge.taken = steps
        self._release.state.move_to(steps)

    def _share(self) -> None:
        """Share the wrapped optimizer's parameter groups, so that schedulers act on them."""
        self.param_groups = self.original_optimizer.param_groups
        self.state = self.original_optimizer.state
        self.defaults = self.original_optimizer.defaults

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer updates, by name.

        Recomputed at every step, since groups may be added.
        """
        groups = self.original_optimizer.param_groups
        parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        if any(parameter not in self._names for parameter in parameters):
            raise ValueError(
                "Expected an optimizer over parameters of the model alone, got others. Their "
                "gradients would be used as they are, without noise."
            )
        return {self._names[parameter]: parameter for parameter in parameters}

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a batch, one record at a time, in place of its own forward."""
        refuse_anomaly_detection()
        trained, self._watched = self.trained(), None
        self._before = {
            name: (p.grad, 0 if p.grad is None else p.grad._version) for name, p in trained.items()
        }
        random = self._release.randomness.at(self.steps + 1)
        unwatched = pytree.tree_map_only(Tensor, plain, (args, kwargs))
        drawn = self._loader.drawn(count_records(*unwatched))
        # What was not drawn has no people, and no step can be taken on it.
        slots = None if drawn is None else self._loader.slots
        ids, shares = (None, None) if drawn is None else drawn[:2]
        with random.seeded(), random.records(ids, slots=slots or 1).active():
            outputs, passed = self._run_outside(trained, args, kwargs, slots, shares)
        passed.is_drawn = drawn is not None
        passed.received = lambda ready: self._ready.append((ready, drawn))
        return outputs

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
        ((passed, drawn),) = ready
        self._loader.spend(drawn)
        self._shares = None if drawn is None else drawn.shares
        return passed.gradients()

    def _refuse_other_gradients(self) -> None:
        """Raise an error if backward has written to the parameters themselves."""
        reached, changed = [], []
        for name, parameter in self.trained().items():
            gradient, version = self._before.get(name, (None, 0))
            if parameter.grad is not None and parameter.grad is not gradient:
                reached.append(name)
            elif parameter.grad is not None and parameter.grad._version != version:
                changed.append(name)
        if changed:
            raise ValueError(
                f"Expected the gradients of {changed} as the last step left them, got others: "
                "torch.nn.utils.clip_grad_norm_ and the like change them between backward() and "
                "step(), or a loss has added to them by another way than the model's outputs. "
                "Leave clipping out: each record's gradient is clipped in the step, to the clip of "
                "the plan. Call optimizer.zero_grad() before backward()."
            )
        if reached:
            raise ValueError(
                f"Expected the loss to depend on the parameters through the model's outputs alone, "
                f"got a gradient of {reached} by another way, such as a penalty, a call of a part "
                "of the model, or a model in evaluation mode: it would be neither clipped nor "
                "noised. Use the optimizer's weight_decay for a penalty, call the model as a "
                "whole and in training mode, or make the part private that you call."
            )


def check_capturable(model: nn.Module) -> None:
    """Raise an error if the forward passes of a model cannot be captured."""
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        allowed, hint = "in one process, on one device", "Several processes may call prudent.fit."
        raise ArgumentError("model", allowed, shown=type(model).__name__, hint=hint)
    if hasattr(model, "_orig_mod"):
        hint = "Give the model itself, before torch.compile."
        raise ArgumentError("model", "that is not compiled", shown="one that is", hint=hint)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ArgumentError("model", "with a parameter that requires a gradient", shown="none")
    if getattr(type(model), "_is_captured", False):
        hint = "copy.deepcopy(model) is an ordinary copy of it."
        shown = "one that is already private"
        raise ArgumentError("model", "an ordinary model", shown=shown, hint=hint)


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
        return operator.call, (make, *own), *rest  # pickle refuses `make` itself for another class

    kept = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {"__reduce_ex__": reduced_to_original, "_original": original}
    model.__class__ = type(base.__name__, (base,), kept | own | members)


class _Prepared(Engine):
    """An engine for chunks whose inputs are gradients that have already been computed."""

    def read(self, parameters: Parameters, read: Read) -> Gradients:
        """The gradients of a chunk."""
        refuse_unsupported(self.model)
        gradients: Gradients
        gradients, _ = read()
        return gradients

    def rehearse(self, parameters: Parameters, read: Read) -> None:
        """Do nothing: there is no loss to try."""

    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        raise NotImplementedError("The gradients have already been computed.")
