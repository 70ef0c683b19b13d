"""Every public entry with arguments that are right, and what takes their place.

An input of a call is its right arguments with up to three of them replaced. `EXCLUDED` names the
public names that are no target, each with its reason; `test_fuzz.py` checks that none is missing.
"""

import decimal
import fractions
import functools
import io
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import hypothesis.strategies as st
import numpy as np
import torch
from torch import nn

from tests.fuzz.files import TARGETS, folder
from tests.fuzz.judging import FindingError, judge
from tests.tiers import CHARACTERS


@attrs.frozen
class Call:
    """A public entry.

    Attributes:
        name: Its name, as `module.name` or `module.Class.method`.
        make: Makes its right arguments, by name, and the function that takes them.
        weight: Relative number of inputs; dear calls get fewer.
        check: What must hold of an answer.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]
    weight: float = 1.0
    check: Callable[[dict[str, Any], Any], None] | None = None

    def strategy(self) -> st.SearchStrategy[dict[str, Any]]:
        """The arguments that are replaced, by name, with what takes their place."""
        _, arguments = self.make()
        names = st.sampled_from(sorted(arguments))
        return st.dictionaries(names, VALUES, min_size=1, max_size=min(3, len(arguments)))

    def judge(self, replaced: Mapping[str, Any]) -> BaseException | None:
        """Call the entry with some arguments replaced; see `judging`."""
        return judge(self.name, replaced, lambda: self.run(replaced))

    def run(self, replaced: Mapping[str, Any]) -> Any:
        """Call the entry with some arguments replaced, and check what it answers."""
        function, arguments = self.make()
        given = arguments | dict(replaced)
        answer = function(**given)
        if self.check is not None:
            self.check(given, answer)
        return answer


class Awkward:
    """An object that answers nothing about itself."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "Awkward()"


class Lying:
    """An object that claims to be a number, a sequence and an array, and is none."""

    def __float__(self) -> float:
        raise TypeError("no number")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        raise IndexError(index)

    def __repr__(self) -> str:
        return "Lying()"


def _generator() -> Any:
    yield 1.0


PLAIN: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-9, 5e-324, 1e-300, 1e300, 1.7e308, 1e16, 1 - 1e-16),
    *(float("nan"), float("inf"), float("-inf"), 1j, decimal.Decimal("0.1")),
    *(decimal.Decimal("NaN"), decimal.Decimal("1e9999"), fractions.Fraction(1, 3)),
    *("", "a", "1", "0.5", "nan", "private", "none", "x\x00y", "\ud800", "\x1b[2J", "../..", "é"),
    *("a" * 5000, "'; DROP TABLE t; --", '"', "laplace", "pld", "cuda:99", "meta", "mean"),
    *(b"", b"\xff\x00", (), (1,), (1, 2), (2, 1), (float("nan"), 1.0), [], [None], ["a", 1]),
    *({}, {"a": 1}, {1: "b"}, frozenset({1}), range(3), int, float, len, object(), ...),
    *(Path("nowhere.csv"), Path("/"), np.float32(0.5), np.int64(3), np.float64("nan")),
    *(Awkward(), Lying(), dp.GaussianDpEvent(1.0), dp.NoOpDpEvent(), dp.NonPrivateDpEvent()),
)

MADE: tuple[Callable[[], Any], ...] = (
    _generator,
    io.BytesIO,
    lambda: [[1.0, 2.0], [3.0]],
    lambda: np.zeros(0),
    lambda: np.zeros((2, 2)),
    lambda: np.array(0.5),
    lambda: np.array(["a", None], object),
    lambda: np.array([1 + 1j]),
    lambda: np.array(["NaT"], "datetime64[s]"),
    lambda: np.array([np.nan, np.inf, -np.inf, 1e308]),
    lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    lambda: torch.zeros(0),
    lambda: torch.zeros(2, 3),
    lambda: torch.tensor(0.5),
    lambda: torch.tensor([float("nan")]),
    lambda: torch.zeros(3, device="meta"),
    lambda: nn.Linear(2, 2),
)
"""Made anew each time, because whoever gets one may change it."""

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(PLAIN),
    st.sampled_from(MADE).map(lambda make: make()),
    st.floats(),
    st.floats(0, 1),
    st.integers(),
    st.integers(0, 100),
    st.text(CHARACTERS, max_size=12),
    st.lists(st.floats(), max_size=4),
    st.tuples(st.floats(), st.floats()),
    st.lists(st.one_of(st.integers(), st.text(CHARACTERS, max_size=3), st.none()), max_size=3),
)


def _never_below(given: dict[str, Any], answer: Any) -> None:
    """An ε is a number, not negative and not NaN; an array of δ gives one of them for each."""
    if not np.all(np.asarray(answer) >= 0):
        raise FindingError("an ε", repr(given), f"got {answer!r}")


DATA = np.linspace(0.0, 100.0, 200)
VECTORS = np.ones((50, 3))
COST = {"epsilon": 1.0, "delta": 1e-6}


def _noise() -> Any:
    from prudent.release import ReproducibleNoise

    return ReproducibleNoise(0)


def _table() -> Any:
    import pyarrow as pa

    return pa.table({"x": DATA, "who": np.arange(200) % 50, "city": ["Oslo", "Bergen"] * 100})


class Charges:
    """A ledger that counts its charges."""

    def __init__(self) -> None:
        self.made = 0

    def charge(self, event: Any, label: str, delta: float | None = None) -> None:
        self.made += 1


