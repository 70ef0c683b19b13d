"""The command line, `prudent`: one module for each family of commands, put together here.

To add a command, write a function with typed options in a module of its own and name it below.
Only typer is imported while the commands are put together: whatever a command needs beyond that
it imports when it runs, so that `prudent --help` is quick and needs nothing that is optional.
"""

import functools
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

import prudent
from prudent._warning import PredictableNoiseWarning
from prudent.cli import (
    audit,
    budget,
    certify,
    compare,
    demo,
    doctor,
    errors,
    explore,
    options,
    paper,
    pricing,
    progress,
    release,
    sample,
    suggest,
    train,
    tune,
)
from prudent.cli.display import Manner, answering

_HELP = ["-h", "--help"]

app = typer.Typer(
    name="prudent",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP},
)
app.command()(pricing.epsilon)
app.command()(pricing.calibrate)
app.command()(train.train)
app.command()(tune.tune)
app.command()(demo.demo)
app.command()(sample.sample)
app.command()(suggest.suggest)
app.command()(compare.compare)
app.command()(explore.explore)
app.command()(doctor.doctor)
app.add_typer(release.app, name="release")
app.add_typer(budget.app, name="budget")
app.add_typer(paper.app, name="paper")
app.add_typer(certify.app, name="certify")
app.add_typer(audit.app, name="audit")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prudent {prudent.__version__}")
        raise typer.Exit


@app.callback()
def _prudent(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    r"""Differentially private releases that test before they trust.

    [b]A private median, under a budget[/b]

    $ prudent sample salaries

    $ prudent budget create budget.db --epsilon 1 --delta 1e-6

    $ prudent release median salaries.parquet --column salary \
        --epsilon 0.3 --ledger budget.db

    [b]What a training run costs[/b]

    $ prudent epsilon --sampling-rate 0.004 --steps 5000 \
        --noise-multiplier 1.1 --test gaussian:4 --delta 1e-5

    Every command shows examples of its own with --help, answers programs
    with --json, and with --quiet prints nothing but its result. Exit status
    0: done; 1: an audit refuted its claim; 2: bad input, in one line that
    says what; 3, 4: a release was refused by its test, by its budget.
    Completion by Tab: prudent --install-completion.
    """


@functools.cache
def command_line() -> Any:
    """All commands, each with the options that every command has."""
    whole = typer.main.get_command(app)
    for command in _commands(whole):
        if not hasattr(command, "commands") or command.invoke_without_command:
            command.params.append(options.quiet())
        for parameter in command.get_params(typer.Context(command, help_option_names=_HELP)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # not <bool>: a switch is given without a value
    return whole


def _commands(command: Any) -> Iterator[Any]:
    """A command and all inside it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _commands(inner)


def _title(command: Any, given: Sequence[str]) -> str:
    """The name of the command that is given, without what it is given."""
    names = ["prudent"]
    for name in given:
        command = getattr(command, "commands", {}).get(name)
        if command is None:
            break
        names.append(name)
    return " ".join(names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, or 2 with one line on standard error.

    Args:
        arguments: What follows `prudent`; by default what this process was started with.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = command_line()
    asked = Manner.asked(given)
    # A command that takes a seed says itself what it means, among its results.
    warnings.filterwarnings("ignore", category=PredictableNoiseWarning)
    with answering(asked), progress.shown(_title(command, given), quiet=asked.quiet):
        try:
            status = command(args=given, prog_name="prudent", standalone_mode=False)
        except Exception as error:
            return errors.report(error, command)
        if status == errors.STOPPED:  # by the keyboard, which typer says nothing about
            errors.tell(errors.Fault("Stopped.", status=status))
        return status if isinstance(status, int) else 0
