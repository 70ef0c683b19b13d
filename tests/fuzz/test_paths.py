"""Names lead to no other folder: of data sets, weights, cached arrays, runs."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="weights are torch's")

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.certify.features import named
from prudent.training.run import checkpoint
from prudent_lab import data_files as files
from prudent_lab.datasets import load, read_arrays
from prudent_lab.features.resnet import find_weights

EVIL = [
    *("..", "../x", "a/../../x", "/etc/passwd", "//x", "", ".", "a//b", "a/", "x\x00y", "x\ny"),
    *("C:\\x", "\\\\host\\x", "a\\..\\x", "con", "NUL.npz", "a/COM1", "aux .txt", "x:stream"),
    "~\x1b",
    *("x" * 300, "é" * 150, "...", " ", "*", "a?b"),
]
GOOD = ["mnist", "weights", "a/b.npz", "cifar-10-batches-bin/data_batch_1.bin", "é.npy", "a.b", "~"]


@pytest.mark.parametrize("name", EVIL)
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    for act in (
        lambda: _validate.file_name(name=name),
        lambda: find_weights(name, tmp_path),
        lambda: list(files.search_folders(name, tmp_path)),
        lambda: files.cached_array(name, lambda: np.zeros(1)),
        lambda: read_arrays(name, tmp_path),
        lambda: load(name, tmp_path),
        lambda: named(name),
    ):
        with pytest.raises(ArgumentError, match=r"plain file name|one of"):
            act()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", GOOD)
def test_other_names_are_allowed(name: str) -> None:
    assert _validate.file_name(name=name) == name


@pytest.mark.parametrize("name", ["npz:x\x00y", "npz:", "npz:" + "x" * 5000, "npz:/dev", "npz:.."])
def test_an_archive_that_is_no_file_is_refused(name: str) -> None:
    with pytest.raises((ArgumentError, FileNotFoundError), match="Expected n"):
        load(name)


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_a_link_left_in_the_folder_of_a_run_is_not_followed(tmp_path: Path) -> None:
    from prudent.training import Plan, Sum

    plan = Plan(sampling_rate=0.1, steps=2, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    for name in ("checkpoint.pt.new", "paid.json.new"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    checkpoint.save_checkpoint(tmp_path, {"step": 1})
    checkpoint.record_paid(tmp_path, plan, 1)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "paid.json").is_symlink()
    assert not (tmp_path / "checkpoint.pt").is_symlink()
