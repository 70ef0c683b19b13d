"""ε divided between the questions of one request, by need and in equal shares.

    python -m benchmarks.table_division

Ten questions of 2,000 rows of the salaries that ship, at ε = 1 in all. The error of an answer is in
units of the standard deviation of its column, that of a count or a sum in units of the answer.
"""

import importlib.resources
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet

from prudent.release import statistics
from prudent.release.functions import STATISTICS
from prudent.release.noise import ReproducibleNoise

ROWS, EPSILON, RUNS = 2_000, 1.0, 40
QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("count", "salary", {}),
    ("proportion", "married", {}),
    ("median", "salary", {}),
    ("quantile", "salary", {"p": 0.9}),
    ("mean", "salary", {}),
    ("sum", "salary", {}),
    ("deviation", "salary", {}),
    ("median", "age", {}),
    ("mean", "age", {}),
    ("iqr", "age", {}),
]


def truth(name: str, values: Any, options: dict[str, Any]) -> tuple[float, float]:
    """The exact answer, and the unit of its error."""
    ordered = np.sort(values)

    def at(p: float) -> float:
        return float(ordered[max(0, int(np.ceil(p * len(ordered))) - 1)])

    spread = float(np.std(values))
    exact: dict[str, Callable[[], tuple[float, float]]] = {
        "count": lambda: (float(len(values)), float(len(values))),
        "proportion": lambda: (float(np.mean(values)), 0.5),
        "median": lambda: (at(0.5), spread),
        "quantile": lambda: (at(options["p"]), spread),
        "mean": lambda: (float(np.mean(values)), spread),
        "sum": lambda: (float(np.sum(values)), float(np.sum(values))),
        "deviation": lambda: (spread, spread),
        "iqr": lambda: (at(0.75) - at(0.25), at(0.75) - at(0.25)),
    }
    return exact[name]()


def needs() -> list[float]:
    """What the questions need."""
    found = [(STATISTICS[name].need, options) for name, _, options in QUESTIONS]
    return [need(**options) if callable(need) else need for need, options in found]


def errors(weights: list[float], seed: int = 0) -> list[float]:
    """The mean relative error of every question, with ε divided by these weights."""
    file = importlib.resources.files("prudent.samples") / "salaries.parquet"
    with importlib.resources.as_file(file) as path:
        table = pyarrow.parquet.read_table(path).slice(0, ROWS)
    found = []
    for place, ((name, column, options), weight) in enumerate(zip(QUESTIONS, weights, strict=True)):
        values = table[column].to_numpy()
        exact, unit = truth(name, values, options)
        epsilon = EPSILON * weight / sum(weights)
        runs = [
            getattr(statistics, name)(
                table,
                column,
                epsilon=epsilon,
                noise=ReproducibleNoise(seed + 1000 * place + run),
                **options,
            )
            for run in range(RUNS)
        ]
        found.append(float(np.mean([abs(float(each.value) - exact) / unit for each in runs])))
    return found


def main() -> None:
    """Print the errors of both divisions."""
    equal, by_need = errors([1.0] * len(QUESTIONS)), errors(needs())
    print(f"{'question':22}{'equal shares':>14}{'by need':>10}")
    for (name, column, _), one, other in zip(QUESTIONS, equal, by_need, strict=True):
        print(f"{f'{name}({column})':22}{one:14.2%}{other:10.2%}")
    print(f"{'mean':22}{np.mean(equal):14.2%}{np.mean(by_need):10.2%}")


if __name__ == "__main__":
    main()
