"""`make fuzz`: many inputs for every target, and a table of what came of them.

Files and texts are fed by atheris, which mutates the seeds and keeps what reaches new code, where
it is installed; otherwise by `mutation`. Calls and commands are fed by hypothesis. Each target runs
in a child of this process, which has imported the libraries but not prudent, with a limit on
memory. Exit status 1 if there is a finding.
"""

import argparse
import collections
import contextlib
import importlib.util
import json
import math
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MEMORY = 16 << 30
_LIBRARIES = (
    *("numpy", "torch", "pandas", "pyarrow", "pyarrow.parquet", "duckdb", "ibis", "sqlglot"),
    *("scipy.stats", "scipy.optimize", "matplotlib.pyplot", "dp_accounting", "hypothesis", "typer"),
    *("safetensors.torch", "opendp.prelude", "rich.console", "polars", "tensorboard"),
)


def main() -> int:
    """Run the targets."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, over the targets")
    parser.add_argument("--seconds", type=float, default=600, help="at most, for one target")
    parser.add_argument("--only", default="", help="targets with this text in their name")
    parser.add_argument("--kind", choices=("files", "calls", "commands"), help="of targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz.json"))
    return _run_all(parser.parse_args())


def _run_all(asked: argparse.Namespace) -> int:
    from tests.fuzz.registry import KINDS

    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    every = [each for kind, some in KINDS.items() if asked.kind in (None, kind) for each in some]
    chosen = [each for each in every if asked.only in each.name]
    whole = sum(each.weight for each in chosen)
    rows = []
    print(f"{'target':52} {'by':10} {'inputs':>7} {'answers':>8} {'refused':>8} {'findings':>8}")
    for target in chosen:
        inputs = max(10, round(asked.inputs * target.weight / whole))
        row = _in_a_child(target, inputs, asked)
        rows.append(row)
        numbers = " ".join(f"{row[key]:>8}" for key in ("answers", "refused", "found"))
        print(f"{row['target']:52} {row['by']:10} {row['inputs']:>7} {numbers}", flush=True)
        for finding in row["findings"]:
            print(f"\n{finding}\n", flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(rows, indent=1))
    total, found = (sum(row[key] for row in rows) for key in ("inputs", "found"))
    print(f"{total:,} inputs for {len(rows)} targets, {found} findings; see {asked.out}")
    return 1 if found else 0


def _in_a_child(target: Any, inputs: int, asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result, told = Path(folder) / "result.json", Path(folder) / "told"
        child = multiprocessing.get_context("fork").Process(
            target=_run_one, args=(target, inputs, asked, result, told)
        )
        child.start()
        child.join()
        if result.exists():
            found: dict[str, Any] = json.loads(result.read_text())
            return found
        crash = f"{target.name}: the process ended with status {child.exitcode}\n"
        crash += told.read_text(errors="replace")[-3000:]
    numbers = dict.fromkeys(("inputs", "answers", "refused"), 0)
    return {"target": target.name, "by": "-", **numbers, "found": 1, "findings": [crash]}


class Tally:
    """Counts what came of the inputs of a target, and keeps one example of each kind of finding."""

    def __init__(self, name: str, by: str, limit: float) -> None:
        self.name, self.by, self.limit, self.end = name, by, limit, math.inf
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: dict[str, str] = {}

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def take(self, act: Callable[[], BaseException | None]) -> None:
        from tests.fuzz.judging import FindingError

        self.counts["inputs"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                error = act()
            self.counts["answers" if error is None else "refused"] += 1
        except FindingError as finding:
            self.counts["found"] += 1
            lines = finding.error.strip().splitlines() or [""]
            place = [line for line in lines if "prudent" in line][-1:]
            self.findings.setdefault(f"{place} {lines[-1][:40]}", str(finding)[-4000:])
        if self.end == math.inf:  # the first input imports what the others find imported
            self.end = time.monotonic() + self.limit

    def write(self, path: Path) -> None:
        numbers = {key: self.counts[key] for key in ("inputs", "answers", "refused", "found")}
        row = {"target": self.name, "by": self.by, **numbers}
        path.write_text(json.dumps({**row, "findings": list(self.findings.values())}))


def _run_one(target: Any, inputs: int, asked: argparse.Namespace, out: Path, told: Path) -> None:
    from tests.fuzz.files import Target

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.path.insert(0, os.getcwd())
    asked = argparse.Namespace(**{**vars(asked), "inputs": inputs})
    with told.open("w") as file, tempfile.TemporaryDirectory() as elsewhere:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os.chdir(elsewhere)  # a hostile name may be a path
        if not isinstance(target, Target):
            _by_hypothesis(target, asked, out)
        elif importlib.util.find_spec("atheris"):
            _by_atheris(target, asked, out)
        else:
            _by_mutation(target, asked, out)


def _by_hypothesis(target: Any, asked: argparse.Namespace, out: Path) -> None:
    import hypothesis

    tally = Tally(target.name, "hypothesis", asked.seconds)

    @hypothesis.seed(asked.seed)
    @hypothesis.settings(
        max_examples=asked.inputs,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(target.strategy())
    def run(given: Any) -> None:
        if not tally.is_over:
            tally.take(lambda: target.judge(given))

    run()
    tally.write(out)


def _by_mutation(target: Any, asked: argparse.Namespace, out: Path) -> None:
    from tests.fuzz.mutation import mutated

    tally = Tally(target.name, "mutation", asked.seconds)
    seeds, chance = target.seeds(), random.Random(asked.seed)
    while tally.counts["inputs"] < asked.inputs and not tally.is_over:
        content = mutated(seeds, chance)
        tally.take(lambda content=content: target.judge(content))  # type: ignore[misc]
    tally.write(out)


def _by_atheris(target: Any, asked: argparse.Namespace, out: Path) -> None:
    import atheris

    from tests.fuzz.mutation import LARGEST

    tally = Tally(target.name, "atheris", asked.seconds)
    corpus = Path("corpus")
    corpus.mkdir()
    with atheris.instrument_imports(include=["prudent", "pickletools", "sqlglot"]):
        for number, seed in enumerate(target.seeds()):
            (corpus / str(number)).write_bytes(seed)
            with contextlib.suppress(BaseException):
                target.act(seed)  # imports what is to be instrumented

    def one(content: bytes) -> None:
        if not tally.is_over:
            tally.take(lambda: target.judge(content))
        if tally.is_over or tally.counts["inputs"] % 500 == 0:
            tally.write(out)
        if tally.is_over or tally.counts["inputs"] >= asked.inputs:
            tally.write(out)
            os._exit(0)

    options = [f"-seed={asked.seed}", f"-max_len={LARGEST}", "-timeout=0", "-rss_limit_mb=0"]
    atheris.Setup(["fuzz", *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
