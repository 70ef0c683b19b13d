"""`make fuzz`: many inputs for every target, and a table of what came of them.

Files and texts are fed by atheris, which mutates the seeds and keeps what reaches new code, where
it is installed; otherwise by `mutation`. Everything else is fed by hypothesis. The inputs of a
target are divided into shares with seeds of their own, and each share runs in a child of this
process, which has imported the libraries, with a limit on memory; several children run at once.
Exit status 1 if there is a finding; the folder `--out` then holds a file for each.
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
import re
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import attrs

_MEMORY = 16 << 30
_SHARE = 500
"""Most inputs of one child."""

_GRACE = 300.0
"""Seconds that a child may take longer than its limit, for imports and one last input."""

_COUNTS = ("inputs", "answers", "refused", "found")
_LIBRARIES = (
    *("numpy", "torch", "pandas", "pyarrow", "pyarrow.parquet", "duckdb", "ibis", "sqlglot"),
    *("scipy.stats", "scipy.optimize", "matplotlib.pyplot", "dp_accounting", "hypothesis", "typer"),
    *("safetensors.torch", "opendp.prelude", "rich.console", "polars"),
    "torch._dynamo",
)
_OURS = ("cli", "release", "training", "certify", "tune", "audit")


def main() -> int:
    """Run the targets."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, over the targets")
    parser.add_argument("--seconds", type=float, default=600, help="at most, for one child")
    parser.add_argument("--jobs", type=int, default=1, help="children at a time")
    parser.add_argument("--only", default="", help="targets with this text in their name")
    parser.add_argument("--kind", help="files, calls, commands or differences")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder for results")
    return _run_all(parser.parse_args())


@attrs.frozen
class Share:
    """Some of the inputs of a target, with a seed of their own."""

    target: Any
    inputs: int
    seed: int


def _run_all(asked: argparse.Namespace) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the limit on memory leaves no room for CUDA
    from tests.fuzz import calls
    from tests.fuzz.registry import kinds

    # Atheris instruments what a child imports; without it, importing once is enough.
    ours = () if importlib.util.find_spec("atheris") else (f"prudent.{each}" for each in _OURS)
    for name in (*_LIBRARIES, *ours):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    calls.VALUES.validate()  # makes tables of characters, which take seconds
    every = [each for kind, some in kinds().items() if asked.kind in (None, kind) for each in some]
    shares = list(_shares([each for each in every if asked.only in each.name], asked))
    waiting = collections.Counter(share.target.name for share in shares)
    rows: dict[str, dict[str, Any]] = {}
    asked.out.mkdir(parents=True, exist_ok=True)
    for old in asked.out.glob("*.txt"):
        old.unlink()
    print(f"{'target':52} {'by':10} {'inputs':>7} {'answers':>8} {'refused':>8} {'findings':>8}")
    started = time.monotonic()
    for share, row in _in_children(shares, asked):
        name = share.target.name
        rows[name] = _joined(rows[name], row) if name in rows else row
        waiting[name] -= 1
        if not waiting[name]:
            _report(rows[name], asked.out)
        done = sum(each["inputs"] for each in rows.values())
        found = sum(each["found"] for each in rows.values())
        if sys.stderr.isatty():
            told = f"{done:,} of {asked.inputs:,} inputs, {found} findings"
            print(f"{told}, {time.monotonic() - started:.0f} s", end="\r", file=sys.stderr)
    (asked.out / "results.json").write_text(json.dumps(list(rows.values()), indent=1))
    print(f"{done:,} inputs for {len(rows)} targets, {found} findings; see {asked.out}")
    return 1 if found else 0


