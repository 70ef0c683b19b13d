"""Everything that is read from a file or a text, as functions of bytes, with valid seeds.

A target is fed with mutations of its seeds, see `mutation`.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import pkgutil
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
import safetensors.torch
import torch

from tests.fuzz.judging import FindingError, judge


@attrs.frozen
class Target:
    """Something that reads bytes from outside.

    Attributes:
        name: What it reads.
        seeds: Makes valid inputs.
        act: Reads one input.
        weight: Relative number of inputs; dear targets get fewer.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    act: Callable[[bytes], object]
    weight: float = 1.0

    def judge(self, content: bytes) -> BaseException | None:
        """Read one input; see `judging`."""
        return judge(self.name, content, lambda: self.act(content))


@functools.cache
def folder() -> Path:
    """A folder for the files of this process, in memory where the system has such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    keep = tempfile.TemporaryDirectory(prefix="prudent-fuzz-", dir=place)
    _KEPT.append(keep)
    return Path(keep.name)


_KEPT: list[Any] = []


def _reads(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Write the input to a file of this name, and read it."""

    def act(content: bytes) -> object:
        path = folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return act


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda content: read(content.decode("utf-8", "surrogateescape"))


def _calls(function: str) -> Callable[[Any], object]:
    """A function, as `module:name`, which is imported when it is called."""
    return lambda given: pkgutil.resolve_name(function)(given)


def _saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _array(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


# Data sets.


def _idx() -> list[bytes]:
    image = b"\x00\x00\x08\x03" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") * 2
    return [image + bytes(18), b"\x00\x00\x08\x01" + (5).to_bytes(4, "big") + bytes(5)]


def _read_cifar(path: Path) -> object:
    from prudent_lab import named_datasets as formats

    binary = path.suffix == ".bin"
    return formats.read_cifar_binary([path]) if binary else formats.read_cifar_packed(path)


def _npz() -> list[bytes]:
    features, labels = np.zeros((3, 2), np.float32), np.array([0, 1, 1])
    names = ("train_features", "train_labels", "test_features", "test_labels")
    arrays = dict(zip(names, (features, labels) * 2, strict=True))
    given = ({**arrays, "classes": 2}, arrays, {"x_train": features, "classes": 2})
    return [_saved(**each) for each in given]


def _read_npz(path: Path) -> object:
    from prudent_lab.datasets import archive_classes, load

    found = load(f"npz:{path}")
    if archive_classes(f"npz:{path}") != found.classes:
        raise FindingError("npz", str(path), "two readers, two numbers of classes")
    return found


def _classifier() -> list[bytes]:
    from prudent.certify import CertifiedClassifier
    from prudent.release import ReproducibleNoise

    found = CertifiedClassifier(1.0, 2, np.eye(2), noise=ReproducibleNoise(0))
    found.fit(np.eye(2), np.arange(2))
    path = folder() / "seed.npz"
    found.save(path)
    return [path.read_bytes()]


def _read_classifier(path: Path) -> object:
    from prudent.certify import CertifiedClassifier

    return CertifiedClassifier.load(path).predict_radius(np.eye(2))


def _read_landmarks(path: Path) -> object:
    from prudent.certify import CertifiedClassifier
    from prudent.release import ReproducibleNoise
    from prudent_lab.commands.certify import _rows

    found = CertifiedClassifier(1.0, 2, _rows(path), noise=ReproducibleNoise(0))
    return found.fit(np.eye(2), np.arange(2)).predict_radius(np.eye(2))


NETWORK = {
    "header": np.array('{"format": 1, "layers": [{"size": 0}], "provenance": {}}'),
    "weight0": np.ones((784, 2), np.int8),
    "gain0": np.ones(2, np.float32),
    "bias0": np.zeros(2, np.float32),
}
SENTENCES = {
    "header": np.array('{"format": 1, "provenance": {}}'),
    "centre": np.zeros(3),
    "direction": np.ones(3),
}


# Runs.


def _settings() -> list[bytes]:
    return [
        b'dataset = "mnist"\nmethod = "ptr"\nepsilon = 3.0\nsteps = 100\ntest = "gaussian:4"\n',
        b'method = "sgd"\nsteps = 5\ncorrupt = "label:0.1"\nseed = 3\nbatch = 8\n',
        b'relation = "zero-out"\nrecords_per_person = 2\naccountant = "rdp"\nsteps = 10\n'
        b"noise_multiplier = 1.1\naverage = 0.9\nlr = 0.1\n[other]\nx = 1979-05-27T07:32:00Z\n",
    ]


def _read_settings(path: Path) -> object:
    from prudent_lab.commands.train import _from_file, experiment_of

    return experiment_of(_from_file(path))


def _state() -> dict[str, Any]:
    return {"step": 3, "model": {"w": torch.zeros(2)}, "trim": 1.0}


def _checkpoint() -> list[bytes]:
    from prudent.training.run.checkpoint import save_checkpoint

    save_checkpoint(folder(), _state())
    return [(folder() / "checkpoint.pt").read_bytes()]


def _read_checkpoint(path: Path) -> object:
    from prudent.training.run.checkpoint import load_checkpoint

    return load_checkpoint(path.parent, torch.device("cpu"))


def _unsealed() -> list[bytes]:
    (sealed,) = _checkpoint()
    return [sealed[: -len(_seal(b""))]]


def _seal(content: bytes) -> bytes:
    from prudent.training.run.checkpoint import _SEAL

    return _SEAL + hashlib.sha256(content).digest()


def _read_resealed(content: bytes) -> object:
    """A checkpoint whose digest is right: what an attacker writes, not an accident."""
    return _reads("sealed/checkpoint.pt", _read_checkpoint)(content + _seal(content))


def _paid() -> list[bytes]:
    from prudent.accounting import ADD_REMOVE
    from prudent.accounting.serialisation import to_plain

    event = to_plain(dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 3))
    content = {"format": 1, "steps": 3, "renewals": 0, "event": event}
    content["relation"] = to_plain(ADD_REMOVE)
    return [json.dumps(content).encode()]


