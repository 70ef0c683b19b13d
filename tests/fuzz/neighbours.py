"""One record more, of any kind, in any container: the release must end in the same way.

A case is a public function, the options it is called with, records of one type, and one more that
is odd. The release of the n records is told again for the n + 1, or the other way round
(`transcripts`). Whatever then differs, in the answer, the error, the charges, the questions to
the source of noise or the number of queries, is a finding; so is an error after a charge, and a
distance between exact answers that is not paid for.
"""

import contextlib
import functools
import inspect
import io
import itertools
import logging
import math
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np

from prudent import certify, estimators, release
from prudent.release import Distribution
from tests import answered_twice
from tests.fuzz import records
from tests.fuzz.records import COLUMNS_ONLY, CONTAINERS, TYPES, Rows, Type, UnrepresentableError
from tests.fuzz.transcripts import Transcript, choices_noted

DELTA = 1e-4
EPSILON = 4.0
COUNT = 40
SLACK = 1e-6

# ---- cases -----------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Case:
    """A call, the records, and those of one more unit."""

    name: str
    function: Callable[..., Any]
    container: str
    build: Callable[[Any, Path], dict[str, Any]]  # what a call is given of the records
    options: Mapping[str, Any]
    rows: list[Any]
    more: list[Any]
    first: bool  # whether the one more comes before the others
    removed: bool  # whether what was released with it is told without it
    seen: list[str | None] = attrs.field(factory=list, repr=False)  # the error, or None

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        place = "before" if self.first else "after"
        return (
            f"{self.name}({self.container}, {given}), "
            f"{self.more!r:.300} {place} {len(self.rows)} records"
        )

    def problem(self, seed: int = 1) -> str | None:
        """What is wrong, if anything."""
        both = self.more + self.rows if self.first else self.rows + self.more
        versions = (both, self.rows) if self.removed else (self.rows, both)
        with tempfile.TemporaryDirectory() as folder, choices_noted():
            one = self._run(versions[0], Path(folder), Transcript(seed))
            two = self._run(versions[1], Path(folder), Transcript(seed, one.noise))
        self.seen.append(one.error)
        return compared(one, two)

    def _run(self, rows: list[Any], folder: Path, noise: Transcript) -> "Outcome":
        data = self.build(rows, folder)
        ledger = Charges()
        given = {**self.options, **data, "noise": noise, "ledger": ledger}
        found = observed(lambda: self.function(**given), noise, ledger)
        # Nobody else sees the queries to an engine in this process about records in memory.
        outside = "connect" in data or isinstance(data.get("data"), str)
        return found if outside else attrs.evolve(found, queries=0)


