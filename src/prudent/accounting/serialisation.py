"""Event serialisation: convert events to and from JSON, and describe them in words."""

import enum
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

import attrs
import dp_accounting as dp
from dp_accounting import dp_event

from prudent import _validate
from prudent._formats import check_format
from prudent._rounding import rounded_down, rounded_up
from prudent._validate import ArgumentError
from prudent.accounting import events
from prudent.accounting.relations import Relation

FORMAT = 1  # of event JSON
_SILENT = 1e9  # noise so large that the event stands for its test alone

_KINDS: dict[str, type[Any]] = {"Relation": Relation} | {
    name: kind
    for module in (dp_event, events)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, dp.DpEvent) and attrs.has(kind)
}


def to_json(event: dp.DpEvent) -> str:
    """An event, with everything inside it and the number of the format, as one line of JSON."""
    _validate.instance(dp.DpEvent, "a DpEvent", event=event)
    return json.dumps({"format": FORMAT, **to_plain(event)}, allow_nan=False)


def from_json(text: str) -> dp.DpEvent:
    """The event that `to_json` wrote.

    Raises:
        NewerFormatError: If a later version wrote the text, in a format unknown to this one.
        ValueError: If the text is not such an event, or one this version does not know.
    """
    _validate.instance(str, "a text", text=text)
    try:
        content = json.loads(text)
    except (RecursionError, ValueError) as error:  # a number may be too long, lists too deep
        raise ValueError(f"Expected an event in JSON, got {text[:60]!r} ({error}).") from error
    if isinstance(content, dict):
        check_format(content, FORMAT, "event JSON")
        content.pop("format")
    event = from_plain(content)
    if not isinstance(event, dp.DpEvent):
        raise ValueError(f"Expected an event in JSON, got {text[:60]!r}. to_json writes them.")
    return event


def to_plain(value: Any) -> Any:
    """Convert events and relations, with their fields, to dicts, lists, numbers and strings."""
    if isinstance(value, dp.DpEvent | Relation):
        fields = {f.name: to_plain(getattr(value, f.name)) for f in attrs.fields(type(value))}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        # dp_accounting stores numbers as they were given, which may be numpy scalars.
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def from_plain(value: Any) -> Any:
    """Invert `to_plain`. Only events of known kinds and relations are constructed."""
    if isinstance(value, Mapping):
        fields = dict(value)
        name = fields.pop("kind", None)
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ArgumentError("kind", f"one of {', '.join(sorted(_KINDS))}", got=name)
        inner = {field: from_plain(item) for field, item in fields.items()}
        if kind.__module__.startswith("dp_accounting") and any(
            isinstance(item, str) or item is None for item in inner.values()
        ):
            raise ValueError(f"Expected numbers and events in {name}, got {fields!r:.200}.")
        try:
            return kind(**inner)
        except TypeError as error:
            raise ValueError(f"Expected the fields of {name}, got {sorted(fields)}.") from error
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value


def describe(event: dp.DpEvent) -> str:
    """Describe an event in words, with one line for each composed event."""
    _validate.instance(dp.DpEvent, "a DpEvent", event=event)
    return "\n".join(_lines(event, "")) or "nothing"


def _lines(event: dp.DpEvent, indent: str) -> list[str]:
    match event:
        case dp.NoOpDpEvent():
            return [indent + "nothing"]
        case dp.ComposedDpEvent():
            return [line for inner in event.events for line in _lines(inner, indent)]
        case dp.SelfComposedDpEvent():
            return _prefixed(f"{event.count:,} × ", event.event, indent)
        case events.BinomialSelectionDpEvent():
            chance = f"each with probability {rounded_up(event.probability, 6)}"
            prefix = f"the best of up to {event.draws:,} runs, {chance}, of: "
            return _prefixed(prefix, event.event, indent)
        case dp_event.RepeatAndSelectDpEvent():
            names = {0.0: "logarithmic", 1.0: "geometric", math.inf: "Poisson"}
            kind = names.get(float(event.shape), f"negative binomial (shape {event.shape:g})")
            prefix = f"the best of about {event.mean:g} runs, their number {kind}, of: "
            return _prefixed(prefix, event.event, indent)
        case events.RandomAllocationDpEvent():
            prefix = f"each record in one of {event.steps:,} steps, chosen at random: "
            return _prefixed(prefix, event.event, indent)
        case events.WorstOfDpEvent(events=(only,)):
            return _prefixed("at most ", only, indent)
        case events.WorstOfDpEvent():
            inner = [line for one in event.events for line in _lines(one, indent + "  ")]
            return [indent + "one of:", *inner]
        case dp.PoissonSampledDpEvent():
            rate = f"each record with probability {rounded_up(event.sampling_probability, 6)}: "
            return _prefixed(rate, event.event, indent)
        case dp.GaussianDpEvent() | dp.LaplaceDpEvent():
            noise = "Gaussian" if isinstance(event, dp.GaussianDpEvent) else "Laplace"
            words = f"{noise} noise, multiplier {rounded_down(event.noise_multiplier, 6)}"
        case events.MarginTest():
            words = f"{_test_words(event)} of a margin"
        case dp_event.DiscreteLaplaceDpEvent():
            scale = f"scale {rounded_down(1 / event.noise_parameter)}"
            words = f"discrete Laplace noise, {scale} for a sensitivity of {event.sensitivity}"
        case events.ProposeTestReleaseDpEvent():
            words = _ptr_words(event)
        case events.ApproximateDpEvent():
            epsilon, delta = rounded_up(event.epsilon, 6), rounded_up(event.delta, 6)
            words = f"a mechanism of ε = {epsilon} and δ = {delta}"
        case events.ExponentialMechanismDpEvent():
            words = f"a choice by the exponential mechanism, ε = {rounded_up(event.epsilon, 6)}"
        case _:
            words = repr(event)
    return [indent + words]


def _prefixed(prefix: str, inner: dp.DpEvent, indent: str) -> list[str]:
    lines = _lines(inner, indent)
    if len(lines) == 1:
        return [indent + prefix + lines[0][len(indent) :]]
    return [indent + prefix.rstrip(), *("  " + line for line in lines)]


def _ptr_words(event: events.ProposeTestReleaseDpEvent) -> str:
    proposal = f"proposes {rounded_up(event.propose, 6)} of the global sensitivity"
    if event.propose == 0:
        proposal = "proposes a bound where no global one is known"
    then = f"releases at {rounded_down(event.sigma_over_proposal, 6)} × the proposal"
    if event.sigma_over_proposal >= _SILENT:
        then = "lets the next line release"
    fallback = f"falls back to noise multiplier {rounded_down(event.noise_multiplier, 6)}"
    if event.refuses:
        fallback = "refuses"
    shown = {
        events.Reveals.MARGIN: "the noisy margin",
        events.Reveals.BRANCH: "the branch",
        events.Reveals.MONOTONE_BRANCH: "the branch of a monotone margin",
    }[event.reveals]
    test = f"{_test_words(event.test)} with failure {rounded_up(event.failure, 6)}"
    return f"Propose-Test-Release: {proposal}, {test}, {then}, else {fallback}; shows {shown}"


def _test_words(test: events.MarginTest) -> str:
    kind = {
        events.LaplaceTest: "Laplace",
        events.GaussianTest: "Gaussian",
        events.DiscreteLaplaceTest: "discrete Laplace",
        events.DiscreteGaussianTest: "discrete Gaussian",
    }[type(test)]
    return f"{kind} test of scale {rounded_down(test.scale, 6)}"
