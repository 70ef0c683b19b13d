"""What an auditor asks of an event: profile, trade-off curve, attacks, prices; text, JSON, plot."""

import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import typer

from prudent._rounding import exact, rounded_down, rounded_up
from prudent._validate import ArgumentError, between
from prudent.cli.display import echo_json, neutral

if TYPE_CHECKING:
    import dp_accounting as dp

    from prudent.accounting.attack_bounds import AttackBounds, PartPrice
    from prudent.accounting.relations import Relation

RATES = (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5)
"""False-positive rates of the trade-off curve as text."""

_EPSILONS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
_CLAIMED = 0.01  # false-positive rate at which the precision of a claim is given
_LINES = 24  # of the names of all prices in a drawing
_OF_RENYI = "Rényi divergences prove no ε here: --accountant pld."
_WHO = (
    "for an attacker who knows all other records, the code and every public number, and sees all "
    "that was released"
)


def bracket(price: dict[str, Any]) -> str:
    """The lower bound to print beside an upper one; none where it would say nothing."""
    lower = price["pairs_epsilon_lower"]
    if not lower or math.isinf(price["epsilon"]):
        return ""
    return f"  (the dominating pairs: ε ≥ {rounded_down(lower)})"


def price(
    event: "dp.DpEvent", relation: "Relation", delta: float, *, renyi_alone: bool = False
) -> dict[str, Any]:
    """What `--json` prints of a price: the least ε that the accountants prove.

    Args:
        event: What is priced.
        relation: The neighbouring relation.
        delta: δ.
        renyi_alone: Whether the upper bound is that of Rényi divergences alone.
    """
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


def read_event(path: Path) -> "dp.DpEvent":
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


def read_priors(text: str) -> list[float]:
    """Prior probabilities, separated by commas."""
    try:
        priors = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("prior", "numbers separated by commas", got=text) from None
    return [between(0, 1, ends="()", prior=prior) for prior in priors]


