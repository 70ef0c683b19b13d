"""Options that several commands share, and how their texts are read."""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import typer

from prudent._validate import ArgumentError, count

if TYPE_CHECKING:
    from prudent.accounting import MarginTest, PldAccountant, RdpAccountant, Relation

Command = TypeVar("Command", bound=Callable[..., None])
AccountantName = Literal["pld", "rdp"]
RevealsName = Literal["margin", "branch", "monotone-branch"]
RelationName = Literal["add-remove", "zero-out", "replace-one"]
TESTS = "laplace:B, gaussian:S, discrete-laplace:B or discrete-gaussian:S"
TEST_FORMS = f"{TESTS.replace(' or', ',')} or none"
OFFERED_TESTS = ("laplace:", "gaussian:", "discrete-laplace:", "discrete-gaussian:", "none")

# Far beyond any use, and well inside what the accountants can represent.
_SIZES = {
    "noise_multiplier": (1e-3, 1e6),
    "propose": (1e-3, 1e3),
    "sampling_rate": (1e-12, 1.0),
    "scale": (1e-3, 1e6),
    "steps": (1, 1e9),
    "test_scale": (1e-3, 1e6),
}
_MAY_BE_ZERO = ("propose", "sampling_rate")


def among(*names: str) -> Callable[[str], list[str]]:
    """What typer asks on Tab: the fixed names that begin as what is typed.

    No file, ledger or database is opened for them: what Tab shows is shown before anything is
    charged. So the columns of a table, its groups and the data sets of a ledger are not offered.
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def number(help: str, panel: str | None = None, *, default: Any = ...) -> Any:
    """An option that takes a number, in a panel of the help; needed without a default."""
    return typer.Option(
        default, help=help, metavar="NUMBER", parser=read_number, rich_help_panel=panel
    )


def whole_number(help: str, panel: str | None = None, *, default: Any = ...) -> Any:
    """An option that takes a whole number, in a panel of the help."""
    return typer.Option(
        default, help=help, metavar="COUNT", parser=read_whole_number, rich_help_panel=panel
    )


def value(metavar: str, help: str, offered: Sequence[str] = (), *, default: Any = ...) -> Any:
    """An option that takes a text, a file or a name; Tab offers some."""
    completed = among(*offered) if offered else None
    return typer.Option(default, metavar=metavar, help=help, autocompletion=completed)


def declare(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> None:
    """Let typer find these parameters on a command, each to be given by its name."""
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in named}


def fields_of(kind: type, names: Collection[str] = ()) -> list[inspect.Parameter]:
    """The options that an attrs class declares by its fields; some of them, if names are given."""
    hints = get_type_hints(kind, include_extras=True)
    every = inspect.signature(kind).parameters.values()
    kept = [each for each in every if not names or each.name in names]
    return [each.replace(annotation=hints[each.name]) for each in kept]


def spread(kind: type, names: Collection[str] = ()) -> Callable[[Command], Command]:
    """Put the options of an attrs class in place of the `**` of a command."""

    def add(command: Command) -> Command:
        *own, _ = inspect.signature(command).parameters.values()
        declare(command, [*own, *fields_of(kind, names)])
        return command

    return add


def read_number(text: str | float) -> float:
    """Parse a number or a fraction such as 256/60000."""
    try:
        above, slash, below = str(text).partition("/")
        return float(above) / float(below) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"expected a number, got {text!r}.") from None


def read_whole_number(text: str | int) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected a whole number, got {text!r}.") from None


read_whole_number.__name__ = "whole number"  # as which help shows the type of an argument


# What is read, and whom to charge.
Source = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="A .parquet, .csv, .tsv or .duckdb file, or a pattern such as 'sales/*.parquet'.",
        show_default=False,
    ),
]
Where = Annotated[
    str | None,
    value(
        "CONDITION",
        "Keep only the rows with this condition, e.g. \"year = 2024 AND city = 'Oslo'\".",
    ),
]
Connect = Annotated[
    str | None, value("ADDRESS", "A database instead: postgres://user@host/database.")
]
Table = Annotated[str | None, value("NAME", "The table in the database or .duckdb file.")]
Ledger = Annotated[str | None, value("LEDGER", "The budget to charge; see `prudent budget`.")]
Dataset = Annotated[str, value("NAME", "Whose budget of those that the ledger keeps.")]
Receipt = Annotated[Path | None, value("FILE", "Write a receipt, which `prudent verify` checks.")]
Sign = Annotated[str | None, value("KEY", "Sign the receipt with this key of `prudent keys`.")]

SamplingRate = Annotated[
    float, number("Probability with which each record is in a step, independently.")
]
Steps = Annotated[int, whole_number("Number of steps.")]
Bands = Annotated[
    int,
    whole_number("Correlated noise over so many steps: as many parts of the records take turns."),
]
NoiseMultiplier = Annotated[
    float, number("σ₁/GS: noise of the fallback, relative to the global sensitivity.")
]
Propose = Annotated[
    float, number("τ/GS: proposed sensitivity, relative to the global one; 0 if there is none.")
]
Test = Annotated[
    str, value("KIND:SCALE", f"The private test of the margin: {TEST_FORMS}.", OFFERED_TESTS)
]
Failure = Annotated[
    float, number("δ₀: largest probability with which a margin of 0 passes, in (0, 0.5).")
]
RevealsOption = Annotated[
    RevealsName,
    value(
        "WHAT",
        "What an observer learns about the test: margin (the noisy margin), branch (whether "
        "it passed), or monotone-branch (whether it passed, for a margin that adding a record can "
        "only lower, as that of the trimmed sum).",
    ),
]
_RELATIONS = (
    "add-remove (the number of records is secret), zero-out (one that contributes nothing "
    "takes its place; the number is public) or replace-one (any other does; the number is public)."
)
RelationOption = Annotated[
    RelationName, value("NAME", "Which data sets are neighbours: " + _RELATIONS)
]
RecordsPerPerson = Annotated[
    int,
    whole_number(
        "Largest number of records of one privacy unit; ε then protects a unit, not a record."
    ),
]
AccountantOption = Annotated[
    AccountantName,
    value("NAME", "pld (privacy-loss distributions, tight) or rdp (Rényi divergences)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]

Csv = Annotated[
    bool, typer.Option("--csv", help="Print CSV: a row for each number, with value, low and high.")
]
Parquet = Annotated[Path | None, value("FILE", "Also write these rows to a Parquet file.")]


def quiet() -> Any:
    """The switch `--quiet`, which the command line adds to every command and acts on itself."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def _(
        quiet: bool = typer.Option(
            False,
            "--quiet",
            "-q",
            expose_value=False,
            help="Print the result alone: no progress, no notes.",
        ),
    ) -> None: ...

    return next(each for each in typer.main.get_command(app).params if "--quiet" in each.opts)


