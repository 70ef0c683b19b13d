"""Drawing settings from a search space, and the number of candidates, independently of the data."""

import builtins
import math
import numbers
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any, TypeAlias, TypeVar

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.losses.repeated_selection import (
    Binomial,
    NegativeBinomial,
    Poisson,
    TrialCount,
)

Setting: TypeAlias = Mapping[str, Any]
"""The values of one candidate, by name."""

_DIGITS = 100  # of probabilities; what is drawn differs from the exact ones by less than 1e-70
_BITS = 256  # of the uniform number that decides
_NOTHING_LEFT = Decimal(10) ** -90

T = TypeVar("T")


class Trial:
    """Draws the values of one candidate. A search space calls its methods, with public arguments.

    All draws come from the operating system's generator: whoever could predict them would know how
    many candidates there are.
    """

    def __init__(self) -> None:
        self._drawn: dict[str, Any] = {}

    @property
    def setting(self) -> dict[str, Any]:
        """The values drawn so far, by name."""
        return dict(self._drawn)

    def float(
        self, name: str, low: builtins.float, high: builtins.float, *, log: bool = False
    ) -> builtins.float:
        """Draw a number from [low, high], uniformly or uniformly in its logarithm.

        Args:
            name: What the number is for; each name is drawn once.
            low: The least value.
            high: The largest value.
            log: Whether the logarithm is uniform; then `low` must be positive.
        """
        low = _validate.positive(low=low) if log else _validate.real(low=low)
        if _validate.real(high=high) < low:
            raise ArgumentError("high", f">= {low:g}", got=high)
        share = secrets.randbits(53) / 2**53
        if log:
            drawn = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            drawn = low + share * (high - low)
        return self._keep(name, min(max(drawn, low), builtins.float(high)))

    def int(self, name: str, low: builtins.int, high: builtins.int) -> builtins.int:
        """Draw a whole number from low, …, high, each with the same probability."""
        low, high = _whole("low", low), _whole("high", high)
        if high < low:
            raise ArgumentError("high", f">= {low}", got=high)
        return self._keep(name, low + secrets.randbelow(high - low + 1))

    def choice(self, name: str, options: Sequence[T]) -> T:
        """Draw one of several values, each with the same probability."""
        values = list(_validate.values(options=options))
        if not values:
            raise ArgumentError("options", "with at least one entry", shown="none")
        chosen: T = values[secrets.randbelow(len(values))]
        return self._keep(name, chosen)

    def _keep(self, name: str, value: T) -> T:
        _validate.instance(str, "a text", name=name)
        if name in self._drawn:
            raise ArgumentError("name", "one that is drawn once", got=name)
        self._drawn[name] = value
        return value


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentError(name, "a whole number", got=value)
    return int(value)


Space: TypeAlias = Callable[[Trial], object]
"""A search space: calls the methods of a `Trial`; what it returns is ignored."""


def draw_setting(space: Space) -> dict[str, Any]:
    """One setting of a search space."""
    trial = Trial()
    space(trial)
    return trial.setting


def draw_count(count: TrialCount) -> int:
    """A number of candidates, from the operating system's generator."""
    with localcontext() as context:
        context.prec = _DIGITS
        threshold = Decimal(secrets.randbits(_BITS)) / Decimal(2**_BITS)
        total = Decimal(0)
        number = 0
        for number, mass in enumerate(probabilities(count)):
            total += mass
            if total > threshold or (mass < _NOTHING_LEFT and number > count.expected):
                return number
        return number


def probabilities(count: TrialCount) -> Iterator[Decimal]:
    """Pr[K = 0], Pr[K = 1], …, each computed from the one before."""
    match count:
        case NegativeBinomial():
            yield Decimal(0)
            yield from _negative_binomial(Decimal(count.halting), Decimal(count.shape))
        case Poisson():
            mean = Decimal(count.mean)
            mass, number = (-mean).exp(), 0
            while True:
                yield mass
                number += 1
                mass = mass * mean / number
        case Binomial(draws=draws):
            chance = Decimal(count.probability)
            if chance == 1:
                yield from [Decimal(0)] * draws
                yield Decimal(1)
                return
            mass = (1 - chance) ** draws
            for number in range(draws + 1):
                yield mass
                mass = mass * (draws - number) / (number + 1) * chance / (1 - chance)
        case _:
            raise ArgumentError("trials", "a distribution of prudent.tune", got=count)


def _negative_binomial(gamma: Decimal, shape: Decimal) -> Iterator[Decimal]:
    rest = 1 - gamma
    if rest == 0:
        mass = Decimal(1)
    elif shape == 0:
        mass = -rest / gamma.ln()
    else:
        mass = shape * rest / ((-shape * gamma.ln()).exp() - 1)
    number = 1
    while True:
        yield mass
        mass = mass * rest * (number + shape) / (number + 1)
        number += 1