class Charges:
    """A ledger that notes its charges and what came of them."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.outcomes: list[str] = []
        self.epsilon, self.delta = 0.0, 0.0

    def charge(self, event: Any, label: str, delta: float | None = None, **more: Any) -> int:
        self.rows.append((repr(event), label, delta, repr(more)))
        self.epsilon += more["details"]["epsilon"]
        self.delta += delta or 0.0
        return len(self.rows)

    def record_outcome(self, charge: int, outcome: Any) -> None:
        self.outcomes.append(repr((charge, outcome)))


@attrs.frozen(eq=False)
class Outcome:
    """All that could be seen of a release."""

    answer: str
    error: str | None
    told: str  # standard output and error, log lines, warnings
    queries: int
    noise: Transcript
    ledger: Charges
    is_chosen: bool  # an error that decides by what was released


def observed(act: Callable[[], Any], noise: Transcript, ledger: Charges) -> Outcome:
    """What can be seen while a function runs."""
    told, answer, error = io.StringIO(), "", None
    handler, log = logging.StreamHandler(told), logging.getLogger()
    log.addHandler(handler)
    is_chosen = False
    with (
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(told),
        warnings.catch_warnings(record=True) as warned,
        _counted() as queries,
    ):
        warnings.simplefilter("always")
        try:
            answer = shown(act())
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            is_chosen = type(raised).__name__ == "TooFewRecordsError"
    log.removeHandler(handler)
    lines = sorted({f"{each.category.__name__}: {each.message}" for each in warned})
    return Outcome(
        answer, error, told.getvalue() + "\n".join(lines), len(queries), noise, ledger, is_chosen
    )


def shown(answer: Any) -> str:
    """All that an answer says; of a model, what it learned."""
    if hasattr(answer, "get_params"):
        learned = {k: v for k, v in vars(answer).items() if k.endswith("_") and k[0] != "_"}
        return repr({name: getattr(v, "tolist", lambda v=v: v)() for name, v in learned.items()})
    return f"{type(answer).__name__}\n{answer!r}\n{answer}"


@contextlib.contextmanager
def _counted() -> Iterator[list[str]]:
    """The queries that DuckDB and PostgreSQL get from ibis."""
    from ibis.backends import duckdb as backend

    found: list[str] = []
    with answered_twice.counted(), contextlib.ExitStack() as patched:
        for name in ("raw_sql", "to_pyarrow", "to_pyarrow_batches"):
            inner = getattr(backend.Backend, name)

            def counted(*given: Any, _inner: Any = inner, _name: str = name, **more: Any) -> Any:
                found.append(_name)
                return _inner(*given, **more)

            patched.enter_context(mock.patch.object(backend.Backend, name, counted))
        yield found


def compared(one: Outcome, two: Outcome) -> str | None:
    """What tells two neighbours apart, or is not paid for."""
    for each in (one, two):
        if each.error is not None and each.ledger.rows and not each.is_chosen:
            other = two if each is one else one
            return f"raised after a charge: {each.error}; the neighbour: {other.error}"
    if one.error != two.error:
        return f"outcomes differ: {one.error or 'an answer'}; {two.error or 'an answer'}"
    if one.ledger.rows != two.ledger.rows or one.ledger.outcomes != two.ledger.outcomes:
        return f"charges differ: {one.ledger.rows} {two.ledger.rows}"
    if two.noise.differs or len(one.noise.queries) != len(two.noise.queries):
        return f"questions differ: {two.noise.differs or 'fewer are asked'}"
    if one.queries != two.queries:
        return f"the number of queries differs: {one.queries}, {two.queries}"
    if one.told != two.told:
        return f"what is printed differs: {one.told!r}, {two.told!r}"
    if not one.noise.seen:
        return None
    if one.answer != two.answer:
        place = next(
            i for i, (a, b) in enumerate(itertools.zip_longest(one.answer, two.answer)) if a != b
        )
        start = max(0, place - 60)
        return (
            f"answers differ: …{one.answer[start : place + 60]}… …{two.answer[start : place + 60]}…"
        )
    pure, gaussian = one.noise.loss(two.noise)
    spent = pure + gaussian_epsilon(math.sqrt(gaussian), one.ledger.delta)
    if spent > one.ledger.epsilon * (1 + SLACK):
        return f"exact answers are apart by ε = {spent:.6g}, priced at {one.ledger.epsilon:.6g}"
    return None


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The ε of a Gaussian mechanism whose sensitivity is μ standard deviations."""
    if not mu:
        return 0.0
    from scipy import optimize, stats

    def excess(epsilon: float) -> float:
        above = stats.norm.cdf(mu / 2 - epsilon / mu)
        below = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(above - below - delta)

    return float(optimize.brentq(excess, 0.0, 500.0)) if excess(0.0) > 0 else 0.0


EXPRESSIONS = ("v", "v", "v / 3", "v * 0.5", "v / v", "v + 1")
CONDITIONS = ("v > 3", "v IS NOT NULL", "v / 3 < 2", "w > 1", "v > 3 OR w < 2")
PER_UNIT = (None, "mean", "median", "min", "max", "sum", 1, 2)
OF_TABLES = frozenset(("other", "weights", "query", "questions"))
"""Parameters of functions that ask more than one column."""


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    """The named parameters of a callable; none if it has no signature."""
    try:
        given = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in given.items() if each.kind not in kinds}


