"""Compute the numbers that the page of `prudent explore` shows.

python -m benchmarks.explore_grid --out packages/lab/src/prudent_lab/explore/grid.json --workers 12

Nothing here computes a privacy cost of its own: all numbers are from what prices and certifies
releases. A value that does not exist, because a theorem's conditions fail or no noise meets the
target, is None.
"""

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from scipy import stats

from benchmarks.median_rehearsals import expected
from prudent import _validate
from prudent.accounting import GaussianTest, LaplaceTest, MarginTest, Run
from prudent.accounting.calibration import UnreachableTargetError
from prudent.accounting.robustness import Certifier
from prudent_lab.explore import sliders
from prudent_lab.paper import panels

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
COUNTS = (20_000, 2_000)
SHAPES: Mapping[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda generator, size: generator.normal(50, 10, size),
    "lognormal": lambda generator, size: generator.lognormal(3, 1, size),
    "ties": lambda generator, size: generator.poisson(3, size).astype(float),
    "unbounded": lambda generator, size: generator.standard_cauchy(size),
}
"""Shapes of data by name: what draws so many values."""

TESTS: Mapping[str, type[MarginTest]] = {"gaussian": GaussianTest, "laplace": LaplaceTest}

Answer = dict[str, Any]

_SHARES = 33
_TRIALS = 25
_RUN = ("batch", "noise_multiplier", "propose", "test", "scale")
DEPENDS = {
    "spent": _RUN,
    "noise": ("batch", "propose", "test", "scale", "epsilon"),
    "passing": ("batch", "test", "scale", "trim"),
    "withstood": (*_RUN, "accuracy"),
}
NOTE = (
    "Every number was computed by the accountant that prices real releases, beforehand, and is "
    "exact to four digits, bounds rounded up. Sliders move between the values that were computed."
)
_DIGITS = 4


def _start(name: str) -> Any:
    value = next(slider["start"] for slider in sliders() if slider["name"] == name)
    return attrs.field(default=value)


@attrs.frozen(kw_only=True)
class Training:
    """A training run as the page sets it; its fields are those of the sliders, and the test.

    Attributes:
        test: Which noise the margin gets: gaussian or laplace.
    """

    records: float = _start("records")
    batch: float = _start("batch")
    noise_multiplier: float = _start("noise_multiplier")
    propose: float = _start("propose")
    test: str = "gaussian"
    scale: float = _start("scale")
    failure: float = _start("failure")
    steps: float = _start("steps")
    delta: float = _start("delta")
    epsilon: float = _start("epsilon")
    trim: float = _start("trim")
    accuracy: float = _start("accuracy")

    def __attrs_post_init__(self) -> None:
        _validate.one_of(tuple(TESTS), test=self.test)
        _validate.between(0, self.records, batch=self.batch)

    @property
    def sampling_rate(self) -> float:
        """Probability with which each record is in a step."""
        return self.batch / self.records

    def run(self, steps: int | None = None, *, tested: bool = True) -> Run:
        """The run as the accountants price it, with its test or without."""
        return Run(
            sampling_rate=self.sampling_rate,
            steps=round(self.steps) if steps is None else steps,
            noise_multiplier=self.noise_multiplier,
            test=TESTS[self.test](self.scale) if tested else None,
            propose=self.propose,
            failure=self.failure,
        )

    def step_counts(self, count: int = 9) -> list[int]:
        """Numbers of steps to draw a curve through, up to all of them."""
        last = math.log(self.steps)
        first = min(math.log(10), last)
        return sorted(
            {round(math.exp(first + (last - first) * i / (count - 1))) for i in range(count)}
        )


def spent(setting: Training) -> Answer:
    """ε after each number of steps: with the test, without one, and by the paper's theorem."""
    steps = setting.step_counts()
    tested = [setting.run(count).epsilon(setting.delta) for count in steps]
    plain = [setting.run(count, tested=False).epsilon(setting.delta) for count in steps]
    return {
        "steps": steps,
        "tested": _finite(tested),
        "plain": _finite(plain),
        "paper": _finite(_by_the_paper(setting, steps)),
    }


def _by_the_paper(setting: Training, steps: Sequence[int]) -> Sequence[float]:
    """ε by Theorem 4.4, which is for Laplace tests that publish their noisy margin."""
    if setting.test != "laplace":
        return [math.nan] * len(steps)
    published = panels.Setting(
        setting.sampling_rate,
        setting.noise_multiplier,
        setting.propose,
        setting.scale,
        setting.failure,
        setting.delta,
    )
    epsilons: Sequence[float] = panels.white_box_epsilon(published, np.array(steps, float)).tolist()
    return epsilons


def noise(setting: Training) -> Answer:
    """The noise that the target ε needs, relative to the clip: DP-SGD's, and both of the test's."""
    plain = _calibrated(setting, tested=False)
    tested = _calibrated(setting, tested=True)
    return {
        "plain": plain,
        "failed": tested,
        "passed": None if tested is None else tested * setting.propose,
    }


def _calibrated(setting: Training, *, tested: bool) -> float | None:
    try:
        run = setting.run(tested=tested).calibrate(epsilon=setting.epsilon, delta=setting.delta)
    except UnreachableTargetError:
        return None
    return run.noise_multiplier


