"""Prices of tests: the search for μ takes seconds, and only its own test needs the exact one."""

import pytest

pytest.importorskip("ibis")
pytest.importorskip("sklearn")

from prudent.estimators import shares


@pytest.fixture
def quick_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    def about(epsilon: float, delta: float, *_: object) -> float:
        return 0.95 * shares.gaussian_mu(epsilon, delta)

    monkeypatch.setattr(shares, "_total_mu", about)
