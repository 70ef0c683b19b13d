"""`prudent train`: any experiment of the library, from flags or from a file.

A flag is derived from the declaration of each setting.
"""

import contextlib
import inspect
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prudent._rounding import rounded_down, rounded_up
from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.display import as_text, echo_json, only_elapsed, show_table, shows_progress
from prudent_lab import declared
from prudent_lab.commands import completion
from prudent_lab.settings import Experiment, setting_fields

if TYPE_CHECKING:
    from prudent_lab.experiment import ExperimentResult
    from prudent_lab.recipes import Recipe

_DECLARED = declared("prudent_lab.commands", "flags.toml")
_OFFERED = {
    "dataset": (*completion.DATASETS, "npz:"),
    "method": _DECLARED["flags"]["method"]["choices"],
    "test": options.OFFERED_TESTS[:-1],
    "corrupt": completion.CORRUPTIONS,
}


def flag_names() -> set[str]:
    """The names of all flags that are derived from settings."""
    return {field.name for _, field, _ in setting_fields()}


def with_flags(
    command: Callable[..., None],
    *,
    without: Collection[str] = (),
    help: Mapping[str, str] | None = None,
) -> None:
    """Put a flag for each setting in place of the `**flags` of a command."""
    *parameters, _ = inspect.signature(command).parameters.values()
    only = inspect.Parameter.KEYWORD_ONLY
    for part, field, kind in setting_fields():
        if field.name not in without:
            said = _DECLARED["flags"][field.name]
            default = f"{field.default:g}" if isinstance(field.default, float) else field.default
            shown = said.get("shown", default)
            told = said["help"] + ("" if shown is None else f" \\[{shown}]")
            told, panel = (help or {}).get(field.name, told), _DECLARED["panels"][part]
            option = _flag(field.name, kind, told, panel)
            flag = inspect.Parameter(field.name, only, default=option, annotation=kind | None)
            parameters.append(flag)
    options.declare(command, parameters)


def _flag(name: str, kind: type, told: str, panel: str) -> Any:
    """The option for a setting; what is not given is left to the experiment."""
    if kind is not str:
        return {float: options.number, int: options.whole_number}[kind](told, panel, default=None)
    return typer.Option(
        None,
        help=told,
        metavar=_DECLARED["flags"][name].get("metavar", "NAME"),
        autocompletion=options.among(*_OFFERED[name]) if name in _OFFERED else None,
        rich_help_panel=panel,
    )


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among the flags of a command, as far as they were given."""
    names = flag_names()
    return {name: value for name, value in flags.items() if name in names and value is not None}


def experiment_of(chosen: Mapping[str, Any], recipe: "Recipe | None" = None) -> Experiment:
    """The experiment with the settings that were chosen, by flags or in a file.

    `chosen` has texts and numbers by the names of flags; a recipe has the other settings.
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
        values["test"] = options.parse_test(str(values["test"]))
        if values["test"] is None:  # a rule that has a test cannot be without
            hint = "To train without a test, choose another --method."
            raise ArgumentError("test", options.TESTS, got="none", hint=hint)
    if values.get("method") == "sgd":
        for name in {"epsilon", "noise_multiplier"} & set(values):
            why = "to be left out with sgd, which is not private"
            raise ArgumentError(name, why, got=values[name])
    if values.get("method") == "sgd" or {"steps", "noise_multiplier"} <= set(values):
        values.setdefault("epsilon", None)
    for name, flag in _DECLARED["flags"].items():
        if name in values and values[name] not in flag.get("choices", [values[name]]):
            raise ArgumentError(name, f"one of {', '.join(flag['choices'])}", got=values[name])
    for name in ("dataset", "corrupt", "unit"):
        if name in values and not isinstance(values[name], str):
            raise ArgumentError(name, "a text", got=values[name])
    records = None if "unit" in values else values.pop("records_per_person", None)
    if records is not None or "relation" in values:
        derived = "zero-out" if values.get("public_size") is None else "add-remove"
        name = values.get("relation", derived)
        values["relation"] = options.relation(name, 1 if records is None else records)
    if "accountant" in values:
        values["accountant"] = options.accountant_named(values["accountant"])
    return Experiment.of(**values) if recipe is None else recipe.settings(**values)


def seed_is_drawn(chosen: Mapping[str, Any]) -> bool:
    """Whether the seed is drawn: the user's own data may be secret, so the noise must be, too."""
    return "seed" not in chosen and str(chosen.get("dataset")).startswith("npz:")


