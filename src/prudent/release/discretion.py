"""Errors that say nothing of the data.

Once data are opened, every word of an error is an answer that was not charged: the shape in a
`MemoryError` may be a margin, the text of a failed conversion a record. So whatever reads data is
called through `discreetly`. It cannot hide that something failed; that no record alone makes it
fail is up to what it calls.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

Data = TypeVar("Data")
Answer = TypeVar("Answer")


class PublicError(Exception):
    """The base of errors whose message says nothing of the data."""


class ReadError(PublicError, RuntimeError):
    """Data that could not be read to the end."""


def discreetly(read: Callable[[Data], Answer], data: Data) -> Answer:
    """Returns `read(data)`; numpy's warnings are silenced, and errors lose their words.

    Raises:
        ReadError: In place of any error but a `PublicError`. It has no cause and no context, which
            a traceback would show.
    """
    with np.errstate(all="ignore"):
        try:
            return read(data)
        except PublicError:
            raise
        except Exception:
            pass  # what is raised below must not be a consequence of this
    raise ReadError(
        "The data could not be measured, and what was charged stays charged. Why is withheld, as "
        "it may tell about records: repeat the release on made-up data of this size and type."
    )
