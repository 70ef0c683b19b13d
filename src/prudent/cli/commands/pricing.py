"""`prudent epsilon` and `prudent calibrate`: what a run costs, and what a budget buys."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import typer

from prudent._rounding import exact, nearest, rounded_down, rounded_up
from prudent._validate import ArgumentError, between, count, positive
from prudent.cli import options
from prudent.cli.display import echo_json, neutral

if TYPE_CHECKING:
    import dp_accounting as dp

    from prudent.accounting import MarginTest, Relation, Run
    from prudent.accounting.attack_bounds import AttackBounds

_RATES = (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5)  # false positives, of the trade-off curve
_EPSILONS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
_CLAIMED = 0.01  # false-positive rate at which the precision of a claim is given
_OF_RENYI = "Rényi divergences prove no ε here: --accountant pld."
_WHO = (
    "for an attacker who knows all other records, the code and every public number, and sees all "
    "that was released"
)
_OF_ANY_EVENT = ("relation", "records_per_person", "accountant", "as_json")
_SMALL_PROPOSAL = 0.1  # below which revealing everything can be the better bound

SolvedName = Literal[
    "noise-multiplier", "steps", "test-scale", "failure", "propose", "sampling-rate"
]

_SAFE_ABOVE = ("noise-multiplier", "test-scale", "propose")  # others are safe when smaller


NoiseMultiplier = Annotated[
    float | None,
    options.number("σ₁/GS: noise of the fallback, relative to the global sensitivity."),
]


@attrs.frozen(kw_only=True)
class RunOptions:
    """How both commands let a run be described, besides its noise and its test."""

    sampling_rate: Annotated[
        float | None,
        options.number(
            "Probability with which each record is in a step, independently. [1; with --batch: "
            "batch / records]"
        ),
    ] = None
    steps: Annotated[
        int | None,
        options.whole_number("Number of steps. [1; with --epochs: epochs / rate]"),
    ] = None
    epochs: Annotated[
        float | None, options.number("Passes over the records, instead of --steps.")
    ] = None
    batch: Annotated[
        int | None,
        options.whole_number("Expected batch, instead of --sampling-rate; with --records."),
    ] = None
    records: Annotated[
        int | None, options.whole_number("Public number of records, for --batch.")
    ] = None
    num_bands: options.Bands = 1
    propose: options.Propose = 0.5
    failure: options.Failure = 1e-8
    reveals: options.RevealsOption = "monotone-branch"
    relation: options.RelationOption = "add-remove"
    records_per_person: options.RecordsPerPerson = 1
    accountant: options.AccountantOption = "pld"
    as_json: options.Json = False

    @property
    def related(self) -> "Relation":
        """Which data sets are neighbours."""
        return options.relation(self.relation, self.records_per_person)

    def run(self, test: "MarginTest | None", noise: float | None, *, unknown: str = "") -> "Run":
        """The run, within the sizes that can be priced, without a parameter to be solved for."""
        from prudent.accounting import Reveals, Run

        rate, steps = self._size()
        known: dict[str, Any] = {
            "sampling_rate": rate,
            "steps": steps,
            "noise_multiplier": noise,
            "propose": self.propose,
            "failure": self.failure,
        }
        known.pop(unknown, None)  # its own value plays no part
        options.check_sizes(**known)
        reveals = Reveals(self.reveals)
        return Run(
            test=test, reveals=reveals, relation=self.related, num_bands=self.num_bands, **known
        )

    def _size(self) -> tuple[float, int]:
        """Sampling rate and steps, given as such or by batch, records and epochs."""
        batch, records, epochs = self.batch, self.records, self.epochs
        why = "one follows from the other"
        if batch is not None and self.sampling_rate is not None:
            given = self.sampling_rate
            raise ArgumentError("sampling_rate", "without --batch", got=given, why=why)
        if epochs is not None and self.steps is not None:
            raise ArgumentError("steps", "without --epochs", got=self.steps, why=why)
        if (batch is None) != (records is None):
            missing = "records" if records is None else "batch"
            why = "the sampling rate is batch / records"
            raise ArgumentError(missing, "with its counterpart", shown="nothing", why=why)
        rate = 1.0 if self.sampling_rate is None else self.sampling_rate
        if batch is not None and records is not None:
            rate = min(1.0, count(1, batch=batch) / count(1, records=records))
        if epochs is not None:
            rate = between(0, 1, ends="(]", sampling_rate=rate)
            return rate, math.ceil(round(positive(epochs=epochs) / rate, 9))
        return rate, 1 if self.steps is None else self.steps


@options.spread(RunOptions)
def epsilon(
    delta: float = options.number("Target δ."),
    noise_multiplier: NoiseMultiplier = None,
    test: str | None = options.value(
        "KIND:SCALE",
        f"The private test of the margin: {options.TEST_FORMS}. [none: DP-SGD]",
        options.OFFERED_TESTS,
        default=None,
    ),
    event: Path | None = options.value(
        "FILE",
        "Price the event in a file of JSON, as to_json and --json write it, instead of a "
        "run described by options.",
        default=None,
    ),
    prior: str | None = options.value(
        "P,P,…",
        "Prior probabilities of membership at which to bound attacks "
        "(with --event: 0.5,0.1 by default).",
        default=None,
    ),
    **described: Any,
) -> None:
    r"""Price a run: the ε at which it is (ε, δ)-DP.

    The ε printed is an upper bound for the neighbouring relation named with
    it, the least that the accountants prove.
    Beside it stand a lower bound on what the dominating pairs cost, which
    shows how tight the accounting is (the mechanism itself may cost less),
    and the share of ε that the test costs.

    [b]Examples[/b]

    8000 steps at MNIST size, as in the paper:
    $ prudent epsilon --sampling-rate 0.00426667 --steps 8000 \
        --noise-multiplier 1.1 --propose 0.5 --test laplace:1.0 \
        --failure 1e-8 --reveals margin --delta 1e-5

    The same with a cheaper test:
    $ prudent epsilon --sampling-rate 0.00426667 --steps 8000 \
        --noise-multiplier 1.1 --test gaussian:4 --delta 1e-5

    DP-SGD, without a test: 15 epochs over 60,000 records:
    $ prudent epsilon --noise-multiplier 1.1 --batch 256 --records 60000 \
        --epochs 15 --relation zero-out --delta 1e-5

    The same with correlated noise over eight steps:
    $ prudent epsilon --noise-multiplier 1.1 --batch 256 --records 60000 \
        --epochs 15 --num-bands 8 --relation zero-out --delta 1e-5

    For a privacy unit of up to three records, where their number is public:
    $ prudent epsilon --noise-multiplier 5 --delta 1e-6 \
        --relation zero-out --records-per-person 3

    Everything about an event that someone else wrote:
    $ prudent epsilon --event event.json --delta 1e-6
    """
    asked = RunOptions(**described)
    priors = _read_priors(prior or "0.5,0.1")
    if event is not None:
        kept = {name: described[name] for name in _OF_ANY_EVENT}
        if noise_multiplier is not None or test is not None or asked != RunOptions(**kept):
            allowed, why = "without options that describe a run", "an event is complete"
            raise ArgumentError("event", allowed, shown="both", why=why)
        _show_report(_read_event(event), asked, delta, priors)
        return
    if noise_multiplier is None:
        raise ArgumentError("noise_multiplier", "finite and > 0", shown="nothing")
    run = asked.run(options.parse_test(test or "none"), noise_multiplier)
    if prior is not None:
        _show_report(run.event, asked, delta, priors)
        return
    price = _price(run, delta, asked)
    if asked.as_json:
        echo_json(price)
    else:
        _print_price(run, price)


@options.spread(RunOptions)
def calibrate(
    solve: SolvedName = options.value(
        "PARAMETER",
        "What to solve for: noise-multiplier, steps, test-scale, failure, propose, sampling-rate.",
    ),
    epsilon: float = options.number("Target ε."),
    delta: float = options.number("Target δ."),
    noise_multiplier: NoiseMultiplier = None,
    test: str | None = options.value(
        "KIND:SCALE",
        f"The private test of the margin: {options.TEST_FORMS}. To solve for its scale, "
        "give the kind alone (default: laplace). [none: DP-SGD]",
        options.OFFERED_TESTS,
        default=None,
    ),
    **described: Any,
) -> None:
    r"""Solve for one parameter, given a target (ε, δ).

    Noise, test scale and proposal are made as small as the target allows;
    steps, failure and sampling rate as large. What is returned is priced
    again: its ε is at most the target.

    [b]Examples[/b]

    The noise that 4688 steps need for ε = 3:
    $ prudent calibrate --solve noise-multiplier --epsilon 3 --delta 1e-5 \
        --sampling-rate 0.00426667 --steps 4688 --test gaussian:4

    How many steps ε = 3 buys:
    $ prudent calibrate --solve steps --epsilon 3 --delta 1e-5 \
        --sampling-rate 0.00426667 --noise-multiplier 1.1 --test laplace:1

    The narrowest Laplace test:
    $ prudent calibrate --solve test-scale --epsilon 3 --delta 1e-5 \
        --sampling-rate 0.00426667 --steps 8000 \
        --noise-multiplier 1.1 --test laplace
    """
    asked, parameter = RunOptions(**described), solve.replace("-", "_")
    if noise_multiplier is None and solve != "noise-multiplier":
        raise ArgumentError("noise_multiplier", "finite and > 0", shown="nothing")
    start = asked.run(_test_to_calibrate(test, solve), noise_multiplier, unknown=parameter)
    run = start.calibrate(
        parameter,  # type: ignore[arg-type]
        epsilon=epsilon,
        delta=delta,
        accountant=options.accountant_named(asked.accountant),
    )
    value = run.test.scale if solve == "test-scale" and run.test else getattr(run, parameter)
    if asked.as_json:
        echo_json({parameter: value, **_price(run, delta, asked)})
        return
    shown = (rounded_up if solve in _SAFE_ABOVE else rounded_down)(value, 6)
    if isinstance(value, int):
        shown = exact(value)
    else:  # what is printed is what is priced
        run = run.replace(parameter, float(shown))  # type: ignore[arg-type]
    typer.echo(f"{solve} = {shown}")
    _print_price(run, _price(run, delta, asked))


def _test_to_calibrate(text: str | None, solve: SolvedName) -> "MarginTest | None":
    """The test of a run to calibrate; what is solved for need not be given."""
    if text is None:
        text = "laplace" if solve == "test-scale" else "none"
    test = options.parse_test(text, scale_needed=solve != "test-scale")
    if test is None and solve in ("test-scale", "failure", "propose"):
        raise ArgumentError("test", f"other than none to solve for {solve}", got=text)
    return test


def _price(run: "Run", delta: float, asked: RunOptions) -> dict[str, Any]:
    """What `--json` prints; a proposal of 0 reveals everything where a margin of 0 passes.

    So it dominates all others, and may have the better bound.
    """
    found = _price_of(run.event, run.relation, delta, renyi_alone=asked.accountant == "rdp")
    if asked.accountant == "pld" and run.test is not None and run.propose < _SMALL_PROPOSAL:
        least = attrs.evolve(run, propose=0.0).epsilon(delta)
        found["epsilon"] = min(found["epsilon"], least)
        if found["pairs_epsilon_lower"] is not None:
            found["pairs_epsilon_lower"] = min(found["pairs_epsilon_lower"], least)
        found["infinite"] = found["infinite"] if math.isinf(found["epsilon"]) else None
    return found


def _print_price(run: "Run", price: dict[str, Any]) -> None:
    from prudent.accounting import describe

    upper, delta, least = price["epsilon"], price["delta"], _bracket(price)
    typer.echo(f"ε ≤ {rounded_up(upper)} at δ = {exact(delta)} for {run.relation}{least}")
    if run.test is not None and 0 < upper < math.inf:
        bare = attrs.evolve(run, test=None).epsilon(
            delta, options.accountant_named(price["accountant"])
        )
        share = nearest(100 * max(0.0, 1 - bare / upper), 3)
        typer.echo(f"the test costs {share}% of it; without a test ε ≤ {rounded_up(bare)}")
    if math.isinf(upper):
        typer.echo(price["infinite"])
    typer.echo(describe(run.event))


def _show_report(event: "dp.DpEvent", asked: RunOptions, delta: float, priors: list[float]) -> None:
    report = _report(event, asked, delta, priors)
    if asked.as_json:
        echo_json(report)
    else:
        typer.echo("\n".join(_report_lines(report, asked.related)))


def _bracket(price: dict[str, Any]) -> str:
    """The lower bound to print beside an upper one; none where it would say nothing."""
    lower = price["pairs_epsilon_lower"]
    if not lower or math.isinf(price["epsilon"]):
        return ""
    return f"  (the dominating pairs: ε ≥ {rounded_down(lower)})"


def _price_of(
    event: "dp.DpEvent", relation: "Relation", delta: float, *, renyi_alone: bool = False
) -> dict[str, Any]:
    """What `--json` prints of a price: the least ε that the accountants prove."""
    from prudent.accounting import PldAccountant, RdpAccountant, epsilon_of, why_infinite
    from prudent.accounting.serialisation import to_plain

    lower, upper = None, math.inf
    if relation.distance == 1:
        lower, upper = PldAccountant().compose(event).epsilon_bounds(delta)
    elif not renyi_alone:
        upper = epsilon_of(event, delta, relation)
    upper = math.inf if renyi_alone else upper
    if RdpAccountant().supports(event):
        upper = min(upper, epsilon_of(event, delta, relation, RdpAccountant))
    reason = why_infinite(event, delta, relation) if math.isinf(upper) else ""
    return {
        "epsilon": upper,
        "pairs_epsilon_lower": None if lower is None else min(lower, upper),
        "delta": delta,
        "relation": to_plain(relation),
        "accountant": "rdp" if renyi_alone else "pld",
        "event": to_plain(event),
        "infinite": str(reason or _OF_RENYI) if math.isinf(upper) else None,
    }


def _read_event(path: Path) -> "dp.DpEvent":
    """The event in a file that `to_json` wrote, or in the `event` of what `--json` printed."""
    from prudent.accounting.serialisation import FORMAT, from_json

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is not text"
        raise ArgumentError(
            "event", "a readable file of event JSON", shown=f"{path} ({why})"
        ) from None
    try:
        content = json.loads(text)
        # A price has the event inside, without a format; a sampled event has a kind of its own.
        inner = content.get("event") if isinstance(content, dict) else None
        if isinstance(inner, dict) and "kind" not in content:
            text = json.dumps({"format": FORMAT, **inner})
        return from_json(text)
    except json.JSONDecodeError:
        raise ArgumentError("event", "a file of event JSON", shown=str(path)) from None
    except ArgumentError as error:
        raise ArgumentError(
            "event", "a file of event JSON", shown=str(path), why=str(error).rstrip(".")
        ) from None
    except RecursionError:
        raise ArgumentError("event", "nested less deeply", shown=str(path)) from None


def _read_priors(text: str) -> list[float]:
    """Prior probabilities, separated by commas."""
    try:
        priors = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("prior", "numbers separated by commas", got=text) from None
    return [between(0, 1, ends="()", prior=prior) for prior in priors]


def _report(
    event: "dp.DpEvent", asked: RunOptions, delta: float, priors: list[float]
) -> dict[str, Any]:
    """Everything about an event at one δ, as `--json` prints it."""
    from prudent.accounting import PldAccountant, describe
    from prudent.accounting.attack_bounds import AttackBounds, price_list
    from prudent.accounting.serialisation import to_plain

    found = _price_of(event, asked.related, delta, renyi_alone=asked.accountant == "rdp")
    found["description"] = describe(event)
    found["prices"] = [
        {"event": to_plain(p.event), "count": p.count, "alone": p.alone, "adds": p.adds}
        for p in price_list(event, delta)
    ]
    if asked.related.distance > 1:  # curves and attacks are of one record
        return found
    attacks = AttackBounds.of(event)
    epsilons = sorted({*_EPSILONS, found["epsilon"]} - {math.inf})
    near = [attacks.delta(epsilon) for epsilon in epsilons]  # None beyond its grid
    beyond = epsilons[len(epsilons) - near.count(None) :]
    deltas = [each for each in near if each is not None]
    deltas += list(PldAccountant().compose(event).get_delta(beyond)) if beyond else []
    known = [delta if epsilon >= found["epsilon"] else 1.0 for epsilon in epsilons]
    found["profile"] = {"epsilon": epsilons, "delta": [float(d) for d in map(min, deltas, known)]}
    misses = [float(attacks.misses(rate)) for rate in _RATES]
    found["trade_off"] = {"false_positives": list(_RATES), "misses_at_least": misses}
    found["attacks"] = [_attack(attacks, prior) for prior in priors]
    return found


def _attack(attacks: "AttackBounds", prior: float) -> dict[str, float]:
    success, guess = float(attacks.success(prior)), max(prior, 1 - prior)
    return {
        "prior": prior,
        "success": success,
        "guessing": guess,
        "advantage": success - guess,
        "precision_at_1_percent": attacks.precision(prior, _CLAIMED),
    }


def _report_lines(report: dict[str, Any], relation: "Relation") -> list[str]:
    """A report as text."""
    from prudent.accounting.serialisation import describe, from_plain

    delta, least = exact(report["delta"]), _bracket(report)
    lines = [f"ε ≤ {rounded_up(report['epsilon'])} at δ = {delta} for {relation}{least}"]
    lines += [report["infinite"]] if report["infinite"] else []
    lines += ["", "What was released"]
    lines += [f"  {line}" for line in report["description"].split("\n")]
    if "attacks" in report:
        lines += _attack_lines(report)
    else:
        lines += ["", "Curves and attacks are given for one record only."]
    lines += ["", f"Price list at δ = {delta}, for one record: ε alone, and added to the rest"]
    for price in report["prices"]:
        what = describe(from_plain(price["event"])).replace("\n", "; ")
        times = f"{price['count']:,} × " if price["count"] > 1 else ""
        adds = "–" if math.isnan(price["adds"]) else rounded_up(price["adds"], 4)
        lines.append(f"  {rounded_up(price['alone'], 4):>9}  {adds:>9}  {times}{what}")
    return [neutral(line) for line in lines]


def _attack_lines(report: dict[str, Any]) -> list[str]:
    lines = ["", "Profile: δ at ε"]
    for epsilon, delta in zip(*report["profile"].values(), strict=True):
        lines.append(f"  {rounded_up(epsilon):<9} {rounded_up(delta, 3)}")
    lines += ["", f"Attacks on one record's membership, {_WHO}:"]
    lines += ["  false positives   true positives at most"]
    for rate, miss in zip(*report["trade_off"].values(), strict=True):
        lines.append(f"  {rate:<16g}  {rounded_up(1 - miss, 3)}")
    for attack in report["attacks"]:
        names = ("success", "precision_at_1_percent")
        right, claim = (rounded_up(attack[name], 3) for name in names)
        lines.append(
            f"  prior {exact(attack['prior'])}: right with probability at most {right} (guessing: "
            f"{exact(attack['guessing'])}); a claim of membership with 1 % false positives is "
            f"right with probability at most {claim}"
        )
    return lines
