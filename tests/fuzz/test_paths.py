"""Names lead to no other folder: of data sets, weights, cached arrays, archive members, runs."""

import io
import os
import tarfile
import zipfile
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
    *(
        "C:\\x",
        "\\\\host\\x",
        "a\\..\\x",
        "con",
        "NUL.npz",
        "a/COM1",
        "aux .txt",
        "x:stream",
        "~\x1b",
    ),
    *("x" * 300, "é" * 150, "...", " ", "*", "a?b"),
]
GOOD = [
    "mnist",
    "weights",
    "a/b.npz",
    "cifar-10-batches-bin/data_batch_1.bin",
    "é.npy",
    "a.b.c",
    "~",
]


@pytest.mark.parametrize("name", EVIL)
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    for act in (
        lambda: _validate.file_name(name=name),
        lambda: find_weights(name, tmp_path),
        lambda: list(files.search_folders(name, tmp_path)),
        lambda: files.cached_array(name, lambda: np.zeros(1)),
        lambda: files._unpack(tmp_path / "archive", [name], tmp_path),
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


def test_an_archive_cannot_say_where_its_members_go(tmp_path: Path) -> None:
    folder, outside = tmp_path / "cache", tmp_path / "a.bin"
    folder.mkdir()
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../a.bin", b"zipped")
    files._unpack(tmp_path / "evil.zip", ["in/a.bin"], folder)
    assert (folder / "in/a.bin").read_bytes() == b"zipped"
    with tarfile.open(tmp_path / "evil.tar", "w") as packed:
        entry = tarfile.TarInfo(str(outside))
        entry.size = 6
        packed.addfile(entry, io.BytesIO(b"packed"))
    files._unpack(tmp_path / "evil.tar", ["in/a.bin"], folder)
    assert (folder / "in/a.bin").read_bytes() == b"packed"
    assert not outside.exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_an_archive_are_not_followed(tmp_path: Path, kind: bytes) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with tarfile.open(tmp_path / "evil.tar", "w") as packed:
        entry = tarfile.TarInfo("a.bin")
        entry.type, entry.linkname = kind, str(secret)
        packed.addfile(entry)
    with pytest.raises(OSError, match=r"unpack evil\.tar|to contain a\.bin"):
        files._unpack(tmp_path / "evil.tar", ["a.bin"], tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


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
