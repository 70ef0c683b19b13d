"""Runs the benchmarks that end in minutes, each in an interpreter of its own, or one by name.

python -m benchmarks [NAME [ARGUMENTS]]

The rest are named by hand: `benchmarks.mnist_accuracy` (a GPU), `benchmarks.tables
--rows 100000000` (a gigabyte of disk), `benchmarks.warehouses measure` (servers of their own, and
five gigabytes), `benchmarks.step_speed --device cuda`, `benchmarks.communication` (cores of its
own), `benchmarks.keystream --device cuda`, `benchmarks.federated` (the extra `federated`),
`benchmarks.estimators` (tables out of packages), `benchmarks.budgets --write` and
`benchmarks.median_accuracy` (minutes, for a table here and a picture of the docs).
"""

import subprocess
import sys

QUICK = (
    ("benchmarks.accounting", "--write"),
    ("benchmarks.start_up", "--write"),
    ("benchmarks.step_speed", "--device", "cpu", "--models", "A,E", "--rounds", "5"),
    ("benchmarks.tables", "--rows", "5000000"),
)

if __name__ == "__main__":
    named = [(f"benchmarks.{sys.argv[1]}", *sys.argv[2:])] if sys.argv[1:] else QUICK
    for module, *arguments in named:
        print(f"# {module} {' '.join(arguments)}", flush=True)
        subprocess.run([sys.executable, "-m", module, *arguments], check=True)