def _read_paid(path: Path) -> object:
    from prudent.training.run.checkpoint import charged

    return charged(path.parent)


def _read_metrics(path: Path) -> object:
    from prudent.training.run.metrics import last_entry

    return last_entry(path.parent)


# Accounting.


def _events() -> list[bytes]:
    from prudent.accounting import (
        ApproximateDpEvent,
        LaplaceTest,
        ProposeTestReleaseDpEvent,
        to_json,
    )
    from prudent.accounting.events import ExponentialMechanismDpEvent

    gaussian = dp.GaussianDpEvent(2.0)
    ptr = ProposeTestReleaseDpEvent(2.0, 0.5, LaplaceTest(1.0), 1e-6)
    events = (
        gaussian,
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, ptr), 3),
        dp.ComposedDpEvent([gaussian, dp.LaplaceDpEvent(3.0), ApproximateDpEvent(0.1, 1e-6)]),
        dp.ComposedDpEvent([ExponentialMechanismDpEvent(0.1), dp.NoOpDpEvent()]),
        ptr,
    )
    return [to_json(event).encode() for event in events]


def _price(text: str) -> object:
    """Read an event, describe it, write it, and price it; the price is never too low."""
    from prudent.accounting import PldAccountant, RdpAccountant, describe, from_json, to_json

    event = from_json(text)
    describe(event)
    if from_json(to_json(event)) != event:
        raise FindingError("event", text, "read again, it is another event")
    for accountant in (PldAccountant(), RdpAccountant()):
        if accountant.supports(event):
            epsilon = accountant.compose(event).get_epsilon(1e-5)
            least = _least_epsilon(event, 1e-5)
            if not epsilon >= least * (1 - 1e-9):
                raise FindingError(
                    "event", text, f"priced at {epsilon!r}, costs at least {least!r}"
                )
    return event


def _least_epsilon(event: dp.DpEvent, delta: float) -> float:
    """A lower bound on ε, by closed forms that share no code with the accountants.

    What is composed costs at least as much as its dearest part. A Gaussian run k times has the
    profile of one with noise σ/√k; other events count for nothing.
    """
    match event:
        case dp.ComposedDpEvent():
            return max((_least_epsilon(inner, delta) for inner in event.events), default=0.0)
        case dp.SelfComposedDpEvent(event=dp.GaussianDpEvent(noise_multiplier=noise)):
            return _gaussian_epsilon(noise / np.sqrt(event.count), delta) if event.count else 0.0
        case dp.SelfComposedDpEvent():
            return _least_epsilon(event.event, delta) if event.count else 0.0
        case dp.GaussianDpEvent():
            return _gaussian_epsilon(event.noise_multiplier, delta)
        case dp.LaplaceDpEvent():
            # δ(ε) = 1 − e^((ε − 1/b)/2)
            return max(0.0, 1 / event.noise_multiplier + 2 * float(np.log1p(-delta)))
        case dp.NonPrivateDpEvent():
            return float("inf")
    return 0.0


