"""The training part of the demo: several private methods side by side on corrupted data."""

import csv
import multiprocessing
import os
import shutil
import time
import warnings
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from prudent import _progress
from prudent._validate import ArgumentError
from prudent.accounting import LaplaceTest
from prudent.experiments.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EVALUATIONS = 12


@attrs.frozen
class Entry:
    """One training run of the demo.

    Attributes:
        key: Name of the run and its folder.
        title: Name for display.
        experiment: The experiment to run.
        recipe: Name of the recipe whose features and model it uses; None: the usual network.
    """

    key: str
    title: str
    experiment: Experiment
    recipe: str | None = None


def entries(common: Experiment) -> list[Entry]:
    """The runs of the demo: methods with the same (ε, δ) and steps, and on MNIST a recipe."""
    return [
        Entry("ptr", "TSGD+PTR (Gaussian test, branch revealed)", common),
        Entry(
            "ptr-paper",
            "TSGD+PTR (the paper's Laplace test, margin revealed)",
            attrs.evolve(common, test=LaplaceTest(1.0), reveals="margin"),
        ),
        Entry("trimmed", "TSGD+Gaussian", attrs.evolve(common, method="trimmed")),
        Entry("dpsgd", "DP-SGD", attrs.evolve(common, method="dpsgd")),
        *([_recipe(common)] if common.dataset == "mnist" else []),
    ]


def _recipe(common: Experiment) -> Entry:
    """The recipe that is small enough for a laptop, on data without bad records."""
    from prudent.experiments.recipes import recipe_named

    recipe = recipe_named("glyphs-linear")
    budget = {} if common.epsilon is None else {"epsilon": common.epsilon, "delta": common.delta}
    title = f"recipe {recipe.name}, no bad records"
    return Entry("recipe", title, recipe.settings(seed=common.seed, **budget), recipe.name)


def run_demo(common: Experiment, out: Path, workers: int | None = None) -> list[dict[str, Any]]:
    """Train every entry, one per core at a time, and save a table.

    Returns:
        One row per entry: key, title, accuracy, epsilon, noise_multiplier, pass_rate, curve.
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
    methods = entries(common)
    for entry in methods:  # the data is public, so the ledger of an earlier demo may be deleted
        shutil.rmtree(out / entry.key, ignore_errors=True)
    workers = max(1, min(len(methods), os.cpu_count() or 1)) if workers is None else workers
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        futures = {
            entry.key: pool.submit(_train, entry, out / entry.key)
            for entry in reversed(methods)  # the recipe takes longest, so it goes first
        }
        _watch(methods, futures, out)
        rows = [
            {"key": entry.key, "title": entry.title} | futures[entry.key].result()
            for entry in methods
        ]
    with (out / "demo.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "curve"])
        writer.writeheader()
        writer.writerows({k: v for k, v in row.items() if k != "curve"} for row in rows)
    return rows


def _train(entry: Entry, folder: Path) -> dict[str, Any]:
    """Train one entry, in a separate process on one core."""
    import torch

    from prudent.experiments.experiment import run
    from prudent.experiments.recipes import recipe_named

    torch.set_num_threads(1)
    # True of the first steps of these settings, and not of the run; the table shows how many pass.
    warnings.filterwarnings("ignore", "The test passed in", RuntimeWarning)
    result = run(
        entry.experiment,
        out=folder,
        progress=False,
        evaluations=_EVALUATIONS,
        setup=None if entry.recipe is None else recipe_named(entry.recipe).setup,
    )
    curve = [(entry.epsilon, entry.evaluation["accuracy"]) for entry in result.fitted.history]
    return result.plain() | {"curve": curve}


def _watch(methods: list[Entry], futures: dict[str, "Future[Any]"], out: Path) -> None:
    """Report the progress of the runs, read from the metrics they write."""
    seen = 0
    with _progress.part("training runs", _EVALUATIONS * len(methods)):
        while True:
            done = all(future.done() for future in futures.values())
            paths = [out / entry.key / "metrics.jsonl" for entry in methods]
            lines = sum(path.read_text().count("\n") for path in paths if path.exists())
            _progress.advance(lines - seen)
            seen = lines
            if done or any(f.done() and f.exception() is not None for f in futures.values()):
                return
            time.sleep(0.5)


def draw(rows: list[dict[str, Any]], common: Experiment, axes: "Axes") -> None:
    """Draw accuracy on clean test data against the ε spent so far."""
    colours = ("#2F8FD0", "#7CC4EE", "#E08A00", "#8C8C8C", "#009E73")  # colour-blind safe
    for row, colour, marker in zip(rows, colours, "os^Dv", strict=False):
        epsilons, accuracies = zip(*row["curve"], strict=True)
        label = f"{row['title']}: {row['accuracy']:.1%}"
        axes.plot(
            epsilons,
            [100 * accuracy for accuracy in accuracies],
            color=colour,
            marker=marker,
            markersize=4,
            label=label,
        )
    axes.set_xlabel(f"ε spent (δ = {common.delta:g})")
    axes.set_ylabel("accuracy on clean test data, %")
    kind, _, ratio = str(common.corrupt).partition(":")
    fault = f"{float(ratio):.0%} of the records bad ({kind})" if ratio else "no bad records"
    axes.set_title(f"{common.dataset.upper()}, private training, {fault}")
    low, high = axes.get_ylim()
    axes.set_ylim(bottom=max(0.0, low - 0.5 * (high - low)))  # room for the legend
    axes.legend(loc="lower right", fontsize=8)
