"""Bad records: which they are, faults in their labels and features, and attacks by choosing them.

Which records are bad is a fixed set of record ids that the seed determines. An attack uses the bad
records alone: their own pooled features and labels are all the attacker knows of the data. So no
honest record affects another one, and the ε of a run still holds for every honest record. Chosen
inputs stay within the range of the features they replace.

| situation | what happens |
| --- | --- |
| ratio 0, or ⌊ratio·records⌋ = 0 | labels and features come back as they were |
| ratio 0.5 | exactly ⌊records/2⌋ records change |
| no records | comes back empty |
| one class, random flip | an error: there is no other class to flip to |
| one class, targeted flip | the label stays, C − 1 − 0 = 0 |
| a label that is no class | stays: training counts such a record as a zero gradient |
| middle class of an odd number of classes, targeted flip | the label stays, C − 1 − c = c |
| integer features (uint8 pixels) | become float32, not rescaled; the noise is in their units |
| a class that no bad record of an attack has | its mean is the mean of all bad records |
| features without two spatial dimensions | the trigger is set in the last features of the row |
"""

import functools
import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Protocol, runtime_checkable

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from prudent import _validate

# Separate streams make the choice of records independent of the values that replace them.
_RECORDS = 0
VALUES = 1

_MOST_RECORDS = 10**8  # whose order is drawn in memory


def seeded_generator(seed: int, stream: int) -> torch.Generator:
    """A separate host generator for every (seed, stream)."""
    seed = _validate.count(seed=seed)
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def valid_ratio(ratio: float) -> float:
    """The ratio, at most one half: beyond that bad records are the majority."""
    return _validate.between(0, 0.5, ratio=ratio)


def corrupted_records(records: int, ratio: float, seed: int) -> Tensor:
    """The ids of the bad records, ascending, on the host.

    Exactly ⌊ratio·records⌋ of them, with `ratio` interpreted as the decimal number that it prints
    as (0.29 of 100 is 29, although the floating-point product is below it). For one seed the sets
    are nested: the records that are bad at ratio 0.1 are also bad at 0.2, so results at different
    ratios are comparable.
    """
    records = _validate.count(0, _MOST_RECORDS, records=records)
    bad = math.floor(Fraction(repr(valid_ratio(ratio))) * records)
    order = torch.randperm(records, generator=seeded_generator(seed, _RECORDS))
    return order[:bad].sort().values


def corrupted_mask(
    records: int, ratio: float, seed: int, device: torch.device | str | None = None
) -> Tensor:
    """The same set as a boolean vector with one entry per record.

    On the training device, `table[ids]` gives the `mask` of a batch for a gradient corruption with
    one gather and without synchronising with the host.
    """
    bad = corrupted_records(records, ratio, seed)
    mask = torch.zeros(_validate.count(records=records), dtype=torch.bool)
    mask[bad] = True
    return mask if device is None else mask.to(_validate.device(device=device))


_MOST_CLASSES = 10**6  # each has a mean, or a row of a layer


@runtime_checkable
class DataCorruption(Protocol):
    """Corrupts a fraction of a training set."""

    @property
    def ratio(self) -> float:
        """The fraction of bad records."""

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """The features and labels with the records `corrupted_records(n, ratio, seed)` corrupted.

        Args:
            features: one row per record, on any device.
            labels: integer class indices from 0 to classes − 1.
            classes: the number of classes.
            seed: determines the bad records and what replaces them. It is drawn on the host, so
                that one seed gives the same corruption on every device.
        """


@attrs.frozen(eq=False)
class _TrainingSet:
    """A training set, the ids of its bad records, on the host, and the seed of their values."""

    features: Tensor
    labels: Tensor
    bad: Tensor
    classes: int
    seed: int

    @property
    def bad_labels(self) -> Tensor:
        return self.labels[self.bad.to(self.labels.device)]

    @property
    def numbers(self) -> Tensor:
        return self.features if self.features.is_floating_point() else self.features.float()

    def relabelled(self, other: Tensor) -> tuple[Tensor, Tensor]:
        """The records with other labels for the bad ones; a label that is no class is unchanged.

        An error would let one record decide whether training happens at all.
        """
        old = self.bad_labels
        new = torch.where((old >= 0) & (old < self.classes), other.to(old), old)
        return self.features, self.labels.index_copy(0, self.bad.to(self.labels.device), new)


_POSITIVE = _validate.by(_validate.positive)
_COUNT = _validate.by(_validate.count, 1)


