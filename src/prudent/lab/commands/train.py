"""`prudent train`: any experiment of the library, from flags or from a file."""

import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent._rounding import rounded_down, rounded_up
from prudent._validate import ArgumentError
from prudent.cli import completion, needs, options
from prudent.cli.display import as_text, echo_json, shows_progress
from prudent.cli.progress import only_elapsed

if TYPE_CHECKING:
    from prudent.lab.experiment import Experiment, Result
    from prudent.lab.recipes import Recipe


NEEDS = {"train": (needs.TRAIN,)}
_NO_SETTINGS = frozenset({"settings", "device", "out", "resume", "as_json"})
"""Flags that say where and how to run; every other one is a setting of the experiment."""


def train(
    context: typer.Context,
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
        typer.Option(
            metavar="NAME",
            help="Start from the settings, the features and the model of a recipe; list shows "
            "them. Other flags change its settings.",
            autocompletion=completion.among("list", *completion.RECIPES),
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="mnist, fashion-mnist, emnist-letters, emnist-az, cifar10 or npz:PATH. \\[mnist]",
            autocompletion=completion.among(*completion.DATASETS, "npz:"),
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="ptr, trimmed, dpsgd or sgd. \\[ptr]",
            autocompletion=completion.among(*completion.METHODS),
        ),
    ] = None,
    epsilon: Annotated[float | None, options.number("Target ε. [3]")] = None,
    delta: Annotated[float | None, options.number("Target δ. [1e-5]")] = None,
    steps: Annotated[int | None, options.whole_number("Steps; solved for if not given.")] = None,
    noise_multiplier: Annotated[float | None, options.number("σ; solved for if not given.")] = None,
    batch: Annotated[int | None, options.whole_number("Expected batch size. [256]")] = None,
    public_size: Annotated[
        int | None,
        options.whole_number(
            "A publicly known number of records, which determines the sampling rate. Without it "
            "the true number is used and becomes public."
        ),
    ] = None,
    relation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which data sets are neighbours: add-remove (needs --public-size), zero-out or "
            "replace-one. \\[add-remove with --public-size, else zero-out]",
        ),
    ] = None,
    records_per_person: Annotated[
        int | None,
        options.whole_number("Largest number of records of one person; ε protects a person. [1]"),
    ] = None,
    clip: Annotated[float | None, options.number("R, the clipping norm of gradients. [1]")] = None,
    propose: Annotated[float | None, options.number("τ/R, the proposed sensitivity. [0.5]")] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:SCALE",
            help=f"The test: {options.TESTS}. \\[gaussian:4]",
            autocompletion=completion.among(*completion.TESTS[:-1]),
        ),
    ] = None,
    failure: Annotated[float | None, options.number("δ₀ of the test. [1e-8]")] = None,
    reveals: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="margin, branch or monotone-branch. \\[monotone-branch]"),
    ] = None,
    fallback: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="After a failed test: sum, trimmed or skip. \\[sum]"),
    ] = None,
    fallback_scale: Annotated[
        float | None,
        options.number("Factor on the learning rate of steps whose test failed. [1]"),
    ] = None,
    trim: Annotated[float | None, options.number("Initial trim fraction. [0.25]")] = None,
    trim_up: Annotated[
        float | None, options.number("Added to it when a test fails. [0.02]")
    ] = None,
    trim_down: Annotated[float | None, options.number("Subtracted when it passes. [0.02]")] = None,
    trim_most: Annotated[float | None, options.number("Largest trim fraction. [0.5]")] = None,
    lr: Annotated[float | None, options.number("Learning rate. [0.5]")] = None,
    momentum: Annotated[float | None, options.number("Momentum of SGD. [0]")] = None,
    average: Annotated[
        float | None,
        options.number("Average the weights over steps, keeping this fraction, such as 0.97."),
    ] = None,
    corrupt: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:RATIO[:NAME=VALUE]",
            help="Corrupt some records: label, label-targeted, feature, class-mean, "
            "gradient-match, backdoor, gradient, sign-flip, colluding, inner-product, reversed, "
            "loud, little or mimic, with a ratio up to 0.5 and its strength, such as "
            "gradient:0.1:variance=25. \\[none]",
            autocompletion=completion.among(*completion.CORRUPTIONS),
        ),
    ] = None,
    seed: Annotated[
        int | None,
        options.whole_number(
            "Seed of all random numbers, including the noise: as secret as the data. [0; for "
            "npz:PATH drawn by the operating system]"
        ),
    ] = None,
    accountant: Annotated[
        str | None, typer.Option(metavar="NAME", help="pld or rdp. \\[pld]")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for metrics, ledger and checkpoints.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    r"""Train a private, robust model and report its (ε, δ).

    Give two of --epsilon, --steps and --noise-multiplier; the third is
    solved for. An archive npz:PATH holds train_features, train_labels,
    test_features, test_labels and the number of classes.

    [b]Examples[/b]

    $ prudent train --dataset mnist --method ptr --epsilon 3 --steps 2000 \
        --corrupt label:0.1

    $ prudent train --recipe scattering-linear --device cuda --seed 1

    $ prudent train --method dpsgd --epsilon 3 --noise-multiplier 1.1 \
        --out runs/dpsgd --resume

    $ torchrun --nproc-per-node 4 -m prudent train --epsilon 3 --steps 2000 \
        --device cuda
    """
    chosen = _from_file(settings) | _given(context)
    if recipe == "list":
        _show_recipes(as_json=as_json)
        return
    followed = _recipe(chosen.pop("recipe", None))
    experiment = _experiment(chosen, followed)
    if out is not None and _seed_is_drawn(chosen) and experiment.corrupt != "none":
        raise ArgumentError(
            "seed",
            "when --corrupt and --out are used with your own data",
            shown="nothing",
            why="it determines which records are bad, and a resumed run needs the same ones",
        )
    from prudent.lab.experiment import run
    from prudent.training.parallel.processes import is_first

    # How fast steps go by is not shown of data that may be secret.
    private = experiment.dataset.startswith("npz:")
    with only_elapsed() if private else contextlib.nullcontext():
        result = run(
            experiment,
            device=device_named(device),
            out=out,
            resume=resume,
            progress=shows_progress() and not private,
            secret_noise=_seed_is_drawn(chosen),
            setup=None if followed is None else followed.setup,
        )
    if not is_first():
        return
    if as_json:
        echo_json(result.plain())
    else:
        _show(result, out, seed_is_drawn=_seed_is_drawn(chosen))


def _given(context: typer.Context) -> dict[str, Any]:
    """The settings among the flags, by name, as far as they were given."""
    flags = context.params.items()
    return {k: v for k, v in flags if k not in _NO_SETTINGS and v is not None}


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
        found = {name: [each.summary, each.anchor] for name, each in RECIPES.items()}
        echo_json(found)
        return
    table = Table("recipe", "what it does", "compare")
    for name, each in RECIPES.items():
        table.add_row(name, each.summary, each.anchor)
    Console().print(table)


def _experiment(chosen: dict[str, Any], recipe: "Recipe | None" = None) -> "Experiment":
    import attrs

    from prudent.lab.experiment import Experiment

    known = {field.name for field in attrs.fields(Experiment)} | {"records_per_person"}
    unknown = sorted(set(chosen) - known)
    if unknown:
        raise ArgumentError(
            "settings", f"with keys among {', '.join(sorted(known))}", shown=", ".join(unknown)
        )
    values = dict(chosen)
    if _seed_is_drawn(chosen):
        values["seed"] = secrets.randbits(63)
    if "test" in values:
        test = options.parse_test(str(values["test"]))
        if test is None:
            raise ArgumentError(
                "test",
                f"{options.TESTS}",
                got="none",
                hint="To train without a test, choose another --method.",
            )
        values["test"] = test
    if values.get("method") == "sgd":
        for name in ("epsilon", "noise_multiplier"):
            if name in values:
                raise ArgumentError(
                    name, "to be left out with sgd, which is not private", got=values[name]
                )
    if values.get("method") == "sgd" or {"steps", "noise_multiplier"} <= set(values):
        values.setdefault("epsilon", None)
    for name, choices in (
        ("method", ("ptr", "trimmed", "dpsgd", "sgd")),
        ("reveals", ("margin", "branch", "monotone-branch")),
        ("fallback", ("sum", "trimmed", "skip")),
        ("accountant", ("pld", "rdp")),
    ):
        if name in values and values[name] not in choices:
            raise ArgumentError(name, f"one of {', '.join(choices)}", got=values[name])
    for name in ("dataset", "corrupt"):
        if name in values and not isinstance(values[name], str):
            raise ArgumentError(name, "a text", got=values[name])
    records = values.pop("records_per_person", None)
    if records is not None or "relation" in values:
        derived = "zero-out" if values.get("public_size") is None else "add-remove"
        name = values.get("relation", derived)
        values["relation"] = options.relation(name, 1 if records is None else records)
    if "accountant" in values:
        values["accountant"] = options.accountant_named(values["accountant"])
    return Experiment(**values) if recipe is None else recipe.settings(**values)


def _seed_is_drawn(chosen: dict[str, Any]) -> bool:
    """Nobody's data but the user's own may be secret, and then so must the noise be."""
    return "seed" not in chosen and str(chosen.get("dataset")).startswith("npz:")


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


def _show(result: "Result", out: Path | None, *, seed_is_drawn: bool) -> None:
    from rich.console import Console

    plain = result.plain()
    console = Console()
    console.print(f"accuracy      [bold]{plain['accuracy']:.2%}[/bold] on the clean test part")
    if plain["epsilon"] is None:
        why = "this method is not private"
        if result.experiment.method.value != "sgd":
            why = "in this simulated attack bad records read others, which no accounting covers"
        console.print(f"guarantee     none: {why}")
    else:
        console.print(
            f"guarantee     ({rounded_up(plain['epsilon'])}, {rounded_up(plain['delta'])})-DP"
        )
        console.print(f"neighbours    by {result.fitted.plan.relation}")
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
        console.print(as_text(f"saved         {out}/metrics.jsonl, paid.json, checkpoint.pt"))
