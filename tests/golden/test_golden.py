"""What the library answered before a change of its insides, bit for bit: `golden.json` beside this.

Prices of events, statistics of several containers, trained weights, and the documents of commands,
all with seeded noise. A change that may not alter an answer leaves them equal; one that does alter
some writes them again, and says why:

    PRUDENT_TEST_GOLDEN=write python -m pytest tests/golden -m ''

Of a command, what differs between two runs in two folders is kept as its type alone. On a processor
or with a version of numpy or torch other than the recorded one the last bits may differ: there
numbers are compared to nine digits, and weights by their sums.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest

import prudent
from prudent import accounting
from tests.seeding import same_draws

FILE = Path(__file__).with_name("golden.json")
WRITE = os.environ.get("PRUDENT_TEST_GOLDEN") == "write"
RECORDED: dict[str, Any] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
CLOSE = 1e-9
LONG = pytest.mark.thorough


def machine(package: str) -> str:
    """What the last bits of a number depend on."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"]  # type: ignore[call-arg, index]
    version = __import__(package).__version__.partition("+")[0]
    return f"{package} {version}, {platform.machine()}, {simd.get('found')}"


def compare(part: str, name: str, found: Any, package: str = "numpy") -> None:
    """Compare an answer with the recorded one, or record it."""
    here = machine(package)
    if WRITE:
        RECORDED.setdefault(part, {})[name] = found
        RECORDED.setdefault("machines", {})[part] = here
        FILE.write_text(lines(RECORDED), encoding="utf-8")
    recorded = RECORDED[part][name]
    same = here == RECORDED["machines"][part]
    assert alike(json.loads(json.dumps(found)), recorded, exact=same), (name, found, recorded)


