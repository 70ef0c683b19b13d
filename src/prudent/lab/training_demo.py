"""The training part of the demo: several private methods side by side on corrupted data."""

import csv
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from prudent._warning import PredictableNoiseWarning
from prudent.accounting import LaplaceTest
from prudent.lab.settings import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from prudent.lab.experiment import Setup

EVALUATIONS = 12
"""How often each run is evaluated."""


@attrs.frozen
class Entry:
    """One training run of the demo.

    Attributes:
        key: Name of the run and its folder.
        title: Name for display.
        experiment: The experiment to run.
        model: What is trained: "network", the usual one; "linear", a linear model of the pixels;
            or the name of a recipe.
    """

    key: str
    title: str
    experiment: Experiment
    model: str = "network"

    def setup(self) -> "Setup | None":
        """What is trained, and on what; None: the usual network."""
        from prudent.lab.experiment import Setup
        from prudent.lab.models import logistic_regression
        from prudent.lab.recipes import recipe_named

        if self.model == "network":
            return None
        if self.model == "linear":
            return Setup(
                build=lambda data, seed: logistic_regression(
                    tuple(data.train_features.shape[1:]), data.classes
                )
            )
        return recipe_named(self.model).setup


def entries(common: Experiment) -> list[Entry]:
    """The runs of the full demo: methods with the same (ε, δ) and steps, and on MNIST a recipe."""
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


def linear_entries(common: Experiment) -> list[Entry]:
    """The runs of the short demo: a linear model of the pixels by each method.

    Its gradients are longer than those of the network, so it has a clip and a rate of its own.
    """
    own = attrs.evolve(common, clip=4.0, lr=0.5)
    return [
        Entry("ptr", "TSGD+PTR", own, "linear"),
        Entry("trimmed", "TSGD+Gaussian", attrs.evolve(own, method="trimmed"), "linear"),
        Entry("dpsgd", "DP-SGD", attrs.evolve(own, method="dpsgd"), "linear"),
    ]


def _recipe(common: Experiment) -> Entry:
    """The recipe that is small enough for a laptop, on data without bad records."""
    from prudent.lab.recipes import recipe_named

    recipe = recipe_named("glyphs-linear")
    budget = {} if common.epsilon is None else {"epsilon": common.epsilon, "delta": common.delta}
    title = f"recipe {recipe.name}, no bad records"
    return Entry("recipe", title, recipe.settings(seed=common.seed, **budget), recipe.name)


def train(entry: Entry, folder: Path) -> dict[str, Any]:
    """Train one entry on one core.

    Returns:
        accuracy, epsilon, noise_multiplier, pass_rate and more, and the curve of accuracy over ε.
    """
    import torch

    from prudent.lab.experiment import run

    torch.set_num_threads(1)
    # True of the first steps of these settings, and not of the run; the table shows how many pass.
    warnings.filterwarnings("ignore", "The test passed in", RuntimeWarning)
    # The seed is that of a demo on public records.
    warnings.filterwarnings("ignore", category=PredictableNoiseWarning)
    result = run(
        entry.experiment,
        out=folder,
        progress=False,
        evaluations=EVALUATIONS,
        setup=entry.setup(),
    )
    curve = [(entry.epsilon, entry.evaluation["accuracy"]) for entry in result.fitted.history]
    return result.plain() | {"curve": curve}


def save(rows: list[dict[str, Any]], path: Path) -> None:
    """Save the rows as a table, without their curves."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "curve"])
        writer.writeheader()
        writer.writerows({k: v for k, v in row.items() if k != "curve"} for row in rows)


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
