"""Some seeded neighbouring data sets for the releases; faults that must be found.

`make test-thorough` tries every release with every container and every type, and PostgreSQL.
"""

import functools
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("duckdb", reason="tables are asked by DuckDB")

import prudent
from prudent.release.columns import dialects, sources, units
from prudent.release.noise import AdditiveMechanism
from tests.fuzz import neighbours, records
from tests.fuzz.neighbours import Case, checked, draw, draw_model

TABLES = [each for each in records.HERE if each not in records.COLUMNS_ONLY]
WAYS: dict[str, Callable[[random.Random], Case]] = {
    "arrays": lambda chance: draw(chance, neighbours.of_columns(), records.COLUMNS_ONLY),
    "tables": functools.partial(draw, containers=TABLES),
    "models": draw_model,
}
BATCHES = [("arrays", 25), ("models", 4), ("tables", 15)]
"""Each takes a third of a second where an engine is asked; the second tier has many more."""


def refused(found: list[tuple[Case, str | None]]) -> list[str]:
    return [f"{case}:\n    {problem}" for case, problem in found if problem is not None]


@pytest.mark.parametrize(
    ("way", "count", "seed"),
    [
        *((*each, seed) for seed, each in enumerate(BATCHES)),
        *(pytest.param(*each, 9, marks=pytest.mark.thorough) for each in BATCHES),
    ],
)
def test_one_record_more_changes_nothing_but_noise(way: str, count: int, seed: int) -> None:
    found = [checked(WAYS[way], 1000 * seed + place) for place in range(count)]
    assert not refused(found), "\n".join(refused(found))
    answered = sum(case.seen == [None] for case, _ in found)
    assert answered >= count // 3, "most cases must be answered, or they test nothing"


@pytest.mark.thorough
@pytest.mark.parametrize("container", records.HERE)
@pytest.mark.parametrize("kind", records.TYPES)
def test_every_statistic(container: str, kind: str) -> None:
    if container in records.ARRAYS and kind not in records.DTYPES:
        pytest.skip("numpy has no such type")
    one = functools.partial(draw, containers=[container], types=[kind])
    found = [
        checked(functools.partial(one, functions=[name]), 0) for name in neighbours.statistics()
    ]
    assert not refused(found), "\n".join(refused(found))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_every_model(seed: int) -> None:
    found = [
        checked(functools.partial(draw_model, functions=[name]), 100 * seed + place)
        for name in neighbours.models()
        for place in range(15)
    ]
    assert not refused(found), "\n".join(refused(found))


@pytest.mark.parametrize("kind", records.POSTGRES)
def test_every_statistic_in_postgres(
    kind: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("PRUDENT_TEST_POSTGRES", postgres_url)
    one = functools.partial(draw, containers=["postgres"], types=[kind])
    found = [
        checked(functools.partial(one, functions=[name]), 0) for name in neighbours.statistics()
    ]
    assert not refused(found), "\n".join(refused(found))


def test_every_public_callable_that_takes_records_is_covered() -> None:
    for name in neighbours.statistics():
        draw(random.Random(0), [name])  # says which parameter has no value
    for name in neighbours.models():
        draw_model(random.Random(0), [name])
    takes = {
        name
        for name in prudent.__all__
        if callable(each := getattr(prudent, name))
        and {"data", "vectors"} & {*neighbours.parameters(each)}
    }
    assert takes - set(neighbours.releases()) == {"synthesize", "Ledger"}


# ---- planted faults --------------------------------------------------------------------------


def plant_float_taken_for_double(patch: pytest.MonkeyPatch) -> None:
    """Trust the types that ibis infers, and read the bits of whatever numbers come."""

    def trusted(value: Any) -> Any:
        found = value if hasattr(value, "cast") else value.to_expr()
        return found.cast("float64") if found.type().is_decimal() else found

    def viewed(batch: Any, name: str) -> Any:
        return batch.column(name).to_numpy(zero_copy_only=False)

    for name, fault in (("as_double", trusted), ("doubles_of", viewed)):
        for place, module in list(sys.modules.items()):
            if place.startswith("prudent.release.columns") and name in vars(module):
                patch.setattr(module, name, fault)


def plant_rounding_that_fails_at_infinity(patch: pytest.MonkeyPatch) -> None:
    def nearest(number: Any) -> Any:
        return (number + dialects.double(0.5)).floor().cast("float64")

    patch.setattr(units, "rounded", nearest, raising=False)


def plant_types_that_pandas_infers(patch: pytest.MonkeyPatch) -> None:
    inferred = r"(Bool|U?Int\d+|Float\d+|Complex\d+|DateTime64|TimeDelta64)DType"
    patch.setattr(sources, "_DECLARED", re.compile(f"{sources._DECLARED.pattern}|{inferred}"))


def plant_too_little_noise(patch: pytest.MonkeyPatch) -> None:
    scale = AdditiveMechanism.scale
    patch.setattr(AdditiveMechanism, "scale", lambda self, size: scale(self, size) / 2)


FAULTS = {
    plant_float_taken_for_double: (
        {"types": ["float32"], "containers": ["arrow"]},
        "charge|differ",
    ),
    plant_rounding_that_fails_at_infinity: (
        {
            "types": ["timestamp", "date"],
            "containers": ["arrow"],
            "functions": ["median"],
            "units": 1,
        },
        "raised after a charge",
    ),
    plant_types_that_pandas_infers: (
        {"types": ["bool", "int"], "containers": ["pandas"], "functions": ["median", "mean"]},
        "differ",
    ),
    plant_too_little_noise: (
        {"types": ["float64"], "containers": ["numpy"], "functions": ["sum", "count"]},
        "exact answers are apart",
    ),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, told = FAULTS[plant]
    one = functools.partial(draw, **narrow)  # type: ignore[arg-type]
    plant(monkeypatch)
    for seed in range(60):
        _, problem = checked(one, seed)
        if problem is not None:
            monkeypatch.undo()
            assert re.search(told, problem), problem
            return
    pytest.fail("the fault was not found")
