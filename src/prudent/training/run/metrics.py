"""Metrics of a run, on the terminal and in a file.

All of them were released and charged, or never depended on the data: the step, ε, the branch (and
so the pass rate), the trim, the noise, and the results of an evaluation on public data. The size of
a drawn batch, the true margin and the loss on training data are private, and never among them.

So to stop by what is shown, and to choose a model by it, is post-processing: the whole is at most
the price of the plan. A run that stops early costs no less than its plan. When it stopped depends
on what was released, and the ε of the steps taken is only that of a run whose length was fixed
before.
"""

import contextlib
import json
import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from prudent import _progress
from prudent._files import replacing, settle
from prudent._rounding import exact, nearest, rounded_up
from prudent._validate import ArgumentError
from prudent._warning import warn
from prudent.training.aggregation import AdaptiveTrim, FixedTrim, ProposeTestRelease
from prudent.training.parallel import has_shards
from prudent.training.plan import Plan
from prudent.training.run.checkpoint import resumable
from prudent.training.step import StepOutcome


@attrs.frozen(kw_only=True)
class Metrics:
    """The metrics of the steps since the previous entry.

    Attributes:
        step: Steps taken so far.
        epsilon: ε so far, at `delta`; None if no δ was given or the run is not private. A run that
            ends here because of what it has shown costs the ε of its plan.
        delta: δ of that ε.
        relation: The neighbouring relation of that ε, in words.
        pass_rate: Fraction of passed tests since the previous entry; None without a test.
        trim: F of the last step; 0 if nothing is trimmed.
        noise: Standard deviation of the noise on the last sum.
        evaluation: What the evaluation returned; if the plan releases losses, also the mean of
            those since the previous entry, `train_loss`, and the standard deviation of its noise,
            `train_loss_noise`; likewise `held_out_accuracy` or `held_out_loss`.
    """

    step: int
    epsilon: float | None
    delta: float | None
    pass_rate: float | None
    trim: int
    noise: float
    evaluation: dict[str, float]
    relation: str | None = None

    def plain(self) -> dict[str, Any]:
        """The metrics as a flat dictionary."""
        values: dict[str, Any] = attrs.asdict(self)
        evaluation: dict[str, Any] = values.pop("evaluation")
        return values | evaluation

    def numbers(self) -> dict[str, float]:
        """The public numbers by name, as loggers of other packages take them, without the step."""
        found = self.plain().items()
        return {n: v for n, v in found if isinstance(v, int | float) and n != "step"}


class Counters:
    """Sums over steps: of passed tests since the start of the run, and since the last reading."""

    def __init__(self, device: torch.device) -> None:
        # Separate tensors: saving a view in a checkpoint would save its private neighbours, too.
        self.passes, self._losses, self._looks = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)
        )
        self.read_step, self._read_passes = 0, 0.0  # at the last reading

    def add(self, outcome: StepOutcome) -> None:
        """Count a step, in place and without reading values from the device."""
        self.passes += outcome.passed
        self._losses += outcome.watched.nan_to_num(nan=0.0)
        self._looks += outcome.watched.isfinite()

    def pass_rate(self, step: int) -> float:
        """The pass rate since the last reading, which this one replaces."""
        passes = float(self.passes)
        rate = (passes - self._read_passes) / max(1, step - self.read_step)
        self.read_step, self._read_passes = step, passes
        return rate

    def loss(self, plan: Plan, expected_batch: float) -> tuple[float, float] | None:
        """The mean loss released since the last reading, if one was, and the deviation of noise."""
        if plan.watch is None or not (looks := int(self._looks)):
            return None
        mean = float(self._losses) / looks
        self._losses.zero_(), self._looks.zero_()
        return mean, plan.watch.deviation(expected_batch) / math.sqrt(looks)

    def restore(self, step: int, passes: Tensor) -> None:
        """Continue after `step` steps of a saved run, `passes` of which passed."""
        self.passes.copy_(passes)
        self.read_step, self._read_passes = step, float(self.passes)


class Recorder(contextlib.ExitStack):
    """Shows progress and writes metrics; when resuming, drops entries after the checkpoint."""

    def __init__(self, folder: Path | None, start: int, steps: int, *, progress: bool) -> None:
        super().__init__()
        self._path = None if folder is None else folder / "metrics.jsonl"
        if self._path is not None:
            with resumable():
                before = self._path.read_text(errors="replace") if self._path.exists() else ""
                kept = [line for line in before.splitlines() if start and _step_of(line) <= start]
                if (text := "".join(line + "\n" for line in kept)) != before:
                    with replacing(self._path) as file:
                        file.write(text)
        self._progress = Progress(
            BarColumn(bar_width=10),  # narrow, so that the line fits into 80 columns
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            console=Console(stderr=True),  # standard output is for results
            disable=not progress,
        )
        self._task = self._progress.add_task("", total=steps, completed=start, shown="")
        self.enter_context(self._progress)
        self.enter_context(_progress.part("steps", steps - start))

    def advance(self) -> None:
        """Advance the progress bar by one step."""
        self._progress.advance(self._task)
        _progress.advance()

    def record(self, metrics: Metrics) -> None:
        """Show and write an entry."""
        shown = []
        if metrics.epsilon is not None:
            shown.append(f"ε {rounded_up(metrics.epsilon, 4)}")
        if metrics.pass_rate is not None:
            shown.append(f"pass {metrics.pass_rate:.0%}")
        if metrics.pass_rate is not None or metrics.trim:
            shown.append(f"F {metrics.trim}")
        found = metrics.evaluation
        for name, value in found.items():
            if name.removesuffix("_noise") not in found or not name.endswith("_noise"):
                noise = f" ± {found[f'{name}_noise']:.2g}" if f"{name}_noise" in found else ""
                shown.append(f"{name} {value:.4g}{noise}")
        self._progress.update(self._task, shown=" · ".join(shown))
        if self._path is not None:
            with resumable(), self._path.open("a") as file:
                file.write(json.dumps(metrics.plain()) + "\n")
                settle(file)  # before the checkpoint, after which it is not written again


