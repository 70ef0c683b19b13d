"""Runs the benchmarks that end in minutes, each in an interpreter of its own.

python -m benchmarks

The rest are named by hand: `benchmarks.mnist_accuracy` (a GPU), `benchmarks.tables
--rows 100000000` (a gigabyte of disk), `benchmarks.warehouses measure` (servers of their own, and
five gigabytes), `benchmarks.step_speed --device cuda`, `benchmarks.communication` (cores of its
own), `benchmarks.keystream --device cuda`, `benchmarks.federated` (the extra `federated`),
`benchmarks.budgets --write` and `benchmarks.median_accuracy` (minutes, for a table and a picture of
the docs).
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
    for module, *arguments in QUICK:
        print(f"# {module} {' '.join(arguments)}", flush=True)
        subprocess.run([sys.executable, "-m", module, *arguments], check=True)