def passing(setting: Training) -> Answer:
    """The chance that a test passes, by the share of records whose gradients are longer than τ.

    The margin is max(0, F - L), where F is the trimmed share of an expected batch and L, the number
    of long gradients drawn, is binomial: exact up to the terms of its law below 1e-9.
    """
    test = TESTS[setting.test](setting.scale)
    threshold = test.threshold(setting.failure)
    removed = round(setting.trim * setting.batch)
    shares = np.linspace(0, min(1.0, 1.2 * setting.trim), _SHARES)
    chances = []
    for share in shares:
        law = stats.binom(round(share * setting.records), setting.sampling_rate)
        low, high = law.ppf(1e-9), law.ppf(1 - 1e-9)
        long = np.unique(np.linspace(low, high, 400).round())
        weight = law.cdf(long) - np.concatenate([[0.0], law.cdf(long[:-1])])
        passed = [test.tail(threshold - max(0.0, removed - margin)) for margin in long]
        chances.append(float(np.dot(weight, passed) / weight.sum()))
    return {"shares": shares.tolist(), "chances": chances, "threshold": threshold, "trim": removed}


def withstood(setting: Training) -> Answer:
    """Certified accuracy of the model against bad records, by group privacy of the run."""
    certifier = Certifier(setting.run().event, setting.run().relation)
    # As far as anything is left of the accuracy.
    last = max(4, round(1.2 * certifier.withstands(accuracy=setting.accuracy, above=0.02)))
    records = np.unique(np.linspace(1, last, 12).round().astype(int)).tolist()
    accuracy = [
        certifier.certificate(accuracy=setting.accuracy, records=count).at_least
        for count in records
    ]
    return {"records": [0, *records], "accuracy": [setting.accuracy, *accuracy]}


EPSILONS = (0.1, 0.3, 1.0, 3.0)


def tables(quantiles: Mapping[float, float], count: int, delta: float) -> Answer:
    """Expected error of a private median by each mechanism and ε, for data of a drawn shape.

    Releases are rehearsed on made-up data of that shape; see `median_rehearsals`.

    Args:
        quantiles: Values by probability, as drawn on the page.
        count: The number of records.
        delta: δ of the releases that are tested.
    """
    _validate.between(100, 1_000_000, count=count)
    errors: dict[str, list[float | None]] = {}
    refused: dict[str, list[float]] = {}
    for epsilon in EPSILONS:
        given: Answer = {"count": count, "epsilon": epsilon, "delta": delta, "trials": _TRIALS}
        for name, each in expected(quantiles, **given).items():
            errors.setdefault(name, []).append(each.error)
            refused.setdefault(name, []).append(each.refused)
    return {"epsilons": list(EPSILONS), "errors": errors, "refused": refused}


QUESTIONS = {question.__name__: question for question in (spent, noise, passing, withstood)}


def _finite(values: Sequence[float]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def cells() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every question about training, the key of its answer, and its settings."""
    stops: dict[str, tuple[Any, ...]] = {
        slider["name"]: tuple(slider["stops"]) for slider in sliders()
    }
    stops["test"] = tuple(TESTS)
    single = {name: values[0] for name, values in stops.items() if len(values) == 1}
    for question, names in DEPENDS.items():
        for values in itertools.product(*(stops[name] for name in names)):
            key = "|".join(
                f"{value:.12g}" if name != "test" else value
                for name, value in zip(names, values, strict=True)
            )
            yield question, key, single | dict(zip(names, values, strict=True))


def cell(question: str, setting: dict[str, Any]) -> Answer:
    """One answer, rounded."""
    answer = QUESTIONS[question](Training(**setting))
    down = question == "withstood"
    return {name: _rounded(value, down=down) for name, value in answer.items()}


def quantiles(name: str) -> dict[float, float]:
    """What the page knows of a shape: a few of its quantiles, of many draws from it."""
    drawn = np.asarray(SHAPES[name](np.random.default_rng(0), 100_000), np.float64)
    values = np.quantile(drawn, PROBABILITIES)
    return {p: float(f"{value:.3g}") for p, value in zip(PROBABILITIES, values, strict=True)}


def shape_cell(name: str, count: int) -> Answer:
    """What is expected of a private median of data of a shape."""
    answer = tables(quantiles(name), count, 1e-6)
    return {key: _rounded(value) for key, value in answer.items()}


def build(workers: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """The whole grid.

    Args:
        workers: Processes to compute with.
        progress: Called with how many answers are done and how many there are.
    """
    wanted = list(cells())
    shapes = list(itertools.product(SHAPES, COUNTS))
    computed: dict[str, dict[str, Any]] = {question: {} for question in (*DEPENDS, "tables")}
    with ProcessPoolExecutor(workers) as pool:
        training = pool.map(_of_training, wanted, chunksize=4)
        drawn = pool.map(_of_shape, shapes)
        for number, ((question, key, _), answer) in enumerate(zip(wanted, training, strict=True)):
            computed[question][key] = answer
            progress(number + 1, len(wanted) + len(shapes))
        for (name, count), answer in zip(shapes, drawn, strict=True):
            computed["tables"][f"{name}|{count}"] = answer
    depends = {name: list(names) for name, names in DEPENDS.items()} | {
        "tables": ["shape", "count"]
    }
    known = {name: list(quantiles(name).values()) for name in SHAPES}
    return {
        "note": NOTE,
        "depends": depends,
        "shapes": known,
        "counts": COUNTS,
        "answers": computed,
    }


def _of_training(wanted: tuple[str, str, dict[str, Any]]) -> Answer:
    return cell(wanted[0], wanted[2])


def _of_shape(wanted: tuple[str, int]) -> Answer:
    return shape_cell(*wanted)


def _rounded(value: Any, *, down: bool = False) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part, down=down) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part, down=down) for part in value]
    if not isinstance(value, float) or value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - _DIGITS)
    whole = math.floor(value / unit) if down else math.ceil(value / unit)
    return float(f"{whole * unit:.{_DIGITS}g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.monotonic()

    def progress(done: int, total: int) -> None:
        if done % 50 == 0 or done == total:
            print(f"{done} of {total} answers, {time.monotonic() - start:.0f} s", flush=True)

    grid = build(options.workers, progress)
    options.out.write_text(json.dumps(grid, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