def _before_the_charge(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; arguments that it refuses after it has charged its ledger are a finding."""

    def run(**given: Any) -> Any:
        try:
            return function(**given)
        except Exception as error:
            ledger, data = given.get("ledger"), given.get("data", given.get("vectors"))
            is_right = data is DATA or data is VECTORS or type(data).__module__ == "pyarrow.lib"
            if is_right and isinstance(ledger, Charges) and ledger.made:
                told = "".join(traceback.format_exception(error)[-12:])
                raise FindingError("after a charge", repr(given), told) from error
            raise

    return run


def _release(name: str, /, **own: Any) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        import inspect

        from prudent import release

        function = getattr(release, name)
        shared = dict.fromkeys(
            ("column", "unit", "per_unit", "by", "groups", "where", "read_as", "connect")
        ) | {
            "data": DATA,
            "dry_run": False,
            "table": None,
            "bounds": None,
            "distribution": release.Distribution.LAPLACE,
        }
        shared |= {
            "ledger": Charges(),
            "fallback": False,
            "test": None,
            "failure": None,
            "certify": None,
        }
        shared |= {"confidence": 0.95, "noise": _noise(), **COST, **own}
        taken = inspect.signature(function).parameters
        given = {
            key: value.make() if isinstance(value, Made) else value
            for key, value in shared.items()
            if key in taken or key in own
        }
        return _before_the_charge(function), given

    return make


def _on_table(name: str, /, **own: Any) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    column = {} if name in ("table", "sql") else {"column": "x"}
    return _release(name, **{"data": _table(), **column, **own})


_QUERY = "SELECT city, MEDIAN(x), AVG(CLIP(x, 0, 9)), COUNT(*) FROM data WHERE x > 1 GROUP BY city"

_BY_COLUMN = {"x": ["median", "mean"], "who": "count"}


def _questions() -> Any:
    from prudent.release import Ask

    return [Ask("median", "x", name="middle"), "count(*)", Ask("quantile", "x", p=0.9)]


def _of(path: str, /, **arguments: Any) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    """An entry by its path in prudent; arguments that are functions are made anew each time."""

    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        return _found(path), {
            name: value.make() if isinstance(value, Made) else value
            for name, value in arguments.items()
        }

    return make


@attrs.frozen
class Made:
    """An argument that is made anew for each call."""

    make: Callable[[], Any]


def _found(path: str) -> Any:
    import importlib

    module, _, names = path.partition(":")
    own = module if module.startswith("prudent_lab.") else f"prudent.{module}".rstrip(".")
    found: Any = importlib.import_module(own)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def _method(maker: Callable[[], Any], method: str, /, **arguments: Any) -> Any:
    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        given = {k: v.make() if isinstance(v, Made) else v for k, v in arguments.items()}
        return getattr(maker(), method), given

    return make


def _test() -> Any:
    from prudent.accounting import GaussianTest

    return GaussianTest(4.0)


def _ptr_events() -> Any:
    return [_ptr_event(), dp.GaussianDpEvent(2.0)]


def _ptr_event() -> Any:
    from prudent.accounting import ProposeTestReleaseDpEvent

    return ProposeTestReleaseDpEvent(2.0, 0.5, _test(), 1e-6)


def _sum() -> Any:
    from prudent.training import Sum

    return Sum(clip=1.0, noise_multiplier=1.0)


def _aggregation() -> Any:
    from prudent.training import ProposeTestRelease

    return ProposeTestRelease(clip=1.0, noise_multiplier=1.0, propose=0.5, test=_test())


def _plan() -> Any:
    from prudent.training import Plan

    return Plan(sampling_rate=0.1, steps=2, aggregation=_sum(), expected_batch=2.0)


def _run() -> Any:
    from prudent.accounting import Run

    return Run(sampling_rate=0.1, steps=3)


def _pld() -> Any:
    from prudent.accounting import PldAccountant

    return PldAccountant().compose(dp.GaussianDpEvent(1.0))


def _rdp() -> Any:
    from prudent.accounting import RdpAccountant

    return RdpAccountant().compose(dp.GaussianDpEvent(1.0))


def _relation() -> Any:
    from prudent.accounting import ADD_REMOVE

    return ADD_REMOVE


def _mechanism() -> Any:
    from prudent.release import ProposeTestReleaseMechanism

    return ProposeTestReleaseMechanism.calibrate(propose=1.0, **COST)


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(40.0).reshape(20, 2) / 40, torch.arange(20) % 2


def _model() -> nn.Module:
    return nn.Linear(2, 2)


def _loss() -> nn.Module:
    return nn.CrossEntropyLoss(reduction="none")


def _fresh() -> str:
    """A place where there is no ledger yet."""
    path = folder() / "ledger.db"
    for each in folder().glob("ledger.db*"):
        each.unlink()
    return str(path)


def _ledger() -> Any:
    from prudent.release import Ledger

    return Ledger.create(_fresh(), **COST)


def _existing() -> str:
    _ledger().close()
    return str(folder() / "ledger.db")


def _file(name: str) -> str:
    """A valid file of `tests.fuzz.files`."""
    target = next(each for each in TARGETS if each.name == name)
    path = folder() / f"valid-{name}.{'npz' if name != 'safetensors' else name}"
    path.write_bytes(target.seeds()[0])
    return str(path)


def _private() -> Callable[..., Any]:
    """`make_private` with an optimizer of the model that it is given."""
    from prudent.training import make_private

    return make_private


def _private_call() -> tuple[Callable[..., Any], dict[str, Any]]:
    model = _model()
    data = torch.utils.data.TensorDataset(*_pairs())
    return _private(), {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "loader": torch.utils.data.DataLoader(data, batch_size=4),
        "epsilon": 3.0,
        "delta": 1e-5,
        "epochs": 1,
        "clip": 1.0,
        "aggregation": None,
        "plan": None,
        "loss_reduction": "mean",
        "max_physical_batch": None,
        "key": None,
    }


def _shape() -> Any:
    import scipy.stats

    return scipy.stats.norm(0, 10)


def _classifier() -> Any:
    from prudent.certify import CertifiedClassifier

    return CertifiedClassifier(1.0, 10, np.eye(784)[::40], noise=_noise())


def _classify(**arguments: Any) -> Any:
    """Make a classifier and fit it: what it is made with is checked there."""
    from prudent.certify import CertifiedClassifier

    return CertifiedClassifier(**arguments).fit(np.eye(3), np.arange(3))


def _fitted() -> Any:
    images, labels = _images(), np.arange(10)
    return _classifier().fit(images, labels)


def _images() -> Any:
    return np.random.default_rng(0).integers(0, 256, (10, 28, 28)).astype(np.uint8)


def _corruption(kind: str, **more: Any) -> Call:
    return Call(f"corruption.{kind}", _of(f"prudent_lab.corruption:{kind}", ratio=0.1, **more))


def _data_corruption(kind: str) -> Call:
    features, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 3
    maker = functools.partial(_of(f"prudent_lab.corruption:{kind}", ratio=0.2))

    def made() -> Any:
        function, arguments = maker()
        return function(**arguments)

    arguments = {"features": features, "labels": labels, "classes": 3, "seed": 0}
    return Call(f"corruption.{kind}.apply", _method(made, "apply", **arguments), 0.3)


def _released() -> Any:
    from prudent.release import count

    return count(DATA, epsilon=1.0, noise=_noise())


def _reviews_folder() -> str:
    (folder() / "reviews.json").write_text('[{"t": "a", "s": 1}]')
    return str(folder())


def _experiment() -> tuple[Callable[..., Any], dict[str, Any]]:
    from prudent_lab.settings import Experiment, setting_fields

    fields = [field for _, field, _ in setting_fields()]
    plain = {f.name: f.default for f in fields if not isinstance(f.default, attrs.Factory)}
    return Experiment.of, plain | {"steps": 10}


_OF_ESTIMATORS = {"epsilon": 5.0, "delta": 1e-6, "ledger": None}
_OF_REGRESSIONS = {"r2": True, "certify": None, "bounds": None}
_OF_TREES = {"n_estimators": 2, "learning_rate": 0.4}
_ESTIMATORS: dict[str, dict[str, Any]] = {
    "LinearRegression": _OF_REGRESSIONS,
    "Ridge": _OF_REGRESSIONS | {"alpha": 1.0},
    "QuantileRegressor": {"quantile": 0.5, "certify": 0.5, "bounds": {0: (0.0, 1.0)}},
    "LogisticRegression": {"classes": [0, 1], "bounds": None},
    "GaussianNB": {"classes": [0, 1], "bounds": None},
    "GradientBoostingClassifier": {"classes": [0, 1], **_OF_TREES},
    "GradientBoostingRegressor": _OF_TREES,
    "KMeans": {"n_clusters": 2, "bounds": None},
    "PCA": {"n_components": 1, "bounds": None},
}
"""The arguments of each estimator, besides those of all of them."""


@functools.cache
def _rows() -> tuple[Any, Any]:
    """Features and labels of records that are enough for every estimator."""
    features = np.random.default_rng(0).random((5000, 2))
    return features, (features[:, 0] > 0.5).astype(int)


def _estimator(name: str) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    """Make an estimator and fit it: what it is made with is checked there."""

    def fit(**arguments: Any) -> Any:
        return _found(f"estimators:{name}")(**arguments).fit(*_rows())

    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        return fit, _ESTIMATORS[name] | _OF_ESTIMATORS | {"noise": _noise()}

    return make


def _unfitted(name: str, **arguments: Any) -> Any:
    _, given = _estimator(name)()
    return _found(f"estimators:{name}")(**given | arguments)


def _fit_call(name: str) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        features, labels = _rows()
        given = dict.fromkeys(("features", "connect", "table", "where"))
        return _unfitted(name).fit, given | {"X": features, "y": labels}

    return make


@functools.cache
def _fitted_estimator(name: str) -> Any:
    return _unfitted(name).fit(*_rows())


def _query_call(name: str, method: str) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        asked = np.ones((3, 1 if method == "inverse_transform" else 2))
        return getattr(_fitted_estimator(name), method), {"X": asked}

    return make


def _search_call() -> tuple[Callable[..., Any], dict[str, Any]]:
    from prudent.tune import Binomial, search

    features, labels = _rows()
    return search, {
        "estimator": _unfitted("LogisticRegression"),
        "grid": {"epsilon": [1.0, 2.0]},
        "data": (features, labels),
        "held_out": (features[:20], labels[:20]),
        "trials": Binomial(1, 1.0),
        "delta": 1e-5,
        "score_noise": _found("accounting:DiscreteLaplaceTest")(2.0),
        "tolerance": None,
        "disjoint": False,
        "epsilon": None,
        "ledger": None,
        "out": None,
        "resume": False,
    }


_FIT: dict[str, Any] = {
    "optimizer": torch.optim.SGD,
    "scheduler": None,
    "collate_fn": None,
    "execution": None,
    "corrupt": None,
    "average": None,
    "reporting": None,
    "delta": 1e-5,
    "ledger": None,
    "lr": 0.1,
}

CALLS: tuple[Call, ...] = (
    # Releases, from arrays and from tables.
    *(
        Call(f"release.{name}", make, 0.05 if name in ("search_quantile", "trimmed_sum") else 0.5)
        for name, make in (
            ("median", _release("median", propose=None)),
            ("quantile", _release("quantile", p=0.5, propose=None)),
            ("quantiles", _release("quantiles", ps=(0.25, 0.5))),
            ("iqr", _release("iqr", propose=5.0)),
            ("count", _release("count")),
            ("sum", _release("sum", bounds=(0.0, 100.0))),
            ("mean", _release("mean", bounds=(0.0, 100.0))),
            ("variance", _release("variance", bounds=(0.0, 100.0))),
            ("histogram", _release("histogram", edges=(0.0, 50.0, 100.0), bins=20)),
            ("mode", _release("mode", propose=None, categories=None)),
            ("trimmed_mean", _release("trimmed_mean", trim=40, propose=5.0, default=None)),
            ("certify_quantile", _release("certify_quantile", p=0.5, low=None, high=90.0)),
            ("search_quantile", _release("search_quantile", p=0.5, proposals=(1.0, 10.0), **COST)),
            ("describe", _release("describe", ps=(0.25, 0.5))),
            ("count_distinct", _release("count_distinct")),
            ("proportion", _release("proportion", data=DATA > 50.0)),
            ("deviation", _release("deviation", bounds=(0.0, 100.0))),
            ("minimum", _release("minimum")),
            ("maximum", _release("maximum")),
            (
                "trimmed_sum",
                _release("trimmed_sum", vectors=VECTORS, trim=20, propose=1.0, bound=2.0),
            ),
        )
    ),
    *(
        Call(f"release.{name} of a table", make, 0.1)
        for name, make in (
            ("median", _on_table("median", propose=5.0)),
            ("count", _on_table("count", unit="who", per_unit="max")),
            ("mean", _on_table("mean", bounds=(0.0, 100.0), by="city", groups=["Oslo", "Bergen"])),
            ("mode", _on_table("mode", column="city", where="x > 10", categories=["Oslo"])),
            ("histogram", _on_table("histogram", edges=None, bins=4, read_as=None)),
            ("count_distinct", _on_table("count_distinct", unit="who", per_unit=2)),
            ("proportion", _on_table("proportion", column="x > 10", by="city", groups="private")),
            ("top_k", _on_table("top_k", column="city", k=1, categories="private")),
        )
    ),
    *(
        Call(f"release.{name}", make, 0.1)
        for name, make in (
            ("top_k", _on_table("top_k", column="city", k=1, categories=["Oslo", "Bergen"])),
            ("ratio", _on_table("ratio", other="who", other_bounds=(0.0, 50.0))),
            ("covariance", _on_table("covariance", other="who", other_bounds=None)),
            ("correlation", _on_table("correlation", other="who", other_bounds=None, unit="who")),
            ("weighted_mean", _on_table("weighted_mean", weights="who", largest_weight=50.0)),
            ("table", _on_table("table", questions=_BY_COLUMN, by="city", groups=["Oslo"])),
            ("table of questions", _on_table("table", questions=Made(_questions), where="x > 1")),
            ("sql", _on_table("sql", query=_QUERY, groups=["Oslo", "Bergen"], unit="who")),
        )
    ),
    Call(
        "release.Ask",
        _of("release:Ask", statistic="quantile", column="x", name="a", p=0.5, bounds=(0.0, 9.0)),
    ),
    Call(
        "receipts.making.ReceiptFile",
        _of("receipts.making:ReceiptFile", path="answer.json", sign=None),
    ),
    Call(
        "release.join",
        _of(
            "release:join",
            left=Made(_table),
            right=Made(_table),
            on={"who": "who"},
            unit="who",
            public=False,
            how="left",
            most_rows=3,
            connect=None,
            names=("a", "b"),
        ),
    ),
    Call(
        "release.open_column",
        _of(
            "release:open_column",
            source=Made(_table),
            column="x",
            unit="who",
            per_unit="mean",
            where="x > 1",
            connect=None,
            table=None,
            kind="numbers",
            read_as=None,
        ),
        0.2,
    ),
    Call(
        "release.open_groups",
        _of(
            "release:open_groups",
            source=Made(_table),
            column="x",
            by="city",
            groups=["Oslo"],
            unit="who",
            per_unit="mean",
            where=None,
            connect=None,
            table=None,
            kind="numbers",
            read_as=None,
        ),
        0.2,
    ),
    Call("release.ArrayColumn", _of("release:ArrayColumn", values=DATA, scale=None)),
    Call(
        "release.ArrayColumn.of",
        _of("release:ArrayColumn.of", values=DATA, kind="numbers", read_as=None),
    ),
    Call("release.Lattice", _of("release:Lattice", exponent=0, low=-100, high=100)),
    Call("release.Lattice.for_unit", _of("release:Lattice.for_unit", unit=1.0, bounds=(0.0, 9.0))),
    Call(
        "release.Lattice.for_proposal",
        _of("release:Lattice.for_proposal", propose=1.0, bounds=(0.0, 9.0)),
    ),
    Call(
        "release.check_margin",
        _of(
            "release:check_margin",
            statistic=lambda data: float(len(data)),
            margin=lambda data: 0,
            propose=1.0,
            domain=(0, 1),
            size=2,
        ),
    ),
    Call(
        "release.on_lattice",
        _of(
            "release:on_lattice",
            mechanism=Made(_mechanism),
            statistic=lambda data: 0.0,
            margin=lambda data: 0,
        ),
    ),
    Call(
        "release.ProposeTestReleaseMechanism",
        _of(
            "release:ProposeTestReleaseMechanism",
            propose=1.0,
            robust_noise_multiplier=2.0,
            test=Made(lambda: _found("accounting:DiscreteLaplaceTest")(2.0)),
            failure=1e-6,
            distribution=Made(lambda: _found("release:Distribution").LAPLACE),
            bounds=None,
            fallback_sensitivity=None,
            monotone=False,
        ),
    ),
    Call(
        "release.ProposeTestReleaseMechanism.calibrate",
        _of(
            "release:ProposeTestReleaseMechanism.calibrate",
            propose=1.0,
            **COST,
            bounds=None,
            fallback_sensitivity=None,
            fallback=False,
            monotone=False,
            distribution=Made(lambda: _found("release:Distribution").LAPLACE),
            test=None,
            failure=None,
        ),
        0.3,
    ),
    Call("release.Distribution", _of("release:Distribution", value="laplace")),
    Call("release.Branch", _of("release:Branch", value="robust")),
    Call("release.ReproducibleNoise", _of("release:ReproducibleNoise", seed=0)),
    Call(
        "release.PartitionSelection",
        _of("release:PartitionSelection", **COST, records=1),
    ),
    Call(
        "release.PartitionSelection.needed",
        _method(lambda: _found("release:PartitionSelection")(**COST), "needed", probability=0.5),
    ),
    Call(
        "release.ProposalSearch.calibrate",
        _of("release:ProposalSearch.calibrate", proposals=(1.0, 4.0), **COST, bounds=None),
        0.1,
    ),
    Call("release.Released.interval", _method(_released, "interval", confidence=0.95)),
    # The ledger.
    Call(
        "release.Ledger.create",
        _of(
            "release:Ledger.create",
            location=Made(_fresh),
            **COST,
            dataset="default",
            adaptive=True,
            relation=Made(_relation),
            data=None,
            another=False,
        ),
        0.2,
    ),
    Call(
        "release.Ledger",
        _of(
            "release:Ledger",
            location=Made(_fresh),
            **COST,
            dataset="default",
            adaptive=None,
            relation=None,
            data=None,
        ),
        0.2,
    ),
    Call(
        "release.Ledger.open",
        _of("release:Ledger.open", location=Made(_existing), dataset="default"),
        0.2,
    ),
    Call(
        "release.Ledger.charge",
        _method(
            _ledger, "charge", event=dp.GaussianDpEvent(50.0), label="l", delta=None, details=None
        ),
        0.1,
    ),
    Call(
        "release.Ledger.fits",
        _method(_ledger, "fits", event=dp.GaussianDpEvent(50.0), delta=None),
        0.1,
    ),
    Call("release.Ledger.verify", _method(_ledger, "verify", digest=None), 0.2),
    # Accounting.
    *(
        Call(f"accounting.{name}", _of(f"accounting:{name}", scale=2.0))
        for name in ("LaplaceTest", "GaussianTest", "DiscreteLaplaceTest", "DiscreteGaussianTest")
    ),
    *(
        Call(
            f"accounting.{kind}.{name}",
            _method(
                functools.partial(lambda k: _found(f"accounting:{k}")(2.0), kind), name, **given
            ),
        )
        for kind in ("LaplaceTest", "GaussianTest", "DiscreteLaplaceTest", "DiscreteGaussianTest")
        for name, given in (
            ("tail", {"distance": 3.0}),
            ("threshold", {"failure": 1e-6}),
            ("false_pass", {"failure": 1e-6}),
        )
    ),
    Call("accounting.ApproximateDpEvent", _of("accounting:ApproximateDpEvent", **COST)),
    Call("accounting.Geometric", _of("accounting:Geometric", mean=3.0)),
    Call("accounting.NegativeBinomial", _of("accounting:NegativeBinomial", mean=3.0, shape=0.5)),
    Call("accounting.Poisson", _of("accounting:Poisson", mean=3.0)),
    Call("accounting.Binomial", _of("accounting:Binomial", draws=3, probability=0.5)),
    Call(
        "accounting.BinomialSelectionDpEvent",
        _of(
            "accounting:BinomialSelectionDpEvent",
            event=Made(_ptr_event),
            draws=3,
            probability=0.5,
        ),
    ),
    Call("accounting.WorstOfDpEvent", _of("accounting:WorstOfDpEvent", events=Made(_ptr_events))),
    Call(
        "accounting.ExponentialMechanismDpEvent",
        _of("accounting:ExponentialMechanismDpEvent", epsilon=1.0),
    ),
    Call(
        "accounting.ProposeTestReleaseDpEvent",
        _of(
            "accounting:ProposeTestReleaseDpEvent",
            noise_multiplier=2.0,
            propose=0.5,
            test=Made(_test),
            failure=1e-6,
            robust_noise_multiplier=None,
            reveals="margin",
        ),
    ),
    Call("accounting.Relation", _of("accounting:Relation", adjacency="add-remove", records=1)),
    Call("accounting.Relation.per_record", _method(_relation, "per_record", **COST)),
    Call("accounting.Relation.sentence", _method(_relation, "sentence", unit="record")),
    Call("accounting.Adjacency", _of("accounting:Adjacency", value="add-remove")),
    Call("accounting.Reveals", _of("accounting:Reveals", value="margin")),
    Call(
        "accounting.PldAccountant",
        _of(
            "accounting:PldAccountant",
            neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
            value_discretization_interval=1e-4,
        ),
    ),
    Call(
        "accounting.PldAccountant.compose",
        _method(_pld, "compose", event=Made(_ptr_event), count=2),
    ),
    Call("accounting.PldAccountant.supports", _method(_pld, "supports", event=Made(_ptr_event))),
    Call(
        "accounting.PldAccountant.get_epsilon",
        _method(_pld, "get_epsilon", target_delta=1e-5),
        1,
        _never_below,
    ),
    Call(
        "accounting.PldAccountant.epsilon_bounds",
        _method(_pld, "epsilon_bounds", target_delta=1e-5),
    ),
    Call(
        "accounting.PldAccountant.get_delta",
        _method(_pld, "get_delta", target_epsilon=1.0),
        1,
        _never_below,
    ),
    Call(
        "accounting.PldAccountant.profile", _method(_pld, "profile", epsilons=np.array([0.5, 1.0]))
    ),
    Call(
        "accounting.RdpAccountant",
        _of(
            "accounting:RdpAccountant",
            orders=None,
            neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        ),
    ),
    Call(
        "accounting.RdpAccountant.compose",
        _method(_rdp, "compose", event=Made(_ptr_event), count=2),
    ),
    Call("accounting.RdpAccountant.supports", _method(_rdp, "supports", event=Made(_ptr_event))),
    Call(
        "accounting.RdpAccountant.get_epsilon",
        _method(_rdp, "get_epsilon", target_delta=1e-5),
        1,
        _never_below,
    ),
    Call(
        "accounting.RdpAccountant.get_delta",
        _method(_rdp, "get_delta", target_epsilon=1.0),
        1,
        _never_below,
    ),
    Call(
        "accounting.RdpAccountant.get_epsilon_and_optimal_order",
        _method(_rdp, "get_epsilon_and_optimal_order", target_delta=1e-5),
    ),
    Call(
        "accounting.RdpAccountant.get_delta_and_optimal_order",
        _method(_rdp, "get_delta_and_optimal_order", target_epsilon=1.0),
    ),
    Call(
        "accounting.Run",
        _of(
            "accounting:Run",
            sampling_rate=0.1,
            steps=3,
            noise_multiplier=1.0,
            test=Made(_test),
            propose=0.5,
            failure=1e-8,
            reveals="branch",
            relation=Made(_relation),
        ),
    ),
    Call(
        "accounting.Run.epsilon",
        _method(
            _run, "epsilon", delta=1e-5, accountant=Made(lambda: _found("accounting:PldAccountant"))
        ),
        0.2,
        _never_below,
    ),
    Call("accounting.Run.replace", _method(_run, "replace", parameter="steps", value=2)),
    Call(
        "accounting.Run.calibrate",
        _method(_run, "calibrate", parameter="noise_multiplier", epsilon=1.0, delta=1e-5),
        0.02,
    ),
    Call(
        "accounting.best_test",
        _of(
            "accounting:best_test",
            run=Made(_run),
            margin=20,
            epsilon=2.0,
            delta=1e-5,
            pass_probability=0.5,
            kinds=Made(lambda: (_found("accounting:GaussianTest"),)),
        ),
        0.02,
    ),
    Call("accounting.describe", _of("accounting:describe", event=Made(_ptr_event))),
    Call(
        "accounting.AttackBounds", _of("accounting:AttackBounds.of", event=Made(_ptr_event)), 0.02
    ),
    Call(
        "accounting.why_infinite",
        _of(
            "accounting:why_infinite", event=Made(_ptr_event), delta=1e-5, relation=Made(_relation)
        ),
        0.1,
    ),
    Call(
        "accounting.price_list",
        _of("accounting:price_list", event=Made(_ptr_event), delta=1e-5),
        0.1,
    ),
    Call(
        "accounting.epsilon_of",
        _of(
            "accounting:epsilon_of",
            event=dp.GaussianDpEvent(2.0),
            delta=1e-5,
            relation=Made(_relation),
        ),
        0.2,
        _never_below,
    ),
    Call("accounting.to_json", _of("accounting:to_json", event=Made(_ptr_event))),
    Call(
        "accounting.from_json",
        _of("accounting:from_json", text='{"format": 1, "kind": "NoOpDpEvent"}'),
    ),
    Call(
        "accounting.Certifier",
        _of("accounting:Certifier", event=dp.GaussianDpEvent(2.0), relation=Made(_relation)),
    ),
    Call(
        "accounting.Certifier.certificate",
        _method(
            lambda: _found("accounting:Certifier")(dp.GaussianDpEvent(2.0)),
            "certificate",
            accuracy=0.9,
            records=2,
            runs=None,
            confidence=0.95,
        ),
        0.2,
    ),
    Call(
        "accounting.Certifier.withstands",
        _method(
            lambda: _found("accounting:Certifier")(dp.GaussianDpEvent(2.0)),
            "withstands",
            accuracy=0.9,
            above=0.5,
        ),
        0.1,
    ),
    # Training.
    Call("training.Sum", _of("training:Sum", clip=1.0, noise_multiplier=1.0)),
    Call(
        "training.TrimmedSum",
        _of(
            "training:TrimmedSum",
            clip=1.0,
            noise_multiplier=1.0,
            trim=Made(lambda: _found("training:FixedTrim")(0.1)),
        ),
    ),
    Call(
        "training.ProposeTestRelease",
        _of(
            "training:ProposeTestRelease",
            clip=1.0,
            noise_multiplier=1.0,
            propose=0.5,
            test=Made(_test),
            failure=1e-8,
            trim=Made(lambda: _found("training:AdaptiveTrim")()),
            fallback="sum",
            reveals="margin",
            fallback_scale=1.0,
        ),
    ),
    Call("training.FixedTrim", _of("training:FixedTrim", share=0.1)),
    Call("training.Watch", _of("training:Watch", loss_every=5, bound=2.0, noise_multiplier=3.0)),
    Call("training.HeldOut", _of("training:HeldOut", every=5, noise_multiplier=3.0)),
    Call(
        "training.AdaptiveTrim",
        _of("training:AdaptiveTrim", first=0.25, up=0.02, down=0.02, least=0.0, most=0.5),
    ),
    Call("training.Fallback", _of("training:Fallback", value="sum")),
    Call("training.EngineChoice", _of("training:EngineChoice", value="bookkeeping")),
    Call(
        "training.Plan",
        _of(
            "training:Plan",
            sampling_rate=0.1,
            steps=2,
            aggregation=Made(_sum),
            expected_batch=2.0,
            relation=None,
        ),
    ),
    Call("training.Plan.epsilon", _method(_plan, "epsilon", delta=1e-5), 0.2, _never_below),
    Call(
        "training.Plan.epsilon_after",
        _method(_plan, "epsilon_after", steps=1, delta=1e-5),
        0.2,
        _never_below,
    ),
    Call("training.Plan.event_after", _method(_plan, "event_after", steps=1)),
    Call("training.Plan.calibrate", _method(_plan, "calibrate", epsilon=1.0, delta=1e-5), 0.02),
    Call("training.Plan.longest", _method(_plan, "longest", epsilon=5.0, delta=1e-5), 0.02),
    Call("training.Plan.within", _method(_plan, "within", epsilon=5.0, delta=1e-5), 0.02),
    Call(
        "training.Plan.certificate",
        _method(
            _plan, "certificate", accuracy=0.9, records=1, runs=None, confidence=0.95, relation=None
        ),
        0.05,
    ),
    Call(
        "training.Plan.withstands",
        _method(_plan, "withstands", accuracy=0.9, above=0.5, relation=None),
        0.05,
    ),
    Call(
        "training.Execution",
        _of(
            "training:Execution",
            device="cpu",
            engine="bookkeeping",
            physical_batch=None,
            recompute=False,
            precision="full",
            cuda_graph=None,
            workers=0,
            prefetch=2,
            compile=False,
            seed=0,
            distributed=None,
        ),
    ),
    Call("training.Key", _of("training:Key", secret=b"0" * 32, predictable=True)),
    Call("training.Key.from_seed", _of("training:Key.from_seed", seed=0)),
    Call(
        "training.PoissonSampler",
        _of(
            "training:PoissonSampler",
            records=20,
            rate=0.1,
            physical_batch=None,
            key=None,
            device="cpu",
            processes=None,
        ),
    ),
    Call(
        "training.PoissonSampler.batch",
        _method(lambda: _found("training:PoissonSampler")(20, 0.1), "batch", step=0),
    ),
    Call(
        "training.Step",
        # The loss and the engine are those of `fit` and `make_private`, which check them.
        lambda: (
            functools.partial(_found("training:Step"), loss=_loss()),
            {
                "plan": _plan(),
                "model": _model(),
                "expected_batch": None,
                "corrupt": None,
                "key": None,
                "processes": None,
            },
        ),
        0.3,
    ),
    Call(
        "training.Reporting",
        _of(
            "training:Reporting",
            evaluate=None,
            evaluate_every=None,
            evaluate_at=(),
            callbacks=(),
            out=None,
            resume=False,
            progress=None,
            tensorboard=False,
            private_diagnostics=False,
        ),
    ),
    Call(
        "training.fit",
        _of(
            "training:fit",
            plan=Made(_plan),
            model=Made(_model),
            loss=Made(_loss),
            train_set=Made(_pairs),
            **_FIT,
        ),
        0.1,
    ),
    Call("training.make_private", _private_call, 0.1),
    Call(
        "training.check",
        _of(
            "training:check",
            model=Made(_model),
            loss=Made(_loss),
            batch=Made(_pairs),
            made_up=False,
        ),
        0.1,
    ),
    Call(
        "training.gradient_norms",
        _of(
            "training:gradient_norms",
            model=Made(_model),
            loss=Made(_loss),
            public_set=Made(_pairs),
            collate_fn=None,
            execution=None,
            rows=8,
        ),
        0.1,
    ),
    Call(
        "training.suggest_aggregation",
        _of(
            "training:suggest_aggregation",
            norms=torch.linspace(0.1, 2.0, 50),
            expected_batch=500.0,
            trim=0.25,
            above=None,
            propose=0.5,
            failure=1e-8,
            pass_probability=0.9,
        ),
        0.3,
    ),
    Call(
        "training.accuracy",
        _of(
            "training:accuracy",
            features=Made(lambda: _pairs()[0]),
            labels=Made(lambda: _pairs()[1]),
            batch=1000,
        ),
    ),
    # Models of a table, and searches.
    *(Call(f"estimators.{name}", _estimator(name), 0.05) for name in _ESTIMATORS),
    *(Call(f"estimators.{name}.fit", _fit_call(name), 0.05) for name in _ESTIMATORS),
    *(
        Call(f"estimators.{name}.{method}", _query_call(name, method), 0.1)
        for name, method in (
            ("LinearRegression", "predict"),
            ("LogisticRegression", "predict_proba"),
            ("GradientBoostingRegressor", "predict"),
            ("KMeans", "predict"),
            ("PCA", "transform"),
            ("PCA", "inverse_transform"),
        )
    ),
    Call("tune.search", _search_call, 0.05),
    # Certificates, corruption, experiments, federated learning.
    Call(
        "certify.CertifiedClassifier",
        lambda: (
            _classify,
            {
                "epsilon": 1.0,
                "classes": 10,
                "landmarks": 16,
                "features": None,
                "ramp": None,
                "share": 0.1,
                "ledger": None,
                "noise": _noise(),
            },
        ),
    ),
    Call(
        "certify.CertifiedClassifier.fit",
        _method(_classifier, "fit", X=Made(_images), y=Made(lambda: np.arange(10))),
        0.05,
    ),
    Call("certify.CertifiedClassifier.predict", _method(_fitted, "predict", X=Made(_images)), 0.05),
    Call(
        "certify.CertifiedClassifier.predict_radius",
        _method(_fitted, "predict_radius", X=Made(_images)),
        0.05,
    ),
    Call("certify.CertifiedClassifier.scores", _method(_fitted, "scores", X=Made(_images)), 0.05),
    Call(
        "certify.CertifiedClassifier.score",
        _method(_fitted, "score", X=Made(_images), y=Made(lambda: np.arange(10))),
        0.05,
    ),
    Call(
        "certify.CertifiedClassifier.certified_score",
        _method(
            _fitted,
            "certified_score",
            X=Made(_images),
            y=Made(lambda: np.arange(10)),
            records=(0, 1),
        ),
        0.05,
    ),
    Call(
        "certify.CertifiedClassifier.load",
        _of(
            "certify:CertifiedClassifier.load",
            path=Made(lambda: _file("classifier")),
            features=None,
            landmarks=None,
        ),
        0.3,
    ),
    _corruption("ALittleIsEnough", deviations=1.0, seed=0),
    _corruption("Backdoor", target=0, size=4),
    _corruption("ClassMeanPoison", strength=3.0),
    _corruption("ColludingDirection", norm=None, direction_seed=0, seed=0),
    _corruption("FeatureNoise", variance=1.0),
    _corruption("GradientMatchingPoison", prototypes=2, rounds=2),
    _corruption("GradientNoise", variance=1.0, seed=0),
    _corruption("GradientSignFlip", seed=0),
    _corruption("InnerProductManipulation", scale=0.5, seed=0),
    _corruption("Mimic", seed=0),
    _corruption("RandomLabelFlip"),
    _corruption("TargetedLabelFlip"),
    *map(
        _data_corruption,
        ("Backdoor", "ClassMeanPoison", "FeatureNoise", "RandomLabelFlip", "TargetedLabelFlip"),
    ),
    Call(
        "corruption.corrupted_mask",
        _of("prudent_lab.corruption:corrupted_mask", records=20, ratio=0.1, seed=0, device=None),
    ),
    Call(
        "corruption.corrupted_records",
        _of("prudent_lab.corruption:corrupted_records", records=20, ratio=0.1, seed=0),
    ),
    Call("corruption.parse", _of("prudent_lab.corruption:parse", text="label:0.1")),
    Call(
        "experiments.Experiment",
        _experiment,
        0.3,
    ),
    Call(
        "experiments.load",
        _of("prudent_lab.datasets:load", name=Made(lambda: "npz:" + _file("npz")), data_dir=None),
        0.3,
    ),
    Call(
        "experiments.read_arrays",
        _of("prudent_lab.datasets:read_arrays", name="imdb", data_dir=Made(_reviews_folder)),
        0.3,
    ),
    Call(
        "experiments.read_weights",
        _of("prudent_lab.features.resnet:read_weights", path=Made(lambda: _file("safetensors"))),
        0.3,
    ),
    Call(
        "experiments.logistic_regression",
        _of("prudent_lab.models:logistic_regression", shape=(3,), classes=2),
        0.3,
    ),
    Call(
        "experiments.multilayer_perceptron",
        _of("prudent_lab.models:multilayer_perceptron", shape=(3,), classes=2, seed=0),
        0.3,
    ),
    Call(
        "experiments.tutorial_cnn",
        _of("prudent_lab.models:tutorial_cnn", shape=(1, 28, 28), classes=2, seed=0),
        0.3,
    ),
    Call(
        "federated.RoundRelease",
        _of(
            "training.adapters.federated:RoundRelease",
            plan=Made(_plan),
            dimension=3,
            expected_clients=None,
            key=None,
        ),
        0.5,
    ),
    Call(
        "federated.RoundRelease.__call__",
        _method(
            lambda: _found("training.adapters.federated:RoundRelease")(_plan(), 3),
            "__call__",
            updates=[torch.ones(3), torch.zeros(3)],
        ),
        0.3,
    ),
)

_RESULT = "made by prudent, to be read: an answer, not an entry"
_ERROR = "an error: prudent makes it"
_PROTOCOL = "an interface to implement, not to call"

EXCLUDED: dict[str, str] = {
    "ArgumentError": _ERROR,
    "release.OverBudgetError": _ERROR,
    "release.UnsafeMarginError": _ERROR,
    "accounting.UnreachableTargetError": _ERROR,
    "certify.NotFittedError": _ERROR,
    "certify.Counts": _RESULT,
    "certify.Landmarks": "made by the classifier of its landmarks, which are a target there",
    "certify.Partition": "what a map of a table declares; its columns are checked when it is made",
    "release.Certificate": _RESULT,
    "release.Join": _RESULT,
    "release.Description": _RESULT,
    "release.Question": _RESULT,
    "release.RobustValue": _RESULT,
    "release.Groups": _RESULT,
    "release.Outcome": _RESULT,
    "release.Refused": _RESULT,
    "release.Table": _RESULT,
    "release.Released": _RESULT + "; its interval is a target",
    "release.Preview": _RESULT,
    "release.Suggestion": _RESULT,
    "release.Histogram": _RESULT,
    "release.ProposalSearch": "made by its calibrate, which is a target",
    "accounting.AccuracyCertificate": _RESULT,
    "accounting.InfiniteEpsilon": _RESULT,
    "accounting.PartPrice": _RESULT,
    ".audit": "a package; its commands are targets",
    **{
        f".{name}": "a package; its names are targets"
        for name in ("accounting", "budget", "certify", "estimators", "release", "training")
    },
    ".tune": "a package; its command and its search of estimators are targets",
    "accounting.TestChoice": _RESULT,
    "estimators.PrivateEstimator": "abstract; its kinds are targets",
    "_warning.PrivacyWarning": _ERROR,
    "estimators.TooFewRecordsError": _ERROR,
    "training.CheckReport": _RESULT,
    "training.Fitted": _RESULT,
    "training.Metrics": _RESULT,
    "training.StepOutcome": _RESULT,
    "training.Chunk": "a pair of tensors as a loop of one's own has them; Step checks it",
    "training.Mean": "takes no arguments",
    "release.SecureNoise": "takes no arguments",
    "accounting.ADD_REMOVE": "a value",
    "accounting.REPLACE_ONE": "a value",
    "accounting.ZERO_OUT": "a value",
    "release.Column": _PROTOCOL,
    "accounting.TrialCount": "abstract; its kinds are targets",
    "accounting.MarginTest": "abstract; its four kinds are targets",
    "training.Aggregation": "abstract; its kinds are targets",
    "corruption.DataCorruption": _PROTOCOL,
    "corruption.GradientCorruption": "abstract; its kinds are targets",
    "federated.RoundOutcome": _RESULT,
    "federated.PrivateStrategy": "needs Flower; its arguments are those of RoundRelease",
}
