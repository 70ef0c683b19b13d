"""`prudent sample` and `suggest`: a table to try things on, and what to expect of a mechanism."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prudent.cli import completion, options
from prudent.cli.completion import among
from prudent.cli.display import echo, echo_json, remark, show_table

if TYPE_CHECKING:
    from prudent.release.suggestion import Suggestion

_LARGEST = 10_000_000  # records to rehearse on


def sample(
    name: str = typer.Argument(
        metavar="NAME",
        help="Which table: salaries.",
        autocompletion=among(*completion.SAMPLES),
    ),
    out: Path | None = options.value(
        "FILE", "Where to write it; by default NAME.parquet, here.", default=None
    ),
    force: bool = typer.Option(False, help="Replace a file that is there."),
    as_json: options.Json = False,
) -> None:
    """Write a small real table to try things on.

    It ships with the package and its records are public, so that you can
    compare private answers with exact ones.

    [b]Example[/b]

    $ prudent sample salaries

    $ prudent release median salaries.parquet --column salary --epsilon 0.3
    """
    from prudent.samples import SAMPLES, write

    path = write(name, out, force=force)
    known = SAMPLES[name]
    if as_json:
        echo_json({"file": str(path), "about": known.about, "source": known.source})
        return
    echo(f"Wrote {path}.")
    remark(known.about)
    remark(f"Source: {known.source}")


def _read_count(text: str | int) -> int:
    """Parses a number of records that can be made up in memory."""
    count = options.read_whole_number(text)
    if not 1 <= count <= _LARGEST:
        raise typer.BadParameter(f"expected in [1, {_LARGEST:g}], got {text}.")
    return count


def _read_quantiles(text: str | dict[float, float]) -> dict[float, float]:
    """Parses `0.1=3,0.5=10,0.9=40`, as typer wants it."""
    if isinstance(text, dict):
        return text
    try:
        return {float(p): float(value) for p, value in (one.split("=") for one in text.split(","))}
    except ValueError:
        raise typer.BadParameter(f"expected P=VALUE,P=VALUE,…, got {text!r}.") from None


def _read_epsilons(text: str | list[float]) -> list[float]:
    """Parses a comma-separated list of numbers, as typer wants it."""
    return text if isinstance(text, list) else list(map(options.read_number, text.split(",")))


def suggest(
    statistic: str = typer.Argument(
        metavar="STATISTIC",
        help="median, quantile, iqr or mean.",
        autocompletion=among(*completion.STATISTICS),
    ),
    count: int = typer.Option(
        metavar="COUNT", parser=_read_count, help="How many records you expect."
    ),
    epsilon: float | None = options.number("ε of the release.", default=None),
    epsilons: Any = typer.Option(
        None,
        metavar="A,B,…",
        parser=_read_epsilons,
        help="Instead of --epsilon, several: a table of what to expect at each.",
    ),
    delta: float = options.number("δ of a release that is tested.", default=1e-6),
    spread: float | None = options.number("The standard deviation you believe in.", default=None),
    centre: float | None = options.number("The middle you believe in.", default=None),
    quantiles: Any = typer.Option(
        None,
        metavar="P=VALUE,…",
        parser=_read_quantiles,
        help="Instead of --spread, values you believe in: 0.1=3,0.5=10,0.9=40.",
    ),
    shape: str | None = options.value(
        "NAME",
        "Instead, a shape: normal, lognormal, ties, unbounded.",
        completion.SHAPES,
        default=None,
    ),
    p: str = typer.Option("0.5", "--p", metavar="P", help="Of a quantile."),
    trials: int = options.whole_number("Rehearsals of each mechanism.", default=30),
    as_json: options.Json = False,
) -> None:
    r"""Suggest how to release a statistic, from what you believe about the data.

    No private data is read and nothing is spent: releases are rehearsed on
    made-up data of the size and shape that you believe in.

    [b]Examples[/b]

    $ prudent suggest median --count 20000 --spread 100 --epsilon 0.3

    $ prudent suggest quantile --p 0.9 --count 5000 --epsilon 1 \
        --quantiles 0.1=3,0.5=10,0.9=40

    $ prudent suggest median --count 20000 --shape lognormal --epsilons 0.1,0.3,1
    """
    from prudent import _validate
    from prudent.release import suggestion

    if (epsilon is None) == (epsilons is None):
        raise _validate.ArgumentError("epsilon", "unless epsilons is given", got=epsilon)
    every: list[Any] = [epsilon] if epsilons is None else epsilons
    if shape is not None:
        _validate.one_of(suggestion.SHAPES, shape=shape)
    suggestions = [
        suggestion.suggest(
            statistic,
            count=count,
            epsilon=target,
            delta=delta,
            spread=spread,
            centre=centre,
            quantiles=quantiles,
            shape=None if shape is None else suggestion.SHAPES[shape],
            p=p,
            trials=trials,
        )
        for target in every
    ]
    if as_json:
        plain = [_plain(suggestion) for suggestion in suggestions]
        echo_json(plain[0] if epsilons is None else plain)
    elif epsilons is None:
        for line in suggestions[0].lines():
            echo(line)
    else:
        _print_table(suggestions)


def _plain(suggestion: "Suggestion") -> dict[str, Any]:
    expected = {
        name: {"error": expected.error, "refused": expected.refused, **expected.options}
        for name, expected in suggestion.expected.items()
    }
    return {
        "statistic": suggestion.statistic,
        "epsilon": suggestion.epsilon,
        "best": suggestion.best,
        "proposal": suggestion.proposal,
        "expected": expected,
    }


def _print_table(suggestions: list["Suggestion"]) -> None:
    rows = [
        (
            f"{suggestion.epsilon:g}",
            name,
            "-" if expected.error is None else f"{expected.error:.4g}",
            f"{expected.refused:.0%}",
            f"{expected.options['propose']:.4g}" if "propose" in expected.options else "",
        )
        for suggestion in suggestions
        for name, expected in suggestion.expected.items()
    ]
    show_table(("ε", "mechanism", "error", "refused", "propose"), rows, words=5)
