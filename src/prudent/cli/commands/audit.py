"""`prudent audit`: statistical attempts to refute the (ε, δ) of a release or of a training run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prudent._validate import ArgumentError
from prudent.cli import needs, options
from prudent.cli.display import echo, echo_json

if TYPE_CHECKING:
    from prudent.audit import AuditResult
    from prudent.training import Plan

REFUTED = 1
"""Exit status of an audit that refutes its claim."""

Confidence = Annotated[float, options.number("1 minus the false-alarm rate, in [0.5, 1).")]
Plot = Annotated[
    Path | None, options.value("FILE", "Draw the trade-off curve, SVG or PNG by its name.")
]


def tell(found: "AuditResult", *, plot: Path | None, as_json: bool) -> None:
    """Print a result, draw its curve, and end with status 1 if the claim is refuted."""
    if plot is not None:
        found.plot(plot)
    if as_json:
        echo_json(found.plain())
    else:
        echo("\n".join(found.lines()))
    if found.refuted:
        raise typer.Exit(REFUTED)


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
    "deviation": "The standard deviation of values within public bounds.",
    "proportion": "The share of records that are true.",
    "count-distinct": "The number of different values.",
    "histogram": "A histogram with public edges.",
    "certificate": "How many records keep a quantile within an interval.",
    "partitions": "Which groups occur.",
    "many-quantiles": "Many quantiles, from the counts of a tree.",
    "top-k": "The most frequent of public categories.",
    "join": "A count of two joined tables, of which a person has many rows.",
    "ratio": "A quotient of two sums of values within public bounds.",
    "weighted-mean": "The weighted mean of values and weights within public bounds.",
    "covariance": "The covariance of values within public bounds.",
    "correlation": "The correlation of values within public bounds.",
    "exponential": "The exponential mechanism: a median without its interval.",
    "exponential-quantile": "The exponential mechanism: a 0.9-quantile without its interval.",
    "median-selected": "The median without a proposal, with its interval.",
    "quantiles": "Three quantiles without a proposal.",
    "halved-quantiles": "Several quantiles, by halving.",
    "iqr-selected": "The interquartile range without a proposal.",
    "maximum": "The maximum: a noisy count and an extreme quantile.",
    "minimum": "The minimum: a noisy count and an extreme quantile.",
    "private-interval": "The choice of an interval that holds nearly all records.",
    "sum-private-bounds": "The sum of values within a private bound.",
    "mean-private-bounds": "The mean of values within private bounds.",
    "variance-private-bounds": "The variance of values within private bounds.",
    "describe": "A description: median, interval and moments.",
    "certified-classifier": "The counts of the certified classifier.",
    "regression": "A step of a regression and its count (Gaussian noise).",
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
        epsilon: float = options.number("ε of the claim.", default=1.0),
        delta: float = options.number(
            "δ of the claim; a release without a test claims 0.", default=1e-6
        ),
        runs: int = options.whole_number(
            "Runs on each of the two data sets, on average.", default=20_000
        ),
        confidence: Confidence = 0.95,
        plot: Plot = None,
        seed: int | None = options.whole_number(
            "Repeatable coins and noise, for tests.", default=None
        ),
        as_json: options.Json = False,
    ) -> None:
        from prudent.audit import release

        found = release(
            name, epsilon=epsilon, delta=delta, runs=runs, confidence=confidence, seed=seed
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


# --- training -------------------------------------------------------------------------------------

MethodName = Literal["white-box", "one-run", "black-box"]
AgainstName = Literal["point", "curve"]

_DIGITS = 200  # records of a black-box audit
_CANARIES = 10_000
_LANES = 100_000
_RUNS, _BLACK_BOX_RUNS = 1000, 500


@app.command()
def train(
    method: MethodName = options.value(
        "NAME",
        "white-box (a canary at every step, all releases seen), one-run (many canaries in "
        "one run) or black-box (MNIST, only the final model's loss on the canary is seen).",
        default="white-box",
    ),
    sampling_rate: options.SamplingRate = 1.0,
    steps: options.Steps = 1,
    noise_multiplier: float | None = options.number(
        "σ: noise relative to the clip; solved for --epsilon if not given.", default=None
    ),
    bands: options.Bands = 1,
    test: options.Test = "none",
    propose: options.Propose = 0.5,
    failure: options.Failure = 1e-8,
    reveals: options.RevealsOption = "monotone-branch",
    epsilon: float | None = options.number(
        "ε of the claim; the price of the plan if not given.", default=None
    ),
    delta: float = options.number("δ of the claim.", default=1e-5),
    runs: int | None = options.whole_number(
        "Runs to count, or canaries of one run. \\[100000 for DP-SGD white box, whose runs "
        "share one; 1000 with a test; 10000 canaries; 500 black box]",
        default=None,
    ),
    against: AgainstName = options.value(
        "WHAT",
        "What one run is to refute: point ((ε, δ)-DP) or curve (the whole trade-off curve "
        "of the plan).",
        default="point",
    ),
    lr: float = options.number("Learning rate of black-box runs.", default=0.2),
    records_per_person: int | None = options.whole_number(
        "Audit training with a privacy unit, in a white box: the canary is a person with so "
        "many records, and the claim is about people.",
        default=None,
    ),
    confidence: Confidence = 0.95,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    r"""A training run: canaries through the real sampling, test, trim and noise.

    Give --noise-multiplier, --epsilon or both: the noise of a claim, the claim
    for this noise, or a claim about this noise that may be wrong.

    [b]Examples[/b]

    $ prudent audit train --sampling-rate 0.2 --steps 10 \
        --noise-multiplier 1 --delta 0.01

    $ prudent audit train --noise-multiplier 1 --test gaussian:2 \
        --reveals margin --delta 0.01 --runs 2000

    $ prudent audit train --noise-multiplier 1 --records-per-person 4

    $ prudent audit train --method one-run --noise-multiplier 1 --against curve

    $ prudent audit train --method black-box --steps 10 --epsilon 10
    """
    if method == "one-run" and plot is not None:
        raise ArgumentError("plot", "left out with one-run, which has no curve", got=str(plot))
    if method != "white-box" and records_per_person is not None:
        raise ArgumentError(
            "records_per_person", "left out unless the method is white-box", got=records_per_person
        )
    from prudent.training import Plan, ProposeTestRelease, Sum

    options.check_sizes(
        sampling_rate=sampling_rate, steps=steps, noise_multiplier=noise_multiplier, propose=propose
    )
    # No guarantee depends on the clip.
    scale: Any = {
        "clip": 1.0,
        "noise_multiplier": 1.0 if noise_multiplier is None else noise_multiplier,
    }
    kind = options.parse_test(test)
    plan = Plan(
        sampling_rate=sampling_rate,
        steps=steps,
        aggregation=Sum(**scale)
        if kind is None
        else ProposeTestRelease(
            **scale, propose=propose, test=kind, failure=failure, reveals=reveals
        ),
        expected_batch=float(_DIGITS) if method == "black-box" else 64.0,
        bands=bands,
    )
    if noise_multiplier is None:
        if epsilon is None:
            raise ArgumentError(
                "noise_multiplier", "a number, or --epsilon to solve for it", shown="neither"
            )
        plan = plan.calibrate(epsilon=epsilon, delta=delta)
    claim: Any = {"epsilon": epsilon, "delta": delta, "confidence": confidence}
    own: Any = {
        "one-run": {"against": against},
        "black-box": {"lr": lr},
        "white-box": {"records_per_person": records_per_person},
    }[method]
    found = _AUDITS[method](plan, runs, **claim, **own)
    tell(found, plot=plot, as_json=as_json)


def _white_box(plan: "Plan", runs: int | None, *, delta: float, **claim: Any) -> "AuditResult":
    from prudent.audit.training.white_box import most_telling_trim, white_box
    from prudent.training import Sum

    plain = isinstance(plan.aggregation, Sum)
    count = (_LANES if plain else _RUNS) if runs is None else runs
    counted: Any = {"runs": 0, "lanes": count} if plain else {"runs": count, "lanes": 0}
    return white_box(most_telling_trim(plan, delta), delta=delta, **counted, **claim)


def _one_run(plan: "Plan", runs: int | None, **claim: Any) -> "AuditResult":
    from prudent.audit.training.one_run import one_run

    return one_run(plan, canaries=_CANARIES if runs is None else runs, **claim)


def _black_box(plan: "Plan", runs: int | None, **claim: Any) -> "AuditResult":
    from prudent.audit.training.black_box import black_box, check_plan

    check_plan(plan)
    target = needs.load_plugin("audit", "digits")(_DIGITS, epochs=10)
    return black_box(plan, target, runs=_BLACK_BOX_RUNS if runs is None else runs, **claim)


_AUDITS = {"white-box": _white_box, "one-run": _one_run, "black-box": _black_box}
