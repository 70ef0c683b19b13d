"""Every target: files and texts, calls, commands."""

from tests.fuzz import calls, commands, files

TARGETS: tuple[files.Target | calls.Call | commands.Command, ...] = (
    *files.TARGETS,
    *calls.CALLS,
    *commands.COMMANDS,
)
