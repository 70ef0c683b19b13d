"""Checks of the arguments of a step, made before any record is read."""

import torch
from torch import nn

from prudent._validate import ArgumentError, instance, positive
from prudent.training.corruption_hook import Corrupt, Corruption
from prudent.training.gradients import Engine
from prudent.training.parallel.processes import Processes
from prudent.training.plan import Plan


def divisor(plan: Plan, expected_batch: float | None) -> float:
    """The public batch size by which the sum is divided: the plan's own, else the given one."""
    instance(Plan, "a Plan", plan=plan)
    batch = plan.expected_batch if plan.expected_batch is not None else expected_batch
    if batch is None:
        raise ArgumentError(
            "expected_batch",
            "in the plan or as an argument of the step",
            got=None,
            why="the sum is divided by it",
            hint="Use the sampling rate times the public number of records.",
        )
    return positive(expected_batch=batch)


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter; raises an error if there is none."""
    for parameter in instance(nn.Module, "a torch module", model=model).parameters():
        return parameter.device
    raise ArgumentError("model", "with parameters to train", shown=type(model).__name__)


def check_processes(processes: Processes) -> Processes:
    """The processes of a run; raises an error for anything else."""
    return instance(Processes, "processes of a run", processes=processes)


def check_parameter_types(model: nn.Module) -> None:
    """Raise an error for parameter types in which the bounds on sums and noise would not hold."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or parameter.dtype in (torch.float32, torch.float64):
            continue
        given = f"Expected trained parameters in float32 or float64, got {parameter.dtype} for "
        if parameter.is_complex():
            raise ValueError(
                f"{given}{name!r}: the real and imaginary parts of complex noise each have only "
                "half its variance. Train torch.view_as_real of the parameter, and apply "
                "torch.view_as_complex in the model."
            )
        raise ValueError(
            f"{given}{name!r}: rounding would let one record change the sum by more than the clip. "
            "Keep the parameters in float32 and run the layers under torch.autocast."
        )


def check_corrupt(corrupt: Corrupt | None) -> None:
    """Raise an error for a corruption that has not been told the number of records."""
    if isinstance(corrupt, Corruption):
        raise ArgumentError(
            "corrupt",
            "a function of gradients, a Chunk and a generator",
            shown=f"{type(corrupt).__name__}, which needs the number of records",
            hint="Pass corrupt.hook(records, device), or pass the corruption to fit.",
        )


def check_compilable(
    processes: int, engine: Engine | None, corrupt: Corrupt | None, device: torch.device
) -> None:
    """Raise an error if a step with these arguments cannot be compiled."""
    if processes > 1:
        raise ArgumentError(
            "compile",
            f"False with {processes} processes, which communicate within a step",
            got=True,
        )
    if engine is not None and engine.recompute:
        raise ValueError(
            "Expected recompute or compile, got both: a compiled step would draw new dropout "
            "masks for the sum, and the norms would not bound it. Leave compile unset."
        )
    if corrupt is not None and device.type == "cpu":
        raise ValueError(
            "Expected corrupt or compile on the CPU, got both: a corruption may inspect values, "
            "and a compiled step would run that code only once. Leave compile unset."
        )