def parse_test(text: str, *, scale_needed: bool = True) -> "MarginTest | None":
    """The test that `kind:scale` names; None for `none`.

    Where the scale is solved for it need not be there.

    Raises:
        ValueError: naming the choices, if it is none of them.
    """
    from prudent import accounting

    if text == "none":
        return None
    kinds: dict[str, type[MarginTest]] = {
        "laplace": accounting.LaplaceTest,
        "gaussian": accounting.GaussianTest,
        "discrete-laplace": accounting.DiscreteLaplaceTest,
        "discrete-gaussian": accounting.DiscreteGaussianTest,
    }
    name, colon, scale = text.partition(":")
    if name in kinds and not colon and not scale_needed:
        return kinds[name](1.0)
    try:
        number = float(scale)
    except ValueError:
        number = None
    if name not in kinds or number is None:
        raise ArgumentError("test", TEST_FORMS, got=text)
    check_sizes(scale=number)
    return kinds[name](number)


def check_sizes(**arguments: float | None) -> None:
    """Restrict numbers to the sizes that can be priced accurately in floating point.

    Raises:
        ValueError: naming the first that is out of its range. None and names without a range pass.
    """
    for name, value in arguments.items():
        if value is None or name not in _SIZES or (value == 0 and name in _MAY_BE_ZERO):
            continue
        low, high = _SIZES[name]
        if not low <= value <= high:
            zero = "0 or " if name in _MAY_BE_ZERO else ""
            raise ArgumentError(name, f"{zero}in [{low:g}, {high:g}]", got=value)


def relation(name: str, records_per_person: int) -> "Relation":
    """The relation that `--relation` and `--records-per-person` name."""
    from prudent.accounting import Relation

    names = get_args(RelationName)
    if name not in names:
        raise ArgumentError("relation", f"one of {', '.join(names)}", got=name)
    return Relation(name, count(1, records_per_person=records_per_person))


def plain(value: Any) -> Any:
    """A value as JSON can hold it: events as objects, infinity as "inf"."""
    from prudent.accounting.serialisation import to_plain

    return to_plain(value)


def accountant_named(name: AccountantName) -> "type[PldAccountant] | type[RdpAccountant]":
    """The class behind a name of `--accountant`."""
    from prudent.accounting import PldAccountant, RdpAccountant

    return PldAccountant if name == "pld" else RdpAccountant
