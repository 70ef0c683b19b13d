"""The settings of an experiment: a data set, a method, a budget and a corruption as one value.

Each field is declared once, with what the command line says of it: flags are derived from fields.
So this module imports no torch, which `--help` would have to wait for.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import attrs
from attrs import field

from prudent import _validate

if TYPE_CHECKING:
    import dp_accounting as dp

    from prudent.accounting import MarginTest, Relation, Reveals
    from prudent.accounting.calibration import Accountant
    from prudent.lab.corruption import DataCorruption, GradientCorruption
    from prudent.training import Aggregation, Fallback, HeldOut, Plan, Watch


class Method(_validate.Choice):
    """The training method."""

    PTR = "ptr"
    TRIMMED = "trimmed"
    DPSGD = "dpsgd"
    SGD = "sgd"


def _reveals(value: "Reveals | str") -> "Reveals":
    from prudent.accounting import Reveals

    return Reveals(value)


def _fallback(value: "Fallback | str") -> "Fallback":
    from prudent.training import Fallback

    return Fallback(value)


def _gaussian_test() -> "MarginTest":
    from prudent.accounting import GaussianTest

    return GaussianTest(4.0)


def _pld() -> "Accountant":
    from prudent.accounting import PldAccountant

    return PldAccountant


def _flag(kind: type, help: str, shown: str | None = None) -> dict[str, Any]:
    """What the command line makes a flag of; `shown` is its default in words."""
    return {"kind": kind, "help": help, "shown": shown}


@attrs.frozen(kw_only=True)
class RuleSettings:
    """What is released of each batch. The paper's second learning rate is `lr * fallback_scale`."""

    method: Method = field(
        default=Method.PTR,
        converter=Method,
        metadata=_flag(str, "ptr, trimmed, dpsgd or sgd.", "ptr"),
    )
    clip: float = field(
        default=1.0, metadata=_flag(float, "R, the clipping norm of gradients.", "1")
    )
    propose: float = field(
        default=0.5, metadata=_flag(float, "τ/R, the proposed sensitivity.", "0.5")
    )
    test: "MarginTest" = field(
        factory=_gaussian_test,
        metadata=_flag(
            str,
            "The test: laplace:B, gaussian:S, discrete-laplace:B or discrete-gaussian:S.",
            "gaussian:4",
        ),
    )
    failure: float = field(default=1e-8, metadata=_flag(float, "δ₀ of the test.", "1e-8"))
    reveals: "Reveals" = field(
        factory=lambda: _reveals("monotone-branch"),
        converter=_reveals,
        metadata=_flag(str, "margin, branch or monotone-branch.", "monotone-branch"),
    )
    fallback: "Fallback" = field(
        factory=lambda: _fallback("sum"),
        converter=_fallback,
        metadata=_flag(str, "After a failed test: sum, trimmed or skip.", "sum"),
    )
    fallback_scale: float = field(
        default=1.0,
        metadata=_flag(float, "Factor on the learning rate of steps whose test failed.", "1"),
    )
    trim: float = field(default=0.25, metadata=_flag(float, "Initial trim fraction.", "0.25"))
    trim_up: float = field(
        default=0.02, metadata=_flag(float, "Added to it when a test fails.", "0.02")
    )
    trim_down: float = field(
        default=0.02, metadata=_flag(float, "Subtracted when it passes.", "0.02")
    )
    trim_most: float = field(default=0.5, metadata=_flag(float, "Largest trim fraction.", "0.5"))

    def __attrs_post_init__(self) -> None:
        for name in ("trim", "trim_up", "trim_down", "trim_most"):
            _validate.between(0, 1, **{name: getattr(self, name)})

    def aggregation(self, noise_multiplier: float) -> "Aggregation":
        """The aggregation of the method with the given noise."""
        from prudent.training import (
            AdaptiveTrim,
            FixedTrim,
            Mean,
            ProposeTestRelease,
            Sum,
            TrimmedSum,
        )

        match self.method:
            case Method.SGD:
                return Mean()
            case Method.DPSGD:
                return Sum(clip=self.clip, noise_multiplier=noise_multiplier)
            case Method.TRIMMED:
                return TrimmedSum(
                    clip=self.clip, noise_multiplier=noise_multiplier, trim=FixedTrim(self.trim)
                )
            case Method.PTR:
                return ProposeTestRelease(
                    clip=self.clip,
                    propose=self.propose,
                    noise_multiplier=noise_multiplier,
                    test=self.test,
                    failure=self.failure,
                    reveals=self.reveals,
                    fallback=self.fallback,
                    fallback_scale=self.fallback_scale,
                    trim=AdaptiveTrim(
                        first=self.trim,
                        up=self.trim_up,
                        down=self.trim_down,
                        most=self.trim_most,
                    ),
                )


