"""A private classifier whose predictions come with the number of bad records they withstand.

Each record adds one to a cell of a public table: its nearest landmark and its label. The table is
released once, with discrete Laplace noise. A query weighs the landmarks, and the class with the
largest weighted count wins; `counts` has the theorem and its proof.
"""

import html
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.certify.counts import (
    TOTALS_SHARE,
    Counts,
    Pricing,
    Whole,
    decided,
    moves_of,
    scores_of,
)
from prudent.certify.features import Vectors
from prudent.certify.known import (
    Known,
    check_queries,
    check_records,
    checked_width,
    labels_of,
    name_of,
    partition_of,
    query_parts,
    read_classifier,
    write_classifier,
)
from prudent.certify.landmarks import Landmarks, Partition
from prudent.receipts.making import ReceiptTarget
from prudent.records.arrays import Classes
from prudent.release.charging import ChargedRelease
from prudent.release.failures import redact_errors
from prudent.release.noise import Noise, source_of

RECORDS = (0, 100, 500, 1000, 2000)
"""Numbers of bad records for which certified accuracy is reported, unless others are given."""

_PARAMETERS = (
    *("epsilon", "classes", "landmarks", "features", "ramp", "share"),
    *("ledger", "receipt", "noise"),
)


class NotFittedError(ValueError, AttributeError):
    """A classifier was asked for a prediction before `fit`."""


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

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

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
        known = self.known(width)
        paid = known.pricing.charge(self.ledger, known.partition.name, receipt=self.receipt)

        def total() -> Counts:
            found = known.empty()
            for records, labels in chunks:
                found = found + known.counted(records, labels)
            return found

        return self._released(known, redact_errors(total), paid)

    def fit_counts(self, counts: Counts) -> Self:
        """Use counts made elsewhere: exact ones are charged and released, released ones taken.

        Args:
            counts: Of `count`, or a sum of such tables: what clients send by secure aggregation.
        """
        known = self.known()
        if counts.partition != known.digest:
            raise ArgumentError(
                "counts", "on the partition and classes of this classifier", shown="others"
            )
        if counts.epsilon is None:
            paid = known.pricing.charge(self.ledger, known.partition.name, receipt=self.receipt)
            return self._released(known, counts, paid)
        self._taken(known, counts)
        return self

    def fit_table(self, data: Any, column: str, label: str, **table: Any) -> Self:
        """Release the counts of a table in a file, a database or Spark; charges the ledger first.

        A column of cell numbers is counted where the table is, as a histogram is. Vectors, such as
        embeddings, are read in batches. Rows with other cells or labels are left out.

        Args:
            data: As for `prudent.release.histogram`.
            column: The column with the number of the nearest landmark, from 0 on; or with arrays of
                numbers, which are records.
            label: The column with the label.
            **table: Options of a table, such as `where`, `connect` and `table`.
        """
        from prudent.certify.tables import counts_of_table  # needs the extra for tables

        known = self.known()
        counts = counts_of_table(
            known, data, column, label, self.ledger, self.receipt, self.noise, table
        )
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
        """What is public before a fit, checked.

        Args:
            width: How many numbers each record has, where records are vectors and `landmarks` is
                a number of directions.
        """
        source_of(self.noise)
        classes = Classes(labels_of(self.classes))
        partition = partition_of(self.features, self.landmarks, self.ramp, width, len(classes))
        return Known(partition, classes, self.pricing)

    def _released(self, known: "Known", exact: Counts, paid: ChargedRelease) -> Self:
        self._taken(known, exact.released(known.pricing, self.noise))
        self.counts_.note(paid, known.classes.labels)
        return self

    def _taken(self, known: "Known", counts: Counts) -> None:
        self.classes_ = np.array(known.classes.labels)
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
        counts, classes = self._fitted(), self.classes_.tolist()
        write_classifier(path, self.features, classes, self.share, self.partition_, counts)

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
        arguments, counts = read_classifier(path, features)
        found = cls(landmarks=landmarks, **arguments)
        return found.fit_counts(Counts(sizes=found.known().partition.sizes, **counts))
