"""Inputs that once raised an error that nobody chose, leaked or hung; each is refused today."""

import gzip
import pickle
import warnings
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("torch", reason="most entries are about training")

import torch

from prudent._formats import DamagedFileError
from prudent._validate import ArgumentError
from prudent.release import SecureNoise
from prudent_lab import named_datasets as formats
from tests.fuzz import calls, files

XY = ("x_train", "y_train", "x_test", "y_test")
HUGE = b"\x00\x00\x08\x02" + (2**32 - 1).to_bytes(4, "big") * 2

FILES: list[tuple[str, bytes]] = [
    ("idx", b"\x00\x00\x08\x03\x00\x00\x00"),
    ("idx", b"\x00\x00\x08\xff" + bytes(1020)),
    ("idx", HUGE),  # a product of sizes that overflowed 64 bits
    ("idx, gzipped", b"\x1f:\x8b\x08"),
    ("idx, gzipped", gzip.compress(HUGE, mtime=0)[:-9]),
    ("cifar packed", b"\xfd7zXZ\x00\x00"),
    ("reviews", b'{"t": '),
    ("reviews", b"[" * 100_000),
    ("reviews", b'[{"s": ' + b"9" * 5000 + b"}]"),
    ("npz", b""),
    ("npz", b"PK\x03\x04"),
    ("npz", files._saved(x_train=np.zeros(3), y_train=np.zeros(3, int), x_test=np.zeros(3))),
    (
        "npz",
        files._saved(**dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.array("a"))),
    ),
    ("classifier", files._saved(released=np.zeros(2), header=np.array("[]"))),
    ("landmarks", files._saved(rows=np.eye(2))),
    ("landmarks", files._array(np.array(["a", "b"]))),
    ("features network", files._saved(header=np.array('{"layers": {"weights": 1}}'))),
    ("features network", files._saved(header=np.array('{"layers": [], "ballot": {}}'))),
    ("safetensors", b"\xff" * 8),
    ("torch weights", b"\x80" * 19),
    ("settings", b'dataset = "\xbd"'),
    ("settings", b"steps = " + b"9" * 5000),
    ("settings", b"a = " + b"[" * 5000),
    ("checkpoint, resealed", b"\x80\x02cos\nsystem\n(S'true'\ntR."),
    ("paid", b"[" * 100_000),
    ("metrics", b'{"step": 1, "a": "\xf5"}'),
    ("metrics", b'{"step": 1' + b"0" * 400 + b"}"),
    ("event", b'{"format": 1, "kind": "GaussianDpEvent", "noise_multiplier": "\\u001b[2J"}'),
    (
        "event",
        b'{"format": 1, "kind": "SelfComposedDpEvent", "count": null, '
        b'"event": {"kind": "NoOpDpEvent"}}',
    ),
    ("event", b"[" * 100_000),
    ("known ledgers", b'{"data": "d", "ledger": "/nowhere\xaf"}\n'),
    ("archive", b"PK\x05\x06"),
    ("results", b"dataset,\xed"),
    ("options", b"\r/3\r/3"),
    ("options", b"9" * 5002),
]

