"""`prudent audit`: statistical attempts to refute the (ε, δ) of a release or of a training run."""

from collections.abc import Callable
from typing import Annotated

import typer

from prudent.cli import audit_train, options
from prudent.cli.audit_report import Confidence, Plot, tell

RELEASES = {
    "ptr": "Propose-Test-Release itself: a margin at the threshold, a value that moves by τ.",
    "ptr-accident": "Its other case: both margins are 0, and the test passes by accident (δ).",
    "median": "The median with a proposal.",
    "quantile": "The 0.9-quantile with a proposal.",
    "iqr": "The interquartile range with a proposal.",
    "trimmed-mean": "The trimmed mean.",
    "trimmed-sum": "The trimmed sum of vectors with ties (Gaussian noise).",
    "mode": "The mode of categories.",
    "mode-of-numbers": "The mode of numbers with a proposal.",
    "count": "The count.",
    "sum": "The sum of values within public bounds.",
    "mean": "The mean of values within public bounds.",
    "variance": "The variance of values within public bounds.",
    "histogram": "A histogram with public edges.",
    "certificate": "How many records keep a quantile within an interval.",
    "certified-classifier": "The counts of the certified classifier.",
    "partitions": "Which groups occur.",
    "exponential": "The exponential mechanism: a median without its interval.",
    "exponential-quantile": "The exponential mechanism: a 0.9-quantile without its interval.",
    "median-selected": "The median without a proposal, with its interval.",
    "quantiles": "Three quantiles without a proposal.",
    "iqr-selected": "The interquartile range without a proposal.",
    "private-interval": "The choice of an interval that holds nearly all records.",
    "sum-private-bounds": "The sum of values within a private bound.",
    "mean-private-bounds": "The mean of values within private bounds.",
    "variance-private-bounds": "The variance of values within private bounds.",
    "describe": "A description: median, interval and moments.",
    "best-of-many": "The best of a random number of candidates.",
    "federated-round": "One round of federated averaging (Gaussian noise).",
}
"""What can be audited, and what each is; the names are those of `prudent.audit.CASES`."""

app = typer.Typer(rich_markup_mode="rich", no_args_is_help=True)


@app.callback()
def audit() -> None:
    r"""Try to refute a claimed (ε, δ), by running the real code on a worst-case pair.

    A fair coin decides for each run whether it sees one record. An attacker
    who knows everything else guesses from the output. Too many right guesses
    refute the claim: exit status 1, else 0. A claim that stands is not proved;
    a false alarm has probability 1 - confidence at most.

    [b]Examples[/b]

    $ prudent audit ptr --epsilon 1 --delta 1e-6 --runs 20000 --json

    $ prudent audit median --epsilon 0.5 --plot median.svg

    Your own mechanism: prudent.audit.audit(mechanism, with_record,
    without_record, epsilon=…), in Python.
    """


def _command(name: str) -> Callable[..., None]:
    def command(
        epsilon: Annotated[float, options.number("ε of the claim.")] = 1.0,
        delta: Annotated[
            float, options.number("δ of the claim; a release without a test claims 0.")
        ] = 1e-6,
        runs: Annotated[
            int, options.whole_number("Runs on each of the two data sets, on average.")
        ] = 20_000,
        confidence: Confidence = 0.95,
        plot: Plot = None,
        seed: Annotated[
            int | None, options.whole_number("Repeatable coins and noise, for tests.")
        ] = None,
        as_json: options.Json = False,
    ) -> None:
        from prudent.audit import release

        found = release(
            name,
            epsilon=epsilon,
            delta=delta,
            runs=runs,
            confidence=confidence,
            seed=seed,
        )
        tell(found, plot=plot, as_json=as_json)

    command.__doc__ = (
        f"{RELEASES[name]}\n\n[b]Example[/b]\n\n"
        f"$ prudent audit {name} --epsilon 1 --delta 1e-6 --runs 20000 --json\n\n"
        "Exit status 0: the claim stands; 1: it is refuted."
    )
    return command


for _name in RELEASES:
    app.command(_name)(_command(_name))
app.command("train")(audit_train.train)
