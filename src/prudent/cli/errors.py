"""Errors as one line: the flag, what is allowed, what was given. Never a traceback.

With `--json` the same as a document, `{"error": …, "flag": …, "status": …}`, on standard output.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer

from prudent import _extras
from prudent._files import advice
from prudent._validate import ArgumentError, UnknownColumnError, redacted
from prudent.cli.display import complain, echo_json, neutral, output_mode

USAGE = 2
BUG = 1
UNCHECKED = 3
STOPPED = 130

# What typer found wrong with the command line. It has had a name of its own for the base of these
# errors since it stopped building on click; Flower holds it back to a version before that.
COMPLAINT: type[Any] = getattr(typer, "TyperException", typer.BadParameter.__mro__[2])

# What the library calls differently from the command line, or nests inside a flag.
_FLAGS = {
    "constraints": "--constraint",
    "corruption": "--corrupt",
    "count": "--steps",
    "data": "FILE",
    "figure": "FIGURE",
    "first": "--trim",
    "folders": "DIR",
    "formula": "FORMULA",
    "key": "--sign",
    "name": "--dataset",
    "paper_table": "TABLE",
    "ps": "--p",
    "query": "QUERY",
    "questions": "--columns",
    "sampling_probability": "--sampling-rate",
    "scale": "--test",
    "statistic": "STATISTIC",
    "target_delta": "--delta",
}

_SETTING = re.compile(r"\b(?P<name>\w+)=(?P<value>True\b|'\w+'|\d[\w-]*(?:\.\d[\w-]*)?)")
_NOT_A_CHOICE = re.compile(r"(?P<given>'.*') is not one of (?P<choices>.*)\.", re.DOTALL)


class UncheckedError(Exception):
    """A claim that could not be checked, which says nothing about it."""


class Fault(NamedTuple):
    """What went wrong."""

    text: str  # what is expected, or what happened; empty where the answer was help
    flag: str | None = None  # the flag or argument that is wrong; None where it is none of them
    status: int = USAGE  # the exit status

    @property
    def line(self) -> str:
        """As one line for people; a password in an address is left out."""
        return redacted(self.text if self.flag is None else f"{self.flag}: {self.text}")


def report(error: Exception, command: Any) -> int:
    """Prints an error and returns the exit status that goes with it."""
    fault = _fault(error, command)
    if not fault.text:
        return 0
    print_error(fault)
    if os.environ.get("PRUDENT_TRACEBACK"):
        text = redacted("".join(traceback.format_exception(error)))
        print(neutral(text, keep="\n"), end="", file=sys.stderr)
    return fault.status


def print_error(fault: Fault) -> None:
    """Prints what went wrong: a line for people, a document for programs that wait for one."""
    waits = output_mode().json and not output_mode().answered
    if waits:
        echo_json({"error": fault.line, "flag": fault.flag, "status": fault.status})
    if not (waits and output_mode().quiet):
        complain(fault.line)


def _fault(error: Exception, command: Any) -> Fault:
    if isinstance(error, typer.Abort):
        return Fault("Stopped.", status=STOPPED)
    if isinstance(error, COMPLAINT):
        return _usage(error)
    if isinstance(error, UncheckedError):
        return Fault(str(error), status=UNCHECKED)
    if isinstance(error, ImportError):
        try:
            with _extras.needed("This command"):
                raise error
        except ImportError as found:
            return Fault(str(found))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        what = f"{where}{error.strerror or error}".rstrip(".")
        return Fault(f"{what}. {advice(error)}".rstrip())
    if isinstance(error, ValueError):
        return with_flag(error, frozenset(_options(command)))
    text = (  # nobody expected it, and its own words may quote a record
        f"A bug in prudent: {type(error).__name__}. Its text is withheld, since it may quote "
        "records; PRUDENT_TRACEBACK=1 shows it, for the owner of the data only."
    )
    return Fault(text, status=BUG)


def with_flag(error: ValueError, options: frozenset[str]) -> Fault:
    """An error of the library as the command line would say it.

    `Expected noise_multiplier finite and > 0, got -1.0.` becomes
    `--noise-multiplier: expected finite and > 0, got -1.0.`
    """
    text, flag = str(error), None
    if isinstance(error, ArgumentError):
        flag = _flag(error.argument, options)
        if flag is not None or isinstance(error, UnknownColumnError):
            text = error.problem
        if flag is not None and error.value is None:
            text = text.replace(", got None", ", got nothing", 1)
    elif parameter := getattr(error, "parameter", None):  # of an UnreachableTargetError
        rest = text.removeprefix(f"No {parameter}")
        text, flag = f"no {parameter.replace('_', '-')}{rest}", "--epsilon"

    def setting(match: re.Match[str]) -> str:
        flag = "--" + match["name"].replace("_", "-")
        if flag not in options:
            return match[0]
        value = match["value"].strip("'")
        return flag if value == "True" else f"{flag} {value}"

    return Fault(_SETTING.sub(setting, text), flag)


def _flag(argument: str, options: frozenset[str]) -> str | None:
    """The flag with the name of an argument; None where there is none."""
    own = "--" + argument.replace("_", "-")
    flag = own if own in options else _FLAGS.get(argument, own)
    return flag if flag in options or not flag.startswith("--") else None


def _options(command: Any) -> Iterator[str]:
    """Every flag of a command and of those inside it."""
    for parameter in command.params:
        yield from parameter.opts
    for inner in getattr(command, "commands", {}).values():
        yield from _options(inner)


def _usage(error: Any) -> Fault:
    """What the command line itself found wrong; empty where it answered with help."""
    option = getattr(error, "option_name", None)
    if option and "requires an argument" in error.message:
        return Fault("expected a value, got nothing.", option)
    if not isinstance(error, typer.BadParameter):
        return Fault(_misunderstood(error, option))
    parameter: Any = error.param
    if parameter is None:
        return Fault(error.format_message())
    flag = parameter.opts[-1] if parameter.param_type_name == "option" else parameter.metavar
    if not error.message:
        meaning = getattr(parameter, "help", None) or ""
        return Fault(f"expected a value, got nothing. {meaning}".rstrip(), flag)
    if choice := _NOT_A_CHOICE.search(error.message):
        choices = choice["choices"].replace("'", "")
        return Fault(f"expected one of {choices}, got {choice['given']}.", flag)
    return Fault(error.message, flag)


def _misunderstood(error: Any, option: str | None) -> str:
    """A flag or a command that does not exist, or too many arguments."""
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
