"""What can be set on the page: every slider with its range, and the settings as one value."""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from prudent import _validate
from prudent.accounting import GaussianTest, LaplaceTest, MarginTest, Run

TESTS: Mapping[str, type[MarginTest]] = {"gaussian": GaussianTest, "laplace": LaplaceTest}


@attrs.frozen
class Slider:
    """One setting of the page.

    Attributes:
        name: The field of `Training` that it sets.
        label: What stands beside it.
        low: Its least value.
        high: Its largest value.
        start: Where it stands at first.
        stops: The values it can take on a page that was exported, where no accountant runs.
        logarithmic: Whether equal steps multiply.
        whole: Whether only whole numbers make sense.
        explanation: One sentence about it.
    """

    name: str
    label: str
    low: float
    high: float
    start: float
    stops: tuple[float, ...]
    logarithmic: bool = True
    whole: bool = False
    explanation: str = ""


SLIDERS = (
    Slider(
        "records",
        "Records",
        1_000,
        10_000_000,
        60_000,
        (60_000,),
        whole=True,
        explanation="How many records the data set holds.",
    ),
    Slider(
        "batch",
        "Expected batch",
        16,
        65_536,
        256,
        (64, 256, 1024),
        whole=True,
        explanation="Each record enters a step with probability batch / records.",
    ),
    Slider(
        "noise_multiplier",
        "Noise σ",
        0.4,
        20,
        1.1,
        (0.7, 1.1, 1.5, 2.2, 8),
        explanation="Standard deviation of the noise, relative to the clip.",
    ),
    Slider(
        "propose",
        "Proposal τ / clip",
        0.05,
        0.95,
        0.5,
        (0.25, 0.5),
        logarithmic=False,
        explanation="What one record may change if the test passes; the noise shrinks with it.",
    ),
    Slider(
        "scale",
        "Scale of the test",
        0.5,
        32,
        4,
        (4, 8),
        explanation="Noise on the margin, in records: more makes the test cheaper and blunter.",
    ),
    Slider(
        "failure",
        "δ₀",
        1e-12,
        1e-4,
        1e-8,
        (1e-8,),
        explanation="How often a margin of 0 may pass the test.",
    ),
    Slider("steps", "Steps", 10, 100_000, 4_000, (10_000,), whole=True),
    Slider("delta", "δ", 1e-9, 1e-3, 1e-5, (1e-5,), explanation="The target δ of the whole run."),
    Slider("epsilon", "Target ε", 0.1, 20, 3, (1, 3, 8), explanation="The budget of the run."),
    Slider(
        "trim",
        "Trimmed share",
        0.02,
        0.5,
        0.25,
        (0.1, 0.25, 0.4),
        logarithmic=False,
        explanation="Share of an expected batch whose longest gradients are left out.",
    ),
    Slider(
        "accuracy",
        "Accuracy",
        0.5,
        0.999,
        0.95,
        (0.95,),
        logarithmic=False,
        explanation="Expected accuracy of the trained model on clean data.",
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
        for slider in SLIDERS:
            value = getattr(self, slider.name)
            _validate.between(slider.low, slider.high, **{slider.name: value})
        _validate.between(0, self.records, batch=self.batch)

    @classmethod
    def read(cls, texts: Mapping[str, str]) -> "Training":
        """The settings that an address names; what it does not name stays at its start."""
        known = {field.name for field in attrs.fields(cls)}
        unknown = sorted(set(texts) - known)
        if unknown:
            raise _validate.ArgumentError("settings", "names of settings", shown=unknown[0])
        given: dict[str, Any] = {}
        for name, text in texts.items():
            given[name] = text if name == "test" else _number(name, text)
        return cls(**given)

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


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _validate.ArgumentError(name, "a number", got=text[:40]) from None
