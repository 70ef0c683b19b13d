"""Labels of parts: the noisy votes for each, and how many spoiled parts the winner withstands."""

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.estimators.aggregation.asked import MOST_PARTS, AggregateRequest, preview_of, selected
from prudent.release.certificates import CAP, Certificate
from prudent.release.charging import Preview
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Released
from prudent.release.sums.additive import AdditiveMechanism

_ENOUGH_VOTES = 30.0  # parts, divided by the scale of the noise


@attrs.frozen(kw_only=True)
class Votes:
    """Labels: the votes for each, with noise."""

    asked: AggregateRequest
    labels: tuple[Hashable, ...]
    places: dict[Hashable, int] = attrs.field(repr=False)
    noise: AdditiveMechanism
    parts: int
    preview: Preview

    @classmethod
    def priced(cls, asked: AggregateRequest, labels: Sequence[Hashable]) -> "Votes":
        """Calibrate the release; nothing is read."""
        known = _validate.values(labels=labels)
        if len(known) < 2 or not all(isinstance(each, Hashable) for each in known):
            raise ArgumentError("labels", "two or more distinct values", got=labels)
        places = {label: place for place, label in enumerate(known)}
        if len(places) < len(known):
            raise ArgumentError("labels", "two or more distinct values", got=labels)
        if asked.tolerance is not None:
            raise ArgumentError(
                "certify", "none for a vote, which comes with its proof", got=asked.tolerance
            )
        kind = Distribution.LAPLACE if asked.delta is None else Distribution.GAUSSIAN
        noise = AdditiveMechanism.calibrate(asked.epsilon, asked.delta, kind)
        if asked.delta is not None:  # for few votes the noise that needs no δ may still be less
            pure = AdditiveMechanism.calibrate(asked.epsilon)
            if _vote_scale(pure, asked.size) * math.sqrt(2) < _vote_scale(noise, asked.size):
                noise = pure
        scale = _vote_scale(noise, asked.size)
        parts = asked.parts or min(MOST_PARTS, math.ceil(_ENOUGH_VOTES * scale))
        name = noise.distribution.value
        return cls(
            asked=asked,
            labels=tuple(known),
            places=places,
            noise=noise,
            parts=parts,
            preview=preview_of(name, asked, [noise.event], parts),
        )

    def read(self, value: Any) -> list[int] | None:
        """The places of the labels of a part, if all of them are in the public list."""
        if not self.asked.single:
            value = value.tolist() if hasattr(value, "tolist") else list(value)
            if len(value) != self.asked.size:
                return None
        else:
            value = [value.item() if hasattr(value, "item") else value]
        return [self.places[each] for each in value]

    def release(self, values: list[list[int]], noise: Noise) -> Released:
        """Release from the values of the parts that have one."""
        size, kinds = self.asked.size, len(self.labels)
        votes = np.array(values, np.int64).reshape(len(values), size)
        counts = np.stack([(votes == place).sum(axis=0) for place in range(kinds)], axis=1)
        scale = _vote_scale(self.noise, size)
        drawn = noise.of_value(self.noise.distribution, scale, counts.size)
        noisy = counts + np.array(drawn, np.int64).reshape(counts.shape)
        winners = noisy.argmax(axis=1)
        chosen = tuple(self.labels[place] for place in winners)
        value = chosen[0] if self.asked.single else chosen
        confidence = self.asked.confidence or 0.95
        error = self._noise_bound(scale, (1 - confidence) / counts.size)
        certificate = Certificate(
            low=value,
            high=value,
            needed=int(min(needed_votes(noisy, winners, 2 * error).min(), CAP)),
            confidence=confidence,
            epsilon=0.0,
            event=dp.NoOpDpEvent(),
            basis={
                "kind": "votes",
                "counts": noisy.tolist(),
                "distribution": self.noise.distribution.value,
                "scale": scale,
            },
        )
        deviation = self.noise.distribution.deviation(scale)
        return attrs.evolve(
            selected(value, certificate, name=self.noise.distribution.value), noise_scale=deviation
        )

    def _noise_bound(self, scale: float, beta: float) -> int:
        """A whole number that the noise of one count exceeds with probability at most beta."""
        if self.noise.distribution is Distribution.LAPLACE:
            return math.ceil(-scale * math.log(beta))
        return math.ceil(-scale * NormalDist().inv_cdf(beta / 2)) + 1


def _vote_scale(mechanism: AdditiveMechanism, size: int) -> float:
    """The scale of the noise of the counts of so many votes; a record replaces one in each."""
    moved = 2 * size if mechanism.distribution is Distribution.LAPLACE else math.sqrt(2 * size)
    return math.nextafter(mechanism.multiplier * moved, math.inf)


def needed_votes(
    counts: npt.NDArray[np.int64], winners: npt.NDArray[np.int64], error: int
) -> npt.NDArray[np.int64]:
    """The least number of parts to spoil before each winner loses, if gaps are `error` too wide.

    An earlier label wins a tie, a later one must get ahead.
    """
    rows, kinds = np.arange(len(counts)), np.arange(counts.shape[1])
    gaps = counts[rows, winners][:, None] - counts - error + (kinds > winners[:, None])
    gaps[rows, winners] = 2 * CAP
    found: npt.NDArray[np.int64] = np.maximum(0, -(-gaps.min(axis=1) // 2))
    return found
