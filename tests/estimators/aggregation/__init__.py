"""Tests of `prudent.estimators`."""
