"""The results of the runs: one row per ε that a run reached, and the table cells they fill."""

import contextlib
import csv
import errno
import functools
import io
import math
import os
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from prudent import _formats, _validate
from prudent._files import settle
from prudent_lab.corruption import written

SMALL = ".small.csv"
FOLDER = Path("runs/paper")
ACCOUNTANTS = ("rdp", "pld")
_WORDS = ("dataset", "corrupt", "column", "accountant")
_WHOLE = ("seed", "steps", "trim")
_MAY_BE_EMPTY = ("target", "pass_rate", "trim", "success")


@attrs.frozen
class Reading:
    """One row of the results: the state of a run when it reached an ε."""

    dataset: str  # name of the data set in the settings
    corrupt: str  # kind and ratio of the corruption
    column: str  # A method with the paper's settings, or a tuned setting
    # The ε for which the noise was solved; None if the noise is fixed and ε grows with the steps.
    target: float | None
    seed: int  # seed of the run
    epsilon: float  # the ε reached
    accountant: str  # the accountant that computed ε, rdp or pld
    steps: int  # number of steps taken
    noise_multiplier: float  # σ of the run
    accuracy: float  # accuracy on clean test data, in percent
    pass_rate: float | None  # fraction of tests passed since the previous row; None without a test
    trim: int | None  # F at that step, in records
    # Share of test records of other classes that a trigger turns into its class, in percent; None
    # without a backdoor.
    success: float | None = None

    @property
    def run(self) -> "RunKey":
        """The key of the run that this row belongs to."""
        return self.dataset, self.corrupt, self.column, self.target, self.seed

    def __attrs_post_init__(self) -> None:
        _written(self.corrupt)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)
        _validate.positive(epsilon=self.epsilon)
        _validate.between(0, 100, accuracy=self.accuracy)
        if self.pass_rate is not None:
            _validate.between(0, 1, pass_rate=self.pass_rate)


_written = functools.cache(written)  # because a file has few kinds and many rows
COLUMNS = tuple(field.name for field in attrs.fields(Reading))


@attrs.frozen
class Estimate:
    """Mean and deviation of an accuracy over seeds."""

    mean: float  # mean accuracy in percent
    deviation: float | None  # sample standard deviation over seeds; None for a single seed
    seeds: int  # number of seeds

    @classmethod
    def over(cls, values: Iterable[float]) -> "Estimate":
        """The estimate from one accuracy per seed."""
        sample = list(values)
        deviation = statistics.stdev(sample) if len(sample) > 1 else None
        return cls(statistics.fmean(sample), deviation, len(sample))


Place = tuple[str, str, float]
"""Where a row of a table stands: data set, corruption and ε."""
RunKey = tuple[str, str, str, float | None, int]


@attrs.frozen
class Results:
    """All rows and the table cells they fill."""

    readings: tuple[Reading, ...]  # the rows
    # Whether the runs were shortened, so that they are comparable only with each other.
    small: bool = False

    @functools.cached_property
    def _cells(self) -> dict[str, dict[Place, dict[tuple[str, str], Estimate]]]:
        """Accuracy, and success of a backdoor, by place, then by column and accountant."""
        values: dict[tuple[str, Place], dict[tuple[str, str], list[float]]]
        values = defaultdict(lambda: defaultdict(list))
        for reading in self.readings:
            # A calibrated run fills only the cell of its target ε, for which its noise was solved.
            if reading.target in (None, reading.epsilon):
                place = reading.dataset, reading.corrupt, reading.epsilon
                column = reading.column, reading.accountant
                for quantity in ("accuracy", "success"):
                    if (value := getattr(reading, quantity)) is not None:
                        values[quantity, place][column].append(value)
        found: dict[str, Any] = {"accuracy": {}, "success": {}}
        for (quantity, place), columns in values.items():
            found[quantity][place] = {key: Estimate.over(v) for key, v in columns.items()}
        return found

    def row(self, place: Place, quantity: str = "accuracy") -> Mapping[tuple[str, str], Estimate]:
        """What was measured at a place, by column and accountant.

        The `quantity` is accuracy, or success, of a backdoor.
        """
        return self._cells[quantity].get(place, {})

    def columns(self, dataset: str) -> list[str]:
        """The columns that fill cells of a data set, in alphabetical order."""
        rows = (row for place, row in self._cells["accuracy"].items() if place[0] == dataset)
        return sorted({column for row in rows for column, _ in row})

    def of(self, dataset: str, corrupt: str, column: str) -> list[Reading]:
        """The rows of a method on a data set under a corruption."""
        wanted = (dataset, corrupt, column)
        return [r for r in self.readings if (r.dataset, r.corrupt, r.column) == wanted]

    def runs(self) -> int:
        """The number of distinct runs among the rows."""
        return len({reading.run for reading in self.readings})


