"""A private classifier whose predictions come with the number of bad records they withstand.

A public map turns each record z into a vector u(z), and each query x into a vector q(x), such that
0 <= ⟨q(x), u(z)⟩ <= 1 for all x and z: the similarity of the query and the record. Two pairings do
this (`vectors`): non-negative vectors of Euclidean length at most 1; and records that cast votes,
weighed by queries. The vectors (u(z), β) of each class are added up, β > 0 a constant, and the sums
are released once with Gaussian noise: S_c, and last H_c, which is β times the number of records.
The score of class c at a query x is

    ⟨q(x), S_c⟩ − H_c/(2β),

the sum over the records z of the class of ⟨q(x), u(z)⟩ − 1/2, and noise. The class with the largest
score is predicted.

Theorem. Let g be the difference between the two largest scores at x, and let r < 2g. With the same
noise, the prediction at x is the same for every data set that differs from the given one by r
inserted or removed records, whatever these records are.

Proof. A record inserted into class c, or removed from it, moves the score of c by
±(⟨q(x), u(z)⟩ − 1/2), at most 1/2 in size, and no other score. So r records, n_c of them in class
c, change the difference between the scores of the predicted class a and any class b by at most
n_a/2 + n_b/2 <= r/2 < g. It stays positive. ∎

The largest whole number below 2g is ⌈2g⌉ − 1, the radius. A changed record is one removed and one
inserted, and counts twice. The radius is a function of what was released, so it costs nothing and
may be published, for any number of queries. It is sharp where some record has similarity 1 with the
query: ⌈2g⌉ copies of it, named as the second class, bring a tie or a change.

The half doubles the radius of the plain sum of similarities, in which a record moves a score by up
to 1 but can only add to it: here a record unlike the query counts against its class as much as one
like it counts for it. No rule can do better than the size of two classes: whoever can remove one
class and insert it under the name of another can exchange their names.

Everything is computed with whole numbers, in steps of 1/LENGTH.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._files import replacing
from prudent._formats import check_format, read_npz, reading
from prudent._validate import ArgumentError
from prudent.accounting.chargeable import LedgerLike
from prudent.certify.features import FeatureMap, feature_map
from prudent.certify.vectors import LENGTH, Pairing, Whole, in_chunks
from prudent.release.failures import withheld
from prudent.release.noise import Law, Noise, SecureNoise
from prudent.release.sums.additive import least_gaussian

FORMAT = 1
"""Format number of saved classifiers."""

_MOST_CLASSES = 10**6
_ROWS = 1024  # converted at a time, to save memory

MOVE = LENGTH * LENGTH // 2
"""How far one record can move the difference between two scores, in units of a whole score."""


class NotFittedError(ValueError):
    """A classifier was asked for a prediction before `fit`."""


class CertifiedClassifier:
    """A classifier by released class sums, with an (ε, δ) guarantee and a radius per prediction.

    Guarantee:
        `fit` is (epsilon, delta)-DP when one record is added or removed: a record is in one class
        sum only, so the L2 sensitivity of all sums is the length of its vector, and exact rounded
        Gaussian noise of the calibrated scale is added. Everything else is post-processing. This
        holds if `features` maps each record by itself and was not made from the records.

        `predict_with_radius` returns radii for which the theorem of this module holds.

    | odd input | result |
    | --- | --- |
    | label that is no class | the record is left out |
    | record with features that are not finite | the record is left out |
    | query with features that are not finite | answered as the zero vector: by the class sizes |
    | no records | noise decides |
    | tie | the first class, radius 0 |

    Args:
        features: A name of `features.NAMES`, or a `FeatureMap`.
        classes: The public list of labels, or their number k for labels 0 to k − 1.
        epsilon: ε of `fit`, at least 0.001.
        delta: δ of `fit`.
        ledger: Charged by `fit` before any data is read.
        noise: Source of randomness; None uses the operating system's.

    Attributes:
        classes_: The labels, as an array.
        released_: The noisy sums, one row per class, in steps; the last column is that of the
            constant. Public after `fit`.
        noise_multiplier_: Noise deviation over sensitivity.
    """

    def __init__(
        self,
        features: "str | FeatureMap" = "letters",
        classes: int | Sequence[Any] = 10,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        ledger: LedgerLike | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.features, self.classes = features, classes
        self.epsilon = _validate.between(1e-3, 50, epsilon=epsilon)
        self.delta = _validate.between(1e-18, 0.5, ends="[)", delta=delta)
        self.ledger, self.noise = ledger, noise
        self.classes_ = _labels(classes)
        self._map = feature_map(features)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn asks for them."""
        names = ("features", "classes", "epsilon", "delta", "ledger", "noise")
        return {name: getattr(self, name) for name in names}

    def set_params(self, **parameters: Any) -> Self:
        """Set arguments of the constructor; forgets what was fitted."""
        self.__init__(**{**self.get_params(), **parameters})  # type: ignore[misc]
        vars(self).pop("released_", None)
        return self

    @property
    def event(self) -> dp.DpEvent:
        """What `fit` costs, for any accountant of this package."""
        return dp.GaussianDpEvent(least_gaussian(self.epsilon, self.delta))

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:  # noqa: N803 (as in scikit-learn)
        """Release the sums of the classes; charges the ledger first.

        Args:
            X: Records, in the form that `features` takes.
            y: One label per record.
        """
        self.noise_multiplier_ = least_gaussian(self.epsilon, self.delta)
        if self.ledger is not None:
            label = f"certified classifier on {self._map.name} features"
            self.ledger.charge(self.event, label, delta=self.delta)
        sums = withheld(self._sums, X, y)
        scale = self.noise_multiplier_ * sensitivity(self._map.pairing)
        draws = (self.noise or SecureNoise()).of_value(Law.GAUSSIAN, scale, sums.size)
        self.released_ = sums + np.array(draws, dtype=np.int64).reshape(sums.shape)
        return self

    def _sums(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Whole:  # noqa: N803
        """Exact sums over the records of each class."""
        records, labels = np.asarray(X), np.asarray(y)
        if labels.shape != records.shape[:1]:
            raise ValueError
        sums = np.zeros((len(self.classes_), self._map.width + 1), dtype=np.int64)
        for rows, values in in_chunks(self._map.records, records):
            vectors, finite = self._map.pairing.records(values)
            for index, label in enumerate(self.classes_.tolist()):
                members = vectors[finite & np.asarray(labels[rows] == label, dtype=bool)]
                sums[index, :-1] += members.sum(axis=0)
                sums[index, -1] += constant_of(self._map.pairing) * len(members)
        return sums

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:  # noqa: N803
        """The predicted label of each query."""
        return self.predict_with_radius(X)[0]

    def predict_with_radius(self, X: npt.ArrayLike) -> tuple[npt.NDArray[Any], Whole]:  # noqa: N803
        """The predicted label of each query, and how many records it withstands.

        Returns:
            Labels, and radii: with the same noise, `fit` on data that differ by at most this many
            inserted or removed records predicts the same label.
        """
        winners, radii = decided(self.scores(X))
        return self.classes_[winners], radii

    def scores(self, X: npt.ArrayLike) -> Whole:  # noqa: N803
        """The score of each class at each query, as whole numbers in units of 1/(2 · MOVE)."""
        if not hasattr(self, "released_"):
            raise NotFittedError("Expected a fitted classifier. Call fit first.")
        queries = _array(X=X)
        if queries.ndim < 1 or queries.dtype.kind not in "biuf":
            raise ArgumentError(
                "X", "an array of numbers, one row per query", shown=str(queries.dtype)
            )
        scores = np.zeros((len(queries), len(self.classes_)), dtype=np.int64)
        try:
            for rows, values in in_chunks(self._map.queries, queries):
                vectors = self._map.pairing.queries(values)
                scores[rows] = scores_of(vectors, self.released_, self._map.pairing)
        except (IndexError, TypeError, ValueError):
            raise ArgumentError(
                "X",
                f"records as the features {self._map.name!r} take them",
                shown=f"an array of shape {queries.shape}",
            ) from None
        return scores

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:  # noqa: N803
        """Accuracy on queries with known labels."""
        return self.certified_accuracy(X, y, records=(0,))[0]

    def certified_accuracy(
        self,
        X: npt.ArrayLike,  # noqa: N803
        y: npt.ArrayLike,
        records: Iterable[int] = (0, 100, 500, 1000, 2000),
    ) -> dict[int, float]:
        """Fraction of queries that are right and stay so under any change of k records, for each k.

        Args:
            X: Queries. Their labels are compared without noise, so they must be public.
            y: Their labels.
            records: Numbers k of inserted or removed records.
        """
        labels, radii = self.predict_with_radius(X)
        known = _array(y=y)
        if known.shape != labels.shape:
            raise ArgumentError(
                "y", "one label per query", shown=f"an array of shape {known.shape}"
            )
        right = np.asarray(labels == known, dtype=bool)
        return {
            _validate.count(records=k): float(np.mean(right & (radii >= k))) if len(right) else 0.0
            for k in _validate.values(records=records)
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was released to an .npz file, which holds numbers and JSON only."""
        if not hasattr(self, "released_"):
            raise NotFittedError("Expected a fitted classifier. Call fit first.")
        header = {
            "format": FORMAT,
            "features": self._map.name,
            "digest": self._map.digest,
            "classes": self.classes_.tolist(),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier_,
            "length": LENGTH,
        }
        with replacing(Path(path), "wb") as file:
            np.savez_compressed(file, released=self.released_, header=np.array(json.dumps(header)))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], features: "str | FeatureMap | None" = None
    ) -> "CertifiedClassifier":
        """Read a classifier that `save` wrote.

        Args:
            path: The file.
            features: The feature map, where it has no name of `features.NAMES`.

        Raises:
            ValueError: If the file is none of `save`, or was made with other features.
        """
        _validate.path(path=path)
        expected = "a file written by CertifiedClassifier.save"
        with reading(path, expected):
            archive = read_npz(path, expected, "released", "header")
            header = json.loads(str(archive["header"]))
            released = archive["released"]
            check_format(header, FORMAT, f"{path}")
            names = ("features", "classes", "epsilon", "delta", "digest")
            named, classes, epsilon, delta, digest = (header[name] for name in names)
            noise = _validate.positive(noise_multiplier=header["noise_multiplier"])
            if released.dtype.kind != "i" or not isinstance(named, str):
                raise ValueError
        found = cls(features if features is not None else named, classes, epsilon, delta)
        if (found._map.name, found._map.digest) != (named, digest):
            raise ArgumentError(
                "features",
                f"those that {path} was fitted with, {named!r}",
                got=found._map.name,
                why="radii hold for the map that was summed",
            )
        if released.shape != (len(found.classes_), found._map.width + 1):
            raise ValueError(f"Expected one row of sums per class in {path}.")
        found.released_, found.noise_multiplier_ = released.astype(np.int64), noise
        return found


def _array(**argument: Any) -> npt.NDArray[Any]:
    """An argument as an array; it is public."""
    ((name, value),) = argument.items()
    try:
        return np.asarray(value)
    except Exception:  # whatever an object raises that is no array
        raise ArgumentError(name, "an array", shown=type(value).__name__) from None


def constant_of(pairing: Pairing) -> int:
    """The last entry of a record's vector, in steps."""
    return round(LENGTH * pairing.constant)


def sensitivity(pairing: Pairing) -> float:
    """Upper bound on the length of a record's vector, in steps."""
    return LENGTH * pairing.length * (1 + 2.0**-40)


def scores_of(vectors: Whole, released: Whole, pairing: Pairing) -> Whole:
    """Scores times LENGTH², exactly: no sum of int64 overflows below 2³⁰ records.

    Each record adds at most LENGTH² to the sum of absolute values of the products.
    """
    sums, last = released[:, :-1].T, MOVE // constant_of(pairing)
    steps = int(vectors.max(initial=0))
    largest = steps * int(np.abs(released[:, :-1]).sum(axis=1).max(initial=0))
    if largest < 1 << 53:  # then float64 is exact too, and many times faster
        exact, products = sums.astype(np.float64), np.zeros((len(vectors), len(released)), np.int64)
        for start in range(0, len(vectors), _ROWS):
            rows = slice(start, start + _ROWS)
            products[rows] = vectors[rows].astype(np.float64) @ exact
    else:
        products = vectors @ sums
    return products - last * released[:, -1]


def decided(scores: Whole) -> tuple[Whole, Whole]:
    """The index of the largest score in each row, and its radius; the first index wins a tie."""
    ranked = np.sort(scores, axis=1)
    return scores.argmax(axis=1), radius_of(ranked[:, -1] - ranked[:, -2])


def radius_of(gaps: Whole) -> Whole:
    """⌈2g⌉ − 1 for gaps g given in units of 1/(2 · MOVE), and 0 for a tie."""
    return np.maximum((gaps - 1) // MOVE, 0)


def _labels(classes: int | Sequence[Any]) -> npt.NDArray[Any]:
    if isinstance(classes, int):
        _validate.between(2, _MOST_CLASSES, classes=classes)
    given = np.array(
        list(range(classes)) if isinstance(classes, int) else _validate.values(classes=classes)
    )
    if (
        given.dtype == object
        or given.ndim != 1
        or len(given) < 2
        or len(set(given.tolist())) < len(given)
    ):
        raise ArgumentError("classes", "at least two different labels", got=classes)
    return given
