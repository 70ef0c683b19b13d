"""The settings of an experiment: a data set, a method, a budget and a corruption as one value.

Each field is declared once: the command line derives its flags from fields, and says of each what
`commands/flags.toml` holds. So this module imports no torch, which `--help` would have to wait for.
"""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import attrs
from attrs.validators import optional

import prudent
from prudent import _validate

if TYPE_CHECKING:
    import dp_accounting as dp

    from prudent.accounting import MarginTest, Relation, Reveals
    from prudent.accounting.calibration import Accountant
    from prudent.training import Aggregation, Fallback, HeldOut, LossRelease, Plan
    from prudent_lab.corruption import DataCorruption, GradientCorruption


class Method(_validate.Choice):
    """The training method."""

    PTR = "ptr"
    TRIMMED = "trimmed"
    DPSGD = "dpsgd"
    SGD = "sgd"


def _late(module: str, name: str, default: str) -> Any:
    """A field of a class that is imported when it is first used, which `--help` never does."""

    def made(value: Any) -> Any:
        return getattr(importlib.import_module(module), name)(value)

    return attrs.field(default=default, converter=made)


_FRACTION = _validate.by(_validate.between, 0, 1)
_POSITIVE = _validate.by(_validate.positive)
_POSITIVE_OR_NONE: Any = optional(_POSITIVE)
_COUNT = _validate.by(_validate.count, 1)
_SHARE = _validate.by(_validate.between, 0, 1, ends="[)")


