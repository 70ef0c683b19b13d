"""Plans of the runs with their marks: the steps at which a run reaches each (ε, accountant).

Solving them takes longer than many of the runs, and all runs of one setting share a plan, so they
are stored in a file beside the results.
"""

import json
from pathlib import Path
from typing import NamedTuple

import attrs

from prudent._files import replacing
from prudent._rounding import rounded_up
from prudent._validate import ArgumentError
from prudent.accounting import PldAccountant, RdpAccountant
from prudent.accounting.calibration import Accountant, UnreachableTargetError
from prudent.lab.paper.runs.jobs import Job
from prudent.training import Plan

ACCOUNTANTS: dict[str, Accountant] = {"rdp": RdpAccountant, "pld": PldAccountant}
_PARTS = 4


class Mark(NamedTuple):
    """A step of a run and the ε spent by then.

    Attributes:
        step: Number of steps taken.
        epsilon: ε of these steps.
        accountant: The accountant that computed ε.
    """

    step: int
    epsilon: float
    accountant: str


class Plans:
    """Solved plans, stored in a file.

    Args:
        path: A JSON file, created if needed.
        records: Number of training records by name of the data set.
    """

    def __init__(self, path: Path, records: dict[str, int]) -> None:
        self._path, self._records = path, records
        self._solved = json.loads(path.read_text()) if path.exists() else {}

    def of(self, job: Job) -> tuple[Plan, list[Mark]]:
        """The plan of a job and its marks, ordered by step."""
        experiment = job.experiment
        alike = attrs.evolve(experiment, corrupt="none", seed=0, lr=1.0, momentum=0.0)
        key = repr((job.epsilons, job.setting["curve"], alike))
        if key not in self._solved:
            self._solved[key] = self._solve(job)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                json.dump(self._solved, file, indent=1)
        noise, marks = self._solved[key]["noise"], self._solved[key]["marks"]
        fixed = attrs.evolve(experiment, epsilon=None, noise_multiplier=noise, steps=marks[-1][0])
        return fixed.plan(self._records[experiment.dataset]), [Mark(*mark) for mark in marks]

    def _solve(self, job: Job) -> dict[str, object]:
        experiment = job.experiment
        records, delta = self._records[experiment.dataset], experiment.delta
        try:
            plan = experiment.plan(records)
        except UnreachableTargetError as error:
            raise ArgumentError(
                f"datasets.{job.dataset}.epsilons",
                f"with a value that one step of {job.column} stays within",
                got=list(job.epsilons),
                why=f"a batch of {experiment.batch} is drawn from {records:,} records",
                hint="Use a smaller batch, more noise or larger epsilons.",
            ) from error
        if job.target is None:
            wanted = [(e, a) for e in job.epsilons for a in ACCOUNTANTS]
            wanted += [(e, "pld") for e in job.setting["curve"] if e < max(job.epsilons)]
            marks = {mark for e, a in wanted if (mark := _reached(plan, e, a, delta))}
        else:
            parts = [plan.steps * part // _PARTS for part in range(1, _PARTS)]
            spent = [Mark(s, float(rounded_up(plan.epsilon_after(s, delta))), "pld") for s in parts]
            marks = {*spent, Mark(plan.steps, job.target, "pld")}
        return {"noise": plan.aggregation.noise_multiplier, "marks": sorted(marks)}  # type: ignore[attr-defined]


def _reached(plan: Plan, epsilon: float, accountant: str, delta: float) -> Mark | None:
    """The last step within ε; None if even one step exceeds it."""
    try:
        within = plan.longest(epsilon=epsilon, delta=delta, accountant=ACCOUNTANTS[accountant])
    except UnreachableTargetError:
        return None
    return Mark(within.steps, epsilon, accountant)