def train(
    settings: Path | None = typer.Argument(
        None,
        help="A TOML file with the names of the flags as keys (underscores for dashes); "
        "flags take precedence.",
        show_default=False,
    ),
    recipe: str | None = options.value(
        "NAME",
        "Start from the settings, the features and the model of a recipe; list shows "
        "them. Other flags change its settings.",
        ("list", *completion.RECIPES),
        default=None,
    ),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    out: Path | None = typer.Option(None, help="Folder for metrics, ledger and checkpoints."),
    resume: bool = typer.Option(False, "--resume", help="Continue from the checkpoint in --out."),
    as_json: options.Json = False,
    **flags: Any,
) -> None:
    r"""Train a private, robust model and report its (ε, δ).

    Give two of --epsilon, --steps and --noise-multiplier; the third is
    solved for. An archive npz:PATH holds train_features, train_labels,
    test_features, test_labels and the number of classes; with --unit also
    the owner of each training record, and ε then protects people.
    --held-out and --watch-every release how well the run does, with noise
    that the price includes; --patience stops by it.

    [b]Examples[/b]

    $ prudent train --dataset mnist --method ptr --epsilon 3 --steps 2000 \
        --corrupt label:0.1

    $ prudent train --recipe scattering-linear --device cuda --seed 1

    $ prudent train --method dpsgd --epsilon 3 --noise-multiplier 1.1 \
        --out runs/dpsgd --resume

    $ torchrun --nproc-per-node 4 -m prudent train --epsilon 3 --steps 2000 \
        --device cuda
    """
    chosen = _from_file(settings) | given(flags)
    if recipe == "list":
        _show_recipes(as_json=as_json)
        return
    named, followed = chosen.pop("recipe", None) if recipe is None else recipe, None
    if named is not None:
        from prudent_lab.recipes import recipe_named

        followed = recipe_named(str(named))
    experiment = experiment_of(chosen, followed)
    if out is not None and seed_is_drawn(chosen) and experiment.corrupt != "none":
        raise ArgumentError(
            "seed",
            "when --corrupt and --out are used with your own data",
            shown="nothing",
            why="it determines which records are bad, and a resumed run needs the same ones",
        )
    from prudent.training import Reporting
    from prudent.training.parallel import is_first
    from prudent_lab.experiment import run

    # How fast steps go by is not shown of data that may be secret.
    private = experiment.dataset.startswith("npz:")
    with only_elapsed() if private else contextlib.nullcontext():
        result = run(
            experiment,
            device=device_named(device),
            secret_noise=seed_is_drawn(chosen),
            setup=None if followed is None else followed.setup,
            reporting=Reporting(out=out, resume=resume, progress=shows_progress() and not private),
        )
    if not is_first():
        return
    if as_json:
        echo_json(result.plain())
    else:
        _show(result, out, seed_is_drawn=seed_is_drawn(chosen))


with_flags(train)


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:  # of TOML, of UTF-8, of a number too long
        why = error if isinstance(error, tomllib.TOMLDecodeError) else "no text in UTF-8"
        raise ArgumentError("settings", "a TOML file", shown=f"{str(path)!r} ({why})") from error


def _show_recipes(*, as_json: bool) -> None:
    from prudent_lab.recipes import RECIPES

    if as_json:
        echo_json({name: [recipe.summary, recipe.anchor] for name, recipe in RECIPES.items()})
        return
    rows = [(name, recipe.summary, recipe.anchor) for name, recipe in RECIPES.items()]
    show_table(("recipe", "what it does", "compare"), rows, words=3)


def device_named(name: str) -> str:
    """The device of this process that a name stands for, if it is there."""
    import torch

    from prudent.training.parallel import local_device

    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
    except RuntimeError:
        raise ArgumentError("device", "cpu, cuda or cuda:N", got=name) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", "cpu, because no CUDA device is available", got=name)
    return str(local_device(device))


def _show(result: "ExperimentResult", out: Path | None, *, seed_is_drawn: bool) -> None:
    from rich.console import Console

    plain = result.plain()
    console = Console()
    console.print(f"accuracy      [bold]{plain['accuracy']:.2%}[/bold] on the clean test part")
    if plain["epsilon"] is None:
        why = "this method is not private"
        if result.experiment.rule.method.value != "sgd":
            why = "in this simulated attack bad records read others, which no accounting covers"
        console.print(f"guarantee     none: {why}")
    else:
        console.print(
            f"guarantee     ({rounded_up(plain['epsilon'])}, {rounded_up(plain['delta'])})-DP"
        )
        neighbours = result.fitted.plan.relation.sentence(result.fitted.protected)
        console.print(f"neighbours    by {neighbours}")
        console.print(f"noise         multiplier {rounded_down(plain['noise_multiplier'])}")
        if not seed_is_drawn:
            seed = result.experiment.seed
            console.print(
                f"seed          {seed}: the noise is predictable, whoever knows it can subtract it"
            )
    for name, value in plain["released"].items():
        if (noise := plain["released"].get(f"{name}_noise")) is not None:
            console.print(f"released      {name} {value:.4g} ± {noise:.2g}, the last one")
    rate = plain["pass_rate"]
    tested = "" if rate is None else f", test passed in {rate:.0%}"
    console.print(f"steps         {plain['steps']:,}{tested}")
    history = result.fitted.history
    if history and history[-1].step < plain["steps"]:
        kept = result.fitted.best_step
        console.print(
            f"stopped       after {history[-1].step:,}, with the model of step {kept:,}; "
            "the guarantee is for all steps"
        )
    if out is not None:
        console.print(
            as_text(f"saved         {out}/metrics.jsonl, paid.json, checkpoint.pt, receipt.json")
        )