def _gaussian_epsilon(noise: float, delta: float) -> float:
    from scipy.stats import norm

    def profile(epsilon: float) -> float:
        shift = 1 / noise
        above = norm.logcdf(shift / 2 - epsilon / shift)
        below = epsilon + norm.logcdf(-shift / 2 - epsilon / shift)
        return float(np.exp(above) - np.exp(below))

    if not noise > 1e-3 or profile(0.0) <= delta:
        return 0.0 if noise > 1 else 1.0
    low, high = 0.0, 1 / noise**2 + 20 / noise
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > delta else (low, middle)
    return low


# Tables.


def _csv() -> list[bytes]:
    rows = "".join(f"{n},{n % 3},city {n % 2}\n" for n in range(40))
    return [f"x,who,city\n{rows}".encode(), f'"x";"y"\n{rows}'.encode()]


def _parquet() -> list[bytes]:
    import pyarrow as pa
    from pyarrow import parquet

    found = []
    for table in (
        pa.table({"x": np.arange(40.0), "who": np.arange(40), "city": ["a", "b"] * 20}),
        pa.table({"x": pa.array([1, None, 3], pa.decimal128(9, 2))}),
        pa.table({"x": pa.array([0, 1, 2], pa.timestamp("ns", "UTC"))}),
    ):
        file = io.BytesIO()
        parquet.write_table(table, file)
        found.append(file.getvalue())
    return found


def _released(path: Path) -> object:
    from prudent.release import ReproducibleNoise, median

    return median(path, "x", epsilon=1.0, noise=ReproducibleNoise(0))


@functools.cache
def _ibis_table() -> Any:
    import ibis

    types = {"year": "int64", "x": "float64", "city": "string", "at": "timestamp"}
    return ibis.table(types, name="t")


def _condition(text: str) -> object:
    from prudent.release.columns.row_values.expressions import parse_condition

    return parse_condition(text)(_ibis_table())


# Ledgers.


def _ledger() -> list[bytes]:
    from prudent.release import Ledger

    path = folder() / "seed.db"
    path.unlink(missing_ok=True)
    with Ledger.create(path, epsilon=1.0, delta=1e-6) as ledger:
        charge = ledger.charge(dp.GaussianDpEvent(50.0), "a label")
        ledger.record_outcome(charge, "released")
        ledger.charge(dp.LaplaceDpEvent(50.0), details={"column": "x", "statistic": "median"})
    return [path.read_bytes()]


def _read_ledger(path: Path) -> object:
    from prudent.release import Ledger

    for more in path.parent.glob(f"{path.name}-*"):
        more.unlink()
    with Ledger.open(path) as ledger:
        ledger.verify()
        return [charge.to_plain() for charge in ledger.history()], ledger.balance()


def _rows() -> list[bytes]:
    """The documents of a ledger, one per line."""
    _ledger()
    file = sqlite3.connect(folder() / "seed.db")
    found = file.execute("SELECT record FROM prudent_ledger ORDER BY sequence").fetchall()
    file.close()
    return ["\n".join(record for (record,) in found).encode()]


def _read_rows(content: bytes) -> object:
    """A ledger with these documents and right hashes, as whoever owns the database can make one."""
    from prudent.budget.allowance import BEFORE_THE_FIRST, _digest
    from prudent.budget.storage import LedgerRow

    path = folder() / "rows.db"
    path.write_bytes(
        (folder() / "empty.db").read_bytes() if (folder() / "empty.db").exists() else _empty()
    )
    last = BEFORE_THE_FIRST
    file = sqlite3.connect(path)
    for sequence, record in enumerate(content.decode("utf-8", "replace").split("\n")):
        last = LedgerRow(sequence, record, _digest(last, record))
        file.execute("INSERT INTO prudent_ledger VALUES ('default', ?, ?, ?)", last)
    file.commit()
    file.close()
    return _read_ledger(path)