KINDS = ("Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian")
POISONS = ("Backdoor", "ClassMeanPoison", "RandomLabelFlip", "TargetedLabelFlip")
META = torch.zeros(2, device="meta")
AMBIGUOUS = np.array(["a", None], object)
ACCOUNTANTS = ("PldAccountant", "RdpAccountant")
RAGGED = [[1.0, 2.0], [3.0]]
UNLIKE = [np.zeros((2, 3)), np.zeros((2, 4))]  # numpy refuses it even as an array of objects
LISTS = [(kind, each) for kind in ("Pld", "Rdp") for each in ([], (1e-20, 0.5), RAGGED, UNLIKE)]

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("release.quantiles", {"ps": 44}),
    *(("release.describe", {"ps": each}) for each in (None, 0.9999999999999999, [0.5, None])),
    ("release.count", {"unit": AMBIGUOUS}),
    *((f"release.Lattice.for_{each}", {"bounds": META}) for each in ("unit", "proposal")),
    *((f"release.{each}", {"bounds": META}) for each in ("sum", "median", "ratio")),
    *(("release.quantile", {"p": each}) for each in (META, float("inf"), Decimal("Infinity"))),
    ("release.Ledger.create", {"adaptive": torch.zeros(0)}),
    ("release.Ledger.create", {"data": "d", "another": torch.zeros(0)}),
    ("accounting.price_list", {"delta": [1e-9, 1e-10]}),
    *((f"corruption.{each}.apply", {"classes": 2**67}) for each in POISONS),
    ("accounting.PldAccountant.profile", {"epsilons": [10**400]}),
    ("training.suggest_aggregation", {"norms": 10**400}),
    ("release.quantile", {"failure": AMBIGUOUS, "delta": 877464}),
    ("release.median", {"fallback": AMBIGUOUS}),
    ("release.median", {"dry_run": AMBIGUOUS}),
    ("release.open_groups", {"by": None}),
    ("release.open_groups", {"groups": 124207}),
    ("release.open_groups", {"column": [1e-40]}),
    ("release.open_groups", {"unit": [1e-40]}),
    ("release.ratio", {"column": [1e-40]}),
    ("release.open_column", {"source": RAGGED}),
    ("release.ProposeTestReleaseMechanism", {"monotone": np.ma.masked_array([1.0, 2.0], [1, 0])}),
    ("release.ProposeTestReleaseMechanism", {"monotone": torch.ones(2)}),
    *(("release.Ledger", {name: np.array([])}) for name in ("adaptive", "relation")),
    ("release.PartitionSelection.needed", {"probability": torch.tensor(0.5)}),
    ("release.quantile", {"confidence": Decimal("0.9")}),
    ("training.check", {"made_up": np.array(["a", None], dtype=object)}),
    ("release.describe", {"groups": "private", "by": np.array([])}),
    *(
        ("release.ProposeTestReleaseMechanism.calibrate", {name: torch.zeros(2, 3)})
        for name in ("fallback", "monotone")
    ),
    ("release.open_column", {"kind": AMBIGUOUS}),
    ("release.Lattice", {"high": None}),
    ("release.check_margin", {"domain": None}),
    ("release.check_margin", {"size": 729}),
    ("release.on_lattice", {"mechanism": None}),
    ("release.Distribution", {"value": None}),
    ("release.Branch", {"value": AMBIGUOUS}),
    ("release.ReproducibleNoise", {"seed": "mean"}),
    ("release.Ledger.create", {"data": 124207}),
    ("release.Ledger.create", {"location": 1e-285}),
    ("release.Ledger.create", {"relation": -5440}),
    ("release.Ledger.create", {"location": np.array(0.5), "data": "pld"}),
    ("release.Ledger.create", {"epsilon": "x"}),
    ("release.Ledger", {"delta": 1j}),
    ("release.Ledger.charge", {"details": 1.0}),
    ("release.Ledger.verify", {"digest": [None]}),
    *((f"accounting.{kind}Test.tail", {"distance": None}) for kind in KINDS),
    *((f"accounting.{kind}Test.tail", {"distance": "x"}) for kind in KINDS),
    *((f"accounting.{kind}Test.tail", {"distance": float("nan")}) for kind in KINDS),
    *((f"accounting.{kind}Test.tail", {"distance": float("inf")}) for kind in KINDS),
    *((f"accounting.{kind}Test.tail", {"distance": -1e300}) for kind in KINDS),
    ("accounting.DiscreteGaussianTest.threshold", {"failure": Fraction(1, 3)}),
    ("accounting.PldAccountant.compose", {"event": None}),
    ("accounting.PldAccountant.compose", {"count": 2e181}),
    *(("accounting.Adjacency", {"value": each}) for each in (np.array([]), AMBIGUOUS, [])),
    *((f"accounting.{kind}Accountant.get_epsilon", {"target_delta": each}) for kind, each in LISTS),
    *((f"accounting.{kind}Accountant.get_delta", {"target_epsilon": each}) for kind, each in LISTS),
    ("accounting.PldAccountant.profile", {"epsilons": "mean"}),
    *((f"accounting.{kind}.get_delta", {"target_epsilon": 1.7e308}) for kind in ACCOUNTANTS),
    ("accounting.RdpAccountant", {"orders": 48}),
    ("accounting.RdpAccountant", {"orders": torch.empty(3, device="meta")}),
    ("accounting.RdpAccountant.compose", {"count": 2e181}),
    ("accounting.Run.epsilon", {"accountant": None}),
    ("accounting.Run.replace", {"parameter": None}),
    ("accounting.Run.replace", {"value": "\ud800"}),
    ("accounting.best_test", {"run": []}),
    ("accounting.epsilon_of", {"relation": "x"}),
    ("accounting.to_json", {"event": None}),
    ("accounting.from_json", {"text": None}),
    ("training.Execution", {"device": "mean"}),
    ("training.PoissonSampler", {"device": None}),
    ("training.PoissonSampler", {"processes": range(3)}),
    ("training.PoissonSampler.batch", {"step": 0.7}),
    ("training.PoissonSampler.batch", {"step": 2e177}),
    ("training.Step", {"plan": []}),
    *(("training.Step", {name: "x"}) for name in ("model", "processes")),
    ("training.Step", {"model": torch.nn.ReLU()}),
    *(("training.Plan.epsilon_after", {"steps": 2**power}) for power in (53, 64)),
    *(("training.Reporting", {name: np.array([])}) for name in ("progress", "resume")),
    *(("training.fit", {"lr": each}) for each in (1.3e180, -410, 2**64)),
    ("training.Reporting", {"out": 176}),
    ("training.fit", {"corrupt": "mean"}),
    ("training.Reporting", {"evaluate": 124207}),
    *(("training.fit", {name: [None]}) for name in ("execution", "reporting")),
    ("training.make_private", {"optimizer": []}),
    ("training.check", {"model": "x"}),
    ("training.gradient_norms", {"execution": "mean"}),
    ("training.suggest_aggregation", {"norms": None}),
    ("release.open_column", {"kind": AMBIGUOUS, "source": AMBIGUOUS}),
    *(
        (f"certify.CertifiedClassifier.{name}", {"X": each})
        for name in ("predict", "scores", "score")
        for each in (None, 0.4, {"a": 1})
    ),
    *(("certify.CertifiedClassifier.certified_score", {"y": each}) for each in (None, 0.3)),
    ("certify.CertifiedClassifier.load", {"path": None}),
    *(("certify.CertifiedClassifier.load", {"features": each}) for each in (2**31, (-1.9, 5.7))),
    ("certify.CertifiedClassifier.score", {"y": (-3.5, 1.0)}),
    *(("certify.CertifiedClassifier.certified_score", {each: RAGGED}) for each in "Xy"),
    ("certify.CertifiedClassifier.certified_score", {"X": [], "records": '"'}),
    ("corruption.FeatureNoise.apply", {"labels": "x"}),
    ("corruption.corrupted_mask", {"device": (1.0,)}),
    *(("corruption.corrupted_mask", {"records": each}) for each in (2.3e16, 8.6e232)),
    ("corruption.corrupted_records", {"records": 1.36e16}),
    ("corruption.parse", {"text": None}),
    *(("certify.CertifiedClassifier", {"noise": each}) for each in (64, [], SecureNoise)),
    *(("certify.CertifiedClassifier", {"ramp": each}) for each in (True, "x", AMBIGUOUS)),
    *(("certify.CertifiedClassifier", {"landmarks": each}) for each in (2 * 10**24, ["a"], RAGGED)),
    ("certify.CertifiedClassifier", {"classes": torch.zeros(3, device="meta")}),
    ("federated.RoundRelease", {"plan": "x"}),
]