@attrs.frozen(kw_only=True)
class PrivacySettings:
    """How batches are drawn, how many, and what that may cost.

    Give two of noise, steps and ε: the third is computed from them. Non-private SGD takes only
    steps. If the true number of records is not `public_size`, batches differ from `batch` in
    proportion; without a public size the sampling rate reveals the number of records, so the
    relation is `ZERO_OUT`.
    """

    epsilon: float | None = field(default=3.0, metadata=_flag(float, "Target ε.", "3"))
    delta: float = field(default=1e-5, metadata=_flag(float, "Target δ.", "1e-5"))
    steps: int | None = field(default=None, metadata=_flag(int, "Steps; solved for if not given."))
    noise_multiplier: float | None = field(
        default=None, metadata=_flag(float, "σ; solved for if not given.")
    )
    batch: int = field(default=256, metadata=_flag(int, "Expected batch size.", "256"))
    public_size: int | None = field(
        default=None,
        metadata=_flag(
            int,
            "A publicly known number of records, which determines the sampling rate. Without it "
            "the true number is used and becomes public.",
        ),
    )
    relation: "Relation | None" = field(
        default=None,
        metadata=_flag(
            str,
            "Which data sets are neighbours: add-remove (needs --public-size), zero-out or "
            "replace-one.",
            "add-remove with --public-size, else zero-out",
        ),
    )
    accountant: "Accountant" = field(factory=_pld, metadata=_flag(str, "pld or rdp.", "pld"))
    bands: int = field(
        default=1,
        metadata=_flag(
            int,
            "Noise that cancels over so many steps, of dpsgd and trimmed: as many parts of the "
            "records take turns.",
            "1",
        ),
    )

    def __attrs_post_init__(self) -> None:
        _validate.count(1, batch=self.batch)
        _validate.count(1, bands=self.bands)
        self._check_relation()
        _validate.between(0, 1, ends="()", delta=self.delta)
        if self.steps is not None:
            _validate.count(steps=self.steps)
        for name in ("epsilon", "noise_multiplier"):
            if getattr(self, name) is not None:
                _validate.positive(**{name: getattr(self, name)})

    def _check_relation(self) -> None:
        if self.public_size is not None:
            _validate.count(1, public_size=self.public_size)
        from prudent.accounting.relations import check_relation

        if self.relation is None or check_relation(relation=self.relation).size_is_public:
            return
        if self.public_size is None:
            raise _validate.ArgumentError(
                "public_size",
                "when the relation adds or removes records",
                got=None,
                why="the sampling rate would reveal the number of records, which is "
                "secret under this relation",
                hint="Give a public number, or use the relation zero-out, at the same price.",
            )

    def check_solvable(self) -> None:
        """Raise an error unless two of ε, steps and noise are given; the third is solved for."""
        names = ("epsilon", "steps", "noise_multiplier")
        given = [name for name in names if getattr(self, name) is not None]
        shown = ", ".join(f"{name} = {getattr(self, name):g}" for name in given) or "none"
        if len(given) < 2:
            raise ValueError(
                "Expected two of epsilon, steps and noise_multiplier (the third is solved for), "
                f"got only {shown}."
            )
        if len(given) > 2:
            raise ValueError(
                f"Expected two of epsilon, steps and noise_multiplier, got {shown}: they could "
                "contradict each other. Drop noise_multiplier to have the least noise solved for, "
                "steps to take as many as epsilon allows, or epsilon to have it computed."
            )

    def plan(
        self,
        rule: RuleSettings,
        watching: "WatchSettings",
        records: int,
        before: "dp.DpEvent | None",
    ) -> "Plan":
        """The plan of a rule, with the missing one of noise, steps and ε solved for."""
        from prudent.accounting import ADD_REMOVE, ZERO_OUT
        from prudent.training import Plan

        size = records if self.public_size is None else self.public_size
        known = ZERO_OUT if self.public_size is None else ADD_REMOVE
        plan = Plan(
            sampling_rate=min(1.0, self.batch / size),
            steps=1000 if self.steps is None else self.steps,
            expected_batch=self.batch,
            relation=known if self.relation is None else self.relation,
            aggregation=rule.aggregation(self.noise_multiplier or 1.0),
            before=before,
            bands=self.bands,
            watch=watching.watch,
            held_out=watching.tested,
        )
        if rule.method is Method.SGD or self.epsilon is None:
            return plan
        target: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": self.accountant,
        }
        if self.noise_multiplier is None:
            return plan.calibrate(**target)
        return plan.longest(**target)


