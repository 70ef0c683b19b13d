"""Runs every benchmark of this folder in turn, each in an interpreter of its own.

python -m benchmarks
"""

import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import benchmarks


def runnable() -> list[str]:
    """Modules with a `main`, by name."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__, "benchmarks.")]
    return [
        name
        for name in sorted(names)
        if not name.endswith("__main__")
        and (spec := importlib.util.find_spec(name)) is not None
        and spec.origin is not None
        and "\ndef main(" in Path(spec.origin).read_text(encoding="utf-8")
    ]


if __name__ == "__main__":
    for name in runnable():
        print(f"# {name}", flush=True)
        subprocess.run([sys.executable, "-m", name], check=True)
