"""From the settings of a `Trainer` to a plan, and the checks of a run before it is charged.

Settings that would break the plan are refused. A run is tried on public records: noise moves every
trained weight, so one in which the loss reaches no adapter would look alive.
"""

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from transformers import Trainer
from transformers.trainer_utils import IntervalStrategy

from prudent import _validate
from prudent._files import sha256
from prudent._validate import ArgumentError
from prudent._warning import warn
from prudent.training.adapters.private import PrivacyTarget
from prudent.training.checking import listed, unreached
from prudent.training.gradients import Engine
from prudent.training.plan import Plan
from prudent.training.run.checkpoint import CHECKPOINT, load_checkpoint
from prudent.training.run.execution import check_step


def _among(*names: str) -> Callable[[Any], bool]:
    return lambda value: any(name in str(getattr(value, "value", value)) for name in names)


def _accumulates(config: Any) -> bool:
    return "num_steps" in (getattr(config, "gradient_accumulation_kwargs", None) or {})


_ONE, _SET = "a step is one Poisson batch", "Set gradient_accumulation_steps instead of num_steps."
_POISSON = "the price is for Poisson batches"
_OWN = "it computes gradients of its own"
_SIZE = "the size of a drawn batch is private"
_BF16 = "Use bf16=True: parameters, norms and noise stay in single precision."
_ACCUMULATE = "Lower per_device_train_batch_size and raise gradient_accumulation_steps."

REFUSALS: tuple[tuple[str, Callable[[Any], bool], str, str, str], ...] = (
    # the setting, whether a value is refused, what is allowed, what it would break, what to do
    ("fp16", bool, "False", "steps that overflow are skipped: records decide which", _BF16),
    ("train_sampling_strategy", lambda value: str(value) != "random", "'random'", _POISSON, ""),
    ("group_by_length", bool, "False", _POISSON, ""),
    ("auto_find_batch_size", bool, "False", "restarts are not counted", _ACCUMULATE),
    ("include_num_input_tokens_seen", lambda v: v not in (False, None, "no"), "'no'", _SIZE, ""),
    ("skip_memory_metrics", lambda value: not value, "True", _SIZE, ""),
    ("ignore_data_skip", bool, "False", "a resumed run would draw batches already used", ""),
    ("optim", _among("lomo", "layerwise"), "another", "it updates before noise is added", ""),
    ("deepspeed", bool, "None", _OWN, "Use prudent.fit."),
    ("fsdp", bool, "unset", _OWN, "Use prudent.fit with a model divided by fully_shard."),
    ("torch_compile", bool, "False", "a step is replayed as a CUDA graph instead", ""),
    ("world_size", lambda v: v > 1, "1", "each would draw for itself", "Use prudent.fit."),
    ("debug", bool, "unset", "it prints activations of records", ""),
    ("accelerator_config", _accumulates, "without gradient_accumulation_kwargs", _ONE, _SET),
    ("enable_jit_checkpoint", bool, "False", "its checkpoints hold no key", "Use save_steps."),
    ("n_gpu", lambda v: v > 1, "at most 1", _OWN, "Set CUDA_VISIBLE_DEVICES to one GPU."),
)


def check(kind: type[Trainer], args: Any, data: Any, evaluated: Any, held_out: Any = None) -> None:
    """Raise an error for arguments or settings that would break the guarantee."""
    if args is None:
        raise ArgumentError("args", "TrainingArguments", got=None)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        allowed, why = "a map-style data set with a length", "records are drawn by their numbers"
        raise ArgumentError("train_dataset", allowed, shown=type(data).__name__, why=why)
    public = evaluated.values() if isinstance(evaluated, dict) else [evaluated]
    for private, name in ((data, "the training set"), (held_out, "held_out_set")):
        if private is not None and any(one is private for one in public):
            why = "the results of an evaluation are shown"
            raise ArgumentError("eval_dataset", "of public records", shown=name, why=why)
    if kind.compute_loss is not Trainer.compute_loss:
        allowed, shown = "as Trainer has it", f"that of {kind.__name__}"
        why = "gradients are computed for one record at a time, and not by this method"
        hint = "Pass compute_loss_func(outputs, labels, num_items_in_batch), or let the model "
        hint += "return its loss."
        raise ArgumentError("compute_loss", allowed, shown=shown, why=why, hint=hint)
    for name, wrong, allowed, why, hint in REFUSALS:
        value = getattr(args, name, None)
        if value is not None and wrong(value):
            raise ArgumentError(name, allowed, got=value, why=why, hint=hint)
    if args.push_to_hub and _among("checkpoint")(args.hub_strategy):
        why = "a checkpoint holds the key of the noise, which can then be subtracted"
        allowed = "'end' or 'every_save'"
        raise ArgumentError("hub_strategy", allowed, got=args.hub_strategy.value, why=why)