@attrs.frozen(kw_only=True)
class RuleSettings:
    """What is released of each batch. The paper's second learning rate is `lr * fallback_scale`."""

    method: Method = attrs.field(default=Method.PTR, converter=Method)
    clip: float = 1.0
    propose: float = 0.5
    test: "MarginTest" = attrs.field(factory=lambda: prudent.GaussianTest(4.0))
    failure: float = 1e-8
    reveals: "Reveals" = _late("prudent.accounting", "Reveals", "monotone-branch")
    fallback: "Fallback" = _late("prudent.training", "Fallback", "sum")
    fallback_scale: float = 1.0
    trim: float = attrs.field(default=0.25, validator=_FRACTION)
    trim_up: float = attrs.field(default=0.02, validator=_FRACTION)
    trim_down: float = attrs.field(default=0.02, validator=_FRACTION)
    trim_most: float = attrs.field(default=0.5, validator=_FRACTION)

    def aggregation(self, noise_multiplier: float) -> "Aggregation":
        """The aggregation of the method with the given noise."""
        from prudent import training

        common: dict[str, Any] = {"clip": self.clip, "noise_multiplier": noise_multiplier}
        match self.method:
            case Method.SGD:
                return training.Mean()
            case Method.DPSGD:
                return training.Sum(**common)
            case Method.TRIMMED:
                return training.TrimmedSum(**common, trim=training.FixedTrim(self.trim))
            case Method.PTR:
                return training.ProposeTestRelease(
                    **common,
                    propose=self.propose,
                    test=self.test,
                    failure=self.failure,
                    reveals=self.reveals,
                    fallback=self.fallback,
                    fallback_scale=self.fallback_scale,
                    trim=training.AdaptiveTrim(
                        first=self.trim, up=self.trim_up, down=self.trim_down, most=self.trim_most
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

    epsilon: float | None = attrs.field(default=3.0, validator=_POSITIVE_OR_NONE)
    delta: float = attrs.field(default=1e-5, validator=_validate.by(_validate.small_delta))
    steps: int | None = attrs.field(default=None, validator=optional(_validate.by(_validate.count)))
    noise_multiplier: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    batch: int = attrs.field(default=256, validator=_COUNT)
    public_size: int | None = attrs.field(default=None, validator=optional(_COUNT))
    relation: "Relation | None" = None
    accountant: "Accountant" = attrs.field(factory=lambda: prudent.PldAccountant)
    num_bands: int = attrs.field(default=1, validator=_COUNT)

    def __attrs_post_init__(self) -> None:
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
        expected = "Expected two of epsilon, steps and noise_multiplier"
        if len(given) < 2:
            raise ValueError(f"{expected} (the third is solved for), got only {shown}.")
        if len(given) > 2:
            raise ValueError(
                f"{expected}, got {shown}: they could contradict each other. Drop noise_multiplier "
                "to have the least noise solved for, steps to take as many as epsilon allows, or "
                "epsilon to have it computed."
            )


@attrs.frozen(kw_only=True)
class OptimizerSettings:
    """What SGD makes of what is released."""

    lr: float = attrs.field(default=0.5, validator=_POSITIVE)
    momentum: float = attrs.field(default=0.0, validator=_SHARE)
    average: float | None = attrs.field(default=None, validator=optional(_SHARE))


@attrs.frozen(kw_only=True)
class WatchSettings:
    """What is released to watch a run by, and when it stops; by default nothing."""

    watch_every: int | None = None
    watch_bound: float = 3.0
    watch_noise: float = 10.0
    held_out: float | None = attrs.field(
        default=None, validator=optional(_validate.by(_validate.between, 0, 0.9, ends="(]"))
    )
    held_out_every: int = 100
    held_out_noise: float = 20.0
    patience: int | None = attrs.field(default=None, validator=optional(_COUNT))

    def __attrs_post_init__(self) -> None:
        if self.patience is not None and self.watch_every is None and self.held_out is None:
            raise _validate.ArgumentError(
                "patience", "with --held-out or --watch-every, which it goes by", got=self.patience
            )

    @property
    def watch(self) -> "LossRelease | None":
        """The training loss as a release."""
        if self.watch_every is None:
            return None
        noise = self.watch_noise
        return prudent.LossRelease(
            loss_every=self.watch_every, bound=self.watch_bound, noise_multiplier=noise
        )

    @property
    def tested(self) -> "HeldOut | None":
        """The accuracy on held-out records as a release."""
        if self.held_out is None:
            return None
        return prudent.HeldOut(every=self.held_out_every, noise_multiplier=self.held_out_noise)


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
    corruption may also be given as a value of `prudent_lab.corruption`; a named one of gradients
    takes the seed of the experiment.
    """

    dataset: str = "mnist"
    rule: RuleSettings
    privacy: PrivacySettings
    optimizer: OptimizerSettings
    watching: WatchSettings = attrs.field(factory=WatchSettings)
    corrupt: "str | DataCorruption | GradientCorruption" = "none"
    unit: str | None = None
    per_unit: str | None = None
    records_per_person: int | None = None
    seed: int = 0

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
        from prudent_lab.corruption import GradientCorruption, parse

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
        from prudent_lab.corruption import GradientCorruption

        corruption = self.corruption
        alone = not isinstance(corruption, GradientCorruption) or corruption.per_record
        return alone and self.rule.method is not Method.SGD

    def plan(self, records: int, before: "dp.DpEvent | None" = None) -> "Plan":
        """The plan, with the missing one of noise, steps and ε solved for.

        Args:
            records: Number of training records, or of people with a unit.
            before: What is released about them before training; ε includes it.
        """
        from prudent.accounting import ADD_REMOVE, ZERO_OUT

        own = self.privacy
        known = ZERO_OUT if own.public_size is None else ADD_REMOVE
        plan = prudent.Plan(
            sampling_rate=min(1.0, own.batch / (own.public_size or records)),
            steps=1000 if own.steps is None else own.steps,
            expected_batch=own.batch,
            relation=known if own.relation is None else own.relation,
            aggregation=self.rule.aggregation(own.noise_multiplier or 1.0),
            before=before,
            num_bands=own.num_bands,
            watch=self.watching.watch,
            held_out=self.watching.tested,
        )
        if self.rule.method is Method.SGD or own.epsilon is None:
            return plan
        solved = plan.calibrate if own.noise_multiplier is None else plan.longest
        return solved(epsilon=own.epsilon, delta=own.delta, accountant=own.accountant)


def setting_fields() -> Iterator[tuple[str, "attrs.Attribute[Any]", type]]:
    """Every setting of an experiment: the part that holds it, its field, and how a flag is read."""
    for own in attrs.fields(Experiment):
        inner = attrs.fields(_PARTS[own.name]) if own.name in _PARTS else [own]
        for field in inner:
            words = str(getattr(field.type, "__name__", field.type)).split(" | ")
            kind = {"float": float, "int": int}.get(words[0], str)
            yield own.name if own.name in _PARTS else "experiment", field, kind


def _divided(settings: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Settings by the part of an experiment that holds them, and those of the experiment itself."""
    place = {own.name: part for part, kind in _PARTS.items() for own in attrs.fields(kind)}
    parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    own: dict[str, Any] = {}
    for name, value in settings.items():
        parts.get(place.get(name, ""), own)[name] = value
    return parts, own
