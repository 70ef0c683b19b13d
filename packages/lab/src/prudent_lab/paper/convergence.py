"""Bounds on the distance of trimmed, noisy gradient descent to the optimum under corruption.

Each step sums the gradients of `oracles` workers, at most `corrupted` of which are arbitrary (but
clipped), either all of them (sum) or without the `corrupted` largest (trimmed sum), adds Gaussian
noise and moves by the learning rate: `learning_rate` after a trimmed sum,
(1 - corrupted/oracles) · learning_rate after a sum.
"""

import contextlib
from typing import Any, Self

import attrs

from prudent import _validate
from prudent_lab.paper.theorems import ConditionError

_CORRECTED = "Use the corrected theorem, which does not need it."


@attrs.frozen(kw_only=True)
class ConvergenceBound:
    """E D² <- contraction · E D² + residual, D being the distance to the optimum."""

    contraction: float  # factor per step, below one
    residual: float  # added at each step
    bound: float  # upper bound on the limit of E D², residual / (1 - contraction)
    largest_learning_rate: float  # the learning rate must stay below this

    @classmethod
    def of(cls, decrease: float, residual: float, largest: float) -> Self:
        """The bound by what a step takes away, as a factor, and by what it adds."""
        made = {"contraction": 1 - decrease, "residual": residual, "bound": residual / decrease}
        return cls(**made, largest_learning_rate=largest)


@attrs.frozen(kw_only=True)
class CorruptedDescent:
    """The problem that both theorems are about."""

    oracles: int  # gradients per step
    corrupted: int  # largest number of arbitrary gradients; also the number of trimmed ones
    strong_convexity: float  # strong convexity of the expected loss
    smoothness: float  # smoothness of the expected loss, at least its strong convexity
    gradient_bound: float  # largest norm of any gradient
    gradient_deviation: float  # root of the largest variance E|g - E g|² of an honest gradient
    dimension: int  # number of parameters
    sum_noise: float  # standard deviation, per coordinate, of the noise on the sum
    trimmed_noise: float  # the same on the trimmed sum
    learning_rate: float  # learning rate after a trimmed sum

    def __attrs_post_init__(self) -> None:
        oracles = _validate.count(1, oracles=self.oracles)
        if _validate.count(corrupted=self.corrupted) >= oracles:
            raise _validate.ArgumentError("corrupted", f"< oracles = {oracles}", got=self.corrupted)
        convexity = _validate.positive(strong_convexity=self.strong_convexity)
        if _validate.positive(smoothness=self.smoothness) < convexity:
            raise _validate.ArgumentError(
                "smoothness", f">= strong_convexity = {convexity:g}", shown=f"{self.smoothness:g}"
            )
        _validate.fields(self, _validate.positive, "gradient_bound", "learning_rate")
        noises = ("gradient_deviation", "sum_noise", "trimmed_noise")
        _validate.fields(self, _validate.non_negative, *noises)
        _validate.count(1, dimension=self.dimension)

    def corrected(self) -> ConvergenceBound:
        """The corrected convergence theorem (Errata 6): for any number of corrupted oracles.

        Guarantee: the limit superior of E D² is at most `bound` when steps are projected on a
        convex set with the optimum inside, honest gradients are independent and unbiased, every
        gradient is clipped to `gradient_bound` (which honest ones respect), and the corrupted
        oracles are fixed before the honest noise of the step.

        Raises:
            ConditionError: If the learning rate is too large to contract.
        """
        n, f, rate = self.oracles, self.corrupted, self.learning_rate
        alpha, beta, sigma = self.strong_convexity, self.smoothness, self.gradient_deviation
        largest = alpha / (n * beta**2)
        _check_rate("The corrected convergence theorem", rate, largest)
        honest = n - f
        rate_sum = rate * honest / n
        pull = rate_sum * honest * alpha
        decrease = pull - (rate * honest * beta) ** 2
        bias = rate * f * (4 * self.gradient_bound + honest**0.5 * sigma / n)
        residual = (
            bias**2 / (4 * pull)
            + (rate * honest * sigma) ** 2
            + rate_sum**2 * n * f * self.gradient_bound**2
            + self.dimension * max(rate_sum * self.sum_noise, rate * self.trimmed_noise) ** 2
        )
        return ConvergenceBound.of(decrease, residual, largest)

    def least_trimmed_noise(self) -> float:
        """The noise on the trimmed sum that the printed theorem asks for at least."""
        n, honest = self.oracles, self.oracles - self.corrupted
        spread = honest * self.gradient_deviation**2 + self.corrupted * self.gradient_bound
        squared = honest * (n + 1) / n**2 * (spread / self.dimension + self.sum_noise**2)
        return float(squared**0.5)

    def printed(self) -> ConvergenceBound:
        """The convergence theorem as the paper prints it, for comparison. It is false as stated.

        It treats the honest gradients that survive trimming as unbiased, which they are not;
        Errata 6 has a counterexample that satisfies all of its conditions. Use `corrected`.

        Raises:
            ConditionError: If a printed condition fails.
        """
        n, f, rate = self.oracles, self.corrupted, self.learning_rate
        theorem = "The printed convergence theorem"
        if 2 * f >= n:
            given = f"corrupted={f} and oracles={n}"
            raise ConditionError(theorem, "2 * corrupted < oracles", given, _CORRECTED)
        noise, needed = self.trimmed_noise, self.least_trimmed_noise()
        if noise**2 < needed**2 * (1 - 1e-12):
            given = f"{noise:g} ({needed - noise:.3g} too small)"
            raise ConditionError(theorem, f"trimmed_noise >= {needed:.6g}", given, _CORRECTED)
        curvature = n**2 + (n - f + 1) * (n - f) * self.smoothness**2
        largest = 2 * self.strong_convexity * (n - 2 * f) / curvature
        _check_rate(theorem, rate, largest)
        decrease = 2 * rate * self.strong_convexity * (n - 2 * f) - rate**2 * curvature
        honest = (n - f) * self.gradient_deviation**2 + self.dimension * noise**2
        residual = rate**2 * (n - f + 1) * honest + (f / n) ** 2 * self.gradient_bound**2
        return ConvergenceBound.of(decrease, residual, largest)


