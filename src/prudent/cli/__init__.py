"""The command line, `prudent`: one module for each family of commands, put together here.

To add a command, write a function with typed options in a module of `prudent.cli.commands`, and
name the module and the extras that it needs in `prudent.cli.needs`, which also finds the commands
of other packages, such as prudent-lab. Only the command that is asked for is put together, and only
typer is imported for that: whatever it needs beyond, it imports when it runs.
"""

import atexit
import functools
import gc
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer

import prudent
from prudent import _extras
from prudent._validate import ArgumentError
from prudent._warning import PredictableNoiseWarning
from prudent.cli import display, errors, needs, options

_HELP = ["-h", "--help"]

atexit.register(gc.freeze)  # the process ends: nothing is gained by looking for garbage then


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prudent {prudent.__version__}")
        raise typer.Exit


def _prudent(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
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
    0: done; 1: a claim or a ledger failed its check; 2: bad input, in one
    line that says what; 3, 4: a release was refused by its test, its budget.
    Completion by Tab: prudent --install-completion.
    """


@functools.cache
def command_line(only: str | None = None) -> Any:
    """The commands, each with the options that every command has."""
    app = typer.Typer(
        name="prudent",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": _HELP},
    )
    app.callback()(_prudent)
    every = dict.fromkeys([*needs.MODULES, *needs.plugins("commands")])
    for name in every if only is None else [only]:
        module = _module(name)
        found = getattr(module, "app", None) or getattr(module, name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command()(found)
    whole = typer.main.get_command(app)
    for name, command in _commands(whole):
        if not hasattr(command, "commands") or command.invoke_without_command:
            command.params.append(options.quiet())
            command.invoke = functools.partial(_check_extras, name, command.invoke)
            command.parse_args = functools.partial(_read_once, command.params, command.parse_args)
        for parameter in command.get_params(typer.Context(command, help_option_names=_HELP)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # not <bool>: a switch is given without a value
    return whole


def _module(name: str) -> Any:
    """The module of a command; one built in comes before a plug-in of the same name."""
    if name in needs.MODULES:
        return importlib.import_module(f"prudent.cli.commands.{needs.MODULES[name]}")
    module = needs.load_plugin("commands", name)
    needs.NEEDS.update(getattr(module, "NEEDS", {name: ()}))
    needs.NEEDS_OF_OPTIONS.update(getattr(module, "NEEDS_OF_OPTIONS", {}))
    return module


def _read_once(params: list[Any], parse: Callable[..., Any], context: Any, given: Any) -> Any:
    """Read the arguments of a command; refuse a list in parts: only the last would stay."""
    named = [each.partition("=")[0] for each in given]
    for each in params:
        if str(each.metavar).endswith(",…") and sum(map(named.count, each.opts)) > 1:
            raise ArgumentError(each.name, "one list, as in a,b", shown="several")
    return parse(context, given)


def _check_extras(name: str, invoke: Callable[[Any], Any], context: Any) -> Any:
    """Run a command whose arguments are read, once it is clear that it has what it needs."""
    if not context._protected_args:  # of a command that may be followed by another inside it
        needs.check(name, context.params)
    return invoke(context)


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """A command and all inside it, each with its name after `prudent`."""
    yield name, command
    for inner, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{name} {inner}".strip())


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
    """Runs a command and returns its exit status: 0, or 2 with one line on standard error."""
    # Imports make many objects and no garbage: looking for it is a tenth of a release's time.
    gc.set_threshold(500_000)
    display.write_everywhere()
    given = sys.argv[1:] if arguments is None else list(arguments)
    first = given[0] if given else ""
    known = first in needs.MODULES or first in needs.plugins("commands")
    command = command_line(first if known else None)
    asked = display.OutputMode.asked(given)
    # A command that takes a seed says itself what it means, among its results.
    warnings.filterwarnings("ignore", category=PredictableNoiseWarning)
    with (
        display.answering(asked),
        display.progress_shown(_title(command, given), quiet=asked.quiet),
    ):
        try:
            if first in needs.LAB and not known:
                raise _extras.MissingPackageError(f"prudent {first}", ["prudent-lab"], [])
            status = command(args=given, prog_name="prudent", standalone_mode=False)
        except Exception as error:
            return errors.report(error, command)
        if status == errors.STOPPED:  # by the keyboard, which typer says nothing about
            errors.print_error(errors.Fault("Stopped.", status=status))
        return status if isinstance(status, int) else 0
