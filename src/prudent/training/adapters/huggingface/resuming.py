"""What a `PrivateTrainer` keeps so that its run can be resumed under the rule of `run_identity`."""

from pathlib import Path
from typing import Any

import attrs
from torch import nn

from prudent._fingerprint import fingerprint
from prudent.training.plan import Plan
from prudent.training.run.checkpoint import Charge, charged, record_paid
from prudent.training.run_identity import PORTIONS, Identity, machine

_FREE = (
    "output_dir",
    "overwrite_output_dir",
    "run_name",
    "project",
    "disable_tqdm",
    "report_to",
    "resume_from_checkpoint",
    "push_to_hub",
    "metric_for_best_model",
    "greater_is_better",
    "load_best_model_at_end",
)
"""Settings of `TrainingArguments` that no step depends on, besides those of `_FREE_FAMILIES`."""

_FREE_FAMILIES = ("save_", "logging_", "log_", "eval_", "hub_", "dataloader_", "trackio_")


def identity_of(
    model: nn.Module,
    args: Any,
    *,
    records: str,
    loss: Any,
    reading: Any,
    optimizer: Any,
    execution: tuple[Any, ...],
) -> Identity:
    """The identity of a run; see `Identity` for the arguments."""
    settings = {
        name: value
        for name, value in args.to_dict().items()
        if name not in _FREE and not name.startswith(_FREE_FAMILIES)
    }
    return Identity(
        records=records,
        loss=fingerprint(loss, reading, restored=model),
        model=fingerprint(model, restored=model),
        optimizer=fingerprint(optimizer, settings),
        execution=repr((execution, args.bf16, args.per_device_train_batch_size)),
        processes="1",
        machine=machine(args.device),
    )


@attrs.define
class Journal:
    """Records how many steps are paid for, beside the checkpoints of a run, from the first one on.

    Attributes:
        plan: The plan of the run.
        name: A random public name, for a folder may hold several runs.
        renewals: How often the run has drawn a new key.
    """

    plan: Plan
    name: str
    renewals: int = 0
    _folders: set[Path] = attrs.field(factory=set, init=False)
    _paid: int = attrs.field(default=0, init=False)

    def begin(self, folder: Path, taken: int) -> None:
        """Keep the record in a folder that has a checkpoint, too."""
        if folder not in self._folders:
            self._folders.add(folder)
            record_paid(folder, self.plan, max(taken, self._paid), **self._named)

    def pay(self, taken: int) -> None:
        """Record that the steps after the first `taken` are paid for, before one is taken."""
        if taken >= self._paid and self._folders:
            portion = -(-self.plan.steps // PORTIONS)
            self._paid = min(self.plan.steps, taken + portion)
            for folder in self._folders:
                record_paid(folder, self.plan, self._paid, **self._named)

    def resume(self, name: str, renewals: int, folder: Path) -> Charge | None:
        """Go on with the record of a run in a folder; returns what it says."""
        self.name, paid = name, charged(folder, name)
        if paid is None:
            return None
        self.renewals = max(renewals, paid.renewals)
        self._folders.add(folder)
        self._paid = paid.steps
        return paid

    @property
    def _named(self) -> dict[str, Any]:
        return {"run": self.name, "renewals": self.renewals}