def _empty() -> bytes:
    from prudent.budget.storage import open_store

    path = folder() / "empty.db"
    open_store(path, create=True).close()
    return path.read_bytes()


def _read_known(path: Path) -> object:
    from prudent.budget import allowance

    before = os.environ.get("PRUDENT_LEDGERS")
    os.environ["PRUDENT_LEDGERS"] = str(path)
    try:
        return allowance.check_only("d", "other.db", "default")
    finally:
        if before is None:
            del os.environ["PRUDENT_LEDGERS"]
        else:
            os.environ["PRUDENT_LEDGERS"] = before


# Archives and texts.


def _results() -> list[bytes]:
    from prudent_lab.paper.results import COLUMNS

    row = "mnist,label:0.1,ptr,,0,1.0,pld,100,1.1,90.5,0.5,3,"
    return [f"{','.join(COLUMNS)}\n{row}\n".encode()]


def _option(text: str) -> object:
    import typer

    from prudent.cli.answering import listed, read_bounds, rule_of
    from prudent.cli.options import read_number, read_whole_number

    for read in (read_number, read_whole_number, read_bounds, listed, rule_of):
        with contextlib.suppress(typer.BadParameter):
            read(text)
    return None


def _search_event() -> Any:
    from prudent.accounting import ApproximateDpEvent

    return ApproximateDpEvent(0.1, 0.0)


def _search_state() -> list[bytes]:
    from prudent.accounting import to_json
    from prudent.tune import Binomial

    event = json.loads(to_json(Binomial(2, 1.0).event(_search_event())))
    kept = {"format": 1, "name": "ab", "event": event, "settings": [{"x": 1}, {"x": 2}]}
    kept |= {"candidate": "", "begun": 1}
    return [json.dumps(kept).encode()]


def _search_result() -> list[bytes]:
    kept = json.loads(_search_state()[0]) | {"setting": {"x": 1}, "score": 1.0, "failed": False}
    return [json.dumps(kept | {"value": None}).encode()]


def _read_search(path: Path) -> object:
    """Resume the search in a folder; nothing else may be in it."""
    from prudent.tune import Binomial, Candidate, tune

    out = path.parent.parent if path.parent.name == "secret" else path.parent
    for other in {*out.iterdir(), *path.parent.iterdir()}:
        if other not in (path, path.parent):
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    candidate = Candidate(lambda setting, folder: 0.0, _search_event())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The search is resumed")
        return tune(
            candidate, lambda trial: None, trials=Binomial(2, 1.0), delta=0.0, out=out, resume=True
        )


@functools.cache
def _fits() -> list[bytes]:
    from prudent.estimators import GaussianNB, GradientBoostingRegressor
    from prudent.release import ReproducibleNoise
    from prudent.tune import saving

    features = np.random.default_rng(0).random((2000, 2))
    labels = (features[:, 0] > 0.5).astype(int)
    found = []
    for make, more in ((GaussianNB, {"classes": [0, 1]}), (GradientBoostingRegressor, {})):
        model = make(epsilon=5.0, noise=ReproducibleNoise(0), **more).fit(features, labels)
        saving.write(folder() / "written.json", model)
        found.append((folder() / "written.json").read_bytes())
    return found


def _read_fit(path: Path) -> object:
    from prudent.estimators import GaussianNB
    from prudent.tune import saving

    model = GaussianNB()
    given = model.get_params()
    saving.read(path, model)
    if model.get_params() != given:
        raise FindingError("fit of a search", str(path), "a file changed an argument")
    return model


@functools.cache
def _receipts() -> list[bytes]:
    from prudent.release import count, median

    path = folder() / "written-receipt.json"
    found = []
    for statistic, more in ((count, {}), (median, {"bounds": (0.0, 9.0), "certify": 1.0})):
        path.unlink(missing_ok=True)
        statistic([1.0, 2.0, 3.0] * 50, epsilon=1.0, receipt=path, **more)
        found.append(path.read_bytes())
    return found


