"""Events on paper: to and from JSON, and in words for a person."""

import enum
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

import attrs
import dp_accounting as dp
from dp_accounting import dp_event
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent._validate import ArgumentError
from prudent.accounting import events
from prudent.accounting.events import MarginTest, ProposeTestReleaseDpEvent, Reveals
from prudent.accounting.relations import Relation

_SILENT = 1e9  # noise so large that the event stands for its test alone

_KINDS: dict[str, type[Any]] = {"Relation": Relation} | {
    name: kind
    for module in (dp_event, events)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, dp.DpEvent) and attrs.has(kind)
}


def to_json(event: dp.DpEvent) -> str:
    """An event, with everything inside it, as one line of JSON."""
    return json.dumps(to_plain(event), allow_nan=False)


def from_json(text: str) -> dp.DpEvent:
    """The event that `to_json` wrote.

    Raises:
        ValueError: If the text is not such an event, or one this version does not know.
    """
    try:
        event = from_plain(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"Expected an event in JSON, got {text[:60]!r} ({error}).") from error
    if not isinstance(event, dp.DpEvent):
        raise ValueError(f"Expected an event in JSON, got {text[:60]!r}. to_json writes them.")
    return event


def to_plain(value: Any) -> Any:
    """Events, relations and what is in them as dictionaries, lists, numbers and strings."""
    if isinstance(value, dp.DpEvent | Relation):
        fields = {f.name: to_plain(getattr(value, f.name)) for f in attrs.fields(type(value))}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        # dp_accounting keeps numbers as they were given, of numpy too.
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`. Only events of known kinds and relations are ever built."""
    if isinstance(value, Mapping):
        fields = dict(value)
        name = fields.pop("kind", None)
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ArgumentError("kind", f"one of {', '.join(sorted(_KINDS))}", got=name)
        try:
            return kind(**{field: from_plain(item) for field, item in fields.items()})
        except TypeError as error:
            raise ValueError(f"Expected the fields of {name}, got {sorted(fields)}.") from error
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value


def describe(event: dp.DpEvent) -> str:
    """The event in words, one line for each thing composed."""
    return "\n".join(_lines(event, "")) or "nothing"


def _lines(event: dp.DpEvent, indent: str) -> list[str]:
    match event:
        case dp.NoOpDpEvent():
            return [indent + "nothing"]
        case dp.ComposedDpEvent():
            return [line for inner in event.events for line in _lines(inner, indent)]
        case dp.SelfComposedDpEvent():
            return _prefixed(f"{event.count:,} × ", event.event, indent)
        case dp.PoissonSampledDpEvent():
            rate = f"each record with probability {event.sampling_probability:.6g}: "
            return _prefixed(rate, event.event, indent)
        case _:
            return [indent + _words(event)]


def _prefixed(prefix: str, inner: dp.DpEvent, indent: str) -> list[str]:
    lines = _lines(inner, indent)
    if len(lines) == 1:
        return [indent + prefix + lines[0][len(indent) :]]
    return [indent + prefix.rstrip(), *("  " + line for line in lines)]


def _words(event: dp.DpEvent) -> str:
    match event:
        case dp.GaussianDpEvent():
            return f"Gaussian noise, multiplier {event.noise_multiplier:g}"
        case dp.LaplaceDpEvent():
            return f"Laplace noise, multiplier {event.noise_multiplier:g}"
        case MarginTest():
            return f"{_test_words(event)} of a margin"
        case DiscreteLaplaceDpEvent():
            scale = f"scale {1 / event.noise_parameter:.4g}"
            return f"discrete Laplace noise, {scale} for a sensitivity of {event.sensitivity}"
        case ProposeTestReleaseDpEvent():
            return _ptr_words(event)
        case _:
            return repr(event)


def _ptr_words(event: ProposeTestReleaseDpEvent) -> str:
    proposal = f"proposes {event.propose:g} of the global sensitivity"
    if event.propose == 0:
        proposal = "proposes a bound where no global one is known"
    then = f"releases at {event.sigma_over_proposal:g} × the proposal"
    if event.sigma_over_proposal >= _SILENT:
        then = "lets the next line release"
    fallback = f"falls back to noise multiplier {event.noise_multiplier:g}"
    if event.refuses:
        fallback = "refuses"
    shown = {
        Reveals.MARGIN: "the noisy margin",
        Reveals.BRANCH: "the branch",
        Reveals.MONOTONE_BRANCH: "the branch of a monotone margin",
    }[event.reveals]
    test = f"{_test_words(event.test)} with failure {event.failure:g}"
    return f"Propose-Test-Release: {proposal}, {test}, {then}, else {fallback}; shows {shown}"


def _test_words(test: MarginTest) -> str:
    kind = {
        events.LaplaceTest: "Laplace",
        events.GaussianTest: "Gaussian",
        events.DiscreteLaplaceTest: "discrete Laplace",
        events.DiscreteGaussianTest: "discrete Gaussian",
    }[type(test)]
    return f"{kind} test of scale {test.scale:g}"
