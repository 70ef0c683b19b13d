"""Events and relations as typed values: the one place where their JSON is read.

What is walked elsewhere (releases, noises, prices, theorems, certificates) is the tree that
`parsed` returns. It holds no unknown field, nothing that is run no times, and no leaf without
noise: so whatever is found in it was paid for.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

_LARGEST = 1e300
_MOST_RUNS = 1 << 60
ALLOCATED, SAMPLED, WORST = "RandomAllocationDpEvent", "PoissonSampledDpEvent", "WorstOfDpEvent"
SELECTIONS = ("RepeatAndSelectDpEvent", "BinomialSelectionDpEvent")
"""The kinds of events that release the best of many candidates."""


class UnknownEventError(ValueError):
    """An event for which this package has no proof of its own."""


@attrs.frozen
class Event:
    """One event: its kind, and its fields with numbers, names and the events inside it."""

    kind: str
    fields: tuple[tuple[str, Any], ...]

    def __getitem__(self, name: str) -> Any:
        """The value of a field; a number that may be infinite and is so is None."""
        return dict(self.fields)[name]

    @property
    def inside(self) -> tuple["Event", ...]:
        """The events that this one is made of; of a release with a test, not the test."""
        own = dict(self.fields)
        return tuple(own["events"]) if "events" in own else tuple(filter(None, [own.get("event")]))

    def walk(self) -> Iterator["Event"]:
        """This event, and all inside it."""
        yield self
        for each in self.inside:
            yield from each.walk()


@attrs.frozen
class Relation:
    """Which data sets are neighbours."""

    adjacency: str
    records: int  # of one privacy unit

    @classmethod
    def parsed(cls, value: Any) -> "Relation":
        """The relation that JSON holds."""
        if not isinstance(value, Mapping) or set(value) != {"kind", "adjacency", "records"}:
            raise ValueError("Expected the fields of a neighbouring relation.")
        records = value["records"]
        sound = value["kind"] == "Relation" and value["adjacency"] in _DISTANCES
        if not sound or type(records) is not int or records < 1:
            raise ValueError("Expected a known neighbouring relation.")
        return cls(value["adjacency"], records)

    @property
    def distance(self) -> int:
        """How many records must be added or removed from one data set to its neighbour."""
        return self.records * _DISTANCES[self.adjacency]


_DISTANCES = {"add-remove": 1, "zero-out": 1, "replace-one": 2}


def _read(
    holds: Callable[[Any], Any], words: str, convert: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any]:
    """A reader of fields of which this holds, in words what was expected."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise UnknownEventError(f"Expected {words} in the event, got {value!r:.40}.")
        return value if convert is None else convert(value)

    return read


def _between(low: float = 0, high: float = _LARGEST, ends: str = "(]") -> Callable[[Any], Any]:
    """A number in an interval, given as mathematicians write it; by default any above zero."""
    within = [low] * (ends[0] == "[") + [high] * (ends[1] == "]")
    return _read(
        lambda value: type(value) in (int, float) and (low < value < high or value in within),
        f"a number in {ends[0]}{low:g}, {high:g}{ends[1]}",
    )


def _or(word: str | None, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A number, or None for a word: of infinite noise nothing is told."""
    return lambda value: None if type(value) is type(word) and value == word else read(value)


def parsed(value: Any) -> Event:
    """The event that JSON holds, with everything inside it."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        if kind == "NoOpDpEvent":
            raise UnknownEventError("A part of the event has no noise: it accounts for no answer.")
        if kind == "NonPrivateDpEvent":
            raise UnknownEventError("The event says that something is released without protection.")
        raise UnknownEventError(f"Events of the kind {kind!r:.60} are not known here.")
    readers = _FIELDS[kind]
    if set(value) != {"kind", *readers}:
        raise UnknownEventError(f"Expected exactly the fields of {kind} in the event.")
    return Event(kind, tuple((name, read(value[name])) for name, read in readers.items()))


_positive = _between()
_whole = _read(
    lambda value: type(value) is int and 1 <= value <= _MOST_RUNS, "whole numbers of at least 1"
)
_several = _read(
    lambda value: isinstance(value, list) and value,
    "at least one event (nothing is noise)",
    lambda value: tuple(map(parsed, value)),
)
_Readers = Mapping[str, Callable[[Any], Any]]
_TESTS: Mapping[str, _Readers] = {
    f"{noise}Test": {"scale": _positive}
    for noise in ("Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian")
}
_FIELDS: Mapping[str, _Readers] = {
    **_TESTS,
    "GaussianDpEvent": {"noise_multiplier": _positive},
    "LaplaceDpEvent": {"noise_multiplier": _positive},
    "DiscreteLaplaceDpEvent": {"noise_parameter": _positive, "sensitivity": _whole},
    "ExponentialMechanismDpEvent": {"epsilon": _positive},
    "ApproximateDpEvent": {"epsilon": _positive, "delta": _between(0, 1, "[)")},
    "ZCDpEvent": {"rho": _positive, "xi": _between(0, 0, "[]")},
    "ProposeTestReleaseDpEvent": {
        "noise_multiplier": _or("inf", _positive),
        "propose": _between(ends="[]"),
        "test": _read(
            lambda value: isinstance(value, Mapping) and value.get("kind") in tuple(_TESTS),
            "a test of a margin",
            parsed,
        ),
        "failure": _between(0, 0.5, "()"),
        "robust_noise_multiplier": _or(None, _positive),
        "reveals": _read(
            ("margin", "branch", "monotone-branch").__contains__, "a known kind of revealing"
        ),
    },
    SAMPLED: {"sampling_probability": _between(0, 1), "event": parsed},
    "SelfComposedDpEvent": {"event": parsed, "count": _whole},
    "ComposedDpEvent": {"events": _several},
    WORST: {"events": _several},
    ALLOCATED: {"event": parsed, "steps": _whole},
    "RepeatAndSelectDpEvent": {
        "event": parsed,
        "mean": _positive,
        "shape": _or("inf", _between(ends="[]")),
    },
    "BinomialSelectionDpEvent": {
        "event": parsed,
        "draws": _whole,
        "probability": _between(0, 1),
    },
}
