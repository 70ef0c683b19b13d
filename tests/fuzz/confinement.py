"""A process that can write to a few places only, so that a fed path changes nothing else.

Linux's Landlock takes the right to write from a process and its children, for good, whoever runs
it and whichever library opens the file. Where the kernel has none, `confine` returns False.
"""

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the numbers of the system calls on every architecture
_BENEATH, _NO_NEW_PRIVILEGES = 1, 38
_WRITE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
"""Remove files and folders, make files, folders, devices, sockets, pipes and links."""

_DEVICES = ("/dev/null", "/dev/full", "/dev/zero", "/dev/tty")


def confine(places: Iterable[Path]) -> bool:
    """Let this process write beneath `places` only, from now on; return whether it could be done.

    Devices that lose what is written to them stay open for writing.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None, use_errno=True)
    version = library.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    file_rights = _WRITE | (_TRUNCATE if version >= 3 else 0)
    rights = file_rights | _CHANGE_FOLDER | (_REFER if version >= 2 else 0)
    rules = library.syscall(_CREATE, struct.pack("=Q", rights), ctypes.c_size_t(8), 0)
    try:
        for place in places:
            _allow(library, rules, place, rights)
        for device in map(Path, _DEVICES):
            with contextlib.suppress(OSError):  # a container may have none
                _allow(library, rules, device, file_rights)
        return (
            library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
            and library.syscall(_RESTRICT, rules, 0) == 0
        )
    finally:
        os.close(rules)


def _allow(library: ctypes.CDLL, rules: int, place: Path, rights: int) -> None:
    number = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if library.syscall(_ADD, rules, _BENEATH, struct.pack("=Qi", rights, number), 0):
            raise OSError(ctypes.get_errno(), "Cannot allow to write", str(place))
    finally:
        os.close(number)
