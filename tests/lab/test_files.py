import numpy as np
import pytest

from prudent_lab import data_files as files


def test_the_folders_in_their_order(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path / "given"))
    folders = list(files.search_folders("mnist", tmp_path))
    assert folders[:3] == [tmp_path, tmp_path / "mnist", tmp_path / "given" / "mnist"]
    assert folders[-1] == own_cache / "mnist"
    monkeypatch.delenv("PRUDENT_DATA")
    assert list(files.search_folders("mnist")) == folders[3:]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected data_dir to be a folder"):
        list(files.search_folders("mnist", tmp_path / "typo"))


def test_the_cache_is_at_home_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / ".cache" / "prudent"


def test_an_array_is_computed_once(own_cache):
    calls = []

    def compute():
        calls.append(1)
        return np.arange(6).reshape(2, 3)

    for _ in range(2):
        assert (files.cached_array("key", compute) == np.arange(6).reshape(2, 3)).all()
    files.cached_array("other", compute)
    assert len(calls) == 2
    assert sorted(p.name for p in (own_cache / "arrays").iterdir()) == ["key.npy", "other.npy"]


def test_a_cache_that_cannot_be_written_costs_only_time(own_cache):
    own_cache.write_text("a file where a folder should be")
    assert files.cached_array("key", lambda: np.ones(3)).tolist() == [1, 1, 1]
