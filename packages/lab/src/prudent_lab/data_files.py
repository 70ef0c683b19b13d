"""Search, download and caching of data files."""

import contextlib
import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _progress, _validate
from prudent._files import replacing

_TIMEOUT_SECONDS = 30
_BLOCK = 1 << 20
# The source checkout, if this file is in one rather than in an installed wheel.
_CHECKOUT = Path(__file__).parents[4]
# Debian's dataset-* packages install their files here.
_SYSTEM_FOLDER = Path("/usr/share/datasets")


def is_file(path: Path) -> bool:
    """Whether there is a file; False where the system does not even allow the name."""
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def cache_folder() -> Path:
    """The user's cache: `$XDG_CACHE_HOME/prudent`, by default `~/.cache/prudent`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prudent"


def search_folders(name: str, data_dir: Path | str | None = None) -> Iterator[Path]:
    """The folders that may hold the files called `name`, best first.

    `data_dir` itself and its subfolder `name`; `$PRUDENT_DATA`; the `data` folder of a source
    checkout (an installed wheel has none); the system's data sets; the user's cache.
    """
    _validate.file_name(name=name)
    if data_dir is not None:
        if not _validate.path(data_dir=data_dir).is_dir():
            raise FileNotFoundError(f"Expected data_dir to be a folder, got {str(data_dir)!r}.")
        yield Path(data_dir)
        yield Path(data_dir) / name
    if os.environ.get("PRUDENT_DATA"):
        yield Path(os.environ["PRUDENT_DATA"]) / name
    if (_CHECKOUT / "pyproject.toml").is_file():
        yield _CHECKOUT / "data" / name
    yield _SYSTEM_FOLDER / name
    yield cache_folder() / name


@attrs.frozen
class Download:
    """A downloadable file with its checksum."""

    urls: tuple[str, ...]  # mirrors, tried in order
    checksum: str  # `md5:…` or `sha256:…` of the file
    # If the file is a zip or tar archive, the members to extract, each with its target folder;
    # otherwise empty.
    members: tuple[str, ...] = ()

    def fetch(self, folder: Path) -> None:
        """Download the file, or the wanted members of the archive, into `folder`.

        Raises:
            OSError: if no mirror returns the right file; says what happened with each of them.
        """
        folder.mkdir(parents=True, exist_ok=True)
        failures = []
        for url in self.urls:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
                received = Path(scratch) / url.rsplit("/", 1)[-1]
                try:
                    self._receive(url, received)
                except OSError as error:
                    failures.append(f"{url}: {error}")
                    continue
                if self.members:
                    _unpack(received, self.members, folder)
                else:
                    received.replace(folder / received.name)
                return
        raise OSError("; ".join(failures))

    def _receive(self, url: str, path: Path) -> None:
        kind, _, expected = self.checksum.partition(":")
        digest = hashlib.new(kind, usedforsecurity=False)
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response,
            path.open("wb") as file,
        ):
            size = response.headers.get("Content-Length")
            with _progress.part(f"download of {path.name}", int(size) if size else None):
                while block := response.read(_BLOCK):
                    file.write(block)
                    digest.update(block)
                    _progress.advance(len(block))
        if digest.hexdigest() != expected:
            raise OSError(f"expected {self.checksum}, got {kind}:{digest.hexdigest()}")


def _unpack(archive: Path, members: Sequence[str], folder: Path) -> None:
    """Extract the members, found by their file name, into `folder`."""
    for member in members:
        _validate.file_name(member=member)
    try:
        missing = _extract(
            archive, {member.rsplit("/", 1)[-1]: folder / member for member in members}
        )
    except Exception as error:  # zipfile, tarfile, zlib and lzma have many, for damaged archives
        raise OSError(
            f"could not unpack {archive.name} ({type(error).__name__}: {error})"
        ) from None
    if missing:
        raise OSError(f"expected {archive.name} to contain {', '.join(sorted(missing))}")


def _extract(archive: Path, wanted: dict[str, Path]) -> set[str]:
    """Extract files by their last name, and return those that are not there.

    Where they go is not for the archive to say.
    """
    with contextlib.ExitStack() as stack:
        if zipfile.is_zipfile(archive):
            zipped = stack.enter_context(zipfile.ZipFile(archive))
            found = {name.rsplit("/", 1)[-1]: name for name in zipped.namelist()}
            sources = {last: zipped.open(found[last]) for last in wanted if last in found}
        else:
            tarred = stack.enter_context(tarfile.open(archive))
            names = {name.rsplit("/", 1)[-1]: name for name in tarred.getnames()}
            sources = {
                last: file
                for last in wanted
                if last in names and (file := tarred.extractfile(names[last])) is not None
            }
        if missing := wanted.keys() - sources.keys():
            return missing
        for last, source in sources.items():
            wanted[last].parent.mkdir(parents=True, exist_ok=True)
            with source, replacing(wanted[last], "wb") as target:
                shutil.copyfileobj(source, target, _BLOCK)
    return set()


def cached_array(
    key: str, compute: Callable[[], npt.NDArray[np.generic]]
) -> npt.NDArray[np.generic]:
    """The result of `compute`, cached under `key` as a .npy file in the user's cache.

    The file takes its name when it is complete, and ends with a digest of the array: a damaged one
    is computed again. If the cache cannot be written, the array is still returned.
    """
    path = cache_folder() / "arrays" / f"{_validate.file_name(key=key)}.npy"
    if (found := _intact(path)) is not None:
        return found
    array = compute()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, "wb") as file:
            np.save(file, array)
            file.write(_digest(array))
    return array


def _intact(path: Path) -> npt.NDArray[np.generic] | None:
    """The array in a file of the cache; None if there is none, or another than was written."""
    try:
        with path.open("rb") as file:
            array = np.asarray(np.load(file, allow_pickle=False))
            return array if file.read() == _digest(array) else None
    except Exception:  # a damaged header is parsed as Python, and can fail in many ways
        return None


def _digest(array: npt.NDArray[np.generic]) -> bytes:
    about = repr((array.dtype.str, array.shape)).encode()
    return hashlib.sha256(about + hashlib.sha256(array.tobytes()).digest()).digest()