LABS = "prudent_lab.named_datasets:"
TARGETS: tuple[Target, ...] = (
    Target(
        "receipt", _receipts, _reads("receipt.json", _calls("prudent_verify.checks:verify")), 0.2
    ),
    Target("idx", _idx, _reads("a-idx3-ubyte", _calls(f"{LABS}read_idx"))),
    Target(
        "idx, gzipped",
        lambda: [gzip.compress(each, mtime=0) for each in _idx()],
        _reads("a.gz", _calls(f"{LABS}read_idx")),
    ),
    Target("cifar binary", lambda: [bytes(2 * 3073)], _reads("a.bin", _read_cifar)),
    Target("cifar packed", lambda: [lzma.compress(bytes(3073))], _reads("a.xz", _read_cifar), 0.2),
    Target(
        "reviews",
        lambda: [b'[{"t": "good", "s": 1}, {"t": "bad", "s": 0}]'],
        _reads("reviews.json", _calls(f"{LABS}read_reviews")),
    ),
    Target(
        "census",
        lambda: [2 * (b"7, " * 41 + b"- 50000.\n")],
        _reads("census.csv", _calls(f"{LABS}read_census")),
    ),
    Target("npz", _npz, _reads("a.npz", _read_npz)),
    Target("classifier", _classifier, _reads("classifier.npz", _read_classifier)),
    Target(
        "landmarks",
        lambda: [
            _array(each) for each in (np.eye(2), np.eye(2, dtype=np.uint8), np.ones((3, 28, 28)))
        ],
        _reads("landmarks.npy", _read_landmarks),
    ),
    Target(
        "features network",
        lambda: [_saved(**NETWORK)],
        _reads("features.npz", _calls("prudent.certify.features:read_network")),
    ),
    Target(
        "features sentences",
        lambda: [_saved(**SENTENCES)],
        _reads("features.npz", _calls("prudent_lab.features.sentences:read")),
    ),
    Target(
        "safetensors",
        lambda: [safetensors.torch.save({"a.weight": torch.zeros(2, 3), "b": torch.ones(1)})],
        _reads("a.safetensors", _calls("prudent_lab.features.resnet:read_weights")),
    ),
    Target("settings", _settings, _reads("a.toml", _read_settings)),
    Target("checkpoint", _checkpoint, _reads("run/checkpoint.pt", _read_checkpoint)),
    Target("checkpoint, resealed", _unsealed, _read_resealed),
    Target("paid", _paid, _reads("run/paid.json", _read_paid)),
    Target(
        "metrics",
        lambda: [b'{"step": 1, "epsilon": 0.5, "evaluation": {"accuracy": 0.9}}\n' * 2],
        _reads("run/metrics.jsonl", _read_metrics),
    ),
    Target("event", _events, _text(_price), 0.5),
    Target("csv", _csv, _reads("a.csv", _released), 0.05),
    Target("parquet", _parquet, _reads("a.parquet", _released), 0.05),
    Target(
        "condition",
        lambda: [
            b"year = 2024 and city in ('Oslo', 'Bergen')",
            b"not (x between 1 and 2) or city like 'O%' and x is not null",
            b"cast(city as double) > -0.5 or day(at) = 3 and lower(city) <> 'b'",
            b"at >= date '2024-01-31' and x::double % 2 = 1e3",
        ],
        _text(_condition),
        0.5,
    ),
    Target("ledger file", _ledger, _reads("a.db", _read_ledger), 0.1),
    Target("ledger rows", _rows, _read_rows, 0.1),
    Target(
        "known ledgers",
        lambda: [b'{"data": "d", "ledger": "/nowhere/l.db", "dataset": "default"}\n' * 2],
        _reads("known.jsonl", _read_known),
    ),
    Target("results", _results, _reads("results.csv", _calls("prudent_lab.paper.results:read"))),
    Target("search state", _search_state, _reads("search/secret/state.json", _read_search), 0.2),
    Target("search result", _search_result, _reads("search/result.json", _read_search), 0.2),
    Target("fit of a search", _fits, _reads("model.json", _read_fit), 0.2),
    Target(
        "corruption",
        lambda: (
            b"label:0.1 gradient:0.1:variance=25 colluding:0.2:norm=1,direction_seed=3 none".split()
        ),
        _text(_calls("prudent_lab.corruption:parse")),
    ),
    Target(
        "test",
        lambda: b"laplace:1 gaussian:4 discrete-laplace:2.5 none discrete-gaussian:3".split(),
        _text(_calls("prudent.cli.options:parse_test")),
    ),
    Target(
        "options",
        lambda: b'1/3 0.5 1e-6 256/60000 0,100 2024-01-01,2024-12-31 "a,b",c'.split(),
        _text(_option),
    ),
)
