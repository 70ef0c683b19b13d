"""Errors as one line: the flag, what is allowed, what was given. Never a traceback."""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import typer

from prudent._files import advice
from prudent._redaction import redacted
from prudent._validate import ArgumentError
from prudent.cli.display import complain, neutral

USAGE = 2
BUG = 1
STOPPED = 130

# What typer found wrong with the command line. It has had a name of its own for the base of these
# errors since it stopped building on click; Flower holds it back to a version before that.
COMPLAINT: type[Any] = getattr(typer, "TyperException", typer.BadParameter.__mro__[2])

# What the library calls differently from the command line, or nests inside a flag.
_FLAGS = {
    "corruption": "--corrupt",
    "count": "--steps",
    "figure": "FIGURE",
    "first": "--trim",
    "folders": "DIR",
    "name": "--dataset",
    "paper_table": "TABLE",
    "sampling_probability": "--sampling-rate",
    "scale": "--test",
    "source": "FILE",
    "statistic": "STATISTIC",
    "target_delta": "--delta",
}

_SWITCH = re.compile(r"\b(?P<name>\w+)=True")
_NOT_A_CHOICE = re.compile(r"(?P<given>'.*') is not one of (?P<choices>.*)\.", re.DOTALL)


def report(error: Exception, command: Any) -> int:
    """Prints an error and returns the exit status that goes with it.

    Args:
        error: What a command raised.
        command: The whole command line, whose options are the flags there are.
    """
    if isinstance(error, typer.Abort):
        line, status = "Stopped.", STOPPED
    elif isinstance(error, COMPLAINT):
        line, status = _usage(error), USAGE
    elif isinstance(error, ImportError):
        line, status = _missing(error), USAGE
    elif isinstance(error, OSError):
        line, status = _file(error), USAGE
    elif isinstance(error, ValueError):
        line, status = with_flag(error, frozenset(_options(command))), USAGE
    else:
        line, status = _bug(error), BUG
    if not line:
        return 0
    complain(redacted(line))
    if os.environ.get("PRUDENT_TRACEBACK"):
        text = redacted("".join(traceback.format_exception(error)))
        print(neutral(text, keep="\n"), end="", file=sys.stderr)
    return status


def with_flag(error: ValueError, options: frozenset[str]) -> str:
    """An error of the library as the command line would say it.

    `Expected noise_multiplier finite and > 0, got -1.0.` becomes
    `--noise-multiplier: expected finite and > 0, got -1.0.`
    """
    message = str(error)
    if isinstance(error, ArgumentError):
        message = _with_its_flag(error.argument, error.expectation, options) or message
    elif parameter := getattr(error, "parameter", None):  # of an UnreachableTargetError
        rest = message.removeprefix(f"No {parameter}")
        message = f"--epsilon: no {parameter.replace('_', '-')}{rest}"

    def switch(match: re.Match[str]) -> str:
        flag = "--" + match["name"].replace("_", "-")
        return flag if flag in options else match[0]

    return _SWITCH.sub(switch, message)


def _with_its_flag(argument: str, expectation: str, options: frozenset[str]) -> str | None:
    """What is expected of a flag; None where no flag has the name of the argument."""
    flag = _FLAGS.get(argument, "--" + argument.replace("_", "-"))
    if flag in options or not flag.startswith("--"):
        return f"{flag}: expected {expectation}"
    return None


def _options(command: Any) -> Iterator[str]:
    """Every flag of a command and of those inside it."""
    for parameter in command.params:
        yield from parameter.opts
    for inner in getattr(command, "commands", {}).values():
        yield from _options(inner)


def _usage(error: Any) -> str:
    """What the command line itself found wrong; empty where it answered with help."""
    option = getattr(error, "option_name", None)
    if option and "requires an argument" in error.message:
        return f"{option}: expected a value, got nothing."
    if not isinstance(error, typer.BadParameter):
        context: Any = getattr(error, "ctx", None)
        where = context.command_path if context else "prudent"
        if option and context and hasattr(error, "possibilities"):
            # The beginning of a flag is close to it, however much is missing.
            flags = [flag for each in context.command.params for flag in each.opts]
            begun = [flag for flag in flags if flag.startswith(option)]
            near = " or ".join(begun or error.possibilities or ())
            hint = f" Did you mean {near}?" if near else ""
            return f"No such option: {option}.{hint} See {where} --help."
        message = error.format_message()
        end = "" if message.endswith((".", "?")) else "."
        return f"{message}{end} See {where} --help." if message else ""
    parameter: Any = error.param
    if parameter is None:
        return error.format_message()
    flag = parameter.opts[-1] if parameter.param_type_name == "option" else parameter.metavar
    if not error.message:
        return f"{flag}: expected a value, got nothing."
    if choice := _NOT_A_CHOICE.search(error.message):
        choices = choice["choices"].replace("'", "")
        return f"{flag}: expected one of {choices}, got {choice['given']}."
    return f"{flag}: {error.message}"


def _missing(error: ImportError) -> str:
    extra = "tables" if error.name in ("ibis", "duckdb", "opendp") else "train"
    return (
        f"This command needs {error.name}, which is not installed: pip install 'prudent[{extra}]'."
    )


def _file(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}".rstrip(".") + f". {advice(error)}".rstrip()


def _bug(error: Exception) -> str:
    """What nobody expected; its own words may quote a record."""
    return (
        f"A bug in prudent: {type(error).__name__}. Its text is withheld, since it may quote "
        "records; PRUDENT_TRACEBACK=1 shows it, for the owner of the data only."
    )