def last_entry(folder: Path) -> dict[str, Any]:
    """The last complete entry that a run has written to a folder, as `Metrics.plain` made it."""
    path = folder / "metrics.jsonl"
    for line in reversed(path.read_text(errors="replace").splitlines()):
        if math.isfinite(_step_of(line)):
            entry: dict[str, Any] = json.loads(line)
            return entry
    raise ValueError(f"Expected {str(path)!r} with the metrics of a run, got no complete entry.")


def _step_of(line: str) -> float:
    """The step of a line; infinity for a line that a kill left incomplete."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")


class BestModel:
    """Follows one number of the metrics of a run; none without patience, if no model is kept.

    One whose name ends in "loss" is better if it is lower.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        monitor: str | None,
        patience: int | None,
        *,
        keeps: bool,
    ) -> None:
        self.monitor, self._patience, self.keeps = monitor, patience, keeps
        self.value: float | None = None  # the best value so far
        self.step: int | None = None  # the step that it is from
        self.waited = 0  # how many times in a row the value was not better
        self.model: dict[str, Tensor] | None = None  # of the best value, if it is kept
        self._certain = True  # whether the plan releases this number, though not every time
        if patience is None and not keeps:
            self.monitor = None
            return
        released = [] if plan.held_out is None else [plan.held_out.name]
        released += [] if plan.watch is None else ["train_loss"]
        if monitor is None and not released:
            hint = "Name a result of evaluate, or give the plan a prudent.HeldOut."
            raise ArgumentError("monitor", _A_NUMBER, got=None, hint=hint)
        if keeps and has_shards(model):
            raise ArgumentError("keep_best", "False for a model sharded by fully_shard", got=True)
        self.monitor = released[0] if monitor is None else monitor
        self._certain = self.monitor in released

    @property
    def is_over(self) -> bool:
        """Whether the run ends here."""
        return self._patience is not None and self.waited >= self._patience

    def follow(self, step: int, value: float | None, model: nn.Module) -> None:
        """Compare a new value of a model with the best; None: there was none this time."""
        best, lower = self.value, str(self.monitor).endswith("loss")
        if value is None:
            self.check(())
        elif not math.isnan(value) and (best is None or (value < best if lower else value > best)):
            self.value, self.step, self.waited = value, step, 0
            if self.keeps:
                self.model = {name: v.detach().clone() for name, v in model.state_dict().items()}
        else:
            self.waited += 1

    def check(self, shown: Container[str | None]) -> None:
        """Raise an error if what an evaluation shows is not what is followed."""
        if not self._certain and self.monitor not in shown:
            raise ArgumentError("monitor", _A_NUMBER, got=self.monitor)

    @torch.no_grad()
    def restore_best(self, model: nn.Module) -> None:
        """Copy the best model into the model, if there is one."""
        if self.keeps and self.model is not None:
            model.load_state_dict(self.model)

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint holds of it."""
        names = "monitor", "value", "step", "waited", "model"
        return None if self.monitor is None else {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint, unless it followed another number or kept no model."""
        if state is None or state["monitor"] != self.monitor:
            return
        if not self.keeps or state["model"] is not None or state["step"] is None:
            for name, value in state.items():
                setattr(self, name, value)


_A_NUMBER = "the name of a number that the run shows"
_RARE = 0.05


def warn_if_no_test_passes(plan: Plan, expected_batch: float) -> None:
    """Warn of a test that no data could pass often: it costs, and `Sum` does the same for less."""
    rule = plan.aggregation
    if not isinstance(rule, ProposeTestRelease):
        return
    trim, share = rule.trim, 1.0
    if isinstance(trim, AdaptiveTrim):
        share = trim.most
    elif isinstance(trim, FixedTrim):
        share = trim.share
    most = math.floor(share * expected_batch)
    chance = rule.test.tail(rule.threshold - most)
    if chance < _RARE:
        warn(
            f"The test hardly ever passes, whatever the data: the noisy margin must exceed "
            f"{nearest(rule.threshold, 3)} records, and the margin is at most {most}, the "
            f"largest number of trimmed gradients in batches of {exact(expected_batch)}. "
            f"It passes with probability at most {rounded_up(chance, 1)}. Use a test of a "
            "smaller scale, a larger batch or a larger failure; prudent.Sum costs less than a "
            'test that fails. The section "Choosing clip, propose and trim" of the training guide '
            "says how to choose them from public data."
        )
