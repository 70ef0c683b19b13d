"""Bounds on the distance of trimmed, noisy gradient descent to the optimum under corruption.

Each step sums the gradients of `oracles` workers, at most `corrupted` of which are arbitrary (but
clipped), either all of them (sum) or without the `corrupted` largest (trimmed sum), adds Gaussian
noise and moves by the learning rate: `learning_rate` after a trimmed sum,
(1 - corrupted/oracles) · learning_rate after a sum.

The corrected and the printed convergence bound for several fractions of bad gradients.
"""

import attrs

from prudent import _validate
from prudent.lab.paper.theory import ConditionError

_CORRECTED = "Use convergence_bound, which does not need it."


@attrs.frozen(kw_only=True)
class ConvergenceBound:
    """E D² <- contraction · E D² + residual, D being the distance to the optimum.

    Attributes:
        contraction: Factor per step, below one.
        residual: Added at each step.
        bound: Upper bound on the limit of E D², residual / (1 - contraction).
        largest_learning_rate: The learning rate must stay below this.
    """

    contraction: float
    residual: float
    bound: float
    largest_learning_rate: float


def convergence_bound(
    *,
    oracles: int,
    corrupted: int,
    strong_convexity: float,
    smoothness: float,
    gradient_bound: float,
    gradient_deviation: float,
    dimension: int,
    sum_noise: float,
    trimmed_noise: float,
    learning_rate: float,
) -> ConvergenceBound:
    """The corrected convergence theorem (Errata 6): holds for any number of corrupted oracles.

    Guarantee: the limit superior of E D² is at most `bound` when steps are projected on a convex
    set with the optimum inside, honest gradients are independent and unbiased, every gradient is
    clipped to `gradient_bound` (which honest ones respect), and the corrupted oracles are fixed
    before the honest noise of the step.

    Args:
        oracles: Gradients per step.
        corrupted: Largest number of arbitrary gradients; also the number of trimmed ones.
        strong_convexity: Strong convexity of the expected loss.
        smoothness: Smoothness of the expected loss, at least its strong convexity.
        gradient_bound: Largest norm of any gradient.
        gradient_deviation: Root of the largest variance E|g - E g|² of an honest gradient.
        dimension: Number of parameters.
        sum_noise: Standard deviation, per coordinate, of the noise on the sum.
        trimmed_noise: The same on the trimmed sum.
        learning_rate: Learning rate after a trimmed sum.

    Raises:
        ConditionError: If the learning rate is too large to contract.
    """
    n, f = _population(oracles, corrupted)
    alpha, beta = _curvature(strong_convexity, smoothness)
    radius = _validate.positive(gradient_bound=gradient_bound)
    sigma = _validate.non_negative(gradient_deviation=gradient_deviation)
    d = _validate.count(1, dimension=dimension)
    noise_sum = _validate.non_negative(sum_noise=sum_noise)
    noise_trimmed = _validate.non_negative(trimmed_noise=trimmed_noise)
    rate = _validate.positive(learning_rate=learning_rate)
    largest = alpha / (n * beta**2)
    _check_rate("The corrected convergence theorem", rate, largest)

    honest = n - f
    rate_sum = rate * honest / n
    pull = rate_sum * honest * alpha
    decrease = pull - (rate * honest * beta) ** 2
    bias = rate * f * (4 * radius + honest**0.5 * sigma / n)
    residual = (
        bias**2 / (4 * pull)
        + (rate * honest * sigma) ** 2
        + rate_sum**2 * n * f * radius**2
        + d * max(rate_sum * noise_sum, rate * noise_trimmed) ** 2
    )
    return ConvergenceBound(
        contraction=1 - decrease,
        residual=residual,
        bound=residual / decrease,
        largest_learning_rate=largest,
    )


def printed_convergence_bound(
    *,
    oracles: int,
    corrupted: int,
    strong_convexity: float,
    smoothness: float,
    gradient_bound: float,
    gradient_deviation: float,
    dimension: int,
    sum_noise: float,
    trimmed_noise: float,
    learning_rate: float,
) -> ConvergenceBound:
    """The convergence theorem as the paper prints it, for comparison. It is false as stated.

    It treats the honest gradients that survive trimming as unbiased, which they are not; Errata 6
    has a counterexample that satisfies all of its conditions. Use `convergence_bound`.

    Args:
        oracles: Gradients per step.
        corrupted: Largest number of arbitrary gradients, fewer than half.
        strong_convexity: Strong convexity of the loss.
        smoothness: Smoothness of the loss.
        gradient_bound: Lipschitz constant of the loss.
        gradient_deviation: Root of the largest variance of an honest gradient.
        dimension: Number of parameters.
        sum_noise: Standard deviation of the noise on the sum.
        trimmed_noise: The same on the trimmed sum, large enough for the printed condition.
        learning_rate: Learning rate after a trimmed sum.

    Raises:
        ConditionError: If a printed condition fails.
    """
    n, f = _population(oracles, corrupted)
    alpha, beta = _curvature(strong_convexity, smoothness)
    radius = _validate.positive(gradient_bound=gradient_bound)
    sigma = _validate.non_negative(gradient_deviation=gradient_deviation)
    d = _validate.count(1, dimension=dimension)
    noise_sum = _validate.non_negative(sum_noise=sum_noise)
    noise_trimmed = _validate.non_negative(trimmed_noise=trimmed_noise)
    rate = _validate.positive(learning_rate=learning_rate)
    theorem = "The printed convergence theorem"
    if 2 * f >= n:
        raise ConditionError(
            theorem, "2 * corrupted < oracles", f"corrupted={f} and oracles={n}", _CORRECTED
        )
    needed = (n - f) * (n + 1) / n**2 * (((n - f) * sigma**2 + f * radius) / d + noise_sum**2)
    if noise_trimmed**2 < needed * (1 - 1e-12):
        raise ConditionError(
            theorem,
            f"trimmed_noise >= {needed**0.5:.6g}",
            f"{noise_trimmed:g} ({needed**0.5 - noise_trimmed:.3g} too small)",
            _CORRECTED,
        )
    curvature = n**2 + (n - f + 1) * (n - f) * beta**2
    largest = 2 * alpha * (n - 2 * f) / curvature
    _check_rate(theorem, rate, largest)

    decrease = 2 * rate * alpha * (n - 2 * f) - rate**2 * curvature
    residual = (
        rate**2 * (n - f + 1) * ((n - f) * sigma**2 + d * noise_trimmed**2)
        + (f / n) ** 2 * radius**2
    )
    return ConvergenceBound(
        contraction=1 - decrease,
        residual=residual,
        bound=residual / decrease,
        largest_learning_rate=largest,
    )


def _population(oracles: int, corrupted: int) -> tuple[int, int]:
    n = _validate.count(1, oracles=oracles)
    f = _validate.count(corrupted=corrupted)
    if f >= n:
        raise _validate.ArgumentError("corrupted", f"< oracles = {n}", got=f)
    return n, f


def _curvature(strong_convexity: float, smoothness: float) -> tuple[float, float]:
    alpha = _validate.positive(strong_convexity=strong_convexity)
    beta = _validate.positive(smoothness=smoothness)
    if beta < alpha:
        raise _validate.ArgumentError(
            "smoothness", f">= strong_convexity = {alpha:g}", shown=f"{beta:g}"
        )
    return alpha, beta


def _check_rate(theorem: str, rate: float, largest: float) -> None:
    if rate >= largest:
        raise ConditionError(
            theorem,
            f"learning_rate < {largest:.6g}",
            f"{rate:g} ({rate - largest:.3g} too large)",
            "Take a smaller learning rate.",
        )


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