def _check_rate(theorem: str, rate: float, largest: float) -> None:
    if rate >= largest:
        given = f"{rate:g} ({rate - largest:.3g} too large)"
        instead = "Take a smaller learning rate."
        raise ConditionError(theorem, f"learning_rate < {largest:.6g}", given, instead)


_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)


@attrs.frozen
class Distance:
    """Limits of the mean squared distance to the optimum."""

    bad: int  # number of arbitrary gradients
    corrected: float  # bound of the corrected theorem, which is proved
    # Bound as printed in the paper, which is false; None where its own conditions fail.
    printed: float | None


def distances(
    *, workers: int, noise: float, learning_rate: float | None = None, **problem: Any
) -> list[Distance]:
    """Both bounds for several fractions of bad gradients.

    Args:
        workers: Gradients per step.
        noise: Standard deviation, per coordinate, of the noise on a sum. The noise on a trimmed sum
            is the least that the printed theorem requires, so that both can be compared.
        learning_rate: Learning rate after a trimmed sum. None: half of the largest that the
            corrected theorem allows.
        **problem: The other fields of `CorruptedDescent`.
    """
    if learning_rate is None:
        alpha = _validate.positive(strong_convexity=problem["strong_convexity"])
        beta = _validate.positive(smoothness=problem["smoothness"])
        learning_rate = alpha / (2 * _validate.count(1, workers=workers) * beta**2)
    common = {"oracles": workers, "sum_noise": noise, "learning_rate": learning_rate, **problem}
    rows = []
    for bad in dict.fromkeys(int(share * workers) for share in _SHARES):
        one, printed = CorruptedDescent(corrupted=bad, trimmed_noise=noise, **common), None
        one = attrs.evolve(one, trimmed_noise=max(noise, one.least_trimmed_noise()))
        with contextlib.suppress(ConditionError):
            printed = one.printed().bound
        rows.append(Distance(bad, one.corrected().bound, printed))
    return rows
