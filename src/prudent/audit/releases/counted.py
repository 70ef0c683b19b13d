"""A worst-case pair of the counts of a certified classifier: one record in a cell, or none."""

import numpy as np

from prudent.audit.releases.case import Case, Run
from prudent.certify.classifier import CertifiedClassifier
from prudent.release.noise import Noise

_RECORDS = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]] * 50  # two numbers and a label


def certified_classifier(epsilon: float, delta: float) -> Case:
    """Counts at two landmarks: a record raises a cell by 1, and the total of its class by 1."""

    def fit(data: list[list[float]], noise: Noise) -> tuple[int, int]:
        rows = np.array(data)
        model = CertifiedClassifier(epsilon, 2, np.eye(2), noise=noise).fit(rows[:, :2], rows[:, 2])
        return int(model.counts_.cells[0, 0]), int(model.counts_.totals[0])

    def prepare(data: list[list[float]], noise: Noise) -> Run:
        return lambda: fit(data, noise)

    totals, cells = CertifiedClassifier(epsilon).pricing.parts

    def score(output: tuple[int, int]) -> float:
        """The log-likelihood ratio: 50 records without the record, 51 with it, in both numbers."""
        loss = [abs(value - 50) - abs(value - 51) for value in output]
        return cells * loss[0] + totals * loss[1]

    return Case(
        name="certified-classifier",
        epsilon=epsilon,
        delta=0.0,
        with_record=[*_RECORDS, [1.0, 0.0, 0.0]],
        without_record=_RECORDS,
        prepare=prepare,
        score=score,
        exact=epsilon,
    )