@attrs.frozen(kw_only=True)
class OptimizerSettings:
    """What SGD makes of what is released."""

    lr: float = field(default=0.5, metadata=_flag(float, "Learning rate.", "0.5"))
    momentum: float = field(default=0.0, metadata=_flag(float, "Momentum of SGD.", "0"))
    average: float | None = field(
        default=None,
        metadata=_flag(
            float, "Average the weights over steps, keeping this fraction, such as 0.97."
        ),
    )

    def __attrs_post_init__(self) -> None:
        _validate.positive(lr=self.lr)
        _validate.between(0, 1, ends="[)", momentum=self.momentum)
        if self.average is not None:
            _validate.between(0, 1, ends="[)", average=self.average)


@attrs.frozen(kw_only=True)
class WatchSettings:
    """What is released to watch a run by, and when it stops; by default nothing."""

    watch_every: int | None = field(
        default=None,
        metadata=_flag(int, "Release the training loss in the first of so many steps, with noise."),
    )
    watch_bound: float = field(
        default=3.0, metadata=_flag(float, "With --watch-every: the largest loss of a record.", "3")
    )
    watch_noise: float = field(
        default=10.0, metadata=_flag(float, "With --watch-every: its noise multiplier.", "10")
    )
    held_out: float | None = field(
        default=None,
        metadata=_flag(
            float,
            "Hold out this fraction of the training records, or people, and release the accuracy "
            "on them with noise.",
        ),
    )
    held_out_every: int = field(
        default=100, metadata=_flag(int, "With --held-out: after so many steps each.", "100")
    )
    held_out_noise: float = field(
        default=20.0, metadata=_flag(float, "With --held-out: its noise multiplier.", "20")
    )
    patience: int | None = field(
        default=None,
        metadata=_flag(
            int,
            "Stop when so many released values in a row are no better, and return the best model. "
            "The price stays that of all steps.",
        ),
    )

    def __attrs_post_init__(self) -> None:
        if self.held_out is not None:
            _validate.between(0, 0.9, ends="(]", held_out=self.held_out)
        if self.patience is not None:
            _validate.count(1, patience=self.patience)
        if self.patience is not None and self.watch_every is None and self.held_out is None:
            raise _validate.ArgumentError(
                "patience", "with --held-out or --watch-every, which it goes by", got=self.patience
            )

    @property
    def watch(self) -> "Watch | None":
        """The training loss as a release."""
        from prudent.training import Watch

        if self.watch_every is None:
            return None
        return Watch(
            loss_every=self.watch_every,
            bound=self.watch_bound,
            noise_multiplier=self.watch_noise,
        )

    @property
    def tested(self) -> "HeldOut | None":
        """The accuracy on held-out records as a release."""
        from prudent.training import HeldOut

        if self.held_out is None:
            return None
        return HeldOut(every=self.held_out_every, noise_multiplier=self.held_out_noise)


_PARTS = {
    "rule": RuleSettings,
    "privacy": PrivacySettings,
    "optimizer": OptimizerSettings,
    "watching": WatchSettings,
}


