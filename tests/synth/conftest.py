"""Prices of tests: the search for μ takes seconds, and only its own test needs the exact one."""

import pytest

pytest.importorskip("ibis")
pytest.importorskip("sklearn")

from prudent.estimators import engine


@pytest.fixture
def quick_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    def about(epsilon: float, delta: float, *_: object) -> float:
        return 0.95 * engine.gaussian_mu(epsilon, delta)

    monkeypatch.setattr(engine, "_total_mu", about)