def planned(args: Any, records: int, plan: Plan | None, wanted: PrivacyTarget) -> Plan:
    """The given plan, or one made of the settings with the noise that ε needs."""
    if (plan is None) == (wanted.epsilon is None):
        shown = "neither" if plan is None else "both"
        hint = "PrivateTrainer(..., epsilon=3.0, delta=1e-5) finds the noise for the settings."
        raise ArgumentError("epsilon", "or plan, one of the two", shown=shown, hint=hint)
    if wanted.delta is None:
        raise ArgumentError("delta", "in (0, 1), such as 1e-5", got=None, why="ε is for one δ")
    _validate.small_delta(delta=wanted.delta)
    if plan is not None:
        attrs.evolve(wanted, delta=None).refuse_beside_plan()
        if args.max_steps > 0 and args.max_steps != plan.steps:
            allowed = f"unset or plan.steps, {plan.steps}"
            raise ArgumentError("max_steps", allowed, got=args.max_steps)
        return plan
    # The expected number of records of a step: physical batch times accumulation.
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    rate = min(1.0, batch / records)
    # As many whole batches in an epoch as Trainer counts, so that the last ends where it says.
    epochs = math.ceil(round(args.num_train_epochs * math.ceil(round(1 / rate, 9)), 9))
    if wanted.aggregation is None and not args.max_grad_norm:
        why = "it bounds the gradient of each record"
        hint = "Or pass an aggregation with a clip of its own."
        raise ArgumentError("max_grad_norm", "> 0", got=args.max_grad_norm, why=why, hint=hint)
    steps = args.max_steps if args.max_steps > 0 else epochs
    return wanted.plan(rate, steps, float(args.max_grad_norm or 0.0), records)


def adapted(args: Any, plan: Plan) -> Any:
    """A copy of the settings with which Trainer's loop takes one private step per update.

    A step reads its physical batches itself, so nothing is accumulated outside of it. Each record's
    gradient is clipped in the step; the released gradient is not clipped again.
    """
    own = copy.copy(args)
    own.gradient_accumulation_steps = 1
    own.max_grad_norm = 0.0
    own.max_steps = plan.steps
    if plan.held_out is not None:
        own.eval_strategy, own.eval_steps = IntervalStrategy.STEPS, plan.held_out.every
    return own


def restorable(folder: Any, run: Mapping[str, Any]) -> dict[str, Any]:
    """The secret state in a checkpoint, which must be intact and of this run."""
    refused = partial(ArgumentError, "resume_from_checkpoint")
    subtracted = "the same noise on other sums could be subtracted"
    state = None if folder is None else load_checkpoint(Path(folder), torch.device("cpu"))
    if state is None:
        why = "without its key the steps since then would be repeated with other noise"
        raise refused("a complete checkpoint of a PrivateTrainer", got=folder, why=why)
    if damaged := state.get("files", {}).items() - digests(Path(folder)).items():
        shown = f"{str(folder)!r}, whose {min(damaged)[0]} is damaged or missing"
        hint = "Restore the file from a copy, or resume from an earlier checkpoint."
        raise refused("an intact checkpoint", shown=shown, why=subtracted, hint=hint)
    for name, value in run.items():
        if state[name] != value:
            allowed = f"a checkpoint with the same {name}"
            hint = "Resume with the plan and the data with which the run was started, or "
            hint += "start again in another output_dir."
            raise refused(allowed, shown="another", why=subtracted, hint=hint)
    return state


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that Trainer wrote to a checkpoint, by name; ours has its own."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / CHECKPOINT
    }


_FREE = (
    *("save_", "logging_", "log_", "eval_", "hub_", "dataloader_", "trackio_", "output_dir"),
    *("overwrite_output_dir", "run_name", "project", "disable_tqdm", "report_to", "push_to_hub"),
    *("resume_from_checkpoint", "metric_for_best_model", "greater_is_better"),
    "load_best_model_at_end",
)
"""How the names of settings begin that no step depends on."""


def decisive(args: Any) -> dict[str, Any]:
    """The settings of `TrainingArguments` that a step depends on."""
    return {name: v for name, v in args.to_dict().items() if not name.startswith(_FREE)}


def check_reach(engine: Engine, inputs: Any, targets: Any = ()) -> None:
    """Raise an error if the loss of public records reaches nothing that is trained, or warn."""
    unused = unreached(engine, inputs, targets)
    if len(unused) == sum(p.requires_grad for p in engine.model.parameters()):
        allowed = "with a loss that depends on its trained parameters"
        shown, why = f"one that reaches none of {listed(unused)}", "only noise would move them"
        hint = "Check which parameters require gradients and what the model returns as its loss."
        raise ArgumentError("model", allowed, shown=shown, why=why, hint=hint)
    if unused:
        warn(
            f"The loss of public records does not reach {listed(unused)}: only noise will move "
            "them. Freeze them with requires_grad_(False)."
        )


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise an error unless the optimizer has every trained parameter of the model, and no other.

    The gradient of a parameter that the model does not have would be used without noise.
    """
    check_step(getattr(optimizer, "optimizer", optimizer))  # as accelerate has wrapped it
    own, held = dict(model.named_parameters()), set[nn.Parameter]()
    held.update(p for group in optimizer.param_groups for p in group["params"])
    missed = [name for name, p in own.items() if p.requires_grad and p not in held]
    if missed:
        allowed = "with every trained parameter of the model"
        shown = f"one without {listed(missed)}"
        why = "they would never move, and their noise would still be paid for"
        hint = "Make the optimizer after adapters are added and layers are frozen."
        raise ArgumentError("optimizer", allowed, shown=shown, why=why, hint=hint)
    if not held <= set(own.values()):
        allowed = "with parameters of the model alone"
        why = "their gradients would be used without clipping and noise"
        raise ArgumentError("optimizer", allowed, shown="one with others", why=why)
