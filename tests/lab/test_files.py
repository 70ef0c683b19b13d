import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile

import numpy as np
import pytest

from prudent_lab import data_files as files


@pytest.fixture
def server(tmp_path):
    """A real server of a folder, on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def sha(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


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


def test_a_file_is_fetched_and_checked(server, tmp_path):
    folder, address = server
    content = bytes(range(256)) * 9000
    (folder / "file.gz").write_bytes(content)
    md5 = "md5:" + hashlib.md5(content).hexdigest()
    for checksum in (sha(content), md5):
        files.Download((f"{address}/file.gz",), checksum).fetch(tmp_path / "out")
        assert (tmp_path / "out" / "file.gz").read_bytes() == content
        (tmp_path / "out" / "file.gz").unlink()


def test_the_next_mirror_is_tried(server, tmp_path):
    folder, address = server
    (folder / "bad").mkdir()
    (folder / "bad" / "file").write_bytes(b"altered")
    (folder / "file").write_bytes(b"content")
    urls = (f"{address}/missing/file", f"{address}/bad/file", f"{address}/file")
    files.Download(urls, sha(b"content")).fetch(tmp_path / "out")
    assert (tmp_path / "out" / "file").read_bytes() == b"content"


def test_a_wrong_file_is_not_kept(server, tmp_path):
    folder, address = server
    (folder / "file").write_bytes(b"altered")
    urls = (f"{address}/file", f"{address}/missing")
    with pytest.raises(OSError, match=r"expected sha256:.* got sha256:.*; .*404"):
        files.Download(urls, sha(b"content")).fetch(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def _zip(names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(f"gzip/{name}", name)
    return file.getvalue()


def _tar(names):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return file.getvalue()


@pytest.mark.parametrize("pack", [_zip, _tar])
def test_only_the_wanted_members_of_an_archive_are_kept(server, tmp_path, pack):
    folder, address = server
    content = pack(["one", "two", "three"])
    (folder / "archive").write_bytes(content)
    download = files.Download((f"{address}/archive",), sha(content), ("sub/one", "two"))
    download.fetch(tmp_path / "out")
    kept = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")}
    assert kept == {"sub", "sub/one", "two"}
    assert (tmp_path / "out" / "sub" / "one").read_text() == "one"
    lacking = files.Download((f"{address}/archive",), sha(content), ("two", "four"))
    with pytest.raises(OSError, match="archive to contain four"):
        lacking.fetch(tmp_path / "out")


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
