"""Options of `fit` by their own names, for helpers that add some to those of a test."""

from typing import Any

import attrs

from prudent.training import Reporting


def gathered(options: dict[str, Any]) -> dict[str, Any]:
    """The options, those of a `Reporting` gathered into one."""
    names = [field.name for field in attrs.fields(Reporting)]
    reporting = Reporting(**{name: options[name] for name in names if name in options})
    others = {name: value for name, value in options.items() if name not in names}
    return others | {"reporting": reporting}
