"""What a checkpoint of a `PrivateTrainer` must be, for the run to go on from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prudent._files import sha256
from prudent._fingerprint import fingerprint
from prudent._validate import ArgumentError
from prudent.training.run.checkpoint import CHECKPOINT, load_checkpoint
from prudent.training.run.resuming import Identity, machine


def restorable(folder: Any, run: Mapping[str, Any]) -> dict[str, Any]:
    """The secret state in a checkpoint, which must be intact and of this run."""
    state = None
    if folder is not None:
        state = load_checkpoint(Path(folder), torch.device("cpu"))
    if state is None:
        raise ArgumentError(
            "resume_from_checkpoint",
            "a complete checkpoint of a PrivateTrainer",
            got=folder,
            why="without its key the steps since then would be repeated with other noise",
        )
    if damaged := state.get("files", {}).items() - digests(Path(folder)).items():
        raise ArgumentError(
            "resume_from_checkpoint",
            "an intact checkpoint",
            shown=f"{str(folder)!r}, whose {min(damaged)[0]} is damaged or missing",
            why="the same noise on other sums could be subtracted",
            hint="Restore the file from a copy, or resume from an earlier checkpoint.",
        )
    for name, value in run.items():
        if state[name] != value:
            raise ArgumentError(
                "resume_from_checkpoint",
                f"a checkpoint with the same {name}",
                shown="another",
                why="the same noise on other sums could be subtracted",
                hint="Resume with the plan and the data with which the run was started, or "
                "start again in another output_dir.",
            )
    return state


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that Trainer wrote to a checkpoint, by name; ours has its own."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / CHECKPOINT
    }


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
