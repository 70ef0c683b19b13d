"""What a relation is, how it reads, and the budget per record that keeps its promise."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Adjacency, Relation
from tests.raising import refused


def test_a_relation_reads_as_what_is_protected():
    assert str(ADD_REMOVE) == "adding or removing one record"
    assert str(ZERO_OUT) == "zeroing out one record (the number of records is public)"
    assert str(REPLACE_ONE) == "replacing one record (the number of records is public)"
    assert str(Relation("add-remove", 3)) == "adding or removing up to 3 records"
    assert ZERO_OUT.sentence("client").endswith("one client (the number of clients is public)")


@pytest.mark.parametrize(
    ("adjacency", "records", "distance", "public"),
    [
        ("add-remove", 1, 1, False),
        ("zero-out", 1, 1, True),
        ("replace-one", 1, 2, True),
        ("add-remove", 5, 5, False),
        ("replace-one", 5, 10, True),
    ],
)
def test_the_distance_is_counted_in_added_or_removed_records(adjacency, records, distance, public):
    relation = Relation(adjacency, records)
    assert relation.adjacency is Adjacency(adjacency)
    assert (relation.distance, relation.size_is_public) == (distance, public)


@pytest.mark.parametrize("records", [0, -1, 1.5, math.inf, "two"])
def test_a_person_has_a_whole_number_of_records(records):
    with refused("records"):
        Relation("zero-out", records)


def test_only_known_relations_exist():
    with pytest.raises(ValueError, match="one of 'add-remove', 'zero-out', 'replace-one', got"):
        Relation("swap")


@given(
    epsilon=st.just(0.0) | st.floats(1e-300, 500),
    delta=st.just(0.0) | st.floats(1e-300, 1),
    records=st.integers(1, 40),
    adjacency=st.sampled_from(Adjacency),
)
def test_the_budget_per_record_keeps_the_promise(epsilon, delta, records, adjacency):
    """The chain's sum, in 60 digits, is at most the promise, and nearly all of it."""
    relation = Relation(adjacency, records)
    each, failure = relation.per_record(epsilon, delta)
    with mpmath.workdps(60):
        powers = (mpmath.exp(i * mpmath.mpf(each)) for i in range(relation.distance))
        total = mpmath.mpf(failure) * mpmath.fsum(powers)
        assert relation.distance * Fraction(repr(each)) <= Fraction(repr(epsilon))
        assert total <= delta
        assert relation.distance * each == pytest.approx(epsilon, rel=1e-12)
        if failure > 1e-290:
            assert float(total) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 2.0])
def test_no_chain_of_laws_breaks_the_promise(adjacency, epsilon):
    """Random laws of mechanisms on six answers, each (ε₁, δ₁) from the next, in both directions."""
    relation = Relation(adjacency, 2)
    rng = np.random.default_rng(5)
    each, share = relation.per_record(epsilon, 1.0)

    def excess(first, second, loss):
        return np.maximum(0.0, first - math.exp(loss) * second).sum()

    nearest = 0.0
    for _ in range(500):
        laws = [rng.dirichlet(np.full(6, 0.7))]
        for _ in range(relation.distance):
            away = rng.dirichlet(np.full(6, 0.7))
            laws.append((1 - (part := rng.beta(0.5, 2))) * laws[-1] + part * away)
        links = list(itertools.pairwise(laws))
        failure = max(max(excess(p, q, each), excess(q, p, each)) for p, q in links)
        found = excess(laws[0], laws[-1], epsilon)
        assert found * share <= failure * (1 + 1e-12)
        if failure > 0:
            nearest = max(nearest, found * share / failure)
    assert nearest > 0.05  # chains that use a good part of it are among them
