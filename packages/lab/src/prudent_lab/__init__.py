"""What researchers use: data sets, models, recipes, corruption, the paper, the explorer."""

import tomllib
from importlib import resources
from typing import Any


def declared(package: str, file: str) -> dict[str, Any]:
    """The tables of a TOML file that comes with a package."""
    return tomllib.loads(resources.files(package).joinpath(file).read_text("utf-8"))