def lines(recorded: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each answer, so that a difference shows which one changed."""
    parts = []
    for part in sorted(recorded):
        answers = [
            f"  {json.dumps(name)}: {json.dumps(recorded[part][name], ensure_ascii=False)}"
            for name in sorted(recorded[part])
        ]
        parts.append(f"{json.dumps(part)}: {{\n" + ",\n".join(answers) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def alike(found: Any, recorded: Any, *, exact: bool) -> bool:
    """Whether an answer is the recorded one, where that names a type only, of that type."""
    if isinstance(recorded, str) and recorded.startswith("any "):
        return type(found).__name__ == recorded.removeprefix("any ") or found == recorded
    if isinstance(recorded, dict):
        return (
            isinstance(found, dict)
            and found.keys() == recorded.keys()
            and all(alike(found[key], recorded[key], exact=exact) for key in recorded)
        )
    if isinstance(recorded, list):
        return (
            isinstance(found, list)
            and len(found) == len(recorded)
            and all(alike(*pair, exact=exact) for pair in zip(found, recorded, strict=True))
        )
    if exact or found == recorded:
        return bool(found == recorded)
    if isinstance(recorded, str):
        if recorded.startswith("sha256 "):
            return True  # another machine: the sums beside it are compared
        with contextlib.suppress(ValueError):
            return math.isclose(
                float.fromhex(found), float.fromhex(recorded), rel_tol=CLOSE, abs_tol=CLOSE**2
            )
        return False
    return isinstance(recorded, float) and math.isclose(found, recorded, rel_tol=CLOSE)


# --- prices ---------------------------------------------------------------------------------------


def events() -> Iterator[dp.DpEvent]:
    """Twenty, of each kind, and of some inside others: sixty prices, by three relations."""
    test = accounting.LaplaceTest(2.0)
    tests = (test, accounting.DiscreteLaplaceTest(3.0), accounting.GaussianTest(4.0))
    gaussian, laplace = dp.GaussianDpEvent(2.0), dp.LaplaceDpEvent(2.0)
    chosen = accounting.ExponentialMechanismDpEvent(0.5)
    yield from (gaussian, laplace, chosen, accounting.ApproximateDpEvent(0.5, 1e-12))
    yield dp.dp_event.DiscreteLaplaceDpEvent(0.7, 1)
    yield from (*tests, accounting.DiscreteGaussianTest(4.0))
    for each, reveals in zip(tests, accounting.Reveals, strict=True):
        yield accounting.ProposeTestReleaseDpEvent(2.0, 0.5, each, 1e-7, reveals=reveals)
    yield accounting.ProposeTestReleaseDpEvent(math.inf, 0.0, test, 1e-12, 3.0)
    yield dp.PoissonSampledDpEvent(0.1, gaussian)
    yield dp.ComposedDpEvent([gaussian, laplace, chosen])
    yield dp.SelfComposedDpEvent(laplace, 30)
    yield accounting.WorstOfDpEvent([gaussian, laplace])
    yield accounting.BinomialSelectionDpEvent(gaussian, 20, 0.2)
    yield dp.dp_event.RepeatAndSelectDpEvent(gaussian, 5.0, 1.0)
    yield accounting.Run(sampling_rate=0.02, steps=200, noise_multiplier=1.2).event
    margin = {"test": test, "reveals": accounting.Reveals.MARGIN}
    yield accounting.Run(sampling_rate=0.01, steps=300, noise_multiplier=1.1, **margin).event


RELATIONS = [
    accounting.ADD_REMOVE,
    pytest.param(accounting.ZERO_OUT, marks=LONG),
    pytest.param(accounting.REPLACE_ONE, marks=LONG),
]


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda each: each.adjacency.value)
def test_prices(relation: Any) -> None:
    found = {}
    for place, event in enumerate(events()):
        delta = (1e-5, 1e-6, 1e-9)[place % 3]
        assert accounting.from_json(accounting.to_json(event)) == event
        epsilon = accounting.epsilon_of(event, delta, relation)
        least = accounting.PldAccountant().compose(event).get_delta(0.9)
        found[f"{place} {type(event).__name__}"] = [delta, epsilon.hex(), float(least).hex()]
    compare("prices", relation.adjacency.value, found)


# --- statistics -----------------------------------------------------------------------------------

COLUMNS = {
    "x": [float(n * 37 % 1009) for n in range(600)],
    "y": [float(n * 11 % 97) for n in range(600)],
    "kind": ["abcd"[n * n % 7 % 4] for n in range(600)],
    "yes": [n % 3 == 0 for n in range(600)],
}
STATISTICS: dict[str, dict[str, Any]] = {
    **{key: {} for key in ("median", "iqr", "sum", "mean", "variance", "deviation", "minimum")},
    **{key: {} for key in ("maximum", "count", "count_distinct", "describe")},
    "quantile": {"p": 0.9},
    "quantiles": {"ps": (0.1, 0.5)},
    "trimmed_mean": {"trim": 50, "propose": 30.0, "delta": 1e-6, "bounds": (0.0, 1009.0)},
    "histogram": {"edges": [0.0, 300.0, 1009.0]},
    "mode": {"column": "kind", "categories": ["a", "b", "c", "d"], "delta": 1e-6},
    "top_k": {"column": "kind", "categories": ["a", "b", "c", "d"]},
    "proportion": {"column": "yes"},
    **{key: {"other": "y"} for key in ("ratio", "covariance", "correlation")},
    "weighted_mean": {"weights": "y"},
}


def opened(engine: str, folder: Path) -> Any:
    """The same table, as several engines read it."""
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(COLUMNS), folder / "t.parquet")
    pd.DataFrame(COLUMNS).to_csv(folder / "t.csv", index=False)
    frames = {"arrow": pa.table, "pandas": pd.DataFrame, "polars": pl.DataFrame}
    return frames[engine](COLUMNS) if engine in frames else folder / f"t.{engine}"


def plain(released: Any) -> Any:
    """An answer in words that no rename inside the library changes."""
    if isinstance(released, dict):
        return {str(name): plain(each) for name, each in released.items()}
    if isinstance(released, list | tuple | np.ndarray):
        return [plain(each) for each in released]
    if isinstance(released, bool | int | str | None):
        return released
    if isinstance(released, float | np.generic):
        return float(released).hex()
    value = getattr(released, "value", released)
    return repr(value) if value is released else plain(value)


ENGINES = ("parquet", *(pytest.param(name, marks=LONG) for name in ("csv", "arrow", "pandas")))


@pytest.mark.parametrize("engine", [*ENGINES, pytest.param("polars", marks=LONG)])
def test_statistics(engine: str, tmp_path: Path) -> None:
    pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
    pytest.importorskip("ibis")
    data, found = opened(engine, tmp_path), {}
    for statistic, given in STATISTICS.items():
        with same_draws(f"golden {statistic} {engine}"):
            answer = getattr(prudent, statistic)(data, **{"column": "x", "epsilon": 1.0, **given})
        found[statistic] = plain(answer)
    compare("statistics", engine, found)


# --- training -------------------------------------------------------------------------------------


def plan(kind: str) -> Any:
    """A plan of a few steps."""
    size, trim = {"clip": 1.0, "noise_multiplier": 1.0}, prudent.FixedTrim(0.1)
    aggregation: Any = prudent.Sum(**size)
    if kind == "trimmed":
        aggregation = prudent.TrimmedSum(**size, trim=trim)
    if kind == "ptr":
        test = accounting.LaplaceTest(0.1)
        aggregation = prudent.ProposeTestRelease(**size, trim=trim, propose=0.5, test=test)
    return prudent.Plan(sampling_rate=0.2, steps=6, expected_batch=20, aggregation=aggregation)


def networks() -> dict[str, tuple[Any, tuple[int, ...]]]:
    from torch import nn

    convolution = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten())
    return {
        "linear": (nn.Linear(5, 3), (5,)),
        "convolution": (nn.Sequential(convolution, nn.Linear(48, 3)), (1, 6, 6)),
    }


@pytest.mark.parametrize("engine", ["bookkeeping", "materialised"])
@pytest.mark.parametrize("kind", ["sum", "trimmed", "ptr"])
@pytest.mark.parametrize("network", ["linear", "convolution"])
def test_trained_weights(kind: str, network: str, engine: str) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    model, shape = networks()[network]
    features = torch.randn(100, *shape)
    labels = torch.arange(100) % 3
    reporting = prudent.Reporting(progress=False)
    execution = prudent.Execution(engine=engine, seed=7)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    given = {"execution": execution, "reporting": reporting, "lr": 0.1}
    prudent.fit(plan(kind), model, loss, (features, labels), **given)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    found = [f"sha256 {digest}", round(float(weights.double().sum()), 4)]
    compare("weights", f"{network} {kind} {engine}", found, "torch")


# --- commands -------------------------------------------------------------------------------------


def document(words: tuple[str, ...], folder: Path, archive: Path) -> Any:
    """What a command answers with `--json`, in a folder of its own."""
    from tests.cli.conftest import prudent as run
    from tests.cli.test_manner import right

    os.environ["PRUDENT_KEYS"] = str(folder / "keys")  # restored by the fixture
    with same_draws(f"golden {' '.join(words)}"):
        answer = run(*words, *right(words, folder, archive), "--json", "--quiet")
    assert answer.status in (0, 3), answer
    # A receipt names the programs that are installed here.
    return json.loads(re.sub(r"SHA-256 [0-9a-f]{16}", "SHA-256 any", answer.out))


def shared(first: Any, second: Any) -> Any:
    """What two documents have in common; where they differ, the type."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {key: shared(first[key], second[key]) for key in first}
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [shared(*pair) for pair in zip(first, second, strict=True)]
    return first if first == second else f"any {type(first).__name__}"


# What takes minutes, and answers with the files that it wrote or with what this machine has.
SLOW = {("demo",), ("doctor",), ("paper", "figure"), ("paper", "report")}
QUICK = {("epsilon",), ("calibrate",), ("release", "median"), ("release", "mode"), ("sql",)} | {
    *(("budget", "create"), ("budget", "show"), ("verify",), ("keys",)),
}


def commands() -> Iterator[Any]:
    from tests.cli.test_manner import COMMANDS

    for words in COMMANDS:
        if words in SLOW:
            continue
        marks = [] if words in QUICK else [LONG]
        yield pytest.param(words, id=" ".join(words), marks=marks)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two folders, as the fixture of `tests.cli.test_manner` makes one."""
    pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from tests.cli.conftest import prudent as run
    from tests.cli.test_certify_run import written

    monkeypatch.setenv("PRUDENT_KEYS", str(tmp_path / "keys"))
    made = [tmp_path / "one", tmp_path / "another one"][: 2 if WRITE else 1]
    for folder in made:
        folder.mkdir()
        table = pa.table({"x": np.arange(1000.0), "y": np.arange(1000.0)})
        parquet.write_table(table, folder / "t.parquet")
        assert run("budget", "create", f"{folder}/b.db", "--epsilon=9", "--delta=1e-6").status == 0
        written(folder / "run")
    return made


@pytest.mark.parametrize("words", list(commands()))
def test_documents(words: tuple[str, ...], folders: list[Path], archive: Path) -> None:
    found = [document(words, folder, archive) for folder in folders]
    compare("documents", " ".join(words), short(functools.reduce(shared, found)))


def short(whole: Any) -> Any:
    """A document, or its digest if it is a long table."""
    text = json.dumps(whole, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return whole if len(text) < 5000 else [f"sha256 {digest}", len(text)]


def test_every_command_is_recorded_and_no_other() -> None:
    answering = {" ".join(each.values[0]) for each in commands()}
    assert answering == RECORDED["documents"].keys()


def test_a_difference_is_noticed() -> None:
    for found, recorded in (
        (1.0, 1.0000001),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1, 2], [1]),
        ("text", "any int"),
        ((0.1).hex(), (0.1 + 1e-6).hex()),
    ):
        assert not alike(found, recorded, exact=False)
        assert alike(recorded, recorded, exact=False)
    ulp = math.nextafter(0.1, 1)
    assert alike(ulp, 0.1, exact=False)
    assert not alike(ulp, 0.1, exact=True)
    assert shared({"a": 1, "b": "x"}, {"a": 1, "b": "y"}) == {"a": 1, "b": "any str"}
