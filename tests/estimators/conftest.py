"""Prices of models in a moment: tests of what a model answers do not need exact ones."""

import pytest

from prudent.estimators import engine
from tests.servers import postgres_url, spark_session

__all__ = ["postgres_url", "spark_session"]


@pytest.fixture(autouse=True)
def quick_prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a total μ a little below that of one Gaussian release, unless a test asks otherwise."""
    if "exact_prices" in request.fixturenames:
        return

    def quick(epsilon: float, delta: float, *given: object) -> float:
        return engine.gaussian_mu(epsilon, delta) / 1.05

    monkeypatch.setattr(engine, "_total_mu", quick)


@pytest.fixture
def exact_prices() -> None:
    """Prices as they are in use: by the exact accountant."""
