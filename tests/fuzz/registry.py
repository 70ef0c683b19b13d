"""Every target: files and texts, calls, commands, and records at every entry."""

from typing import Any

from tests.fuzz import calls, commands, differences, files

KINDS: dict[str, tuple[Any, ...]] = {
    "files": files.TARGETS,
    "calls": calls.CALLS,
    "commands": commands.COMMANDS,
    "differences": differences.DIFFERENCES,
}
