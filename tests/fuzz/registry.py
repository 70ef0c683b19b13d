"""Every target: files and texts, calls, commands."""

from typing import Any

from tests.fuzz import calls, commands, files

KINDS: dict[str, tuple[Any, ...]] = {
    "files": files.TARGETS,
    "calls": calls.CALLS,
    "commands": commands.COMMANDS,
}
