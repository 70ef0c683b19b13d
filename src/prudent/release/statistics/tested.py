"""How a statistic with a margin is released: by Propose-Test-Release."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from prudent import _validate
from prudent.release.certificates import MARGIN_CAP, DistanceRelease, distance_by_margin
from prudent.release.columns.column import Column
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.lattice import Lattice
from prudent.release.margins import mode as modes
from prudent.release.margins.quantile import RobustValue
from prudent.release.mechanism import ProposeTestReleaseMechanism
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Outcome, Refused, Released, ScaledSpread
from prudent.release.preview import Preview
from prudent.release.request import Budget, Certification, Prepared

Number = TypeVar("Number")

Measure = Callable[[Column, Lattice, int, int], RobustValue]
"""Returns the value and its margin for a sensitivity in steps of the lattice, up to a cap."""


def calibrate(
    options: Budget,
    propose: Any,
    *,
    scale: Scale = NUMBER,
    fallback_sensitivity: float | None = None,
    monotone: bool = False,
) -> ProposeTestReleaseMechanism:
    """Calibrate the mechanism for these options; without a proposal, one for a category.

    Args:
        options: The options of the statistic.
        propose: The proposal, a length on the scale; None for a category.
        scale: The scale of the column: the mechanism works with its numbers.
        fallback_sensitivity: See `ProposeTestReleaseMechanism`.
        monotone: See `ProposeTestReleaseMechanism`.
    """
    return ProposeTestReleaseMechanism.calibrate(
        propose=0.0 if propose is None else proposal(propose, scale),
        epsilon=options["epsilon"],
        delta=required_delta(options),
        bounds=bounds(options, scale),
        fallback_sensitivity=fallback_sensitivity,
        fallback=options.get("fallback", False),
        monotone=monotone,
        distribution=options.get("distribution", Distribution.LAPLACE),
        test=options.get("test"),
        failure=options.get("failure"),
    )


def proposal(propose: Any, scale: Scale) -> float:
    """The proposal as a number of units of the scale."""
    length = propose if _is_plain(scale) else converted("propose", scale.length, propose)
    return _validate.positive(propose=length)


def converted(name: str, convert: Callable[[Any], Number], value: Any) -> Number:
    """An argument as a number; an error carries the name of the argument."""
    try:
        return convert(value)
    except _validate.ArgumentError as error:
        raise _validate.ArgumentError(name, error.allowed, got=value) from None


def bounds(options: Budget, scale: Scale) -> tuple[float, float] | None:
    """The public bounds as numbers of units of the scale."""
    given: Any = options.get("bounds")
    if given is None or _is_plain(scale):
        return given  # type: ignore[no-any-return]
    try:
        low, high = given
    except Exception:  # whatever an object raises that is no pair
        raise _validate.ArgumentError("bounds", "a pair (low, high)", got=given) from None
    return converted("bounds", scale.number, low), converted("bounds", scale.number, high)


def required_delta(options: Budget) -> float:
    """The δ of the options, which a test cannot do without."""
    delta = options.get("delta")
    if delta is None:
        raise _validate.ArgumentError(
            "delta",
            "for a release that is tested first",
            got=None,
            why="the test passes by accident with a small probability, and delta pays for it",
            hint="Give delta=1e-7, for example, well below one over the number of records.",
        )
    return delta


def preview(name: str, mechanism: ProposeTestReleaseMechanism, options: Budget) -> Preview:
    """What is known of the release before the data are read."""
    noisy = mechanism.propose > 0
    spread = mechanism.spread(mechanism.robust_noise_multiplier * mechanism.steps)
    return Preview(
        statistic=name,
        mechanism="propose-test-release",
        epsilon=options["epsilon"],
        delta=required_delta(options),
        event=mechanism.event,
        proposal=mechanism.propose or None,
        noise_scale=spread.deviation if noisy else None,
        half_width=spread.half_width(0.95) if noisy else None,
        threshold=mechanism.threshold,
    )


def prepared(
    name: str,
    mechanism: ProposeTestReleaseMechanism,
    measure: Measure,
    options: Budget,
    records: Column,
    *,
    difference: bool = False,
    certification: Certification | None = None,
    advice: str,
    notes: tuple[str, ...] = (),
) -> Prepared:
    """Return the release of what `measure` measures, in the type of the column.

    Args:
        name: The name of the statistic.
        mechanism: The calibrated mechanism, in units of the column's scale.
        measure: Measures the value and its margin.
        options: The options of the statistic.
        records: A column of that type; none of its records is read here.
        difference: Whether the statistic is a difference of values, such as a range.
        certification: How to certify a released value, if that is asked for.
        advice: What would help after a refusal; see `advised`.
        notes: What public facts already decide.
    """
    if records.contribution.records > 1:
        raise _validate.ArgumentError(
            "per_unit",
            "one value per unit for a release that is tested first",
            got=records.contribution.per_unit,
            why="a margin counts single records",
            hint="Leave propose out, or give a rule such as per_unit='mean'.",
        )
    scale = records.scale

    def measured(records: Column) -> RobustValue:
        return measure(records, mechanism.lattice, mechanism.steps, mechanism.cap)

    def answer(records: Column, noise: Noise) -> Outcome:
        outcome = modes.read(mechanism.release(records, measured, noise=noise))
        return advised(_displayed(outcome, scale, difference), advice)

    public = attrs.evolve(preview(name, mechanism, options), notes=notes)
    return Prepared(preview=public, answer=answer, certification=certification)


def advised(outcome: Outcome, advice: str) -> Outcome:
    """Add to a refusal what would help, which depends on the statistic but not on the data."""
    if not isinstance(outcome, Refused):
        return outcome
    return attrs.evolve(
        outcome, reason=f"{outcome.reason} {advice} Asking again, even for the same, costs again."
    )


def certification(
    certifies: DistanceRelease | None,
    tolerance: Any,
    mechanism: ProposeTestReleaseMechanism,
    measure: Measure,
    scale: Scale,
    *,
    difference: bool = False,
) -> Certification | None:
    """How to certify a number by its margins; None if that is not asked for."""
    if certifies is None:
        return None
    lattice, show = mechanism.lattice, scale.difference if difference else scale.value
    length = tolerance_of(tolerance, scale)
    steps = math.floor(math.ldexp(length, -lattice.exponent))

    def distance(records: Column, value: Any) -> tuple[int, Any, Any]:
        number = scale.length(value) if difference else scale.number(value)
        found = distance_by_margin(
            lambda propose: measure(records, lattice, propose, MARGIN_CAP),
            int(lattice.steps(number)),
            steps,
            MARGIN_CAP,
        )
        return found, show(number - length), show(number + length)

    return Certification(mechanism=certifies, distance=distance)


def tolerance_of(certify: Any, scale: Scale) -> float:
    """The tolerance of a certificate as a number of units of the scale."""
    length = certify if _is_plain(scale) else converted("certify", scale.length, certify)
    return _validate.non_negative(certify=length)


def _is_plain(scale: Scale) -> bool:
    return scale.kind in ("number", "integer")


def _displayed(outcome: Outcome, scale: Scale, difference: bool) -> Outcome:
    """The outcome with its number as a value of the column's type."""
    if _is_plain(scale) or not isinstance(outcome, Released) or outcome.spread is None:
        return outcome
    number = outcome.value
    return attrs.evolve(
        outcome,
        value=scale.difference(number) if difference else scale.value(number),
        spread=ScaledSpread(number, outcome.spread, scale, difference),
    )
