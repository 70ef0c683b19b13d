"""Every target: files and texts, calls, commands, training entries, and neighbouring tables."""

import functools
from typing import Any

from tests.fuzz import calls, commands, differences, files


@functools.cache
def kinds() -> dict[str, tuple[Any, ...]]:
    """The targets of each kind."""
    return {
        "files": files.TARGETS,
        "calls": calls.calls(),
        "commands": commands.COMMANDS,
        "differences": differences.DIFFERENCES,
    }
