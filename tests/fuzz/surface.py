"""The public callables, found from the package's own lists, and right arguments for each.

A parameter gets its value by its name, or by the name of its callable and its own, or by its type;
otherwise its default. No function is listed. A new public name is covered by that or, if a
parameter of it has no value here, `test_fuzz.py` fails and says which.
"""

import enum
import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
import torch
from torch import nn

import prudent
from tests.fuzz.files import TARGETS, folder

DATA = np.linspace(0.0, 100.0, 200)
EPSILON, DELTA = 1.0, 1e-6

RECORDS = ("data", "vectors", "X", "y")
"""Parameters that take records."""

RESULTS = ("Released", "Refused", "Groups", "ReleasedTable", "Description")
RESULTS += ("Histogram", "Preview", "Join", "Table", "GroupedTable")
RESULTS += ("Certificate", "Question", "RobustValue", "Suggestion", "AccuracyCertificate")
RESULTS += ("InfiniteEpsilon", "PartPrice", "TestChoice", "CheckReport", "Fitted", "Metrics")
RESULTS += ("Synthetic", "MeasuredMarginal")
RESULTS += ("StepOutcome", "RoundOutcome", "AuditResult", "Tuned", "Scored", "Counts", "Landmarks")
"""Values that prudent makes, to be read: the callables that return them are the entries."""

EXCLUDED = {
    "AttackBounds": "made by its `of`, which is a target",
    "Case": "a pair of an audit and functions of the caller",
    "CASES": "a mapping; its cases are what `audit.release` runs",
    "Chunk": "a pair of tensors as a loop of one's own has them; Step checks it",
    "PrivateStrategy": "needs Flower; its arguments are those of RoundRelease",
    "Trial": "what a space of settings is given",
    "verify": "a target as a file and as a command",
}
"""Public names that are no target, each with its reason."""


INTERNAL = ("prudent.training.gradients", "prudent.release.statistics", "prudent_lab.recipes")
INTERNAL += ("prudent.training.adapters.huggingface",)
"""Packages whose lists are for other packages, or need transformers to be imported."""

METHODS = frozenset(
    (
        *(
            "apply",
            "batch",
            "calibrate",
            "certificate",
            "certified_score",
            "charge",
            "compose",
        ),
        *("create", "epsilon", "epsilon_after", "epsilon_bounds", "event_after", "false_pass"),
        *("fit", "fits", "for_proposal", "for_unit", "from_seed", "get_delta", "get_epsilon"),
        *("inverse_transform", "load", "longest", "needed", "of", "open", "per_record", "predict"),
        *("predict_proba", "predict_radius", "profile", "replace", "score", "scores", "sentence"),
        *("supports", "tail", "threshold", "transform", "verify", "within", "withstands"),
    )
)
"""Methods that users call with arguments, of whatever class."""


class Charges:
    """A ledger that counts its charges."""

    def __init__(self) -> None:
        self.made = 0

    def charge(self, event: Any, label: str, delta: float | None = None) -> None:
        self.made += 1


@attrs.frozen
class Entry:
    """A public callable.

    Attributes:
        name: Its name: the package that lists it, its own, and that of the method.
        found: The function or the class.
        method: The name of a method, of an instance with right arguments; None for itself.
    """

    name: str
    found: Any
    method: str | None = None

    @property
    def target(self) -> Any:
        """The function that is called; of a method, that of the class."""
        return self.found if self.method is None else getattr(self.found, self.method)

    @property
    def costly(self) -> bool:
        """Whether a call fits a model, trains or searches."""
        names = set(self.parameters) | {self.method}
        return hasattr(self.found, "fit") or bool(
            names & {"train_set", "loader", "held_out", "vectors", "kinds", "calibrate", "score"}
            or names & {"longest", "within", "withstands", "certificate", "trials", "proposals"}
        )

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Its named parameters."""
        given = inspect.signature(self.target).parameters
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = {name: each for name, each in given.items() if each.kind not in kinds}
        if self.method is not None and not inspect.ismethod(self.target):
            found.pop("self", None)
        return found

    def make(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The function, of a fresh instance, and right arguments for it."""
        arguments = {name: value(self, parameter) for name, parameter in self.parameters.items()}
        if self.method is None:
            return _after(self.found), arguments
        if inspect.ismethod(self.target):  # of the class
            return self.target, arguments
        return getattr(instance(self.found), self.method), arguments