def numbered(inputs: Sequence[tuple[str, Any]]) -> list[str]:
    """Names for tests that are the same in every process, whatever an input holds."""
    return [f"{number} {name}" for number, (name, _) in enumerate(inputs)]


@pytest.mark.parametrize(("name", "content"), FILES, ids=numbered(FILES))
def test_a_file_is_refused(name: str, content: bytes) -> None:
    target = next(each for each in files.TARGETS if each.name == name)
    target.judge(content)


@pytest.mark.parametrize(("name", "replaced"), CALLS, ids=numbered(CALLS))
def test_a_call_is_refused(name: str, replaced: dict[str, Any]) -> None:
    call = calls.named(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call.judge(replaced)


def test_a_damaged_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\x03\x04 a secret")
    with pytest.raises(DamagedFileError, match=r"Expected .*a\.npz to be an \.npz") as caught:
        files._read_npz(path)
    assert caught.value.path == str(path)
    assert caught.value.__suppress_context__
    assert "secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_one_line_of_the_census_does_not_decide_about_others(tmp_path: Path) -> None:
    good = ", ".join(["7"] * 41 + ["- 50000."])
    for odd in ('"' + good, "a\rb", "x" * 200_000, '"', ""):
        (tmp_path / "census.csv").write_text(f"{good}\n{odd}\n{good}\n", newline="")
        rows, labels = formats.read_census(tmp_path / "census.csv")
        assert labels.tolist() == [0, -1, 0]
        assert np.isfinite(rows[[0, 2]]).all()


def test_a_value_is_shown_in_bounds_and_without_passwords() -> None:
    assert len(str(ArgumentError("x", "short", got="a" * 10**6))) < 2000
    assert "<int>" in str(ArgumentError("x", "short", got=10**5000))
    assert "hunter" not in str(ArgumentError("x", "a path", got="postgresql://me:hunter@h/d"))
    assert "hunter" not in str(ArgumentError("x", "a path", shown="password=hunter"))
