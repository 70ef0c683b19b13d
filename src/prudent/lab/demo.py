"""The demo: a table answered with a proof, certified classifiers, and private training methods.

`SHORT` is what `prudent demo` does, within two minutes on two cores; `FULL` is `--full`.
"""

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from prudent import _progress
from prudent._validate import ArgumentError
from prudent.certify.classifier import RECORDS
from prudent.certify.report import Result
from prudent.lab import certifying_demo as certificates
from prudent.lab import picture
from prudent.lab import training_demo as training
from prudent.lab.certifying_demo import CLASSIFIERS, Classifier
from prudent.lab.settings import Experiment
from prudent.lab.training_demo import EVALUATIONS, Entry

Certified = Sequence[tuple[Classifier, Result]]


@attrs.frozen
class Size:
    """How much the demo does.

    Attributes:
        entries: Makes the training runs of what they share.
        classifiers: The classifiers to certify.
        attacked: Numbers of bad records with which each classifier is attacked.
    """

    entries: Callable[[Experiment], list[Entry]]
    classifiers: tuple[Classifier, ...]
    attacked: tuple[int, ...]


SHORT = Size(training.linear_entries, CLASSIFIERS[:1], (0,))
FULL = Size(training.entries, CLASSIFIERS, tuple(RECORDS))


@attrs.frozen
class Demo:
    """What the demo found.

    Attributes:
        rows: One row per training run: key, title, accuracy, epsilon, noise_multiplier,
            pass_rate, curve.
        certified: What each classifier certifies on the same data, before any corruption.
    """

    rows: list[dict[str, Any]]
    certified: Certified

    def plain(self) -> dict[str, Any]:
        """The demo as JSON holds it; accuracies of runs are fractions, certified ones percent."""
        certified = {each.features: result.plain() for each, result in self.certified}
        return {"runs": self.rows, "certified": certified}


def run_demo(
    common: Experiment,
    out: Path,
    size: Size = SHORT,
    *,
    workers: int | None = None,
    tell: Callable[[Certified], None] = lambda found: None,
) -> Demo:
    """Certify classifiers and train by every method, and save a table and two pictures.

    Args:
        common: What all training runs share: data, corruption, (ε, δ), steps.
        out: Folder for `demo.csv`, `certified.svg`, `training.svg` and the training runs.
        size: How much to do.
        workers: How many processes work at a time; None means one per core.
        tell: Called as soon as the classifiers are certified, while the rest goes on.
    """
    if not common.is_covered:
        raise ArgumentError(
            "corrupt",
            "a corruption of single records",
            got=common.corrupt,
            why="its bad records read others, so no ε can be shown",
            hint="Run it with prudent train.",
        )
    out.mkdir(parents=True, exist_ok=True)
    entries = size.entries(common)
    for entry in entries:  # the data is public, so the ledger of an earlier demo may be deleted
        shutil.rmtree(out / entry.key, ignore_errors=True)
    steps = len(size.classifiers) + EVALUATIONS * len(entries)
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers or os.cpu_count(), mp_context=spawn) as pool,
        _progress.part("certificates and training runs", steps),
    ):
        certifying = [
            pool.submit(certificates.certified, common.dataset, each, size.attacked)
            for each in size.classifiers
        ]
        runs = {
            entry.key: pool.submit(training.train, entry, out / entry.key)
            for entry in reversed(entries)  # a recipe takes longest, so it goes first
        }
        watch = _Watch([out / entry.key for entry in entries], certifying)
        try:
            watch.until_done(certifying)
            found = list(zip(size.classifiers, (each.result() for each in certifying), strict=True))
            tell(found)
            watch.until_done(runs.values())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    rows = [
        {"key": entry.key, "title": entry.title} | runs[entry.key].result() for entry in entries
    ]
    training.save(rows, out / "demo.csv")
    with picture.panels(1, out / "certified.svg") as (axes,):
        certificates.draw(found, axes)
    with picture.panels(1, out / "training.svg") as (axes,):
        training.draw(rows, common, axes)
    return Demo(rows, found)


class _Watch:
    """Reports the progress of all processes, read from the metrics they write."""

    def __init__(self, folders: Sequence[Path], certifying: "Sequence[Future[Any]]") -> None:
        self._metrics = [folder / "metrics.jsonl" for folder in folders]
        self._certifying = certifying
        self._seen = 0

    def until_done(self, awaited: "Iterable[Future[Any]]") -> None:
        """Wait for processes; raises the error of the first that failed."""
        awaited = list(awaited)
        while True:
            done = [each for each in awaited if each.done()]
            lines = [path.read_text().count("\n") for path in self._metrics if path.exists()]
            seen = sum(lines) + sum(each.done() for each in self._certifying)
            _progress.advance(seen - self._seen)
            self._seen = seen
            for each in done:
                each.result()
            if len(done) == len(awaited):
                return
            time.sleep(0.2)
