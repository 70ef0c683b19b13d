"""A package that is not installed is noticed before anything is charged."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prudent
from prudent._extras import MissingPackageError
from prudent.budget.ledger import Ledger
from prudent.tune import HeldOutScore

pytest.importorskip("ibis")
pytest.importorskip("opendp")
pytest.importorskip("sklearn")
pytest.importorskip("torch")

ROWS = np.random.default_rng(0).normal(size=(60, 2))
COST: dict[str, Any] = {"epsilon": 1.0}
CHARGES: dict[str, Callable[[Ledger, Path], object]] = {
    "median": lambda ledger, table: prudent.median(table, "x", **COST, ledger=ledger),
    "mean": lambda ledger, table: prudent.mean(table, "x", **COST, ledger=ledger),
    "own noise": lambda ledger, table: prudent.count(
        table, **COST, noise=prudent.release.SecureNoise(), ledger=ledger
    ),
    "synthesize": lambda ledger, table: prudent.synthesize(
        table, **COST, delta=1e-6, ledger=ledger
    ),
    "sql": lambda ledger, table: prudent.sql(
        f"SELECT COUNT(*) FROM '{table}'", **COST, ledger=ledger
    ),
    "model": lambda ledger, _: prudent.estimators.LinearRegression(**COST, ledger=ledger).fit(
        ROWS, ROWS[:, 0]
    ),
    "certified": lambda ledger, _: prudent.certify.CertifiedClassifier(
        classes=[0, 1], **COST, ledger=ledger
    ).fit(ROWS, ROWS[:, 0] > 0),
    "score": lambda ledger, _: HeldOutScore(ROWS, ROWS, prudent.DiscreteLaplaceTest(1.0)),
}
CASES = [(name, "opendp") for name in CHARGES]
CASES += [("model", package) for package in ("duckdb", "ibis", "pyarrow", "sqlglot")]


@pytest.mark.parametrize(("name", "package"), CASES)
def test_nothing_is_charged_without_it(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x\n" + "1\n2\n" * 50)
    monkeypatch.setitem(sys.modules, package, None)
    with Ledger(tmp_path / "budget.db", epsilon=9.0, delta=1e-4) as ledger:
        with pytest.raises(MissingPackageError, match=f"needs {package}, which is not installed"):
            CHARGES[name](ledger, table)
        assert ledger.history() == []
