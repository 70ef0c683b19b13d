"""What docs/which-tool.md says of each tool, found by running it.

    python benchmarks/which_tool.py TOOL [QUESTION]

runs the checks of one tool in the environment at hand and keeps the answers, with versions and the
date, in which_tool.json beside this file. Nothing of another tool is imported, so each can have an
environment of its own; several cannot share one.
"""

import datetime
import importlib.metadata
import json
import multiprocessing
import pkgutil
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

ANSWERS = Path(__file__).with_suffix(".json")
DISTRIBUTIONS = {"tumult": "tmlt.analytics", "smartnoise": "smartnoise-sql"}

Check = Callable[[], Any]
CHECKS: dict[str, dict[str, Check]] = {}


def check(tool: str, question: str) -> Callable[[Check], Check]:
    """Registers what answers a question about a tool; the answer is kept as JSON."""

    def keep(answer: Check) -> Check:
        CHECKS.setdefault(tool, {})[question] = answer
        return answer

    return keep


# What is asked -------------------------------------------------------------------------------

RATE, SIGMA, STEPS, DELTA = 0.01, 1.0, 10_000, 1e-5  # a run of DP-SGD to price
VALUES = np.random.default_rng(0).normal(50.0, 5.0, 1_000)
TIES = np.where(np.arange(1_000) < 800, 50.0, VALUES)
REPEATS = 200


def errors(median: Callable[[np.ndarray], float], repeats: int = REPEATS) -> dict[str, float]:
    """Mean absolute error of a private median, ε = 1, without and with ties."""
    return {
        name: round(float(np.mean([abs(median(data) - true) for _ in range(repeats)])), 3)
        for name, data, true in (
            ("N(50, 5)", VALUES, float(np.median(VALUES))),
            ("80 % equal", TIES, 50.0),
        )
    }


def betrayed(release: Callable[[float, int], Iterable[float]], bits: int) -> dict[str, float]:
    """Share of answers with digits beyond 2^-bits, about 0 and about 1, which may differ by noise.

    1 and noise of the same size, added in floating point, make a multiple of 2^-bits, where a
    number close to 0 has finer digits: such an answer cannot be about 1. Only answers in
    (-1/4, 1/4) are looked at, where both are likely.
    """

    def finer(value: float) -> float:
        answers = np.asarray(list(release(value, 4_000)), dtype=np.float64)
        scaled = answers[np.abs(answers) < 0.25] * 2.0**bits
        return round(float(np.mean(scaled != np.rint(scaled))), 2)

    return {"about 0": finer(0.0), "about 1": finer(1.0)}