def _after(found: Any) -> Callable[..., Any]:
    """A model is fitted as well: what it is made with is checked there."""
    if not (inspect.isclass(found) and hasattr(found, "fit") and "noise" in parameters(found)):
        return found
    return lambda **given: _fitted_one(found(**given))


def _fitted_one(model: Any) -> Any:
    given = Entry(f"of.{type(model).__name__}.fit", type(model), "fit")
    return model.fit(**{name: value(given, each) for name, each in given.parameters.items()})


def parameters(found: Any) -> tuple[str, ...]:
    """The names of the parameters of a callable; none if it has no signature."""
    try:
        return tuple(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return ()


def packages() -> Iterator[Any]:
    """The package and those below it that list public names; the most specific ones last."""
    for top in ("prudent", "prudent_lab"):
        found = importlib.util.find_spec(top)
        for home in sorted(Path(str(found and found.origin)).parent.rglob("__init__.py")):
            name = ".".join((top, *home.parent.relative_to(Path(found.origin).parent).parts))
            if "__all__" in home.read_text("utf-8") and name not in INTERNAL:
                yield importlib.import_module(name)


@functools.cache
def public() -> dict[str, Any]:
    """Every public name, as the last part of its package and its own; each object once."""
    found: dict[int, tuple[str, Any]] = {}
    for package in packages():
        for name in package.__all__:
            try:
                each = getattr(package, name)
            except ImportError:  # an extra that is not installed
                continue
            if not inspect.ismodule(each):
                place = package.__name__.rpartition(".")[2]
                found.setdefault(id(each), (f"{place}.{name}", each))
                if package is not prudent and found[id(each)][0].startswith("prudent."):
                    found[id(each)] = (f"{place}.{name}", each)
    return dict(found.values())


def optional() -> Iterator[str]:
    """Public names that need an extra that is not installed."""
    for package in packages():
        for name in package.__all__:
            try:
                getattr(package, name)
            except ImportError:
                yield name


def reason(name: str, found: Any) -> str | None:
    """Why a public name is no target; None if it is one."""
    short = name.rpartition(".")[2]
    if short in EXCLUDED:
        return EXCLUDED[short]
    if short in RESULTS:
        return "made by prudent, to be read"
    if not callable(found) or not parameters(found):
        return "a value, or takes no arguments"
    if inspect.isclass(found) and issubclass(found, BaseException):
        return "an error: prudent makes it"
    if inspect.isabstract(found) or getattr(found, "_is_protocol", False):
        return "abstract; its kinds are targets"
    return None


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every public callable, and the methods with arguments of those that are classes."""
    found = []
    for name, each in public().items():
        if reason(name, each) is None:
            found.append(Entry(name, each))
        short = name.rpartition(".")[2]
        if inspect.isclass(each) and not issubclass(each, BaseException | enum.Enum):
            made = reason(name, each) is None
            found += [
                Entry(f"{name}.{method}", each, method)
                for method in sorted(_methods(each))
                if made or (short in EXCLUDED and inspect.ismethod(getattr(each, method)))
            ]
    return tuple(found)


def _methods(found: type) -> Iterator[str]:
    for name, each in inspect.getmembers(found, callable):
        own = str(getattr(inspect.unwrap(each), "__module__", "")).startswith("prudent")
        if name in METHODS and own:
            yield name


# ---- right arguments -------------------------------------------------------------------------


def instance(found: type) -> Any:
    """An instance with right arguments; of a model, a fitted one."""
    if found.__name__ == "Ledger":
        return found.create(_fresh(), epsilon=EPSILON, delta=DELTA)
    if hasattr(found, "fit") and "noise" in parameters(found):
        return _fitted_model(found)
    function, arguments = Entry(f"of.{found.__name__}", found).make()
    return function(**arguments)


@functools.cache
def _fitted_model(found: type) -> Any:
    function, arguments = Entry(f"of.{found.__name__}", found).make()
    return function(**arguments)


def value(of: Entry, parameter: inspect.Parameter) -> Any:
    """The right argument for a parameter."""
    short = of.name.split(".", 1)[-1]
    owner = short.split(".")[0]
    keys = [f"{short}.{parameter.name}", f"{owner}.{parameter.name}"]
    if parameter.default is inspect.Parameter.empty or parameter.name in ALWAYS:
        keys.append(parameter.name)
    for key in keys:
        if key in BY_NAME:
            found = BY_NAME[key]
            return found() if inspect.isfunction(found) and not found.__kwdefaults__ else found
    if parameter.default is not inspect.Parameter.empty:
        return parameter.default
    text = str(parameter.annotation)
    for part, found in BY_TYPE.items():
        if part in text:
            return found()
    raise LookupError(f"{of.name} has a parameter {parameter.name!r}: give it a value by its name")


def _fresh() -> str:
    """A place where there is no ledger yet."""
    for each in folder().glob("ledger.db*"):
        each.unlink()
    return str(folder() / "ledger.db")


def _existing() -> str:
    place = _fresh()
    prudent.Ledger.create(place, epsilon=EPSILON, delta=DELTA).close()
    return place


def _file(name: str) -> str:
    """A valid file of `tests.fuzz.files`."""
    target = next(each for each in TARGETS if each.name == name)
    path = folder() / f"valid-{name}.{'npz' if name != 'safetensors' else name}"
    path.write_bytes(target.seeds()[0])
    return str(path)


def _table() -> Any:
    import pyarrow as pa

    return pa.table({"x": DATA, "who": np.arange(200) % 50, "city": ["Oslo", "Bergen"] * 100})


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(40.0).reshape(20, 2) / 40, torch.arange(20) % 2


@functools.cache
def _rows() -> tuple[Any, Any]:
    """Features and labels of records that are enough for every estimator."""
    features = np.random.default_rng(0).random((2000, 2))
    return features, (features[:, 0] > 0.5).astype(int)


def _images() -> Any:
    return np.random.default_rng(0).integers(0, 256, (10, 28, 28)).astype(np.uint8)


def _loader() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*_pairs()), batch_size=4)


def _event() -> Any:
    from prudent.accounting import GaussianTest, ProposeTestReleaseDpEvent

    return ProposeTestReleaseDpEvent(2.0, 0.5, GaussianTest(4.0), 1e-6)


def _plan() -> Any:
    return prudent.Plan(
        sampling_rate=0.1,
        steps=2,
        aggregation=prudent.Sum(clip=1.0, noise_multiplier=1.0),
        expected_batch=2.0,
    )


def _score() -> Any:
    return prudent.tune.HeldOutScore(*_pairs(), prudent.DiscreteLaplaceTest(2.0))


def _model() -> nn.Module:
    return nn.Linear(2, 2)


_LINEAR = nn.Linear(2, 2)


def _noise() -> Any:
    return prudent.release.ReproducibleNoise(0)


ALWAYS = ("data", "epsilon", "delta", "noise", "ledger", "X", "y", "other", "weights")
"""Parameters that get a value although they have a default."""

BY_NAME: dict[str, Any] = {
    "query": "SELECT city, MEDIAN(x), AVG(CLIP(x, 0, 9)), COUNT(*) FROM data GROUP BY city",
    **{f"{name}.data": _table for name in ("sql", "table", "top_k", "ratio", "synthesize")},
    **{f"{name}.data": _table for name in ("covariance", "correlation", "weighted_mean")},
    **{f"{name}.column": "x" for name in ("ratio", "covariance", "correlation")},
    **{f"{name}.bounds": (0.0, 100.0) for name in ("sum", "mean", "variance", "deviation")},
    "mechanism": lambda: prudent.release.ProposeTestReleaseMechanism.calibrate(
        propose=1.0, epsilon=EPSILON, delta=DELTA
    ),
    **{
        f"{name}.value": found
        for name, found in (("Adjacency", "add-remove"), ("Branch", "robust"))
    },
    **{f"{name}.value": found for name, found in (("Reveals", "margin"), ("Fallback", "sum"))},
    **{f"{name}.value": found for name, found in (("Distribution", "laplace"),)},
    "ProposeTestReleaseMechanism.test": lambda: prudent.DiscreteLaplaceTest(4.0),
    "make_private.optimizer": lambda: torch.optim.SGD(_LINEAR.parameters(), 0.1),
    **{f"{name}.classes": [0, 1] for name in ("LogisticRegression", "GaussianNB")},
    **{f"GradientBoosting{kind}.n_estimators": 2 for kind in ("Classifier", "Regressor")},
    "estimator": lambda: prudent.estimators.LogisticRegression(
        epsilon=5.0, delta=DELTA, classes=[0, 1], noise=_noise()
    ),
    "tune.candidate": lambda: prudent.tune.Candidate(
        lambda setting, folder: setting["x"], dp.GaussianDpEvent(2.0)
    ),
    **{f"{name}.classes": 3 for name in ("Backdoor", "ClassMeanPoison", "FeatureNoise")},
    **{f"{name}.classes": 3 for name in ("RandomLabelFlip", "TargetedLabelFlip")},
}
BY_NAME |= {"data": lambda: DATA, "epsilon": EPSILON, "delta": DELTA, "noise": _noise}
BY_NAME |= {"ledger": lambda: Charges(), "propose": 5.0, "p": 0.5, "ps": (0.25, 0.5)}
BY_NAME |= {"proposals": (1.0, 10.0), "trim": 40, "kind": "numbers", "certify_quantile.high": 90.0}
BY_NAME |= {"histogram.edges": (0.0, 50.0, 100.0), "vectors": lambda: np.ones((50, 3))}
BY_NAME |= {"bound": 2.0, "questions": lambda: {"x": ["median", "mean"], "who": "count"}}
BY_NAME |= {"iqr.propose": 5.0, "sql.groups": ["Oslo", "Bergen"]}
BY_NAME |= {"weighted_mean.column": "x", "weights": "who", "other": "who", "top_k.column": "city"}
BY_NAME |= {"top_k.categories": ["Oslo", "Bergen"], "proportion.data": lambda: DATA > 50.0}
BY_NAME |= {"open_column.source": _table, "open_groups.source": _table, "open_column.column": "x"}
BY_NAME |= {"open_groups.column": "x", "open_column.other": None, "open_groups.other": None}
BY_NAME |= {"open_groups.by": "city", "open_groups.groups": ["Oslo"], "left": _table}
BY_NAME |= {"right": _table, "join.on": "who", "join.unit": "who", "Ask.statistic": "median"}
BY_NAME |= {"Ask.column": "x", "check_margin.statistic": lambda: lambda data: float(len(data))}
BY_NAME |= {"check_margin.margin": lambda: lambda data: 0}
BY_NAME |= {"on_lattice.statistic": lambda: lambda data: 0.0}
BY_NAME |= {"on_lattice.margin": lambda: lambda data: 0, "domain": (0, 1), "size": 2}
BY_NAME |= {"ArrayColumn.values": lambda: DATA, "exponent": 0, "Lattice.low": -100}
BY_NAME |= {"Lattice.high": 100, "Lattice.for_unit.unit": 1.0, "probability": 0.5}
BY_NAME |= {"path": "answer.json", "seed": 0, "EngineChoice.value": "bookkeeping"}
BY_NAME |= {"location": _fresh, "Ledger.open.location": _existing, "Ledger.data": None}
BY_NAME |= {"Ledger.charge.event": lambda: dp.GaussianDpEvent(50.0), "Ledger.charge.delta": None}
BY_NAME |= {"event": _event, "events": lambda: [_event(), dp.GaussianDpEvent(2.0)], "scale": 4.0}
BY_NAME |= {"distance": 3.0, "failure": 1e-6, "noise_multiplier": 2.0}
BY_NAME |= {"robust_noise_multiplier": 2.0, "target_delta": 1e-5, "target_epsilon": 1.0}
BY_NAME |= {"epsilons": lambda: np.array([0.5, 1.0]), "Run.calibrate.parameter": "noise_multiplier"}
BY_NAME |= {"parameter": "steps", "Run.replace.value": 2, "margin": 20, "best_test.epsilon": 2.0}
BY_NAME |= {"Plan.longest.epsilon": 9.0, "Plan.within.epsilon": 9.0}
BY_NAME |= {"ProposeTestRelease.propose": 0.5, "ProposeTestReleaseDpEvent.propose": 0.5}
BY_NAME |= {"TrimmedSum.trim": lambda: prudent.FixedTrim(0.1), "ArrayColumn.scale": None}
BY_NAME |= {"from_json.text": '{"format": 1, "kind": "NoOpDpEvent"}', "draws": 3, "mean": 3.0}
BY_NAME |= {"accuracy": 0.9, "above": 0.5, "name": "median"}
BY_NAME |= {"audit.mechanism": lambda: lambda data: len(data), "with_record": (1, 2)}
BY_NAME |= {"without_record": (1,), "audit.runs": 100, "release.runs": 100, "sampling_rate": 0.1}
BY_NAME |= {"steps": 2, "clip": 1.0, "share": 0.1, "every": 5, "loss_every": 5, "model": _model}
BY_NAME |= {"make_private.model": lambda: _LINEAR}
BY_NAME |= {"loss": lambda: nn.CrossEntropyLoss(reduction="none"), "train_set": _pairs}
BY_NAME |= {"public_set": _pairs, "check.batch": _pairs, "loader": _loader}
BY_NAME |= {"make_private.epochs": 1, "make_private.clip": 1.0, "make_private.epsilon": 3.0}
BY_NAME |= {"fit.delta": 1e-5, "secret": b"0" * 32, "records": 20, "rate": 0.1, "step": 0}
BY_NAME |= {"norms": lambda: torch.linspace(0.1, 2.0, 50), "expected_batch": 500.0}
BY_NAME |= {"features": lambda: _pairs()[0], "labels": lambda: _pairs()[1], "dimension": 3}
BY_NAME |= {"X": lambda: _rows()[0], "y": lambda: _rows()[1]}
BY_NAME |= {"GradientBoostingClassifier.classes": [0, 1], "KMeans.n_clusters": 2}
BY_NAME |= {"PCA.n_components": 1, "PCA.inverse_transform.X": lambda: np.ones((3, 1))}
BY_NAME |= {"grid": lambda: {"epsilon": [1.0, 2.0]}, "search.data": lambda: _rows()}
BY_NAME |= {"held_out": lambda: tuple(each[:20] for each in _rows()), "search.epsilon": None}
BY_NAME |= {"search.ledger": None, "search.delta": 1e-5}
BY_NAME |= {"score_noise": lambda: prudent.DiscreteLaplaceTest(2.0), "score": _score}
BY_NAME |= {"HeldOutScore.noise": lambda: prudent.DiscreteLaplaceTest(2.0)}
BY_NAME |= {"candidate_of": lambda: dp.GaussianDpEvent}
BY_NAME |= {"Candidate.run": lambda: lambda setting, folder: 0.5, "price.candidate": _event}
BY_NAME |= {"tune.space": lambda: lambda trial: trial.float("x", 0.0, 1.0), "tune.epsilon": None}
BY_NAME |= {"tune.ledger": None, "training.model": lambda: lambda setting: _model()}
BY_NAME |= {"CertifiedClassifier.noise": _noise, "CertifiedClassifier.X": _images}
BY_NAME |= {"CertifiedClassifier.y": lambda: np.arange(10), "CertifiedClassifier.classes": 10}
BY_NAME |= {"CertifiedClassifier.landmarks": lambda: np.eye(784)[::40]}
BY_NAME |= {"CertifiedClassifier.load.path": lambda: _file("classifier"), "ratio": 0.1}
BY_NAME |= {"corrupted_mask.seed": 0, "GradientMatchingPoison.classes": 3}
BY_NAME |= {"GradientMatchingPoison.rounds": 2}
BY_NAME |= {"Backdoor.apply.features": lambda: torch.rand(20, 1, 8, 8), "parse.text": "label:0.1"}

BY_TYPE: dict[str, Callable[[], Any]] = {
    "MarginTest": lambda: prudent.GaussianTest(4.0),
    "DiscreteLaplaceTest": lambda: prudent.DiscreteLaplaceTest(4.0),
    "DpEvent": _event,
    "Relation": lambda: prudent.accounting.ADD_REMOVE,
    "Plan": _plan,
    "Aggregation": lambda: prudent.Sum(clip=1.0, noise_multiplier=1.0),
    "TrialCount": lambda: prudent.tune.Binomial(1, 1.0),
    "Run": lambda: prudent.accounting.Run(sampling_rate=0.1, steps=3),
}
