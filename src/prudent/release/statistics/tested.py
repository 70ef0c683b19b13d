"""How a statistic with a margin is released: by Propose-Test-Release."""

import functools
from collections.abc import Callable

from prudent import _validate
from prudent.release.columns.column import Column
from prudent.release.margins import mode as modes
from prudent.release.margins.quantile import RobustValue
from prudent.release.mechanism import ProposeTestReleaseMechanism
from prudent.release.noise import Law, Noise
from prudent.release.outcome import Outcome
from prudent.release.preview import Preview
from prudent.release.request import Budget, Prepared

Measure = Callable[[ProposeTestReleaseMechanism, Column], RobustValue]


def calibrate(
    options: Budget,
    propose: float | None,
    *,
    fallback_sensitivity: float | None = None,
    monotone: bool = False,
) -> ProposeTestReleaseMechanism:
    """Calibrate the mechanism for these options; without a proposal, one for a category."""
    return ProposeTestReleaseMechanism.calibrate(
        propose=0.0 if propose is None else _validate.positive(propose=propose),
        epsilon=options["epsilon"],
        delta=required_delta(options),
        bounds=options.get("bounds"),
        fallback_sensitivity=fallback_sensitivity,
        fallback=options.get("fallback", False),
        monotone=monotone,
        law=options.get("law", Law.LAPLACE),
        test=options.get("test"),
        failure=options.get("failure"),
    )


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
    scale = mechanism.robust_noise_multiplier * mechanism.propose
    spread = mechanism.spread(mechanism.robust_noise_multiplier * mechanism.steps)
    return Preview(
        statistic=name,
        mechanism="propose-test-release",
        epsilon=options["epsilon"],
        delta=required_delta(options),
        event=mechanism.event,
        proposal=mechanism.propose or None,
        noise_scale=spread.deviation if scale else None,
        half_width=spread.half_width(0.95) if scale else None,
        threshold=mechanism.threshold,
    )


def prepared(
    name: str, mechanism: ProposeTestReleaseMechanism, measure: Measure, options: Budget
) -> Prepared:
    """Return the release of what `measure` measures."""

    def answer(records: Column, noise: Noise | None) -> Outcome:
        measured = functools.partial(measure, mechanism)
        return modes.read(mechanism.release(records, measured, noise=noise))

    return Prepared(preview=preview(name, mechanism, options), answer=answer)
