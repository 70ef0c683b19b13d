"""The wheel under test lies outside the checkout; its data set is found there all the same."""

from pathlib import Path

import pytest

from prudent.paper import files


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHECKOUT", Path(__file__).resolve().parents[2])
