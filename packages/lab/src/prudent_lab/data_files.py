"""Search of data files, and a cache of arrays."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._files import replacing

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
