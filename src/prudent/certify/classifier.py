"""A private classifier whose predictions come with the number of bad records they withstand.

Each record adds one to a cell of a public table: its nearest landmark and its label. The table is
released once, with discrete Laplace noise. A query weighs the landmarks, and the class with the
largest weighted count wins; `counts` has the theorem and its proof.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Self

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._files import replacing
from prudent._formats import check_format, read_npz, reading
from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.certify.counts import (
    TOTALS_SHARE,
    Codes,
    Counts,
    Crowding,
    Features,
    Landmarks,
    Partition,
    Pricing,
    Whole,
    decided,
    moves_of,
    public_ramp,
    random_directions,
    scores_of,
    whole,
)
from prudent.certify.features import (
    SHIPPED,
    Function,
    Images,
    Partitions,
    Vectors,
    alone,
    named,
    shipped_landmarks,
)
from prudent.receipts.making import ReceiptTarget
from prudent.records.arrays import Classes, declared_width, numbers_of, parts
from prudent.release.charging import ChargedRelease
from prudent.release.columns.column import redact_errors
from prudent.release.noise import Noise, source_of

FORMAT = 2  # format number of saved classifiers
ROWS = 1024  # records or queries that are mapped at a time, to save memory
_MOST_CLASSES = 10**6
_MOST_LANDMARKS = 1_000_000
_MOST_CELLS = 10**8  # counts of which each gets its noise: with more the memory would not do


RECORDS = (0, 100, 500, 1000, 2000)
"""Numbers of bad records for which certified accuracy is reported, unless others are given."""

_PARAMETERS = (
    *("epsilon", "classes", "landmarks", "features", "ramp", "share"),
    *("ledger", "receipt", "noise"),
)


class NotFittedError(ValueError, AttributeError):
    """A classifier was asked for a prediction before `fit`."""


class Known:
    """What is public before a fit: the cells, the classes and the price."""

    def __init__(self, partition: Partition, classes: Classes, pricing: Pricing) -> None:
        self.partition, self.classes, self.pricing = partition, classes, pricing
        self.digest = f"{partition.digest} {classes.labels!r}"

    def empty(self) -> Counts:
        """Counts of no records."""
        return Counts.empty(len(self.classes), self.partition.sizes, self.digest)

    def counted(self, records: Any, labels: Any) -> Counts:
        """Exact counts of records."""
        refuse_texts(records, labels, self)
        found, names = self.empty(), self.classes.numbers(labels)
        records = records if hasattr(records, "__len__") else np.asarray(records)
        if len(names) != len(records):
            raise ValueError
        start = 0
        for part in parts(records, ROWS):
            found.insert(self.partition.cells(part), names[start : start + ROWS])
            start += ROWS
        return found


def _features(features: Any, rows: Any) -> Features:
    if features is None:
        return Vectors(np.asarray(next(parts(rows, 1))).size)
    if hasattr(features, "codes"):
        return features  # type: ignore[no-any-return]
    if not callable(features):
        raise ArgumentError("features", "a name, a function or None", shown=name_of(features))
    like = next(parts(rows, 1))
    first = np.asarray(features(alone(like, like)))
    return Function(features, first.size, like, name_of(features))


def _coded(features: Any, rows: Any) -> tuple[Features, Codes]:
    """The features and the codes of landmarks, which are public: what cannot be read is refused."""
    if 0 in getattr(rows, "shape", ()) or (isinstance(rows, Sized) and not len(rows)):
        raise ArgumentError("landmarks", "at least one public record", shown="none")
    try:
        coded = _features(features, rows)
        codes, present = coded.codes(rows)
        if not present.all():
            raise ValueError
    except (ArgumentError, OSError, ImportError):
        raise
    except Exception as error:  # whatever an object raises that is no container of records
        readable = "records that the features can read"
        raise ArgumentError("landmarks", readable, shown=name_of(rows)) from error
    return coded, codes


def partition_of(
    features: Any, landmarks: Any, ramp: tuple[float, float] | None, width: int | None, classes: int
) -> Partition:
    """The public partition that the arguments of a classifier describe, checked.

    `width` is how many numbers each record has, where that is known.
    """
    counted = isinstance(landmarks, int)
    if isinstance(features, str):
        if features in SHIPPED and (counted or landmarks is None):
            shipped = shipped_landmarks(features)
            return shipped if ramp is None else attrs.evolve(shipped, ramp=ramp)
        features = named(features)
    if hasattr(features, "cells"):
        return features  # type: ignore[no-any-return]
    if landmarks is None:
        raise ArgumentError("landmarks", "public records, or a number of directions", got=landmarks)
    if counted:
        _validate.count(1, _MOST_LANDMARKS, landmarks=landmarks)
        coded = Vectors(width) if features is None and width else features
        if not hasattr(coded, "width"):
            allowed = "public records, where X is no array of vectors"
            raise ArgumentError("landmarks", allowed, got=landmarks)
        codes = whole(random_directions(landmarks, coded.width))
    else:
        coded, codes = _coded(features, landmarks)
    return Landmarks(coded, codes, public_ramp(codes, classes) if ramp is None else ramp)


def name_of(features: Any) -> str:
    """What features are called in messages."""
    if isinstance(features, str):
        return repr(features)
    return str(getattr(features, "name", getattr(features, "__name__", type(features).__name__)))


def labels_of(classes: Any) -> Sequence[Any]:
    """The public labels, from a list of them or from their number."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        _validate.between(2, _MOST_CLASSES, classes=classes)
        return range(classes)
    try:
        given = _validate.values(classes=classes)
        found = np.asarray(given).tolist()  # texts, if one of several types is a text
        mixed = len({isinstance(each, str) for each in given}) > 1
        return given if mixed else found
    except Exception as error:  # whatever objects raise that are no labels
        raise ArgumentError("classes", "a number or labels", shown=name_of(classes)) from error


