"""How many bad records an answer withstands: classifiers whose predictions come with a proof.

classifier = CertifiedClassifier("letters", classes=10, epsilon=0.3, delta=1e-6)
classifier.fit(images, labels)
labels, radii = classifier.predict_with_radius(queries)
"""

from prudent.certify.classifier import CertifiedClassifier, NotFittedError

__all__ = ["CertifiedClassifier", "NotFittedError"]