@attrs.frozen
class Report:
    """Everything about an event at one δ."""

    event: "dp.DpEvent"  # the event
    relation: "Relation"  # the neighbouring relation of the price
    price: dict[str, Any]  # the result of `price`
    prices: "list[PartPrice]"  # what each part costs, for one record
    attacks: "AttackBounds | None"  # bounds on attacks; None for a relation of several records
    priors: list[float]  # prior probabilities of membership

    @classmethod
    def of(
        cls, event: "dp.DpEvent", relation: "Relation", delta: float, priors: Sequence[float]
    ) -> "Report":
        """Compute the report."""
        from prudent.accounting.attack_bounds import AttackBounds, price_list

        attacks = AttackBounds.of(event) if relation.distance == 1 else None
        found = price(event, relation, delta)
        return cls(event, relation, found, price_list(event, delta), attacks, list(priors))

    @property
    def delta(self) -> float:
        """δ."""
        return float(self.price["delta"])

    @property
    def epsilon(self) -> float:
        """An upper bound on ε."""
        return float(self.price["epsilon"])

    @property
    def plain(self) -> dict[str, Any]:
        """What `--json` prints."""
        from prudent.accounting.serialisation import describe, to_plain

        found: dict[str, Any] = self.price | {
            "description": describe(self.event),
            "prices": [
                {"event": to_plain(p.event), "count": p.count, "alone": p.alone, "adds": p.adds}
                for p in self.prices
            ],
        }
        if self.attacks is not None:
            found |= {
                "profile": self._profile(),
                "trade_off": self._trade_off(self.attacks),
                "attacks": [self._attack(self.attacks, prior) for prior in self.priors],
            }
        return found

    def _profile(self) -> dict[str, list[float]]:
        from prudent.accounting import PldAccountant

        assert self.attacks is not None
        epsilons = sorted({*_EPSILONS, self.epsilon} - {math.inf})
        near = [self.attacks.delta(epsilon) for epsilon in epsilons]  # None beyond its grid
        beyond = epsilons[len(epsilons) - near.count(None) :]
        deltas = [delta for delta in near if delta is not None]
        deltas += list(PldAccountant().compose(self.event).get_delta(beyond)) if beyond else []
        known = [self.delta if epsilon >= self.epsilon else 1.0 for epsilon in epsilons]
        return {"epsilon": epsilons, "delta": [float(d) for d in map(min, deltas, known)]}

    def _trade_off(self, attacks: "AttackBounds") -> dict[str, list[float]]:
        return {
            "false_positives": list(RATES),
            "misses_at_least": [float(attacks.misses(rate)) for rate in RATES],
        }

    def _attack(self, attacks: "AttackBounds", prior: float) -> dict[str, float]:
        success, guess = float(attacks.success(prior)), max(prior, 1 - prior)
        return {
            "prior": prior,
            "success": success,
            "guessing": guess,
            "advantage": success - guess,
            "precision_at_1_percent": attacks.precision(prior, _CLAIMED),
        }

    def lines(self) -> list[str]:
        """The report as text."""
        from prudent.accounting.serialisation import describe

        delta, least = exact(self.delta), bracket(self.price)
        lines = [f"ε ≤ {rounded_up(self.epsilon)} at δ = {delta} for {self.relation}{least}"]
        lines += [self.price["infinite"]] if self.price["infinite"] else []
        lines += ["", "What was released"]
        lines += [f"  {line}" for line in describe(self.event).split("\n")]
        if self.attacks is not None:
            lines += self._attack_lines(self.attacks)
        else:
            lines += ["", "Curves and attacks are given for one record only."]
        lines += ["", f"Price list at δ = {delta}, for one record: ε alone, and added to the rest"]
        for price in self.prices:
            what = describe(price.event).replace("\n", "; ")
            times = f"{price.count:,} × " if price.count > 1 else ""
            adds = "–" if math.isnan(price.adds) else rounded_up(price.adds, 4)
            lines.append(f"  {rounded_up(price.alone, 4):>9}  {adds:>9}  {times}{what}")
        return [neutral(line) for line in lines]

    def _attack_lines(self, attacks: "AttackBounds") -> list[str]:
        profile = self._profile()
        lines = ["", "Profile: δ at ε"]
        for epsilon, delta in zip(profile["epsilon"], profile["delta"], strict=True):
            lines.append(f"  {rounded_up(epsilon):<9} {rounded_up(delta, 3)}")
        lines += ["", f"Attacks on one record's membership, {_WHO}:"]
        lines += ["  false positives   true positives at most"]
        for rate, miss in zip(*self._trade_off(attacks).values(), strict=True):
            lines.append(f"  {rate:<16g}  {rounded_up(1 - miss, 3)}")
        for prior in self.priors:
            attack = self._attack(attacks, prior)
            names = ("success", "precision_at_1_percent")
            right, claim = (rounded_up(attack[name], 3) for name in names)
            lines.append(
                f"  prior {exact(prior)}: right with probability at most {right} (guessing: "
                f"{exact(attack['guessing'])}); a claim of membership with 1 % false positives is "
                f"right with probability at most {claim}"
            )
        return lines

    def plot(self, path: Path) -> None:
        """Draw profile, trade-off curve, attack success and prices as one figure."""
        if self.attacks is None:
            raise ArgumentError("plot", "for one record", shown=str(self.relation))
        import numpy as np
        from matplotlib.figure import Figure

        from prudent.accounting.serialisation import describe

        figure = Figure(figsize=(11, 8), layout="constrained")
        (curve, trade_off), (guesses, prices) = figure.subplots(2, 2)
        attacks, grey = self.attacks, {"color": "grey", "linewidth": 0.8}
        curve.semilogy(attacks.epsilons, attacks.profile.clip(1e-12), label="upper bound")
        curve.axhline(self.delta, **grey)
        curve.set(title="Privacy profile", xlabel="ε", ylabel="δ(ε)")

        alpha = np.linspace(0, 1, 201)
        trade_off.plot(alpha, attacks.misses(alpha), label="lower bound")
        trade_off.plot(alpha, 1 - alpha, **grey, label="guessing")
        trade_off.set(title="Trade-off", xlabel="false positives", ylabel="misses")

        priors, right = np.linspace(0.01, 0.99, 99), "probability of a right guess"
        guesses.plot(priors, attacks.success(priors), label="upper bound")
        guesses.plot(priors, np.maximum(priors, 1 - priors), color="grey", label="guessing")
        for prior in self.priors:
            guesses.plot([prior], [float(attacks.success(prior))], "o")
        guesses.set(title="Membership inference", xlabel="prior", ylabel=right)

        described = [neutral(describe(p.event).replace("\n", "; ")) for p in self.prices]
        lines = max(1, _LINES // max(1, len(described)))  # what is left out ends with "…"
        names = [textwrap.fill(each, 40, max_lines=lines, placeholder=" …") for each in described]
        for shift, label in ((-0.2, "alone"), (0.2, "adds")):
            widths = [getattr(price, label) for price in self.prices]
            shown = [width if math.isfinite(width) else 0.0 for width in widths]
            prices.barh(np.arange(len(names)) + shift, shown, 0.4, label=label)
        prices.set_yticks(range(len(names)), names, fontsize=7)
        prices.invert_yaxis()
        prices.set(title=f"Prices at δ = {exact(self.delta)}", xlabel="ε")
        for axes in (curve, trade_off, guesses, prices):
            axes.legend()
        price = f"ε ≤ {rounded_up(self.epsilon)} at δ = {exact(self.delta)}"
        figure.suptitle(f"{price}, {self.relation}")
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise ArgumentError(
                "plot", "a file that can be written: .png, .svg or .pdf", shown=f"{path} ({error})"
            ) from None


def show(report: Report, *, as_json: bool, plot: Path | None) -> None:
    """Print a report as text or JSON, and draw it if asked."""
    if plot is not None:
        report.plot(plot)
    if as_json:
        echo_json(report.plain)
    else:
        for line in report.lines():
            typer.echo(line)