def checked_width(records: Any) -> int | None:
    """How many numbers the type of the records says that each has; refuses types of other kinds."""
    if hasattr(records, "toarray"):
        raise ArgumentError("X", "a dense array; sparse input is not supported", shown="sparse")
    kind = getattr(getattr(records, "dtype", None), "kind", "f")
    if kind == "c":
        raise ArgumentError("X", "real numbers; Complex data not supported", shown="complex")
    if getattr(records, "ndim", 2) == 1 and kind != "O":
        allowed = "2D array, one row per record. Reshape your data"
        raise ArgumentError("X", allowed, shown="1D array")
    return declared_width(records)


def check_records(records: Any, labels: Any, known: Known) -> None:
    """Refuse what can be no records and labels, by types, lengths and widths, which are public."""
    refuse_texts(records, labels, known)
    shape = getattr(labels, "shape", (0,))
    listed = hasattr(labels, "__iter__") or hasattr(labels, "__array__")
    sound = listed and not isinstance(labels, str | bytes | Mapping)
    if not sound or len(shape) not in (1, 2) or shape[1:] not in ((), (1,)):
        raise ArgumentError("y", "one label per record", shown=type(labels).__name__)
    sized = hasattr(records, "__len__") and hasattr(labels, "__len__")
    if sized and len(records) != len(labels):
        raise ArgumentError("y", "one label per record", shown="another number")
    width, own = declared_width(records), getattr(known.partition, "features", None)
    if isinstance(own, Vectors) and width is not None and width != own.width:
        raise ArgumentError("X", f"records of {own.width} features", shown=f"{width} features")


def refuse_texts(records: Any, labels: Any, known: Known) -> None:
    """Refuse arrays of texts where numbers are read: one text has made texts of all numbers.

    All records would count as absent. In a list or a frame of pandas the others stay what they are.
    """
    own = getattr(known.partition, "features", known.partition)
    hint = "Give a list, or a frame of pandas."
    numbers = isinstance(own, Vectors | Images | Partitions)
    if isinstance(own, Function):
        numbers = numbers_of(own.like) is not None
    if numbers and _of_texts(records):
        raise ArgumentError("X", "an array of numbers", shown="one of texts", hint=hint)
    if _of_texts(labels) and not all(isinstance(each, str) for each in known.classes.labels):
        raise ArgumentError("y", "labels like the classes", shown="an array of texts", hint=hint)


def _of_texts(array: Any) -> bool:
    of_columns = array.dtypes if hasattr(array, "rows") else ()  # of polars
    kinds = [getattr(array, "dtype", None), *of_columns]
    return any(getattr(each, "kind", "") in ("U", "S") or str(each) == "String" for each in kinds)


