"""Format numbers of files: which version of prudent can read them.

A file carries the number of its format under "format". One without a number is of format 1: it
was written before there were numbers.
"""

from collections.abc import Mapping
from typing import Any

from prudent import __version__


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
            f"Expected {file} of format {newest}{' or earlier' if newest > 1 else ''}, got format "
            f"{number}: it needs a newer version of prudent than {__version__}. Upgrade prudent to "
            "read it."
        )


def check_format(content: Mapping[str, Any], newest: int, file: str) -> int:
    """Returns the format number of what a file holds; 1 where it has none.

    Args:
        content: What was read.
        newest: The newest format that this version reads.
        file: How a message is to name the file.

    Raises:
        NewerFormatError: If the file is of a later format.
        ValueError: If what stands there is no format number.
    """
    number = content.get("format", 1)
    if type(number) is not int or number < 1:
        raise ValueError(
            f"Expected {file} with a whole number from 1 on as its format, got {number!r}."
        )
    if number > newest:
        raise NewerFormatError(file, number, newest)
    return number
