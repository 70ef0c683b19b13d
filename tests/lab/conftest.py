from pathlib import Path

import pytest

from prudent_lab import data_files as files


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's cache."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "prudent"


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    """The wheel under test lies outside the checkout, whose data it is to find all the same."""
    monkeypatch.setattr(files, "_CHECKOUT", Path(__file__).resolve().parents[2])
