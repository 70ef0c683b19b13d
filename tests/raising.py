"""Errors as data: which argument an error names, whatever its words are."""

import contextlib
from collections.abc import Iterator

import pytest

from prudent import ArgumentError


@contextlib.contextmanager
def refused(argument: str) -> Iterator[None]:
    """Inside, an error must name this argument; only the command line is asked for its text."""
    with pytest.raises(ArgumentError) as caught:
        yield
    assert caught.value.argument == argument
