"""The corrected and the printed convergence bound for several fractions of bad gradients."""

import attrs

from prudent import _validate
from prudent.lab.paper.theory import ConditionError
from prudent.lab.paper.theory.convergence import convergence_bound, printed_convergence_bound

_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)


@attrs.frozen(kw_only=True)
class Descent:
    """The setting of the convergence theorems.

    Attributes:
        workers: Gradients per step.
        strong_convexity: Strong convexity of the expected loss.
        smoothness: Smoothness of the expected loss.
        gradient_bound: Largest norm of any gradient.
        gradient_deviation: Root of the largest variance of an honest gradient.
        dimension: Number of parameters.
        noise: Standard deviation, per coordinate, of the noise on a sum. The noise on a trimmed sum
            is the least that the printed theorem requires, so that both can be compared.
        learning_rate: Learning rate after a trimmed sum. None: half of the largest that the
            corrected theorem allows.
    """

    workers: int
    strong_convexity: float
    smoothness: float
    gradient_bound: float
    gradient_deviation: float
    dimension: int
    noise: float
    learning_rate: float | None = None

    def arguments(self, bad: int) -> dict[str, float]:
        """The arguments of both theorems with `bad` arbitrary gradients."""
        _validate.count(1, workers=self.workers)
        alpha = _validate.positive(strong_convexity=self.strong_convexity)
        beta = _validate.positive(smoothness=self.smoothness)
        rate, n, honest = self.learning_rate, self.workers, self.workers - bad
        spread = honest * self.gradient_deviation**2 + bad * self.gradient_bound
        needed = honest * (n + 1) / n**2 * (spread / self.dimension + self.noise**2)
        return {
            "oracles": self.workers,
            "corrupted": bad,
            "strong_convexity": alpha,
            "smoothness": beta,
            "gradient_bound": self.gradient_bound,
            "gradient_deviation": self.gradient_deviation,
            "dimension": self.dimension,
            "sum_noise": self.noise,
            "trimmed_noise": max(self.noise, needed**0.5),
            "learning_rate": alpha / (2 * self.workers * beta**2) if rate is None else rate,
        }


@attrs.frozen
class Distance:
    """Limits of the mean squared distance to the optimum.

    Attributes:
        bad: Number of arbitrary gradients.
        corrected: Bound of the corrected theorem, which is proved.
        printed: Bound as printed in the paper, which is false; None where its own conditions fail.
    """

    bad: int
    corrected: float
    printed: float | None

    def plain(self) -> dict[str, float | None]:
        """The values as a dictionary."""
        return attrs.asdict(self)


def distances(setting: Descent) -> list[Distance]:
    """Both bounds for several fractions of bad gradients."""
    counts = dict.fromkeys(int(share * setting.workers) for share in _SHARES)
    return [
        Distance(
            bad,
            convergence_bound(**setting.arguments(bad)).bound,  # type: ignore[arg-type]
            _printed(setting, bad),
        )
        for bad in counts
    ]


def _printed(setting: Descent, bad: int) -> float | None:
    try:
        return printed_convergence_bound(**setting.arguments(bad)).bound  # type: ignore[arg-type]
    except ConditionError:
        return None
