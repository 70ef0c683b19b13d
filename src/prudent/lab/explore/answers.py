"""The sliders of the page and the numbers it shows, from what prices and certifies releases.

Nothing here computes a privacy cost of its own. A value that does not exist, because a theorem's
conditions fail or no noise meets the target, is None.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import attrs
import numpy as np
from scipy import stats

from prudent import _validate
from prudent.accounting import GaussianTest, LaplaceTest, MarginTest, Run
from prudent.accounting.calibration import UnreachableTargetError
from prudent.accounting.robustness import Certifier
from prudent.lab.paper.figures import bounds

TESTS: Mapping[str, type[MarginTest]] = {"gaussian": GaussianTest, "laplace": LaplaceTest}

Answer = dict[str, Any]

_SHARES = 33
_TRIALS = 25


@attrs.frozen
class Slider:
    """One setting of the page.

    Attributes:
        name: The field of `Training` that it sets.
        label: What stands beside it.
        start: Where it stands at first.
        stops: The values it can take: for each of them every answer is computed beforehand.
        explanation: One sentence about it.
    """

    name: str
    label: str
    start: float
    stops: tuple[float, ...]
    explanation: str = ""


SLIDERS = (
    Slider("records", "Records", 60_000, (60_000,), "How many records the data set holds."),
    Slider(
        "batch",
        "Expected batch",
        256,
        (64, 256, 1024),
        "Each record enters a step with probability batch / records.",
    ),
    Slider(
        "noise_multiplier",
        "Noise σ",
        1.1,
        (0.7, 1.1, 1.5, 2.2, 8),
        "Standard deviation of the noise, relative to the clip.",
    ),
    Slider(
        "propose",
        "Proposal τ / clip",
        0.5,
        (0.25, 0.5),
        "What one record may change if the test passes; the noise shrinks with it.",
    ),
    Slider(
        "scale",
        "Scale of the test",
        4,
        (4, 8),
        "Noise on the margin, in records: more makes the test cheaper and blunter.",
    ),
    Slider("failure", "δ₀", 1e-8, (1e-8,), "How often a margin of 0 may pass the test."),
    Slider("steps", "Steps", 10_000, (10_000,)),
    Slider("delta", "δ", 1e-5, (1e-5,), "The target δ of the whole run."),
    Slider("epsilon", "Target ε", 3, (1, 3, 8), "The budget of the run."),
    Slider(
        "trim",
        "Trimmed share",
        0.25,
        (0.1, 0.25, 0.4),
        "Share of an expected batch whose longest gradients are left out.",
    ),
    Slider(
        "accuracy",
        "Accuracy",
        0.95,
        (0.95,),
        "Expected accuracy of the trained model on clean data.",
    ),
)


def _start(name: str) -> Any:
    value = next(slider.start for slider in SLIDERS if slider.name == name)
    return attrs.field(default=value)


@attrs.frozen(kw_only=True)
class Training:
    """A training run as the page sets it; the fields are those of `SLIDERS`, and the kind of test.

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
    published = bounds.Setting(
        setting.sampling_rate,
        setting.noise_multiplier,
        setting.propose,
        setting.scale,
        setting.failure,
        setting.delta,
    )
    epsilons: Sequence[float] = bounds.white_box_epsilon(published, np.array(steps, float)).tolist()
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

    Releases are rehearsed on made-up data of that shape; see `prudent.release.suggestion`.

    Args:
        quantiles: Values by probability, as drawn on the page.
        count: The number of records.
        delta: δ of the releases that are tested.
    """
    from prudent.release.suggestion import suggest

    _validate.between(100, 1_000_000, count=count)
    errors: dict[str, list[float | None]] = {}
    refused: dict[str, list[float]] = {}
    for epsilon in EPSILONS:
        suggestion = suggest(
            "median",
            count=count,
            epsilon=epsilon,
            delta=delta,
            quantiles=quantiles,
            trials=_TRIALS,
        )
        for name, expected in suggestion.expected.items():
            errors.setdefault(name, []).append(expected.error)
            refused.setdefault(name, []).append(expected.refused)
    return {"epsilons": list(EPSILONS), "errors": errors, "refused": refused}


@functools.cache
def measured() -> Answer:
    """Certified accuracy of the classifiers that come with the package, as `prudent certify` says.

    Measured once on real digits; each curve says with which ε.
    """
    path = resources.files("prudent.lab.explore") / "certified.json"
    answer: Answer = json.loads(path.read_text())
    return answer


QUESTIONS = {question.__name__: question for question in (spent, noise, passing, withstood)}


def _finite(values: Sequence[float]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]
