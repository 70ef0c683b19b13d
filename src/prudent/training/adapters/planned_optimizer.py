"""An optimizer whose gradients a plan releases, for training loops that are not our own."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prudent.accounting.calibration import Accountant
from prudent.accounting.pld_accountant import PldAccountant
from prudent.training.chunk import Chunk
from prudent.training.gradients import Engine, Formed, Gradients
from prudent.training.gradients.engine import Parameters, Read
from prudent.training.gradients.results import Values
from prudent.training.gradients.unsupported import refuse_unsupported
from prudent.training.keystream import Key
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge
from prudent.training.step import Step, StepOutcome

_RELEASED: dict[str, int] = {}
"""Steps that this process has counted of each run, whichever optimizer took them."""


class PlannedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: each step releases the gradients of a batch as a plan prescribes.

    Parameter groups and state are those of the wrapped optimizer, so schedulers act on it.

    Args:
        optimizer: Any torch optimizer over parameters of the model.
        plan: Prescribes what is released.
        model: The model, unwrapped.
        expected_batch: The public batch size, if the plan has none.
        key: The key of the noise.
        charge: What the run is charged to; nothing unless given.

    Attributes:
        plan: The plan.
        outcome: Outcome of the last step, None before the first; its loss is NaN. See `StepOutcome`
            for the private fields.
        original_optimizer: The wrapped optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        model: nn.Module,
        *,
        expected_batch: float | None = None,
        key: Key,
        charge: RunCharge | None = None,
    ) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.plan = plan
        self.outcome: StepOutcome | None = None
        self._charge = RunCharge(None, plan) if charge is None else charge
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._release = Step(
            plan,
            model,
            _computed_elsewhere,
            expected_batch=expected_batch,
            engine=_Prepared(model, _computed_elsewhere),
            key=key,
        )
        self.wrap(optimizer)

    def wrap(self, optimizer: torch.optim.Optimizer) -> None:
        """Wrap another optimizer from now on; the steps taken so far still count."""
        self.original_optimizer = optimizer
        self._share()
        self.trained()

    @property
    def steps(self) -> int:
        """Number of logical batches released so far."""
        return self._release.taken

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Release the batch and update the parameters; an incomplete batch is only stored.

        Args:
            closure: Called once; runs the forward and backward passes.

        Returns:
            What the closure returned, if there is one.
        """
        self._count(self.steps)
        if self.steps >= self.plan.steps:
            raise ValueError(
                f"Expected at most plan.steps = {self.plan.steps} steps, got one more. They are "
                "all the plan's epsilon pays for; make a plan of more steps before training."
            )
        self._charge.pay()
        answer = None
        if closure is not None:
            with torch.enable_grad():
                answer = closure()
        gradients = self._take()
        if gradients is None:
            return answer
        # Autograd's own sums are neither clipped nor noisy, so all of them must be removed.
        self.original_optimizer.zero_grad(set_to_none=True)
        self.outcome = self._release([Chunk(each) for each in gradients])
        self._count(self.steps)
        self._charge.note_release()
        self.original_optimizer.step()
        return answer

    @abstractmethod
    def _take(self) -> Sequence[Gradients] | None:
        """The gradients of a logical batch, ordered by record id; None while it is incomplete."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        self.original_optimizer.zero_grad(set_to_none)

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
            "steps": self.steps,
            "trim": self._release.trim.clone(),
            "optimizer": self.original_optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state of the same plan; steps already taken here still count.

        If the state was saved earlier in this run, its steps are already among those taken here; if
        it comes from another run, they are not, and neither are those that the other run has taken
        in this process since then.
        """
        if state_dict["plan"] != repr(self.plan):
            raise ValueError(
                "Expected the state of a run of this plan, got one of another: "
                f"{state_dict['plan']}. Its steps have another price; begin with that plan."
            )
        self.original_optimizer.load_state_dict(state_dict["optimizer"])
        self._share()
        run = state_dict["run"]
        loaded = max(int(state_dict["steps"]), _RELEASED.get(run, 0))
        steps = loaded if run == self._charge.name else self.steps + loaded
        self._release.state.load_state_dict({"trim": state_dict["trim"], "taken": steps})
        self._charge.resume(run)
        self._count(steps)

    def _count(self, steps: int) -> None:
        """Count all steps of the run that this process has taken; the counter never goes back."""
        run = self._charge.name
        steps = max(steps, self.steps, _RELEASED.get(run, 0))
        _RELEASED[run] = steps
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


def _computed_elsewhere(outputs: Any, targets: Any) -> Tensor:
    """A placeholder for the loss of a step: the training loop computes its own."""
    raise NotImplementedError("The training loop computes the loss.")
