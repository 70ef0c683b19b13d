"""Flags for the settings of an experiment, derived from their declarations."""

import inspect
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent._validate import ArgumentError
from prudent.cli import completion, options
from prudent.lab.settings import Experiment, setting_fields

if TYPE_CHECKING:
    from prudent.lab.recipes import Recipe

_PANELS = {
    "experiment": "Records",
    "rule": "What is released of a batch",
    "privacy": "Price and sampling",
    "optimizer": "Optimizer",
    "watching": "Watching",
}
_METAVARS = {"test": "KIND:SCALE", "reveals": "WHAT", "fallback": "WHAT"}
_METAVARS |= {"corrupt": "KIND:RATIO[:NAME=VALUE]"}
_OFFERED = {
    "dataset": (*completion.DATASETS, "npz:"),
    "method": completion.METHODS,
    "test": completion.TESTS[:-1],
    "corrupt": completion.CORRUPTIONS,
}
_CHOICES = {
    "method": ("ptr", "trimmed", "dpsgd", "sgd"),
    "reveals": ("margin", "branch", "monotone-branch"),
    "fallback": ("sum", "trimmed", "skip"),
    "accountant": ("pld", "rdp"),
    "per_unit": ("mean", "sum"),
}
_PERSON = "records_per_person"


def flag_names() -> set[str]:
    """The names of all flags that are derived from settings."""
    return {field.name for _, field in setting_fields()}


def with_flags(
    command: Callable[..., None],
    *,
    without: Collection[str] = (),
    help: Mapping[str, str] | None = None,
) -> None:
    """Put a flag for each setting in place of the `**flags` of a command.

    Args:
        command: Its own parameters come first, those of where and how to run last.
        without: Settings that get no flag.
        help: What to say of a setting instead of its own help.
    """
    *own, _ = inspect.signature(command).parameters.values()
    merged = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    merged += [flag for flag in _flags(help or {}) if flag.name not in without]
    command.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in merged}


def _flags(help: Mapping[str, str]) -> Iterator[inspect.Parameter]:
    """A flag for each setting of an experiment; what is not given is left to the experiment."""
    for part, field in setting_fields():
        shown = field.metadata["shown"]
        told = field.metadata["help"] + ("" if shown is None else f" \\[{shown}]")
        yield _flag(field.name, field.metadata["kind"], help.get(field.name, told), _PANELS[part])


def _flag(name: str, kind: Any, told: str, panel: str) -> inspect.Parameter:
    option: Any = {float: options.number, int: options.whole_number}.get(kind)
    declared = (
        typer.Option(
            help=told,
            metavar=_METAVARS.get(name, "NAME"),
            autocompletion=completion.among(*_OFFERED[name]) if name in _OFFERED else None,
            rich_help_panel=panel,
        )
        if option is None
        else option(told, panel)
    )
    annotation: Any = Annotated[kind | None, declared]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among the flags of a command, as far as they were given."""
    names = flag_names()
    return {name: value for name, value in flags.items() if name in names and value is not None}


def experiment_of(chosen: Mapping[str, Any], recipe: "Recipe | None" = None) -> Experiment:
    """The experiment with the settings that were chosen, by flags or in a file.

    Args:
        chosen: Settings as texts and numbers, by the names of their flags.
        recipe: What the other settings are taken from.
    """
    known = flag_names()
    if unknown := sorted(set(chosen) - known):
        raise ArgumentError(
            "settings", f"with keys among {', '.join(sorted(known))}", shown=", ".join(unknown)
        )
    values = dict(chosen)
    if seed_is_drawn(chosen):
        values["seed"] = secrets.randbits(63)
    if "test" in values:
        values["test"] = _test(str(values["test"]))
    if values.get("method") == "sgd":
        for name in ("epsilon", "noise_multiplier"):
            if name in values:
                raise ArgumentError(
                    name, "to be left out with sgd, which is not private", got=values[name]
                )
    if values.get("method") == "sgd" or {"steps", "noise_multiplier"} <= set(values):
        values.setdefault("epsilon", None)
    for name, choices in _CHOICES.items():
        if name in values and values[name] not in choices:
            raise ArgumentError(name, f"one of {', '.join(choices)}", got=values[name])
    for name in ("dataset", "corrupt", "unit"):
        if name in values and not isinstance(values[name], str):
            raise ArgumentError(name, "a text", got=values[name])
    records = None if "unit" in values else values.pop(_PERSON, None)
    if records is not None or "relation" in values:
        derived = "zero-out" if values.get("public_size") is None else "add-remove"
        name = values.get("relation", derived)
        values["relation"] = options.relation(name, 1 if records is None else records)
    if "accountant" in values:
        values["accountant"] = options.accountant_named(values["accountant"])
    return Experiment.of(**values) if recipe is None else recipe.settings(**values)


def _test(text: str) -> Any:
    """The test that a text names; a rule that has one cannot be without."""
    test = options.parse_test(text)
    if test is None:
        raise ArgumentError(
            "test",
            f"{options.TESTS}",
            got="none",
            hint="To train without a test, choose another --method.",
        )
    return test


def seed_is_drawn(chosen: Mapping[str, Any]) -> bool:
    """Whether the seed is drawn: the user's own data may be secret, so the noise must be, too."""
    return "seed" not in chosen and str(chosen.get("dataset")).startswith("npz:")