def check_queries(queries: Any, width: int | None) -> None:
    """Queries are public: what cannot be read is refused."""
    found = checked_width(queries)
    if width is not None and found is not None and found != width:
        # The words are those that scikit-learn's checks look for.
        shown = f"X has {found} features, but CertifiedClassifier is expecting {width} features"
        raise ArgumentError("X", f"queries of {width} features", shown=f"{shown} as input")


def query_parts(queries: Any) -> list[Any]:
    """Queries in containers of some each; whatever holds no records is refused: they are public."""
    try:
        return list(parts(queries, ROWS))
    except Exception:  # whatever an object raises that is no container
        allowed = "an array, a table or a list of queries"
        raise ArgumentError("X", allowed, shown=type(queries).__name__) from None


def _digest(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> str:
    """Of all that a file holds: damage and edits are noticed. It is no signature."""
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


class CertifiedClassifier:
    """A classifier by released counts, with pure ε and a radius for each prediction.

    Guarantee:
        `fit` is ε-DP, with δ = 0, when one record is added or removed; see `counts.Pricing`.
        Everything else is post-processing. This holds if `landmarks` and `features` were not made
        from the records.

        `predict_radius` returns radii for which the theorem of `counts` holds.

    | odd input | result |
    | --- | --- |
    | label that is no class | the record is left out |
    | record that is not finite, or of another shape | the record is left out |
    | query that is not finite | answered by the class sizes |
    | no records | noise decides |
    | tie | the first class |

    Args:
        epsilon: ε of `fit`, at least 0.001.
        classes: The public list of labels, or their number k for labels 0 to k − 1.
        landmarks: Public records, such as unlabelled examples of the domain; or how many random
            directions to take, where nothing public is known; or None for a map that comes with
            landmarks of its own.
        features: What turns records into vectors whose cosines tell what is alike. None: records
            are vectors already. A function: it is called with one record at a time, numbers in a
            container like that of the landmarks. A name of `features.NAMES`, or a `Partition`.
        ramp: Cosines, less crowding, between which the weight of a landmark rises from 0 to 1;
            None: those chosen for the map, or by the cosines between landmarks, see
            `landmarks.public_ramp`.
        share: Fraction of ε for the class totals.
        ledger: Charged by `fit` before any record is read.
        receipt: Where `fit` writes its receipt, which holds the released counts.
        noise: Source of randomness; None uses the operating system's.

    Attributes:
        classes_: The labels, as an array.
        counts_: The released counts. Public after `fit`.
        partition_: The public cells, and the weights that a query gives them.
        n_features_in_: How many numbers a record has, if records are vectors.
    """

    def __init__(
        self,
        epsilon: float = 0.3,
        classes: int | Sequence[Any] = 2,
        landmarks: Any = 1024,
        features: "str | Callable[[Any], Any] | Partition | None" = None,
        *,
        ramp: tuple[float, float] | None = None,
        share: float = TOTALS_SHARE,
        ledger: LedgerLike | None = None,
        receipt: ReceiptTarget | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.epsilon, self.classes, self.landmarks = epsilon, classes, landmarks
        self.features, self.ramp, self.share = features, ramp, share
        self.ledger, self.receipt, self.noise = ledger, receipt, noise

    def __repr__(self) -> str:
        cells = len(self.landmarks) if hasattr(self.landmarks, "__len__") else self.landmarks
        by = "" if self.features is None else f", features={name_of(self.features)}"
        at = "" if cells is None else f", landmarks={cells}"
        many = self.classes if isinstance(self.classes, int) else len(self.classes)
        fitted = "" if hasattr(self, "counts_") else ", not fitted"
        return f"<CertifiedClassifier: ε={self.epsilon:g}, {many} classes{at}{by}{fitted}>"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn asks for them."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **parameters: Any) -> Self:
        """Set arguments of the constructor; takes effect at the next `fit`."""
        for name, value in parameters.items():
            if name not in _PARAMETERS:
                raise ArgumentError("parameters", f"of {', '.join(_PARAMETERS)}", got=name)
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> Self:  # a copy of a ledger would be another budget
        return type(self)(**self.get_params())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "counts_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(allow_nan=True),
            non_deterministic=self.noise is None,
        )

    @property
    def pricing(self) -> Pricing:
        """How ε is spent."""
        epsilon = _validate.between(1e-3, 50, epsilon=self.epsilon)
        share = _validate.between(0, 1, ends="()", share=self.share)
        return Pricing(epsilon, share)

    @property
    def event(self) -> dp.DpEvent:
        """What `fit` costs, for any accountant of this package."""
        return self.pricing.event

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803 (as in scikit-learn)
        """Release the counts; charges the ledger first.

        Args:
            X: Records: an array, a table with one record per row, a tensor or a list.
            y: One label per record.
        """
        self.__dict__.pop("n_features_in_", None)
        width = None if self.features is not None else checked_width(X)
        known = self.known(width)
        check_records(X, y, known)
        paid = known.pricing.charge(self.ledger, known.partition.name, receipt=self.receipt)
        return self._released(known, redact_errors(known.counted, X, y), paid)

    def fit_chunks(self, chunks: Iterable[tuple[Any, Any]], width: int | None = None) -> Self:
        """Release the counts of records that do not fit in memory; charges the ledger first.

        Args:
            chunks: Pairs of records and labels, as `fit` takes them; read once.
            width: How many numbers each record has, if records are vectors and `landmarks` is a
                number; otherwise the landmarks say it.
        """
        _validate.instance(Iterable, "pairs of records and labels", chunks=chunks)
        known = self.known(width)
        paid = known.pricing.charge(self.ledger, known.partition.name, receipt=self.receipt)

        def total() -> Counts:
            found = known.empty()
            for records, labels in chunks:
                found = found + known.counted(records, labels)
            return found

        return self._released(known, redact_errors(total), paid)

    def fit_counts(self, counts: Counts) -> Self:
        """Use counts made elsewhere: exact ones are charged and released, released ones taken."""
        known = self.known()
        _validate.instance(Counts, "what count returns", counts=counts)
        if counts.partition != known.digest:
            raise ArgumentError(
                "counts", "on the partition and classes of this classifier", shown="others"
            )
        if counts.epsilon is None:
            paid = known.pricing.charge(self.ledger, known.partition.name, receipt=self.receipt)
            return self._released(known, counts, paid)
        self._taken(known, counts)
        return self

    def count(self, X: Any, y: Any) -> Counts:  # noqa: N803
        """Exact counts of records, NOT PRIVATE: for secure aggregation, which adds tables up."""
        known = self.known()
        check_records(X, y, known)
        return redact_errors(known.counted, X, y)

    def cells(self, X: Any) -> Whole:  # noqa: N803
        """The cell of each record, for a column of a table; as private as the record itself."""
        return self.known().partition.cells(X)

    def known(self, width: int | None = None) -> "Known":
        """What is public before a fit, checked."""
        source_of(self.noise)
        classes = Classes(labels_of(self.classes))
        partition = partition_of(self.features, self.landmarks, self.ramp, width, len(classes))
        if (cells := len(classes) * sum(partition.sizes)) > _MOST_CELLS:
            allowed, shown = f"that make at most {_MOST_CELLS:,} counts", f"{cells:,}"
            raise ArgumentError("classes", f"and landmarks {allowed}", shown=shown)
        return Known(partition, classes, self.pricing)

    def _released(self, known: "Known", exact: Counts, paid: ChargedRelease) -> Self:
        self._taken(known, exact.released(known.pricing, self.noise))
        self.counts_.note(paid, known.classes.labels)
        return self

    def _taken(self, known: "Known", counts: Counts) -> None:
        labels = known.classes.labels
        mixed = len({isinstance(each, str) for each in labels}) > 1
        self.classes_ = np.array(labels, dtype=object if mixed else None)
        self.partition_, self.counts_ = known.partition, counts
        if isinstance(known.partition, Landmarks):
            features = known.partition.features
            if isinstance(features, Vectors):
                self.n_features_in_ = features.width

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The predicted label of each query."""
        return self.predict_radius(X)[0]

    def predict_radius(self, X: Any) -> tuple[npt.NDArray[Any], Whole]:  # noqa: N803
        """The predicted label of each query, and how many records it withstands.

        Returns:
            Labels, and radii: with the same noise, `fit` on data that differ by at most this many
            inserted or removed records predicts the same label.
        """
        winners, radii = decided(*self.scores(X))
        return self.classes_[winners], radii

    def scores(self, X: Any) -> tuple[Whole, Whole]:  # noqa: N803
        """The score of each class at each query, and the most that one record can move it.

        Both are in units of 1/(2 · STEPS · tables).
        """
        counts, partition = self._fitted(), self.partition_
        check_queries(X, getattr(self, "n_features_in_", None))
        scores, moves = [np.zeros((0, len(counts.cells)), np.int64)], [np.zeros(0, np.int64)]
        for part in query_parts(X):
            weights = partition.weights(part)
            scores.append(scores_of(weights, counts.cells, counts.totals, counts.tables))
            moves.append(moves_of(weights, partition.sizes))
        return np.concatenate(scores), np.concatenate(moves)

    def _fitted(self) -> Counts:
        if not hasattr(self, "counts_"):
            raise NotFittedError("Expected a fitted classifier. Call fit first.")
        return self.counts_

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Accuracy on queries with known labels."""
        return self.certified_score(X, y, records=(0,))[0]

    def certified_score(
        self,
        X: Any,  # noqa: N803
        y: Any,
        records: Iterable[int] = RECORDS,
    ) -> dict[int, float]:
        """Fraction of queries that are right and stay so under any change of k records, for each k.

        Args:
            X: Queries. Their labels are compared without noise, so they must be public.
            y: Their labels.
            records: Numbers k of inserted or removed records.
        """
        winners, radii = decided(*self.scores(X))
        if not hasattr(y, "__iter__"):
            raise ArgumentError("y", "an array or a list of labels", shown=type(y).__name__)
        truth = Classes(self.classes_.tolist()).numbers(y)
        if truth.shape != winners.shape:
            raise ArgumentError("y", "one label per query", shown=f"{len(truth)} labels")
        right = winners == truth
        return {
            _validate.count(records=k): float(np.mean(right & (radii >= k))) if len(right) else 0.0
            for k in _validate.values(records=records)
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was released to an .npz file, which holds numbers and JSON only."""
        counts, partition = self._fitted(), self.partition_
        header = {
            "format": FORMAT,
            "features": self.features if isinstance(self.features, str) else None,
            "classes": self.classes_.tolist(),
            "epsilon": counts.epsilon,
            "share": self.share,
            "ramp": getattr(partition, "ramp", None),
            "partition": counts.partition,
        }
        arrays: dict[str, Any] = {"cells": counts.cells, "totals": counts.totals}
        if isinstance(partition, Landmarks):
            arrays["landmarks"] = partition.codes.astype(np.int16)
            if crowding := partition.crowding:
                arrays["crowding"] = crowding.products
                header["crowding"] = [crowding.records, crowding.landmarks, crowding.queries]
        header["digest"] = _digest(header, arrays)
        with replacing(Path(path), "wb") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        features: "Callable[[Any], Any] | Partition | None" = None,
        landmarks: Any = None,
    ) -> "CertifiedClassifier":
        """Read a classifier that `save` wrote.

        Args:
            path: The file.
            features: Those of the classifier, where they have no name.
            landmarks: Those of the classifier, where `features` is a function.

        Raises:
            ValueError: If the file is none of `save`, or was made with other features.
        """
        _validate.path(path=path)
        expected = "a file written by CertifiedClassifier.save"
        with reading(path, expected):
            arrays = read_npz(path, expected, "header", "cells", "totals", "landmarks", "crowding")
            header = json.loads(str(arrays.pop("header")))
            check_format(header, FORMAT, f"{path}")
            if header.pop("digest") != _digest(header, arrays):
                raise ValueError
            cells, totals = (arrays[name].astype(np.int64) for name in ("cells", "totals"))
            ramp = None if header["ramp"] is None else tuple(header["ramp"])
            given = header["features"] if features is None else features
            if "landmarks" in arrays and (given is None or isinstance(given, str)):
                codes = arrays["landmarks"].astype(np.float32)
                own: Any = Vectors(codes.shape[1]) if given is None else named(given)
                shares = header.get("crowding")
                crowding = Crowding(arrays["crowding"], *shares) if shares else None
                given = Landmarks(own, codes, ramp, crowding)
            arguments = {name: header[name] for name in ("epsilon", "classes", "share")}
            public = {name: header[name] for name in ("partition", "epsilon")}
        found = cls(landmarks=landmarks, features=given, ramp=ramp, **arguments)
        sizes = found.known().partition.sizes
        return found.fit_counts(Counts(cells, totals, sizes, **public))
