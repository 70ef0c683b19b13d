"""The event of a run, derived from its plan: what was asked and what was paid for must agree."""

import math
from collections.abc import Mapping
from typing import Any

from prudent_verify.events import ALLOCATED, SAMPLED, SELECTIONS, WORST, Event, Relation, parsed


def problem_of(kind: str, asked: Mapping[str, Any], event: Event, relation: Relation) -> str | None:
    """What is wrong between a request and its event; None if nothing is, or nothing is known."""
    if kind in ("training", "federated"):
        if parsed(event_of(asked["plan"], relation)) != event:
            return "the plan that was asked for has another event."
    elif kind == "tuning":
        trials = asked["trials"]
        own = {name: each for name, each in event.fields if name != "event"}
        given: dict[str, Any] = {"shape": "inf"} if trials["kind"] == "Poisson" else {}
        given |= {name: each for name, each in trials.items() if name != "kind"}
        given = {name: None if each == "inf" else each for name, each in given.items()}
        if event.kind not in SELECTIONS or given != own:
            return "the number of candidates that was asked for is not that of the event."
    elif "plan" in asked or "trials" in asked:
        return "what was asked is of another kind."
    return None


def event_of(plan: Mapping[str, Any], relation: Relation) -> dict[str, Any]:
    """The event of all steps of a plan, and of what was released before them."""
    if plan["kind"] != "Plan" or type(plan["steps"]) is not int or plan["steps"] < 1:
        raise ValueError("Expected a plan with steps.")
    taken = _allocated(plan) if plan["sampling"] == "random-allocation" else _sampled(plan)
    held = plan["held_out"]
    if held is not None:
        looks = -(-plan["steps"] // held["every"])
        alone = _times(_gaussian(held["noise_multiplier"]), looks)
        both = "ComposedDpEvent" if relation.distance > 1 else WORST
        taken = {"kind": both, "events": [taken, alone]}
    if plan["before"] is None:
        return taken
    return {"kind": "ComposedDpEvent", "events": [plan["before"], taken]}


def _times(event: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {"kind": "SelfComposedDpEvent", "event": event, "count": count}


def _gaussian(multiplier: float) -> dict[str, Any]:
    return {"kind": "GaussianDpEvent", "noise_multiplier": multiplier}


def _step(rule: Mapping[str, Any]) -> dict[str, Any]:
    """One step on all records of a batch."""
    if rule["kind"] in ("Sum", "TrimmedSum"):
        return _gaussian(rule["noise_multiplier"])
    if rule["kind"] != "ProposeTestRelease":
        raise ValueError("Expected a known rule of aggregation.")
    skips, noise = rule["fallback"] == "skip", rule["noise_multiplier"]
    return {
        "kind": "ProposeTestReleaseDpEvent",
        "noise_multiplier": "inf" if skips else noise,
        "propose": rule["propose"],
        "test": rule["test"],
        "failure": rule["failure"],
        "robust_noise_multiplier": noise if skips else None,
        "reveals": rule["reveals"],
    }


def _sampled(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Steps on samples, some of which also tell a noisy loss; in turns, of one part of records."""
    if plan["sampling"] != "poisson":
        raise ValueError("Expected a known way of sampling.")
    steps, num_bands, watch = plan["steps"], plan["num_bands"], plan["watch"]
    rate = min(1.0, num_bands * plan["sampling_rate"])
    step = _step(plan["aggregation"])
    turns, watched, parts = -(-steps // num_bands), 0, []
    if watch is not None:
        watched = -(-steps // math.lcm(num_bands, watch["loss_every"]))
    if turns > watched:
        one = {"kind": SAMPLED, "sampling_probability": rate, "event": step}
        parts.append(_times(one, turns - watched))
    if watch is not None:
        loss = watch["noise_multiplier"]  # of its batch, told together with a step
        both = {"kind": "ComposedDpEvent", "events": [step, _gaussian(loss)]}
        if step["kind"] == "GaussianDpEvent":
            both = _gaussian(1 / math.hypot(1 / step["noise_multiplier"], 1 / loss))
        seen = {"kind": SAMPLED, "sampling_probability": rate, "event": both}
        parts.append(_times(seen, watched))
    found = parts[0] if len(parts) == 1 else {"kind": "ComposedDpEvent", "events": parts}
    return found if num_bands == 1 else {"kind": WORST, "events": [found]}


def _allocated(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Epochs in which a record is in one step each, and the first steps of another."""
    batches, step = round(1 / plan["sampling_rate"]), _step(plan["aggregation"])
    if plan["watch"] is not None or plan["num_bands"] != 1:
        raise ValueError("Expected an allocation without losses and turns.")
    epochs, rest = divmod(plan["steps"], batches)
    parts = []
    if epochs:
        parts.append(_times({"kind": ALLOCATED, "event": step, "steps": batches}, epochs))
    if rest:
        some = {"kind": ALLOCATED, "event": step, "steps": rest}
        first = {"kind": SAMPLED, "sampling_probability": rest / batches, "event": some}
        parts.append(_times(first, 1))
    return parts[0] if len(parts) == 1 else {"kind": "ComposedDpEvent", "events": parts}
