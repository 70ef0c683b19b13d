"""Runs made elsewhere, described in plain JSON, whose claimed ε is proved or refuted all the same.

A description has the fields `claim` (`epsilon` and `delta`), `relation` (a name, or a name and the
number of records of a privacy unit), perhaps `source` (words), and one of these:

* `run`: `sampling` ("poisson", or "shuffle" for epochs in which each record is in one batch),
  `sampling_rate`, `steps` and `noise_multiplier`, as Opacus and JAX Privacy have them;
* `event`: an event of dp_accounting, with its class as `kind`, or as its named tuples have it;
* `measurement`: `noise` ("laplace" or "gaussian"), `scale`, `d_in`, `d_out` and `measure` of one of
  OpenDP, whose map is checked and whose `d_out` is what the claim follows from.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import attrs

from prudent_verify.events import ALLOCATED, SAMPLED, Event, Relation, parsed

_MEASURES = {"laplace": "MaxDivergence", "gaussian": "ZeroConcentratedDivergence"}


@attrs.frozen
class Description:
    """What is claimed of a run made elsewhere."""

    event: Event
    relation: Relation
    epsilon: float
    delta: float
    source: str
    problem: str | None = None  # what contradicts itself; None if nothing does


def described(content: Mapping[str, Any]) -> Description:
    """The description that JSON holds."""
    known = {"run", "event", "measurement"} & set(content)
    if len(known) != 1 or not {*known, "claim", "relation"} <= set(content):
        raise ValueError("Expected a claim, a relation, and a run, an event or a measurement.")
    if set(content) - {*known, "claim", "relation", "source"}:
        raise ValueError("Expected no other fields in a description.")
    claim, relation = content["claim"], content["relation"]
    if isinstance(relation, str):
        relation = {"adjacency": relation, "records": 1}
    epsilon, delta = (float(_number(claim[name])) for name in ("epsilon", "delta"))
    if set(claim) != {"epsilon", "delta"} or not 0 <= delta < 1:
        raise ValueError("Expected ε and δ in a claim.")
    kind = known.pop()
    event, problem = _READERS[kind](content[kind])
    found = Relation.parsed({"kind": "Relation", **relation})
    if kind == "run" and content[kind]["sampling"] == "shuffle" and found.adjacency != "zero-out":
        raise ValueError("Expected zero-out for shuffled batches: another record moves all others.")
    return Description(parsed(event), found, epsilon, delta, str(content.get("source")), problem)


def _number(value: Any) -> Fraction:
    if type(value) not in (int, float) or value < 0:
        raise ValueError("Expected numbers.")
    return Fraction(value)


def _run(run: Mapping[str, Any]) -> tuple[dict[str, Any], None]:
    if set(run) != {"sampling", "sampling_rate", "steps", "noise_multiplier"}:
        raise ValueError("Expected the four fields of a run.")
    step = {"kind": "GaussianDpEvent", "noise_multiplier": run["noise_multiplier"]}
    rate, steps = run["sampling_rate"], run["steps"]
    if run["sampling"] == "poisson":
        step = {"kind": SAMPLED, "sampling_probability": rate, "event": step}
    elif run["sampling"] == "shuffle" and 0 < rate <= 1:
        batches = int(1 / rate + 1e-9)  # of the last epoch, the first steps count in full
        step, steps = {"kind": ALLOCATED, "steps": batches, "event": step}, -(-steps // batches)
    else:
        raise ValueError("Expected a known way of sampling.")
    return {"kind": "SelfComposedDpEvent", "event": step, "count": steps}, None


def _event(event: Any) -> tuple[Any, None]:
    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(each) for each in value]
        if not isinstance(value, Mapping):
            return value
        own = {name: renamed(each) for name, each in value.items() if name != "module_name"}
        if {"kind", "class_name"} <= set(own):
            raise ValueError("Expected one class of an event.")
        return {"kind": own.pop("class_name"), **own} if "class_name" in own else own

    return renamed(event), None


def _measurement(given: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    if set(given) != {"noise", "scale", "d_in", "d_out", "measure"}:
        raise ValueError("Expected the five fields of a measurement.")
    measure = _MEASURES[given["noise"]]
    scale, far, stated = (_number(given[name]) for name in ("scale", "d_in", "d_out"))
    pure = measure == "MaxDivergence"
    least, problem = far / scale if pure else (far / scale) ** 2 / 2, None
    if given["measure"] != measure or stated < least:
        problem = f"at this scale the map gives at least {float(least)} in {measure}."
    if pure:
        return {"kind": "ApproximateDpEvent", "epsilon": given["d_out"], "delta": 0}, problem
    return {"kind": "ZCDpEvent", "rho": given["d_out"], "xi": 0}, problem


_READERS = {"run": _run, "event": _event, "measurement": _measurement}
