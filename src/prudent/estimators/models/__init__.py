"""Estimators beside the linear ones: classifiers, trees, clusters, components and scalers."""
