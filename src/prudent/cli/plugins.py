"""Plug-ins: what installed packages, the lab of this one among them, add to the command line.

They are found by entry points, by name alone: nothing of a plug-in is imported before it is used,
and a built-in command looks for none. Groups:

- `prudent.commands`: a module with a function of the command's name, or with an `app` that holds
  commands; its `NEEDS` and `NEEDS_OF_OPTIONS`, if any, are added to those of `prudent.cli.needs`.
- `prudent.doctor`: a function that yields findings of `prudent doctor`.
- `prudent.audit`: a target of `prudent audit train --method black-box`.
"""

from functools import cache
from importlib import metadata
from typing import Any


@cache
def names(group: str) -> dict[str, metadata.EntryPoint]:
    """The plug-ins of a group, by name."""
    return {found.name: found for found in metadata.entry_points(group=f"prudent.{group}")}


def load(group: str, name: str) -> Any:
    """Import a plug-in."""
    return names(group)[name].load()