def shipped() -> Path:
    """The path of the results shipped with the package."""
    return Path(str(resources.files("prudent_lab.paper").joinpath("results.csv")))


def results_path(size: str, given: Path | None, *, running: bool) -> Path:
    """The path from which results are read and, with `running`, to which they are appended.

    Full results start as a copy of those shipped with the package. Small ones have another ending,
    so that the two never mix.
    """
    is_small = size == "small"
    if given is not None:
        if given.name.endswith(SMALL) != is_small:
            allowed = f"ending in {SMALL}" if is_small else f"not ending in {SMALL}"
            raise _validate.ArgumentError("results", f"{allowed} at size {size}", got=str(given))
        return given
    own = FOLDER / f"results{SMALL if is_small else '.csv'}"
    if is_small:
        return own
    if not running:
        return shipped()
    if not own.exists() and shipped().is_file():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped(), own)
    return own


def read(path: Path, *, seeds: int | None = None) -> Results:
    """Read a CSV file of results; with `seeds`, of this many seeds, starting with the first.

    Errors name the file, the line and the problem.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such results. Without --results those that come with the package are "
            "shown; prudent paper table 1 --run makes new ones"
        )
    with _formats.reading(path, "a results file"), path.open(newline="", encoding="utf-8") as file:
        text = file.read()
        reader = csv.DictReader(io.StringIO(text, newline=""))
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    if text and not text.endswith("\n"):
        raise ValueError(
            f"{path}: the last line is incomplete. Complete it, or delete it and run it again."
        )
    if missing:
        raise ValueError(
            f"{path}: expected a results file with the columns {', '.join(COLUMNS)}; "
            f"{', '.join(sorted(missing))} missing."
        )
    readings: dict[tuple[Any, ...], Reading] = {}
    for line, row in rows:
        reading = _reading(row, f"{path}, line {line}")
        key = (*reading.run, reading.epsilon, reading.accountant)
        if key in readings:
            raise ValueError(
                f"{path}, line {line}: expected each run and price once, got "
                f"{', '.join(map(str, key))} again. Take one of the two out."
            )
        readings[key] = reading
    wanted = (reading for reading in readings.values() if seeds is None or reading.seed < seeds)
    return Results(tuple(wanted), small=path.name.endswith(SMALL))


def append(path: Path, readings: Iterable[Reading]) -> None:
    """Append rows to a results file; creates it if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if not path.exists() or not path.stat().st_size:
        writer.writeheader()
    writer.writerows(attrs.asdict(reading) for reading in readings)
    content = text.getvalue().encode()
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            settle(file)
        except OSError:
            file.truncate(end)  # all rows of a run or none: a part of a number is another number
            raise


def _reading(row: dict[str, str | None], place: str) -> Reading:
    values: dict[str, Any] = {}
    try:
        for name in COLUMNS:
            if (text := row[name]) is None:
                raise ValueError(f"expected {len(COLUMNS)} values, got fewer.")
            if not text.isprintable():
                raise ValueError(f"expected {name} in plain characters, got {text!r}.")
            if name in _WORDS:
                values[name] = text
            elif not text and name in _MAY_BE_EMPTY:
                values[name] = None
            else:
                values[name] = _number(name, text)
        return Reading(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _number(name: str, text: str) -> float:
    with contextlib.suppress(OverflowError, ValueError):
        number = int(text) if name in _WHOLE else float(text)
        if math.isfinite(number):
            return number
    kind = "a whole number" if name in _WHOLE else "a finite number"
    raise ValueError(f"expected {name} {kind}, got {text!r}.")