@attrs.frozen
class _Fault(ABC):
    """What happens to bad records."""

    # The share of bad records, in [0, 0.5].
    ratio: float = attrs.field(validator=_validate.by(_validate.between, 0, 0.5))

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """See `DataCorruption.apply`."""
        _validate.count(1, _MOST_CLASSES, classes=classes)
        _validate.instance(Tensor, "a tensor", features=features)
        _validate.instance(Tensor, "a tensor", labels=labels)
        if features.shape[:1] != labels.shape or labels.is_floating_point():
            raise ValueError(
                "Expected one integer label per row of features, got features of shape "
                f"{tuple(features.shape)} and labels of shape {tuple(labels.shape)}, "
                f"{labels.dtype}."
            )
        bad = corrupted_records(len(labels), self.ratio, seed)
        return self._spoilt(_TrainingSet(features, labels, bad, classes, seed))

    @abstractmethod
    def _spoilt(self, of: "_TrainingSet") -> tuple[Tensor, Tensor]: ...


@attrs.frozen
class RandomLabelFlip(_Fault):
    """Gives each bad record another class, drawn uniformly from all other classes."""

    @override
    def _spoilt(self, of: "_TrainingSet") -> tuple[Tensor, Tensor]:
        if not len(of.bad):
            return of.features, of.labels
        if of.classes < 2:
            raise _validate.ArgumentError(
                "classes",
                ">= 2 to flip a label to another class",
                got=1,
                hint="Use ratio 0, or corrupt the features instead.",
            )
        # A shift by 1 to C - 1 modulo C reaches every other class exactly once.
        generator = seeded_generator(of.seed, VALUES)
        step = torch.randint(1, of.classes, of.bad.shape, generator=generator).to(of.labels)
        return of.relabelled((of.bad_labels + step) % of.classes)


@attrs.frozen
class TargetedLabelFlip(_Fault):
    """Changes the class c of each bad record to C − 1 − c."""

    @override
    def _spoilt(self, of: "_TrainingSet") -> tuple[Tensor, Tensor]:
        return of.relabelled(of.classes - 1 - of.bad_labels)


@attrs.frozen
class FeatureNoise(_Fault):
    """Adds Gaussian noise to every feature of each bad record, in the units of the features.

    The default variance, a standard deviation of 10, makes an image scaled to [0, 1]
    unrecognisable.
    """

    variance: float = attrs.field(default=100.0, validator=_POSITIVE)

    @override
    def _spoilt(self, of: "_TrainingSet") -> tuple[Tensor, Tensor]:
        features = of.numbers
        generator = seeded_generator(of.seed, VALUES)
        noise = torch.randn(len(of.bad), *features.shape[1:], generator=generator)
        noise = noise.mul_(self.variance**0.5).to(features)
        return features.index_add(0, of.bad.to(features.device), noise), of.labels


@attrs.frozen
class _Poison(_Fault):
    """Inputs and labels that an attacker chooses for the bad records."""

    @override
    def _spoilt(self, of: "_TrainingSet") -> tuple[Tensor, Tensor]:
        own = of.bad_labels.cpu().long()
        known = (own >= 0) & (own < of.classes)
        if not known.any():
            return of.features, of.labels
        features, where = of.numbers, of.bad[known].to(of.features.device)
        chosen = _Chosen(features[where].cpu().float(), own[known])
        inputs, names = self._bad(chosen, of.classes, of.seed)
        inside = inputs.clamp(chosen.low, chosen.high).to(features)
        names, there = names.to(of.labels), where.to(of.labels.device)
        return features.index_copy(0, where, inside), of.labels.index_copy(0, there, names)

    @abstractmethod
    def _bad(self, chosen: "_Chosen", classes: int, seed: int) -> tuple[Tensor, Tensor]:
        """Features and labels in place of the attacker's own."""


@attrs.frozen
class ClassMeanPoison(_Poison):
    """Moves each bad record beyond its own class mean and labels it as the next class.

    A record of class c becomes mean_c + strength·(mean_c - mean_n), clipped to the range of the
    features, with the label n = c + 1: an exaggerated c that claims to be n.
    """

    strength: float = attrs.field(default=3.0, validator=_validate.by(_validate.non_negative))

    @override
    def _bad(self, chosen: "_Chosen", classes: int, seed: int) -> tuple[Tensor, Tensor]:
        means = chosen.class_means(classes)
        following = (chosen.labels + 1) % classes
        own, other = means[chosen.labels], means[following]
        return own + self.strength * (own - other), following