@functools.cache
def releases() -> dict[str, Callable[..., Any]]:
    """The public callables that take records and a source of noise."""
    public = {
        name: getattr(package, name)
        for package in (release, estimators, certify)
        for name in package.__all__
    }
    return {
        name: each
        for name, each in public.items()
        if callable(each)
        and not inspect.isabstract(each)
        and (hasattr(each, "fit") or {"data", "vectors"} & {*parameters(each)})
        and "noise" in parameters(each)
    }


@functools.cache
def statistics() -> dict[str, Callable[..., Any]]:
    """Those that ask a table; the others are models that are fitted, and sums of vectors."""
    return {name: each for name, each in releases().items() if "data" in parameters(each)}


@functools.cache
def of_columns() -> list[str]:
    """Statistics that can be asked of values without names."""
    return [name for name, each in statistics().items() if not OF_TABLES & set(parameters(each))]


@functools.cache
def models() -> dict[str, Callable[..., Any]]:
    """The releases that are no statistics of a table."""
    return {name: each for name, each in releases().items() if name not in statistics()}


def checked(draw: Callable[[random.Random], Case], seed: int) -> tuple[Case, str | None]:
    """A case that its container can hold, and what is wrong with it, if anything."""
    for attempt in itertools.count():
        case = draw(random.Random(f"{seed} {attempt}"))
        with contextlib.suppress(UnrepresentableError):
            return case, case.problem()
    raise AssertionError


