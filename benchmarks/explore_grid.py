"""Compute the numbers that the page of `prudent explore` shows.

python -m benchmarks.explore_grid --out src/prudent/lab/explore/grid.json --workers 12
"""

import argparse
import json
import os
import time
from pathlib import Path

from prudent.lab.explore.page import build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.monotonic()

    def progress(done: int, total: int) -> None:
        if done % 50 == 0 or done == total:
            print(f"{done} of {total} answers, {time.monotonic() - start:.0f} s", flush=True)

    grid = build(options.workers, progress)
    options.out.write_text(json.dumps(grid, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