@attrs.frozen
class GradientMatchingPoison(_Poison):
    """Chooses inputs whose gradients point against those of honest training.

    The attacker trains a small network on the bad records, stops early, and then changes inputs by
    signed gradient ascent until the gradients of the wrongly labelled records point opposite to the
    mean gradient of the rightly labelled ones (after Geiping et al. 2021, without a target).
    """

    # How many different inputs are optimised; the bad records repeat them.
    prototypes: int = attrs.field(default=200, validator=_COUNT)
    rounds: int = attrs.field(default=60, validator=_COUNT)  # steps of ascent

    @override
    def _bad(self, chosen: "_Chosen", classes: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = seeded_generator(seed, VALUES)
        surrogate = _surrogate(chosen, classes, generator)
        count = min(self.prototypes, len(chosen.labels))
        start, own = chosen.features[:count].clone(), chosen.labels[:count]
        wrong = (own + torch.randint(1, max(2, classes), own.shape, generator=generator)) % classes
        inputs = _matched(surrogate, chosen, start, wrong, self.rounds)
        repeated = torch.arange(len(chosen.labels)) % count
        return inputs[repeated], wrong[repeated]


@attrs.frozen
class Backdoor(_Poison):
    """Stamps a trigger into each bad record and labels it as the target class.

    Attributes:
        target: the class that the trigger is to provoke.
        size: side of the square trigger, in the last corner of the image.
    """

    target: int = attrs.field(default=0, validator=_validate.by(_validate.count))
    size: int = attrs.field(default=4, validator=_COUNT)

    @override
    def _bad(self, chosen: "_Chosen", classes: int, seed: int) -> tuple[Tensor, Tensor]:
        target = torch.full_like(chosen.labels, min(self.target, classes - 1))
        return self.triggered(chosen.features, chosen.high), target

    def triggered(self, features: Tensor, high: float | None = None) -> Tensor:
        """The features with the trigger in each of them, at the largest value of a feature."""
        value = float(features.max()) if high is None else high
        stamped = features.clone()
        if features.dim() >= 3:
            stamped[..., -self.size :, -self.size :] = value
        else:
            stamped[..., -self.size :] = value
        return stamped


@attrs.frozen(eq=False)
class _Chosen:
    """The records of the attacker, on the host."""

    features: Tensor
    labels: Tensor

    @functools.cached_property
    def low(self) -> float:
        return float(self.features.min())

    @functools.cached_property
    def high(self) -> float:
        return float(self.features.max())

    def class_means(self, classes: int) -> Tensor:
        """The mean features of each class, among the attacker's records."""
        means = self.features.mean(0).repeat(classes, *[1] * (self.features.ndim - 1))
        for each in range(classes):
            if (own := self.labels == each).any():
                means[each] = self.features[own].mean(0)
        return means


_HIDDEN = 64
_TRAINING = 150
_BATCH = 128


def _surrogate(chosen: _Chosen, classes: int, generator: torch.Generator) -> nn.Module:
    """A small network, trained for a while on the attacker's records."""
    width = chosen.features[0].numel()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(width, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, classes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter.shape[-1] if parameter.dim() > 1 else width
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan**0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(_TRAINING):
        rows = torch.randint(len(chosen.labels), (_BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(model(chosen.features[rows]), chosen.labels[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def _matched(
    model: nn.Module, chosen: _Chosen, inputs: Tensor, wrong: Tensor, rounds: int
) -> Tensor:
    """Inputs whose mean gradient, with wrong labels, points against the honest one."""
    parameters = list(model.parameters())
    honest = nn.functional.cross_entropy(model(chosen.features), chosen.labels)
    against = [-each.detach() for each in torch.autograd.grad(honest, parameters)]
    pace = 2 * (chosen.high - chosen.low) / rounds
    for _ in range(rounds):
        inputs = inputs.detach().requires_grad_()
        loss = nn.functional.cross_entropy(model(inputs), wrong)
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([each.flatten() for each in found])
        product = flat @ torch.cat([each.flatten() for each in against])
        length = torch.linalg.vector_norm(flat) + 1e-12
        (slope,) = torch.autograd.grad(product / length, inputs)
        inputs = (inputs + pace * slope.sign()).clamp(chosen.low, chosen.high)
    return inputs.detach()
