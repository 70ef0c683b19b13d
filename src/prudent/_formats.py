"""What every reader of a file shares: format numbers, and one error for damage.

A file carries the number of its format under "format". A change that this version would misread
raises the number of that kind of file.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prudent import __version__
from prudent._validate import ArgumentError

if TYPE_CHECKING:
    import numpy as np


class DamagedFileError(ValueError):
    """A file that cannot be read as what it should be.

    Its text quotes nothing of the content, which may be private.

    Attributes:
        path: The file.
        expected: What it should be.
    """

    def __init__(self, path: str, expected: str) -> None:
        self.path, self.expected = path, expected
        super().__init__(
            f"Expected {path} to be {expected}: it is damaged, cut short or of another kind. "
            "Restore it from a copy, or name another file."
        )

    def __reduce__(self) -> tuple[type["DamagedFileError"], tuple[str, str]]:
        return DamagedFileError, (self.path, self.expected)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], expected: str) -> Iterator[None]:
    """Turn whatever a reader raises over the content of a file into one error.

    Libraries have dozens of exceptions for damaged files, and whoever made the file chooses among
    them. An error that is about an argument, the format number or the file's name passes.

    Raises:
        DamagedFileError: If its content cannot be read.
    """
    try:
        yield
    except (ArgumentError, DamagedFileError, ImportError, NewerFormatError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise DamagedFileError(os.fspath(path), expected) from None


class NewerFormatError(ValueError):
    """A file that only a later version of prudent can read.

    Attributes:
        file: What was read.
        number: Its format.
        newest: The newest format that this version reads.
    """

    def __init__(self, file: str, number: int, newest: int) -> None:
        self.file, self.number, self.newest = file, number, newest
        super().__init__(
            f"Expected {file} of format {newest}, got format {number}: it needs a newer version of "
            f"prudent than {__version__}. Upgrade prudent to read it."
        )


def check_format(content: Mapping[str, Any], newest: int, file: str) -> None:
    """Refuses what a file holds unless this version can read its format.

    Raises:
        NewerFormatError: If the file is of a later format.
        ValueError: If what stands there is no format number.
    """
    number = content.get("format") if isinstance(content, Mapping) else None
    if type(number) is not int or number < 1:
        raise ValueError(
            f"Expected {file} with a whole number from 1 on as its format, got {number!r}."
        )
    if number > newest:
        raise NewerFormatError(file, number, newest)


def read_npz(
    path: str | os.PathLike[str], expected: str, *names: str
) -> "dict[str, np.ndarray[Any, Any]]":
    """Those of the named arrays that an .npz archive holds; objects, which are pickled, never.

    Raises:
        DamagedFileError: If it is no such archive, or one of the arrays cannot be read.
    """
    import numpy as np

    # Opened here: numpy leaves a file open whose archive is damaged.
    with (
        reading(path, expected),
        open(path, "rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        return {name: archive[name] for name in names or archive if name in archive}
