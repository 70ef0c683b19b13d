"""The numbers of numpy's times: days or microseconds since the epoch, as doubles, without overflow.

numpy wraps around without a word when it converts a time to a finer unit. So the stored integers
are converted here, by doubles: exact up to 2**53 units, and monotone beyond.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from prudent.release.columns.scales import INTEGER, NUMBER, Scale
from prudent.release.lattice import FloatArray

_COARSE = {"W": 7, "D": 1}  # in days
_FINE = {"h": 3_600 * 10**6, "m": 60 * 10**6, "s": 10**6, "ms": 10**3, "us": 1}  # in microseconds
_FINER = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}  # in a microsecond
_CALENDAR = ("Y", "M")
_FARTHEST = 10**9  # years or months that numpy converts to days without overflow
_DAY = 86_400 * 10**6


def scale_of(dtype: np.dtype[Any]) -> Scale:
    """The scale of an array: that of numbers for all types but integers and times."""
    if dtype.kind == "m":
        return Scale("duration")
    if dtype.kind == "M":
        unit = np.datetime_data(dtype)[0]
        return Scale("date" if unit in _COARSE or unit in _CALENDAR else "timestamp")
    return INTEGER if dtype.kind in "iu" else NUMBER


def numbers(times: npt.NDArray[Any]) -> FloatArray:
    """Convert datetime64 or timedelta64, without NaT, to units of the scale of the array.

    A fraction of a microsecond is dropped: downwards for times, towards zero for durations, as
    DuckDB does. A duration in months or years has months of 30 days and years of 12 months.
    """
    times = times[~np.isnat(times)]
    unit, multiple = np.datetime_data(times.dtype)
    stored = times.view(np.int64) if times.dtype.isnative else times.astype("=i8")
    if unit in _FINER and multiple == 1:
        whole, rest = np.divmod(stored, _FINER[unit])
        if times.dtype.kind == "m":
            whole = whole + ((rest != 0) & (stored < 0))
        return whole.astype(np.float64)
    if unit in _FINER:
        return np.floor(stored.astype(np.float64) * (multiple / _FINER[unit]))
    if unit in _FINE:
        return stored.astype(np.float64) * float(_FINE[unit] * multiple)
    if unit in _CALENDAR:
        if times.dtype.kind == "m":
            return stored.astype(np.float64) * float(multiple * _DAY * (360 if unit == "Y" else 30))
        reach = _FARTHEST // multiple
        near = np.clip(stored, -reach, reach).view(times.dtype)
        days_since: npt.NDArray[np.int64] = near.astype("M8[D]").view(np.int64)
        return days_since.astype(np.float64)
    days = _COARSE.get(unit, 1) * multiple
    return stored.astype(np.float64) * float(days * (_DAY if times.dtype.kind == "m" else 1))
