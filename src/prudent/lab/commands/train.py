"""`prudent train`: any experiment of the library, from flags or from a file."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent._rounding import rounded_down, rounded_up
from prudent._validate import ArgumentError
from prudent.cli import completion, needs, options
from prudent.cli.display import as_text, echo_json, shows_progress
from prudent.cli.progress import only_elapsed
from prudent.lab.commands.experiment_flags import experiment_of, given, seed_is_drawn, with_flags

if TYPE_CHECKING:
    from prudent.lab.experiment import ExperimentResult
    from prudent.lab.recipes import Recipe


NEEDS = {"train": (needs.TRAIN,)}


def train(
    settings: Annotated[
        Path | None,
        typer.Argument(
            help="A TOML file with the names of the flags as keys (underscores for dashes); "
            "flags take precedence.",
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        options.value(
            "NAME",
            "Start from the settings, the features and the model of a recipe; list shows "
            "them. Other flags change its settings.",
            ("list", *completion.RECIPES),
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for metrics, ledger and checkpoints.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")
    ] = False,
    as_json: options.Json = False,
    **flags: Any,
) -> None:
    r"""Train a private, robust model and report its (ε, δ).

    Give two of --epsilon, --steps and --noise-multiplier; the third is
    solved for. An archive npz:PATH holds train_features, train_labels,
    test_features, test_labels and the number of classes; with --unit also
    the owner of each training record, and ε then protects people.

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
    followed = _recipe(chosen.pop("recipe", None) if recipe is None else recipe)
    experiment = experiment_of(chosen, followed)
    if out is not None and seed_is_drawn(chosen) and experiment.corrupt != "none":
        raise ArgumentError(
            "seed",
            "when --corrupt and --out are used with your own data",
            shown="nothing",
            why="it determines which records are bad, and a resumed run needs the same ones",
        )
    from prudent.lab.experiment import run
    from prudent.training import Reporting
    from prudent.training.parallel.processes import is_first

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


def _recipe(name: object) -> "Recipe | None":
    """The recipe of this name, if one was given."""
    if name is None:
        return None
    from prudent.lab.recipes import recipe_named

    return recipe_named(str(name))


def _show_recipes(*, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from prudent.lab.recipes import RECIPES

    if as_json:
        echo_json({name: [recipe.summary, recipe.anchor] for name, recipe in RECIPES.items()})
        return
    table = Table("recipe", "what it does", "compare")
    for name, recipe in RECIPES.items():
        table.add_row(name, recipe.summary, recipe.anchor)
    Console().print(table)


def device_named(name: str) -> str:
    """The device of this process that a name stands for, if it is there."""
    import torch

    from prudent.training.parallel.processes import local_device

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError("device", "cpu, cuda or cuda:N", got=name) from None
    if device.type not in ("cpu", "cuda"):
        raise ArgumentError("device", "cpu, cuda or cuda:N", got=name)
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
    rate = plain["pass_rate"]
    tested = "" if rate is None else f", test passed in {rate:.0%}"
    console.print(f"steps         {plain['steps']:,}{tested}")
    if out is not None:
        console.print(
            as_text(f"saved         {out}/metrics.jsonl, paid.json, checkpoint.pt, receipt.json")
        )