def _shares(targets: list[Any], asked: argparse.Namespace) -> Iterator[Share]:
    whole = sum(each.weight for each in targets)
    for target in targets:
        inputs = max(10, round(asked.inputs * target.weight / whole))
        parts = math.ceil(inputs / _SHARE)
        for part in range(parts):
            yield Share(target, inputs // parts + (part < inputs % parts), asked.seed + part)


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    counts = {key: one[key] + other[key] for key in _COUNTS}
    return {**one, **counts, "findings": {**other["findings"], **one["findings"]}}


def _report(row: dict[str, Any], out: Path) -> None:
    numbers = " ".join(f"{row[key]:>8}" for key in ("answers", "refused", "found"))
    print(f"{row['target']:52} {row['by']:10} {row['inputs']:>7} {numbers}", flush=True)
    for number, finding in enumerate(row["findings"].values()):
        print(f"\n{finding}\n", flush=True)
        name = re.sub(r"\W+", "-", row["target"])
        (out / f"{name}-{number}.txt").write_text(finding, errors="backslashreplace")


def _in_children(
    shares: list[Share], asked: argparse.Namespace
) -> Iterator[tuple[Share, dict[str, Any]]]:
    """Run every share in a child, several at a time, and yield what came of each at its end."""
    context = multiprocessing.get_context("fork")
    left, running = shares[::-1], {}
    with tempfile.TemporaryDirectory() as place:
        while left or running:
            while left and len(running) < max(1, asked.jobs):
                share, folder = left.pop(), Path(place) / str(len(left))
                folder.mkdir()
                child = context.Process(target=_run_one, args=(share, asked.seconds, folder))
                child.start()
                running[child.sentinel] = (child, share, folder, time.monotonic())
            ended = wait(list(running), timeout=10)
            for sentinel, (child, share, folder, since) in list(running.items()):
                if time.monotonic() - since > asked.seconds + _GRACE:
                    child.kill()
                elif sentinel not in ended:
                    continue
                child.join()
                del running[sentinel]
                yield share, _result(share, folder, child.exitcode)


def _result(share: Share, folder: Path, status: int | None) -> dict[str, Any]:
    """What a child wrote; a child that wrote nothing is a finding itself."""
    if (folder / "result.json").exists():
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found
    crash = f"{share.target.name}, seed {share.seed}: the process ended with status {status}\n"
    crash += (folder / "told").read_text(errors="replace")[-3000:]
    numbers = {**dict.fromkeys(_COUNTS, 0), "found": 1}
    return {"target": share.target.name, "by": "-", **numbers, "findings": {crash: crash}}


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
            self.findings.setdefault(f"{place} {lines[-1][:40]}", str(finding)[-6000:])
        if self.end == math.inf:  # the first input imports what the others find imported
            self.end = time.monotonic() + self.limit

    def write(self, path: Path) -> None:
        numbers = {key: self.counts[key] for key in _COUNTS}
        row = {"target": self.name, "by": self.by, **numbers, "findings": self.findings}
        path.write_text(json.dumps(row))


def _run_one(share: Share, seconds: float, folder: Path) -> None:
    from tests.fuzz.files import Target, remove_folder

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.path.insert(0, os.getcwd())
    out = folder / "result.json"
    with (folder / "told").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        _keep_inside(folder / "scratch")
        if not isinstance(share.target, Target):
            _by_hypothesis(share, seconds, out)
        elif importlib.util.find_spec("atheris"):
            _by_atheris(share, seconds, out)
        else:
            _by_mutation(share, seconds, out)
    remove_folder()  # a child does not run what is registered for the end of a process


def _keep_inside(scratch: Path) -> None:
    """Let a fed path, which a command may write to, lead to nothing outside of `scratch`.

    Relative paths do not leave it because the working folder is deep inside; other paths and the
    user's own folders are closed where the system can do that, and what the user's folders hold
    is not read.
    """
    from tests.fuzz.confinement import confine
    from tests.fuzz.files import folder

    deep = scratch.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    os.chdir(deep)
    os.environ |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"), str(scratch))
    tempfile.tempdir = str(scratch)
    confine([scratch.parent, folder().parent])


def _by_hypothesis(share: Share, seconds: float, out: Path) -> None:
    import hypothesis

    tally = Tally(share.target.name, "hypothesis", seconds)

    @hypothesis.seed(share.seed)
    @hypothesis.settings(
        max_examples=share.inputs,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(share.target.strategy())
    def run(given: Any) -> None:
        if not tally.is_over:
            tally.take(lambda: share.target.judge(given))

    run()
    tally.write(out)


def _by_mutation(share: Share, seconds: float, out: Path) -> None:
    from tests.fuzz.mutation import mutated

    tally = Tally(share.target.name, "mutation", seconds)
    seeds, chance = share.target.seeds(), random.Random(share.seed)
    while tally.counts["inputs"] < share.inputs and not tally.is_over:
        content = mutated(seeds, chance)
        tally.take(lambda content=content: share.target.judge(content))  # type: ignore[misc]
    tally.write(out)


def _by_atheris(share: Share, seconds: float, out: Path) -> None:
    import atheris

    from tests.fuzz.files import remove_folder
    from tests.fuzz.mutation import LARGEST

    tally = Tally(share.target.name, "atheris", seconds)
    corpus = Path("corpus")
    corpus.mkdir()
    with atheris.instrument_imports(
        include=["prudent", "prudent_lab", "prudent_verify", "sqlglot"]
    ):
        for number, seed in enumerate(share.target.seeds()):
            (corpus / str(number)).write_bytes(seed)
            with contextlib.suppress(BaseException):
                share.target.act(seed)  # imports what is to be instrumented

    def one(content: bytes) -> None:
        if not tally.is_over:
            tally.take(lambda: share.target.judge(content))
        if tally.is_over or tally.counts["inputs"] % 500 == 0:
            tally.write(out)
        if tally.is_over or tally.counts["inputs"] >= share.inputs:
            tally.write(out)
            remove_folder()
            os._exit(0)

    options = [f"-seed={share.seed}", f"-max_len={LARGEST}", "-timeout=0", "-rss_limit_mb=0"]
    atheris.Setup(["fuzz", *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
