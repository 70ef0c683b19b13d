"""How long commands take to start, beside the bare imports of what a release cannot do without.

    python -m benchmarks.start_up

Processor seconds (user and system) of fresh processes, all kinds in turns, the least of several
rounds: what else the machine does adds to a round and never takes away. `--write` puts the table
into benchmarks/README.md.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- start-up: begin -->", "<!-- start-up: end -->"
BARE = "import duckdb, numpy, pyarrow"
RECORDS = 20_000
GOALS = {
    "`prudent --help`": "≤ 0.5 s",
    "a release from CSV": "≤ 3.5 ×",
    "a release from Parquet": "≤ 3.5 ×",
    "a release with a ledger": "≤ 5 ×",
}
COLD = (f"`{BARE}`", "a release from CSV")
"""What is also measured as after `pip install --no-compile`."""


def processor_seconds(command: list[str], **environment: str) -> float:
    before = os.times()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | environment)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def kinds(folder: Path) -> dict[str, list[str]]:
    """A column of incomes in two files, a ledger, and what is started."""
    import pyarrow.csv
    import pyarrow.parquet

    prudent = [sys.executable, "-m", "prudent"]
    table, parquet, ledger = (folder / name for name in ("a.csv", "a.parquet", "budget.db"))
    values = "\n".join(str(1000 + 37 * place % 90_000) for place in range(RECORDS))
    table.write_text(f"income\n{values}\n")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(table), parquet)
    create = [*prudent, "budget", "create", str(ledger), "--epsilon", "100", "--delta", "1e-6"]
    subprocess.run(create, check=True, capture_output=True)

    def median(file: Path, *options: str) -> list[str]:
        asked = ("--column", "income", "--epsilon", "0.3", *options)
        return [*prudent, "release", "median", str(file), *asked]

    return {
        f"`{BARE}`": [sys.executable, "-c", BARE],
        "`prudent --help`": [*prudent, "--help"],
        "`prudent release median --help`": [*prudent, "release", "median", "--help"],
        "a release from CSV": median(table),
        "a release from Parquet": median(parquet),
        "a release with a ledger": median(table, "--ledger", str(ledger)),
    }


def measure(rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        asked = kinds(Path(folder))
        for command in asked.values():  # compiles what it imports
            processor_seconds(command)
        least = dict.fromkeys(asked, float("inf"))
        for _ in range(rounds):
            for name, command in asked.items():
                least[name] = min(least[name], processor_seconds(command))
        for name in COLD:
            caches = (tempfile.mkdtemp(dir=folder) for _ in range(3))
            seconds = (processor_seconds(asked[name], PYTHONPYCACHEPREFIX=each) for each in caches)
            least[f"{name}, nothing compiled"] = min(seconds)
    return least


def table(found: dict[str, float]) -> str:
    bare = found[f"`{BARE}`"]
    lines = ["| process | processor seconds | ratio | goal |", "|---|---|---|---|"]
    for name, seconds in found.items():
        lines.append(f"| {name} | {seconds:.2f} | {seconds / bare:.2f} | {GOALS.get(name, '')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    shown = table(measure(arguments.rounds))
    print(shown)
    if arguments.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}", encoding="utf-8")
