"""Attacks by chosen records: inputs and labels of the attacker's choice, no gradient is touched.

Each attack uses the bad records alone: their own pooled features and labels are all the attacker
knows of the data. So no honest record affects another one, and the ε of a run still holds for every
honest record. Chosen inputs stay within the range of the features they replace.

| situation | what happens |
| --- | --- |
| ratio 0, or ⌊ratio·records⌋ = 0 | labels and features come back as they were |
| a class that no bad record has | its mean is the mean of all bad records |
| a bad label that is no class | that record is left as it was |
| features without two spatial dimensions | the trigger is set in the last features of the row |
"""

import attrs
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent.lab.corruption.data import check_labels
from prudent.lab.corruption.records import VALUES, corrupted_records, seeded_generator, valid_ratio


@attrs.frozen
class ClassMeanPoison:
    """Moves each bad record beyond its own class mean and labels it as the next class.

    A record of class c becomes mean_c + strength·(mean_c - mean_n), clipped to the range of the
    features, with the label n = c + 1: an exaggerated c that claims to be n.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        strength: how far beyond the class mean, in differences of class means.
    """

    ratio: float
    strength: float = 3.0

    def __attrs_post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.non_negative(strength=self.strength)

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """See `DataCorruption.apply`."""
        chosen = _Chosen.of(features, labels, classes, self.ratio, seed)
        if not len(chosen.ids):
            return features, labels
        means = chosen.class_means(classes)
        following = (chosen.labels + 1) % classes
        own, other = means[chosen.labels], means[following]
        return chosen.replaced(own + self.strength * (own - other), following)


@attrs.frozen
class GradientMatchingPoison:
    """Chooses inputs whose gradients point against those of honest training.

    The attacker trains a small network on the bad records, stops early, and then changes inputs by
    signed gradient ascent until the gradients of the wrongly labelled records point opposite to the
    mean gradient of the rightly labelled ones (after Geiping et al. 2021, without a target).

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        prototypes: how many different inputs are optimised; the bad records repeat them.
        rounds: steps of ascent.
    """

    ratio: float
    prototypes: int = 200
    rounds: int = 60

    def __attrs_post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.count(1, prototypes=self.prototypes)
        _validate.count(1, rounds=self.rounds)

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """See `DataCorruption.apply`."""
        chosen = _Chosen.of(features, labels, classes, self.ratio, seed)
        if not len(chosen.ids):
            return features, labels
        generator = seeded_generator(seed, VALUES)
        surrogate = _surrogate(chosen, classes, generator)
        count = min(self.prototypes, len(chosen.ids))
        start, own = chosen.features[:count].clone(), chosen.labels[:count]
        wrong = (own + torch.randint(1, max(2, classes), own.shape, generator=generator)) % classes
        inputs = _matched(surrogate, chosen, start, wrong, self.rounds)
        repeated = torch.arange(len(chosen.ids)) % count
        return chosen.replaced(inputs[repeated], wrong[repeated])


@attrs.frozen
class Backdoor:
    """Stamps a trigger into each bad record and labels it as the target class.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        target: the class that the trigger is to provoke.
        size: side of the square trigger, in the last corner of the image.
    """

    ratio: float
    target: int = 0
    size: int = 4

    def __attrs_post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.count(target=self.target)
        _validate.count(1, size=self.size)

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """See `DataCorruption.apply`."""
        chosen = _Chosen.of(features, labels, classes, self.ratio, seed)
        if not len(chosen.ids):
            return features, labels
        target = torch.full_like(chosen.labels, min(self.target, classes - 1))
        return chosen.replaced(self.triggered(chosen.features, chosen.high), target)

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

    all_features: Tensor
    all_labels: Tensor
    ids: Tensor
    features: Tensor
    labels: Tensor
    low: float
    high: float

    @classmethod
    def of(
        cls, features: Tensor, labels: Tensor, classes: int, ratio: float, seed: int
    ) -> "_Chosen":
        check_labels(features, labels, classes)
        if not features.is_floating_point():
            features = features.float()
        ids = corrupted_records(len(labels), ratio, seed)
        own = labels[ids.to(labels.device)].cpu()
        ids = ids[(own >= 0) & (own < classes)]
        held = features[ids.to(features.device)].cpu().float()
        ends = (float(held.min()), float(held.max())) if len(ids) else (0.0, 1.0)
        own = labels[ids.to(labels.device)].cpu().long()
        return cls(features, labels, ids, held, own, *ends)

    def class_means(self, classes: int) -> Tensor:
        """The mean features of each class, among the attacker's records."""
        everyone = self.features.mean(0)
        return torch.stack(
            [
                self.features[self.labels == each].mean(0)
                if bool((self.labels == each).any())
                else everyone
                for each in range(classes)
            ]
        )

    def replaced(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """All records, with the attacker's own replaced; inputs are kept in range."""
        inside = features.clamp(self.low, self.high)
        where = self.ids.to(self.all_features.device)
        return (
            self.all_features.index_copy(0, where, inside.to(self.all_features)),
            self.all_labels.index_copy(
                0, where.to(self.all_labels.device), labels.to(self.all_labels)
            ),
        )


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
        rows = torch.randint(len(chosen.ids), (_BATCH,), generator=generator)
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
