"""Estimators beside the linear ones: classifiers, trees, clusters and components."""
