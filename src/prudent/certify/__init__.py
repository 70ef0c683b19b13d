"""How many bad records an answer withstands: classifiers whose predictions come with a proof.

classifier = CertifiedClassifier(epsilon=0.3, classes=10, landmarks=public_rows)
classifier.fit(records, labels)
labels, radii = classifier.predict_radius(queries)
"""

from prudent.certify.classifier import CertifiedClassifier, NotFittedError
from prudent.certify.counts import Counts, Landmarks, Partition

__all__ = ["CertifiedClassifier", "Counts", "Landmarks", "NotFittedError", "Partition"]
