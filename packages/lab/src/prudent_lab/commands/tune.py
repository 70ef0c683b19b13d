"""`prudent tune`: the best of many training runs, chosen privately, at one price."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import typer

from prudent._rounding import nearest, rounded_down, rounded_up
from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.answering import ledger_at
from prudent.cli.display import as_text, echo, echo_json, note, only_elapsed
from prudent_lab.commands.train import device_named, experiment_of, given, with_flags
from prudent_lab.settings import WatchSettings

if TYPE_CHECKING:
    from prudent.accounting import TrialCount
    from prudent.training import Plan
    from prudent_lab.search import SettingSearch

_METHODS = ("dpsgd", "trimmed", "ptr")
_WATCHED = tuple(field.name for field in attrs.fields(WatchSettings))


def tune(
    search: list[str] = options.value(
        "NAME=VALUES",
        "A setting to try, as lr=0.05:2:log, clip=0.1:4 or momentum=0,0.5,0.9; may be "
        "repeated. Among lr, momentum, clip, fallback-scale, trim, trim-up, trim-down and "
        "trim-most, which do not change the price.",
    ),
    candidates: float = options.number(
        "Expected number of candidates; their number if it is fixed.", default=10.0
    ),
    distribution: Literal["geometric", "logarithmic", "poisson", "fixed"] = options.value(
        "NAME",
        "Distribution of the number of candidates: geometric, logarithmic (cheaper; often "
        "one, sometimes very many), poisson or fixed (higher prices).",
        default="geometric",
    ),
    held_out: float = options.number(
        "Fraction of the training records that score candidates.", default=0.1
    ),
    score_noise: float = options.number("Scale of the noise of a score, in records.", default=10.0),
    workers: int = options.whole_number(
        "Number of processes that run candidates side by side.", default=1
    ),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    ledger: options.Ledger = None,
    out: Path | None = typer.Option(
        None, help="Folder of the search: as secret as the data until it has ended."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Continue the search in --out, at no further charge."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print the price and the noise; train nothing."
    ),
    records: int | None = options.whole_number(
        "Number of training records, or people, for --dry-run without the data.", default=None
    ),
    as_json: options.Json = False,
    **flags: Any,
) -> None:
    r"""Train a random number of candidates and release the best, at one price.

    Each candidate draws its settings, trains with noise, and is scored on
    held-out records with noise. Only the best one is released, with its
    settings and its noisy score; how many there were stays secret. The
    running time tells their number, so only the owner of the data may watch.

    The price covers the whole search. Neighbours are by zero-out: the number
    of records is public. A ledger needs the same relation, and is charged
    before the first candidate. With --unit, people are drawn and held out,
    a score counts one record of each, and ε protects people.

    [b]Examples[/b]

    $ prudent tune --dataset mnist --method dpsgd --steps 500 --epsilon 3 \
        --search lr=0.05:2:log --search clip=0.1:4:log --candidates 10 \
        --ledger budget.db --out search

    $ prudent tune --search lr=0.05:2:log --steps 500 --noise-multiplier 2 \
        --candidates 30 --dry-run --records 60000
    """
    whole = _search(search, _trials(distribution, candidates), held_out, score_noise, given(flags))
    if records is not None and not dry_run:
        raise ArgumentError("records", "to be left out without --dry-run", got=records)
    if dry_run and records is not None:
        _show_price(whole, whole.plan(records), as_json=as_json)
        return
    from prudent.training import accuracy
    from prudent.tune import tune as run
    from prudent_lab.datasets import load

    place, data = device_named(device), load(whole.experiment.dataset)
    with only_elapsed():
        plan = whole.plan(whole.count(data))
        if dry_run:
            _show_price(whole, plan, as_json=as_json)
            return
        with ledger_at(ledger) as budget:
            best = run(
                whole.candidate(data, plan, device=place),
                whole.space,
                trials=whole.trials,
                delta=whole.experiment.privacy.delta,
                ledger=budget,
                out=out,
                resume=resume,
                workers=workers,
            )
    right = None
    if best.setting is not None and not best.failed:
        right = accuracy(data.test_features, data.test_labels)(best.value)["accuracy"]
    _show(best, right, whole, plan, as_json=as_json)
    if ledger is None:
        note("No --ledger: not charged to any budget.")


with_flags(
    tune,
    without=("public_size", "corrupt", "seed", "accountant", *_WATCHED),
    help={
        "method": "dpsgd, trimmed or ptr. \\[dpsgd]",
        "epsilon": "ε of the whole search, from which the noise is solved. \\[3]",
        "noise_multiplier": "σ of a candidate, instead of --epsilon.",
        "steps": "Steps of each candidate.",
        "relation": "Which data sets are neighbours: zero-out or replace-one. \\[zero-out]",
    },
)


def _trials(name: str, candidates: float) -> "TrialCount":
    from prudent import _validate
    from prudent.tune import Binomial, Geometric, NegativeBinomial, Poisson

    _validate.between(1, 1e6, candidates=candidates)
    if name == "fixed":
        if candidates != int(candidates):
            raise ArgumentError("candidates", "a whole number if it is fixed", got=candidates)
        return Binomial(int(candidates), 1.0)
    if name == "poisson":
        return Poisson(candidates)
    return Geometric(candidates) if name == "geometric" else NegativeBinomial(candidates, 0.0)


def _search(
    texts: list[str],
    trials: "TrialCount",
    held_out: float,
    score_noise: float,
    chosen: dict[str, Any],
) -> "SettingSearch":
    from prudent_lab.search import SettingSearch, space_of

    if chosen.setdefault("method", _METHODS[0]) not in _METHODS:
        raise ArgumentError("method", f"one of {', '.join(_METHODS)}", got=chosen["method"])
    if {"epsilon", "noise_multiplier"} <= set(chosen):
        raise ArgumentError(
            "noise_multiplier", "to be left out with --epsilon", got=chosen["noise_multiplier"]
        )
    return SettingSearch(
        experiment=experiment_of(chosen | {"seed": 0}),  # of untrained models, not of the noise
        space=space_of(texts),
        trials=trials,
        held_out=held_out,
        score_noise=score_noise,
    )


def _facts(whole: "SettingSearch", plan: "Plan") -> dict[str, Any]:
    return {
        "relation": options.plain(plan.relation),
        "candidates": whole.trials.expected,
        "steps": plan.steps,
        "noise_multiplier": plan.aggregation.noise_multiplier,  # type: ignore[attr-defined]
    }


def _show_price(whole: "SettingSearch", plan: "Plan", *, as_json: bool) -> None:
    """The price of the search and of one candidate."""
    from prudent.accounting import epsilon_of
    from prudent.tune import price

    event, delta = whole.event(plan), whole.experiment.privacy.delta
    found = {
        "epsilon": price(event, whole.trials, delta, plan.relation),
        "candidate_epsilon": epsilon_of(event, delta, plan.relation),
        "delta": delta,
        **_facts(whole, plan),
    }
    if as_json:
        echo_json(found)
        return
    _echo_price(found, plan, whole)
    note("Nothing was trained or charged.")


def _echo_price(price: dict[str, Any], plan: "Plan", whole: "SettingSearch") -> None:
    total, one = (rounded_up(price[name], 4) for name in ("epsilon", "candidate_epsilon"))
    echo(f"guarantee     ({total}, {rounded_up(price['delta'])})-DP for the whole search")
    echo(f"one candidate ({one}, {rounded_up(price['delta'])})-DP")
    protected = "record" if whole.experiment.unit is None else "person"
    echo(f"neighbours    by {plan.relation.sentence(protected)}")
    echo(
        f"noise         multiplier {rounded_down(price['noise_multiplier'])}, {plan.steps:,} steps"
    )


def _show(
    best: Any, right: float | None, whole: "SettingSearch", plan: "Plan", *, as_json: bool
) -> None:
    told = ("epsilon", "candidate_epsilon", "delta")
    price = {name: getattr(best, name) for name in told} | _facts(whole, plan)
    folder = None if best.folder is None else str(best.folder)
    if as_json:
        setting = None if best.setting is None else dict(best.setting)
        outcome = {"setting": setting, "score": best.score, "accuracy": right}
        echo_json(outcome | {"failed": best.failed} | price | {"folder": folder})
        return
    if right is None:
        echo("best          none: every candidate failed, or their number was 0")
    else:
        named = ", ".join(f"{name} = {nearest(value)}" for name, value in best.setting.items())
        echo(f"best          {named}")
        echo(f"accuracy      {right:.2%} on the test part")
        echo(f"score         {best.score:g} held-out records, with noise")
    _echo_price(price, plan, whole)
    if folder is not None:
        echo(as_text(f"saved         {folder}"))