@attrs.frozen(kw_only=True)
class Experiment:
    """Everything that determines the outcome of a training run, except the machine.

    `Experiment.of` takes every setting by its own name, as the flags of `prudent train` do. A
    corruption may also be given as a value of `prudent.lab.corruption`; a named one of gradients
    takes the seed of the experiment.
    """

    dataset: str = field(
        default="mnist",
        metadata=_flag(
            str, "mnist, fashion-mnist, emnist-letters, emnist-az, cifar10 or npz:PATH.", "mnist"
        ),
    )
    rule: RuleSettings
    privacy: PrivacySettings
    optimizer: OptimizerSettings
    watching: WatchSettings = field(factory=WatchSettings)
    corrupt: "str | DataCorruption | GradientCorruption" = field(
        default="none",
        metadata=_flag(
            str,
            "Corrupt some records: label, label-targeted, feature, class-mean, gradient-match, "
            "backdoor, gradient, sign-flip, colluding, inner-product, reversed, loud, little or "
            "mimic, with a ratio up to 0.5 and its strength, such as gradient:0.1:variance=25.",
            "none",
        ),
    )
    unit: str | None = field(
        default=None,
        metadata=_flag(
            str,
            "Protect people: the array of npz:PATH with an id for each training record. Batch and "
            "public size then count people.",
        ),
    )
    per_unit: str | None = field(
        default=None,
        metadata=_flag(str, "With --unit: the loss of a person, mean or sum.", "mean"),
    )
    records_per_person: int | None = field(
        default=None,
        metadata=_flag(
            int,
            "With --unit: records of a person that count in a step, at most. Without it: the most "
            "that one person has, for a price that protects her.",
            "8, or 1 without --unit",
        ),
    )
    seed: int = field(
        default=0,
        metadata=_flag(
            int,
            "Seed of all random numbers, including the noise: as secret as the data.",
            "0; for npz:PATH drawn by the operating system",
        ),
    )

    def __attrs_post_init__(self) -> None:
        _validate.count(seed=self.seed)
        if self.rule.method is not Method.SGD:
            self.privacy.check_solvable()
        elif self.privacy.steps is None:
            raise _validate.ArgumentError(
                "steps", "for sgd, which has no budget to stop it", got=None
            )
        for name in ("per_unit", "records_per_person"):
            if self.unit is None and getattr(self, name) is not None:
                raise _validate.ArgumentError(name, "None without a unit", got=getattr(self, name))
        if self.watching.held_out is not None and self.privacy.public_size is not None:
            raise _validate.ArgumentError(
                "public_size",
                "to be left out with --held-out",
                got=self.privacy.public_size,
                why="which records are held out depends on their number, which is public here",
            )
        _ = self.corruption  # validates its name
        _ = self.rule.aggregation(self.privacy.noise_multiplier or 1.0)  # validates the rule

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """The experiment with these settings; the others have their defaults."""
        parts, own = _divided(settings)
        made: dict[str, Any] = {part: kind(**parts[part]) for part, kind in _PARTS.items()}
        return cls(**made, **own)

    def changed(self, **settings: Any) -> Self:
        """A copy with these settings instead of its own."""
        parts, own = _divided(settings)
        made = {part: attrs.evolve(getattr(self, part), **new) for part, new in parts.items()}
        return attrs.evolve(self, **made, **own)

    @property
    def corruption(self) -> "DataCorruption | GradientCorruption | None":
        """The corruption; None without one."""
        if not isinstance(self.corrupt, str):
            return self.corrupt
        from prudent.lab.corruption import GradientCorruption, parse

        named = parse(self.corrupt)
        if isinstance(named, GradientCorruption):
            return attrs.evolve(named, seed=self.seed)
        return named

    @property
    def is_covered(self) -> bool:
        """Whether the ε of the plan is a guarantee for this run.

        It is not for SGD, nor for an attack in which bad records read the gradients of others:
        there a record affects the sum through more than its own gradient.
        """
        from prudent.lab.corruption import GradientCorruption

        corruption = self.corruption
        alone = not isinstance(corruption, GradientCorruption) or corruption.per_record
        return alone and self.rule.method is not Method.SGD

    def plan(self, records: int, before: "dp.DpEvent | None" = None) -> "Plan":
        """The plan, with the missing one of noise, steps and ε solved for.

        Args:
            records: Number of training records, or of people with a unit.
            before: What is released about them before training; ε includes it.
        """
        return self.privacy.plan(self.rule, self.watching, records, before)


def setting_fields() -> Iterator[tuple[str, "attrs.Attribute[Any]"]]:
    """Every setting of an experiment, after the name of the part that holds it."""
    for own in attrs.fields(Experiment):
        if own.name in _PARTS:
            yield from ((own.name, inner) for inner in attrs.fields(_PARTS[own.name]))
        else:
            yield "experiment", own


def _divided(settings: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Settings by the part of an experiment that holds them, and those of the experiment itself."""
    place = {own.name: part for part, kind in _PARTS.items() for own in attrs.fields(kind)}
    parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    own: dict[str, Any] = {}
    for name, value in settings.items():
        parts.get(place.get(name, ""), own)[name] = value
    return parts, own