def kind(call: Callable[[], Any]) -> str:
    """An answer, or the name of the exception, with the warnings on the way."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            answer = call()
            said = "NaN" if isinstance(answer, float) and np.isnan(answer) else "an answer"
        except Exception as error:  # whatever a tool does with odd input is the finding
            said = type(error).__name__
    names = sorted({warning.category.__name__ for warning in warned})
    return f"{said} ({', '.join(names)})" if names else said


def with_and_without(call: Callable[[np.ndarray], Any]) -> dict[str, str]:
    """What comes back from 1,000 numbers, and if one of them is NaN."""
    return {
        "1,000 numbers": kind(lambda: call(VALUES)),
        "one is NaN": kind(lambda: call(np.append(VALUES[:-1], np.nan))),
    }


def spent_twice(spend: Callable[[], None]) -> str:
    """Two processes that hold the same budget each spend all of it."""
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=spend) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return f"{sum(worker.exitcode == 0 for worker in workers)} of 2 were served"


def mentions(package: str, *words: str) -> dict[str, int]:
    """How many source files of an installed package hold a word; its tests are left out."""
    (root,) = {Path(str(__import__(package).__file__)).parent}
    texts = [
        path.read_text(encoding="utf-8", errors="ignore").lower()
        for path in root.rglob("*.py")
        if "test" not in path.name
    ]
    return {word: sum(word in text for text in texts) for word in words}


def offers(*paths: str) -> list[str]:
    """Which of some dotted names can be imported."""

    def there(path: str) -> bool:
        try:
            pkgutil.resolve_name(path)
        except (AttributeError, ImportError):
            return False
        return True

    return [path for path in paths if there(path)]


# prudent -------------------------------------------------------------------------------------


@check("prudent", "epsilon")
def _() -> dict[str, float]:
    import dp_accounting

    from prudent.accounting import PldAccountant, RdpAccountant

    event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(SIGMA))
    exact = PldAccountant().compose(event, STEPS)
    low, high = exact.epsilon_bounds(DELTA)
    rdp = RdpAccountant().compose(event, STEPS).get_epsilon(DELTA)
    return {"PLD, from below": low, "PLD": high, "RDP": rdp}


@check("prudent", "median without bounds")
def _() -> dict[str, str]:
    import prudent

    return with_and_without(lambda data: float(prudent.median(data, epsilon=1.0).value))


@check("prudent", "median error")
def _() -> dict[str, float]:
    import prudent

    return errors(lambda data: float(prudent.median(data, epsilon=1.0).value))


@check("prudent", "low bits")
def _() -> dict[str, dict[str, float]]:
    import torch

    import prudent
    from prudent import release

    def summed(value: float, count: int) -> Iterable[float]:
        options: Any = {"bounds": (0.0, 1.0), "epsilon": 1.0}
        return [release.sum(np.array([value]), **options).value for _ in range(count)]

    def gradient(value: float, count: int) -> Iterable[float]:
        """One step of size 1 from 0, by one record whose gradient is `value` everywhere."""
        model = torch.nn.Linear(count, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        rule = prudent.Sum(clip=100.0, noise_multiplier=0.01)
        plan = prudent.Plan(sampling_rate=1.0, expected_batch=1, steps=1, aggregation=rule)
        record = torch.full((1, count), value), torch.zeros(1)
        prudent.fit(plan, model, lambda output, _: output.squeeze(1), record, lr=1.0)
        return (-model.weight.detach().flatten()).tolist()

    return {"a sum": betrayed(summed, 53), "a gradient": betrayed(gradient, 24)}


@check("prudent", "budget of two processes")
def _() -> str:
    import prudent

    path = Path(tempfile.mkdtemp()) / "budget.db"
    prudent.Ledger(path, epsilon=1.0, delta=1e-6).close()

    def spend() -> None:
        with prudent.Ledger(path) as ledger:
            prudent.median(VALUES, epsilon=1.0, ledger=ledger)

    return spent_twice(spend)


# OpenDP --------------------------------------------------------------------------------------


def _opendp() -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp


def _opendp_median(candidates: Any) -> Callable[[np.ndarray], float]:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

    def median(scale: float) -> Any:
        return dp.m.make_private_quantile(*space, dp.max_divergence(), candidates, 0.5, scale)

    measurement = dp.binary_search_chain(median, d_in=1, d_out=1.0, T=float)
    return lambda data: float(measurement([float(value) for value in data]))


@check("opendp", "median without candidates")
def _() -> str:
    return kind(lambda: _opendp_median([])(VALUES))


@check("opendp", "median with candidates")
def _() -> dict[str, str]:
    candidates = [float(value) for value in range(1_001)]
    return with_and_without(_opendp_median(candidates))


@check("opendp", "median error")
def _() -> dict[str, dict[str, float]]:
    grids = {step: [float(one) for one in np.arange(0, 1000 + step, step)] for step in (1.0, 0.1)}
    return {
        f"candidates {step:g} apart": errors(_opendp_median(grid), 50)
        for step, grid in grids.items()
    }


@check("opendp", "low bits")
def _() -> dict[str, dict[str, float]]:
    dp = _opendp()
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    noisy = dp.m.make_laplace(*space, scale=1.0)
    return {"Laplace": betrayed(lambda value, count: [noisy(value) for _ in range(count)], 53)}


@check("opendp", "budget of two processes")
def _() -> str:
    dp = _opendp()
    context = dp.Context.compositor(
        data=[float(value) for value in VALUES],
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(epsilon=1.0),
        split_evenly_over=1,
        domain=dp.vector_domain(dp.atom_domain(T=float, nan=False)),
    )
    return spent_twice(lambda: context.query().clamp((0.0, 100.0)).sum().laplace().release())


@check("opendp", "offers")
def _() -> list[str]:
    combinators = ("fully_adaptive_composition", "privacy_filter", "select_private_candidate")
    extras = ("opendp.extras.polars", "opendp.extras.mbi", "opendp.extras.ibis")
    return offers(*(f"opendp.combinators.make_{name}" for name in combinators), *extras)


# diffprivlib ---------------------------------------------------------------------------------


@check("diffprivlib", "median without bounds")
def _() -> dict[str, str]:
    import diffprivlib

    return with_and_without(lambda data: float(diffprivlib.tools.median(data, epsilon=1.0)))


@check("diffprivlib", "median with bounds")
def _() -> dict[str, str]:
    import diffprivlib

    bounds = (0.0, 1_000.0)
    median = diffprivlib.tools.median
    return with_and_without(lambda data: float(median(data, epsilon=1.0, bounds=bounds)))


@check("diffprivlib", "median error")
def _() -> dict[str, float]:
    import diffprivlib

    bounds = (0.0, 1_000.0)
    median = diffprivlib.tools.median
    return errors(lambda data: float(median(data, epsilon=1.0, bounds=bounds)))


@check("diffprivlib", "low bits")
def _() -> dict[str, dict[str, float]]:
    from diffprivlib import mechanisms

    def by(name: str, **options: float) -> dict[str, float]:
        noisy = getattr(mechanisms, name)(epsilon=1.0, sensitivity=1.0, **options)
        return betrayed(lambda value, count: [noisy.randomise(value) for _ in range(count)], 53)

    return {"Laplace": by("Laplace"), "Gaussian": by("GaussianAnalytic", delta=1e-5)}


@check("diffprivlib", "budget of two processes")
def _() -> str:
    import diffprivlib

    held = diffprivlib.BudgetAccountant(epsilon=1.0)
    bounds = (0.0, 1_000.0)
    median = diffprivlib.tools.median
    return spent_twice(lambda: median(VALUES, epsilon=1.0, bounds=bounds, accountant=held))


@check("diffprivlib", "models")
def _() -> list[str]:
    import diffprivlib

    return [name for name in dir(diffprivlib.models) if name[0].isupper()]


# Tumult --------------------------------------------------------------------------------------


def _tumult(data: np.ndarray, epsilon: float) -> Any:
    import pandas as pd
    from pyspark.sql import SparkSession
    from tmlt.analytics import AddOneRow, PureDPBudget, Session

    quick = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    spark = SparkSession.builder.master("local[1]").config(map=quick).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.createDataFrame(pd.DataFrame({"x": data}))
    return Session.from_dataframe(
        PureDPBudget(epsilon), "table", frame, protected_change=AddOneRow()
    )


def _tumult_median(session: Any) -> float:
    from tmlt.analytics import PureDPBudget, QueryBuilder

    query = QueryBuilder("table").median("x", 0.0, 1_000.0)
    return float(session.evaluate(query, PureDPBudget(1.0)).toPandas().iloc[0, 0])


@check("tumult", "median without bounds")
def _() -> str:
    from tmlt.analytics import QueryBuilder

    return kind(lambda: QueryBuilder("table").median("x"))


@check("tumult", "median with bounds")
def _() -> dict[str, str]:
    return with_and_without(lambda data: _tumult_median(_tumult(data, 1.0)))


@check("tumult", "median error")
def _() -> dict[str, float]:
    repeats = 10  # Spark takes its time
    sessions = {id(data): _tumult(data, float(repeats)) for data in (VALUES, TIES)}
    return errors(lambda data: _tumult_median(sessions[id(data)]), repeats)


@check("tumult", "overdraft in one process")
def _() -> str:
    session = _tumult(VALUES, 1.0)
    return f"{kind(lambda: _tumult_median(session))}, then {kind(lambda: _tumult_median(session))}"


@check("tumult", "low bits")
def _() -> dict[str, dict[str, float]]:
    from tmlt.core.domains.numpy_domains import NumpyFloatDomain
    from tmlt.core.measurements.noise_mechanisms import AddLaplaceNoise

    noisy = AddLaplaceNoise(NumpyFloatDomain(), 1)
    return {
        "Laplace": betrayed(lambda value, count: [float(noisy(value)) for _ in range(count)], 53)
    }


@check("tumult", "offers")
def _() -> list[str]:
    names = ("AddRowsWithID", "RhoZCDPBudget", "KeySet")
    queries = ("join_private", "get_bounds", "flat_map")
    return offers(
        *(f"tmlt.analytics.{name}" for name in names),
        *(f"tmlt.analytics.QueryBuilder.{name}" for name in queries),
    )


# Opacus, jax-privacy, dp_accounting ----------------------------------------------------------


@check("opacus", "epsilon")
def _() -> dict[str, float]:
    from opacus.accountants import create_accountant

    found = {}
    for name in ("rdp", "prv", "gdp"):
        accountant = create_accountant(name)
        accountant.history = [(SIGMA, RATE, STEPS)]
        found[name.upper()] = float(accountant.get_epsilon(DELTA))
    return found


@check("prudent", "epsilon below zero")
def _() -> float:
    import dp_accounting

    from prudent.accounting import RdpAccountant

    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(10.0))
    return float(RdpAccountant().compose(event).get_epsilon(0.1))


@check("opacus", "epsilon below zero")
def _() -> float:
    from opacus.accountants import create_accountant

    accountant = create_accountant("rdp")
    accountant.history = [(10.0, 0.01, 1)]
    return float(accountant.get_epsilon(0.1))


@check("opacus", "low bits")
def _() -> dict[str, dict[str, float]]:
    import torch
    from opacus.optimizers.optimizer import _generate_noise

    def summed(secure: bool) -> Callable[[float, int], Iterable[float]]:
        def release(value: float, count: int) -> Iterable[float]:
            total = torch.full((count,), value)
            noise = _generate_noise(1.0, total, secure_mode=secure)
            return (total + noise).tolist()  # as DPOptimizer.add_noise does

        return release

    return {
        "a gradient": betrayed(summed(False), 24),
        "secure_mode": betrayed(summed(True), 24),
    }


@check("opacus", "mentions")
def _() -> dict[str, int]:
    return mentions("opacus", "ghost", "fsdp", "trimmed", "krum", "certif", "propose", "audit")


@check("jax-privacy", "epsilon")
def _() -> dict[str, float]:
    from jax_privacy import accounting

    def by(config: Any) -> float:
        accountant = accounting.analysis.DpsgdTrainingAccountant(dp_accountant_config=config)
        params = accounting.analysis.DpParams(
            noise_multipliers=SIGMA, batch_size=100, num_samples=10_000, delta=DELTA
        )
        return float(accountant.compute_epsilon(STEPS, params))

    configs = accounting.accountants
    return {"PLD": by(configs.PldAccountantConfig()), "RDP": by(configs.RdpAccountantConfig())}


@check("jax-privacy", "low bits")
def _() -> dict[str, dict[str, float]]:
    import jax
    import jax.numpy as jnp
    from jax_privacy import noise_addition

    keys = iter(jax.random.split(jax.random.key(0), 2))

    def release(value: float, count: int) -> Iterable[float]:
        total = jnp.full((count,), value)
        privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=next(keys))
        noisy, _ = privatizer.update(total, privatizer.init(total))
        return [float(one) for one in noisy]

    return {"a gradient": betrayed(release, 24)}


@check("jax-privacy", "mentions")
def _() -> dict[str, int]:
    return mentions("jax_privacy", "ghost", "matrix_factorization", "trimmed", "krum", "certif")


@check("jax-privacy", "offers")
def _() -> list[str]:
    return offers(
        "jax_privacy.noise_addition.matrix_factorization_privatizer",
        "jax_privacy.accounting.DpsgdTrainingUserLevelAccountant",
        "jax_privacy.auditing.CanaryScoreAuditor",
    )


@check("dp-accounting", "epsilon")
def _() -> dict[str, float]:
    import dp_accounting
    from dp_accounting import pld, rdp

    event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(SIGMA))
    accountants = {"PLD": pld.PLDAccountant(), "RDP": rdp.RdpAccountant()}
    return {
        name: float(accountant.compose(event, STEPS).get_epsilon(DELTA))
        for name, accountant in accountants.items()
    }


@check("dp-accounting", "mentions")
def _() -> dict[str, int]:
    return mentions("dp_accounting", "proposetest", "propose_test", "repeatandselect")


# Running them --------------------------------------------------------------------------------


def licence(distribution: str) -> str:
    """As the package's own metadata name it."""
    data = importlib.metadata.metadata(distribution)
    named = data.get("License-Expression") or data.get("License") or "?"
    return named.strip().splitlines()[0]


def run(tool: str, only: str | None) -> None:
    """Answers the questions about a tool, or one of them, and keeps the answers."""
    distribution = DISTRIBUTIONS.get(tool, tool)
    asked = {name: check for name, check in CHECKS[tool].items() if only in (None, name)}
    answers = {question: answer() for question, answer in asked.items()}
    kept = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    kept[tool] = {
        "version": importlib.metadata.version(distribution),
        "licence": licence(distribution),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "answers": (kept.get(tool, {}).get("answers", {}) if only else {}) | answers,
    }
    ANSWERS.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    print(json.dumps({tool: kept[tool]}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) in (2, 3) and sys.argv[1] in CHECKS:
        run(sys.argv[1], [*sys.argv, None][2])
    else:
        sys.exit(f"usage: which_tool.py TOOL [QUESTION], TOOL one of: {', '.join(sorted(CHECKS))}")
