"""Private bounds of statistics by group: found once, from the records of all groups together."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ibis", reason="groups are those of a table")

import prudent
from prudent.release.columns.column import Contribution, Pool
from prudent.release.lattice import Lattice
from prudent.release.noise import ReproducibleNoise
from tests.fuzz.neighbours import Charges
from tests.fuzz.transcripts import Transcript, choices_noted
from tests.oracles.array_column import ArrayColumn

GROUPS = [f"g{place}" for place in range(6)]


@pytest.fixture
def visits() -> pd.DataFrame:
    """Each person is in three of six groups, once in each."""
    drawn = np.random.default_rng(3)
    person = np.repeat(np.arange(400), 3)
    group = [GROUPS[(each + place) % 6] for each in range(400) for place in range(3)]
    return pd.DataFrame({"person": person, "g": group, "x": drawn.normal(50, 10, len(person))})


def of_groups(counts: list[int]) -> list[ArrayColumn]:
    drawn = np.random.default_rng(5)
    return [ArrayColumn(drawn.normal(10 * place, 5, each)) for place, each in enumerate(counts)]


def test_a_pool_is_the_column_of_all_records() -> None:
    columns = of_groups([40, 0, 7, 300])
    values = np.concatenate([each.order_statistics(1, each.count()) for each in columns])
    pool, whole = Pool(columns), ArrayColumn(values)
    assert pool.count() == whole.count() == 347
    edges = np.array([-3.0, 0.0, 25.0, 1e9])
    np.testing.assert_array_equal(pool.counts_below(edges), whole.counts_below(edges))
    for found, known in zip(pool.half_octaves(), whole.half_octaves(), strict=True):
        np.testing.assert_array_equal(found, known)
    for within in (1, 9, 2**62):
        lattice = Lattice.for_unit(2.0, (-64.0, 64.0))
        both = pool.frequencies(lattice, within), whole.frequencies(lattice, within)
        for found, known in zip(*both, strict=True):
            np.testing.assert_array_equal(found, known)


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "ask", ["mean", "sum", "variance", "deviation", "ratio", "histogram"], ids=str
)
@pytest.mark.parametrize("several", [1, 3])
def test_what_a_unit_changes_is_paid_for(ask: str, several: int, visits: pd.DataFrame) -> None:
    """The exact privacy loss of one unit, in one group or in three, by what the noise was told."""
    one, other, charged = transcripts(ask, several, visits)
    spent, _ = one.loss(other)
    assert spent <= charged * (1 + 1e-9)
    assert spent > 0.6 * charged  # the bound is not idle: what is measured is most of it


def transcripts(ask: str, several: int, visits: pd.DataFrame) -> tuple[Transcript, Transcript, Any]:
    """What was released with and without the first person, and what was charged."""
    visits = visits.assign(x=visits.x.where(visits.person > 0, 1e6), y=visits.x / 10)
    found: list[Transcript] = []
    with choices_noted():
        for data in (visits, visits[visits.person > 0]):
            noise = Transcript(1, found[0] if found else None)
            ledger = Charges()
            options: dict[str, Any] = {"unit": "person", "noise": noise, "ledger": ledger}
            if several > 1:
                options["groups_per_unit"] = several
            table = prudent.Table(data, **options).by("g", groups=GROUPS)
            given = ("x", "y") if ask == "ratio" else ("x",)
            getattr(table, ask)(*given, epsilon=2.0)
            found.append(noise)
    assert found[1].differs is None
    assert found[0].seen
    return found[0], found[1], ledger.epsilon


def losses_of_the_pool(visits: pd.DataFrame) -> tuple[float, float]:
    """The exact losses of the number of records and of the share outside, of three groups."""
    one, other, _ = transcripts("mean", 3, visits)
    first, last = ((one.queries[place], other.queries[place]) for place in (1, -1))
    assert [len(each.told) for each, _ in (first, last)] == [1, 2]
    return first[0].loss(first[1])[0], last[0].loss(last[1])[0]


POOLED = 2.0 * 0.5 * 0.16 * 0.19, 2.0 * 0.03
"""The parts of ε = 2 for both."""


def test_a_unit_in_three_groups_moves_a_count_of_the_pool_by_three(visits: pd.DataFrame) -> None:
    assert losses_of_the_pool(visits) == pytest.approx(POOLED, rel=1e-6)


def test_a_pool_that_counts_a_unit_once_is_found_out(
    visits: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: what all groups share is not calibrated to a unit in several groups."""
    own = property(lambda self: self.columns[0].contribution)
    monkeypatch.setattr(Pool, "contribution", own)
    tripled = [3 * each for each in POOLED]
    assert losses_of_the_pool(visits) == pytest.approx(tripled, rel=1e-6)


def test_the_contribution_of_a_unit_to_a_pool() -> None:
    column = SimpleNamespace(contribution=Contribution("person", 2))
    assert Pool([column], 3).contribution.records == 6
    assert Pool([column]).contribution.records == 2


@pytest.mark.parametrize("groups", ["private", GROUPS])
def test_all_groups_have_the_same_bounds(groups: Any, visits: pd.DataFrame) -> None:
    table = prudent.Table(visits, noise=ReproducibleNoise(2)).by("g", groups=groups)
    found = table.mean("x", epsilon=1.0, delta=1e-6)
    assert len(found) == 6
    assert len({each.about for each in found.values()}) == 1
    exact = visits.groupby("g").x.mean()
    for group, each in found.items():
        low, high = each.interval(0.999)
        assert low - 1 <= exact[group] <= high + 1  # of the clipped values, nearly the same
        assert any(note.startswith("All groups together:") for note in each.notes)


def test_small_groups_are_answered_by_the_bounds_of_all() -> None:
    """Thirty records are too few for bounds of their own: with them the error is larger."""
    drawn = np.random.default_rng(7)
    data = pd.DataFrame(
        {"g": np.repeat([f"g{each}" for each in range(20)], 30), "x": drawn.normal(45, 10, 600)}
    )
    exact = data.groupby("g").x.mean()
    names = list(exact.index)
    table = prudent.Table(data, noise=ReproducibleNoise(5))
    together = table.by("g", groups=names).mean("x", epsilon=1.0)
    alone = {name: table.where(f"g = '{name}'").mean("x", epsilon=1.0) for name in names[:8]}
    errors = [abs(together[name].value - exact[name]) for name in names]
    own = [abs(alone[name].value - exact[name]) for name in alone]
    assert all(each.known for each in together.values())
    assert np.median(errors) < 4
    assert np.median(errors) < np.median(own)


def test_too_few_records_are_told_how_many_would_do() -> None:
    drawn = np.random.default_rng(1)

    def asked(records: int, seed: int) -> Any:
        values = drawn.uniform(0, 100, records)
        return prudent.mean(values, bounds=(0, 100), epsilon=0.5, noise=ReproducibleNoise(seed))

    few = asked(5, 1)
    (note,) = few.notes
    enough = int(re.findall(r"about ([\d,]+) records", note)[0].replace(",", ""))
    assert 30 < enough < 100
    widths = []
    for seed in range(40):
        found = asked(enough, seed)
        assert not found.notes
        low, high = found.interval(0.95)
        widths.append(high - low)
    assert np.median(widths) <= 26


def test_no_private_group_is_no_answer() -> None:
    data = pd.DataFrame({"g": ["a", "b"], "x": [1.0, 2.0]})
    table = prudent.Table(data, noise=ReproducibleNoise(1)).by("g", groups="private")
    assert not table.mean("x", epsilon=1.0, delta=1e-6)
