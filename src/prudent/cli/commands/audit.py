"""`prudent audit`: statistical attempts to refute the (ε, δ) of a training run."""

from pathlib import Path
from typing import Any, Literal

import typer

from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.display import echo, echo_json

REFUTED = 1
"""Exit status of an audit that refutes its claim."""

app = typer.Typer(rich_markup_mode="rich", no_args_is_help=True)


@app.callback()
def audit() -> None:
    r"""Try to refute a claimed (ε, δ), by running the real code on a worst-case pair.

    A fair coin decides for each run whether it sees one record. An attacker
    who knows everything else guesses from the output. Too many right guesses
    refute the claim: exit status 1, else 0. A claim that stands is not proved;
    a false alarm has probability 1 - confidence at most.

    [b]Example[/b]

    $ prudent audit train --noise-multiplier 1 --delta 0.01 --json

    Any other mechanism: prudent.audit.audit(mechanism, with_record,
    without_record, epsilon=…), in Python.
    """


MethodName = Literal["white-box", "one-run"]

_CANARIES = 10_000
_LANES = 100_000
_RUNS = 1000


@app.command()
def train(
    method: MethodName = options.value(
        "NAME",
        "white-box (a canary at every step, all releases seen) or one-run (many canaries in "
        "one run).",
        default="white-box",
    ),
    sampling_rate: options.SamplingRate = 1.0,
    steps: options.Steps = 1,
    noise_multiplier: float | None = options.number(
        "σ: noise relative to the clip; solved for --epsilon if not given.", default=None
    ),
    num_bands: options.Bands = 1,
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
        "share one; 1000 with a test; 10000 canaries]",
        default=None,
    ),
    records_per_person: int | None = options.whole_number(
        "Audit training with a privacy unit, in a white box: the canary is a unit with so "
        "many records, and the claim is about units.",
        default=None,
    ),
    confidence: float = options.number("1 minus the false-alarm rate, in [0.5, 1).", default=0.95),
    plot: Path | None = options.value(
        "FILE", "Draw the trade-off curve, SVG or PNG by its name.", default=None
    ),
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

    $ prudent audit train --method one-run --noise-multiplier 1
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
        expected_batch=64.0,
        num_bands=num_bands,
    )
    if noise_multiplier is None:
        if epsilon is None:
            raise ArgumentError(
                "noise_multiplier", "a number, or --epsilon to solve for it", shown="neither"
            )
        plan = plan.calibrate(epsilon=epsilon, delta=delta)
    claim: Any = {"epsilon": epsilon, "delta": delta, "confidence": confidence}
    if method == "one-run":
        from prudent.audit.training.one_run import one_run

        canaries = _CANARIES if runs is None else runs
        found = one_run(plan, canaries=canaries, **claim)
    else:
        from prudent.audit.training.white_box import most_telling_trim, white_box

        count = (_LANES if kind is None else _RUNS) if runs is None else runs
        counted: Any = {"runs": 0, "lanes": count} if kind is None else {"runs": count, "lanes": 0}
        people: Any = {"records_per_person": records_per_person}
        found = white_box(most_telling_trim(plan, delta), **counted, **people, **claim)
    if plot is not None:
        found.plot(plot)
    if as_json:
        echo_json(found.plain())
    else:
        echo("\n".join(found.lines()))
    if found.refuted:
        raise typer.Exit(REFUTED)
