"""The soak at length: `make soak`, or one part of it.

    python -m tests.faults.soak [sqlite] [postgresql] [training]

Prints one line of JSON for each part, and ends with status 1 if any of its claims does not hold.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

from tests.faults import ledger_soak
from tests.servers import postgres

# As many charges of this multiplier fit into the budget as the soak is meant to make: 10,085.
BUDGET = {"epsilon": 4.5, "multiplier": 112.0}
WORKERS, KILLS, RESTARTS, CYCLES = 4, 200, 40, 1000


def sqlite(folder: Path) -> ledger_soak.Soaked:
    """10⁴ charges to one file by processes that are killed."""
    location = str(folder / "budget.db")
    return ledger_soak.soak(location, folder / "log", workers=WORKERS, kills=KILLS, **BUDGET)


def postgresql(folder: Path) -> ledger_soak.Soaked:
    """10⁴ charges to a server that crashes, by processes that are killed."""
    with postgres(synced=True) as server:

        def restart() -> None:
            server.stop()
            server.start()

        return ledger_soak.soak(
            server.address,
            folder / "log",
            workers=WORKERS,
            kills=KILLS,
            restart=restart,
            restarts=RESTARTS,
            **BUDGET,
        )


def training(folder: Path) -> None:
    """10³ kills of training runs; each of several processes prints a line."""
    command = [sys.executable, "-m", "tests.faults.training_soak"]
    begun = [
        subprocess.Popen(
            [*command, str(folder / str(seed)), str(CYCLES // WORKERS), str(seed)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for seed in range(1, WORKERS + 1)
    ]
    statuses = [process.wait() for process in begun]
    if any(statuses):
        sys.exit(1)


PARTS = {"sqlite": sqlite, "postgresql": postgresql, "training": training}


def main() -> int:
    """Runs the parts that are named, or all."""
    failed = False
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory(prefix="prudent-soak-") as folder:
            print(name, flush=True)
            result = PARTS[name](Path(folder))
        if result is not None:
            print(json.dumps(attrs.asdict(result)), flush=True)
            failed = failed or bool(result.problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
