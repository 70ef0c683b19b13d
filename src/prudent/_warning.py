"""Warnings that point at the caller's line, however deep in the package they are raised."""

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


class PredictableNoiseWarning(RuntimeWarning):
    """The noise of a release follows from a seed: who knows the seed can subtract it."""


class PrivacyWarning(UserWarning):
    """Something around a private release spends or reveals what its price does not cover."""


_SHOWN: set[str] = set()


def warn_once(message: str, category: type[Warning]) -> None:
    """Warn, unless this process did so before, whatever filters were changed since."""
    if message not in _SHOWN:
        warn(message, category)
        _SHOWN.add(message)


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn about the first line outside this package among those that led here."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)


def warn_of_delta(delta: float | None, records: float) -> None:
    """Warn of a δ that is at least one over the public number of records."""
    if delta is not None and delta >= 1 / max(1, records):
        warn(
            f"delta={delta:g} is not below 1/{records:g}, one over the number of records: it would "
            "allow for a record that is published as it is. Choose a far smaller one."
        )