def values(name: str, kind: Type, taken: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values of a parameter of a statistic, by its name; none for one that is left out."""
    required = taken[name].default is inspect.Parameter.empty
    found: dict[str, tuple[Any, ...]] = {
        "p": (0.5, 0.9),
        "ps": ((0.25, 0.75),),
        "trim": (4,),
        "k": (2,),
        "propose": (kind.length,) if required else (None, None, kind.length),
        "proposals": ((kind.length, 2 * kind.length),),
        "high": (kind.python(kind.plain(8)),),
        "other": ("w",),
        "weights": ("w",),
        "bounds": ((0, 10), None) if kind.numeric and "categories" not in taken else (),
        "largest_weight": (10.0, None),
        "certify": (None, None, kind.length),
        "distribution": (Distribution.LAPLACE, Distribution.LAPLACE, Distribution.GAUSSIAN),
        "categories": (None, ["a", "b"], "private") if kind.textual else (None,),
        "questions": ({"v": ["median", "count"]}, {"v": ["mean"], "w": ["sum"]}),
        "default": (kind.python(kind.plain(5)),),
    }
    if required and name not in (*found, "query", "epsilon", "data", "column"):
        raise LookupError(f"give {name!r} a value by its name")
    return found.get(name, ())


def draw(
    chance: random.Random,
    functions: Sequence[str] = (),
    containers: Sequence[str] = records.HERE,
    types: Sequence[str] = (),
    units: float = 0.4,
) -> Case:
    """A case of a statistic, some container and some type; a share of them has units."""
    function = statistics()[name := chance.choice(functions or sorted(statistics()))]
    taken = parameters(function)
    if OF_TABLES & taken.keys():
        containers = [each for each in containers if each not in COLUMNS_ONLY] or ["arrow"]
    container = chance.choice(containers)
    kind = TYPES[chance.choice(types or list(TYPES))]
    options: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}
    for each in taken:
        if given := values(each, kind, taken):
            options[each] = chance.choice(given)
    table = container not in COLUMNS_ONLY
    if table:
        options |= _of_table(kind, container, taken, chance)
        if chance.random() < units:
            options |= {"unit": "u", "per_unit": chance.choice(PER_UNIT)}
    unit = "unit" in options
    if unit and {"by", "query"} & options.keys():
        options["groups_per_unit"] = (None, 2)[len(str(options)) % 2]
    rows: Rows = [
        {"v": kind.plain(i), "w": i % 5, "u": i % 17 if unit else i, "g": "aaabbbaabc"[i % 10]}
        for i in range(COUNT + chance.randrange(2))
    ]
    return Case(
        name=name,
        function=function,
        container=f"{container} of {kind.name}",
        build=lambda rows, folder: CONTAINERS[container](rows, kind, folder),
        options={k: v for k, v in options.items() if k in taken and v is not None},
        rows=rows,
        more=_more(kind, container, unit, chance),
        first=chance.random() < 0.5,
        removed=chance.random() < 0.5,
    )


def _of_table(kind: Type, container: str, taken: Any, chance: random.Random) -> dict[str, Any]:
    """What is asked of a table: a value of each row, groups, a filter."""
    expression = chance.choice(EXPRESSIONS) if kind.numeric else "v"
    where = chance.choice((None, None, *(CONDITIONS if kind.numeric else CONDITIONS[1:2])))
    found: dict[str, Any] = {"column": expression, "where": where}
    by = chance.choice((None, None, "public", "private"))
    if by is not None and {"by", "query"} & taken.keys():
        found |= {"by": "g", "groups": ["a", "b", "zz"] if by == "public" else "private"}
    table = "rows" if container in ("duckdb", "postgres") else "data"
    found["query"] = f"SELECT {'g, ' * bool(by)}MEDIAN({expression}), COUNT(*) FROM {table}"
    found["query"] += f" WHERE {where}" * (where is not None) + " GROUP BY g" * bool(by)
    return found


def _more(kind: Type, container: str, unit: bool, chance: random.Random) -> Rows:
    """The records of one more unit, of which one is odd."""
    odd = [kind.plain(3), None, *kind.odd, *(records.WRONG if container in records.UNTYPED else ())]
    record = {"v": chance.choice([*odd, *records.INFINITE.get(container, ())])}
    record |= {"w": 2, "u": 99, "g": "a"}
    record |= chance.choice(({}, {}, {}, {"w": None}, {"g": None}, {"g": "new"}, {"w": 2**62}))
    if not unit:
        return [record | chance.choice(({}, {}, {"u": None}))]
    plain = {"v": kind.plain(4), "w": 3, "u": 99, "g": "b"}
    return [record, *([plain] * chance.choice((0, 0, 1, 3)))]


def draw_model(chance: random.Random, functions: Sequence[str] = ()) -> Case:
    """A case of a model, which takes X and y, or of a sum of vectors."""
    found = models()[name := chance.choice(functions or sorted(models()))]
    container = chance.choice(list(records.OF_MODELS))
    taken = inspect.signature(found).parameters
    own = {"epsilon": 20.0, "delta": DELTA, "classes": [0, 1], "n_clusters": 2, "n_components": 1}
    own |= {"n_estimators": 2, "trim": 4, "propose": 1.0, "bound": 2.0}
    options = {each: value for each, value in own.items() if each in taken}
    if "landmarks" in taken:
        options = {"epsilon": 20.0, "landmarks": np.eye(2), "classes": 2}

    def build(rows: Any, folder: Path) -> dict[str, Any]:
        (features, labels), (xs, ys) = records.OF_MODELS[container], zip(*rows, strict=True)
        if "vectors" in taken:
            return {"vectors": features(xs)}
        return {"records": (features(xs), labels(ys))}

    def call(records: Any = None, **given: Any) -> Any:
        return found(**given) if records is None else found(**given).fit(*records)

    draws = np.random.default_rng(chance.randrange(9)).random((240 + chance.randrange(2), 2))
    rows = [(tuple(row), int(row[0] > 0.5)) for row in draws.tolist()]
    odd = chance.choice(records.ODD_ROWS) if chance.random() < 0.8 else (0.25, 0.75)
    if container == "list" and chance.random() < 0.2:  # as many rows of another length
        rows, odd = [(x * (1 + i % 2), y) for i, (x, y) in enumerate(rows)], (0.5,) * 4
    label = chance.choice(records.ODD_LABELS) if chance.random() < 0.5 else 1
    return Case(
        name=name,
        function=call,
        container=container,
        build=build,
        options=options,
        rows=rows,
        more=[(odd, label)],
        first=chance.random() < 0.5,
        removed=chance.random() < 0.5,
    )
