"""What other rules certify, tried by brute force."""

import itertools

import numpy as np
import pytest

from prudent.certify.landmarks import whole

pytest.importorskip("torch", reason="the lab needs the extra `train`")

from prudent_lab import other_rules as rules


def drawn(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    labels = draw.integers(3, size=size)
    centres = np.random.default_rng(0).standard_normal((3, 8))
    return whole(centres[labels] + draw.standard_normal((size, 8))), labels


NO_DUELS = np.zeros((1, 3, 3), np.int32)


@pytest.mark.parametrize("votes", list(itertools.product(range(4), repeat=3)), ids=str)
def test_a_majority_withstands_its_radius_and_no_more(votes: tuple[int, ...]) -> None:
    cast = np.repeat(np.arange(3), votes)[None].astype(np.int8)
    (winner,), (radius,) = rules.by_votes(cast, NO_DUELS)

    def after(records: int) -> set[int]:
        """Every winner after so many parts changed their vote."""
        found = {votes}
        for _ in range(records):
            found |= {
                tuple(v - (i == a) + (i == b) for i, v in enumerate(each))
                for each in found
                for a, b in itertools.permutations(range(3), 2)
                if each[a]
            }
        return {int(np.argmax(each)) for each in found}

    assert after(int(radius)) == {int(winner)}
    if sum(votes) > radius:
        assert len(after(int(radius) + 1)) > 1
    if any(votes):
        assert rules.by_spread_votes(cast, NO_DUELS, 1)[0][0] == winner
        assert radius - 1 <= rules.by_spread_votes(cast, NO_DUELS, 1)[1][0] <= radius


@pytest.mark.parametrize("seed", range(6))
def test_no_change_of_few_parts_changes_a_certified_finite_aggregation(seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts, spread = 4, 2
    offsets = rules.spread_of(parts, spread)
    for _ in range(12):
        votes = draw.choice(3, p=(0.7, 0.2, 0.1), size=(1, parts * spread)).astype(np.int8)
        (winner,), (radius,) = rules.by_spread_votes(votes, NO_DUELS, spread)
        for changed in itertools.combinations(range(parts * spread), min(int(radius), 2)):
            touched = sorted({(part - o) % (parts * spread) for part in changed for o in offsets})
            for cast in itertools.product(range(3), repeat=len(touched)):
                other = votes[0].copy()
                other[touched] = cast
                assert np.bincount(other, minlength=3).argmax() == winner


def test_a_part_is_in_as_many_classifiers_as_it_is_spread_over() -> None:
    (records, labels), (queries, _) = drawn(200, 1), drawn(50, 2)
    before, _ = rules.elected(records, labels, queries, 3, 10, 4)
    after, _ = rules.elected(records[1:], labels[1:], queries, 3, 10, 4)
    assert before.shape == (50, 40)
    assert 0 < (before != after).any(axis=0).sum() <= 4


@pytest.mark.parametrize(
    ("classes", "parts", "changes"),
    [(3, 7, 1), (4, 7, 1), pytest.param(3, 9, 2, marks=pytest.mark.thorough)],
)
def test_no_change_of_few_parts_changes_a_certified_run_off(
    classes: int, parts: int, changes: int
) -> None:
    def counted(likes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ahead = (likes[:, :, None] > likes[:, None]).sum(axis=0)
        return likes.argmax(axis=1)[None].astype(np.int8), ahead[None].astype(np.int32)

    draw, largest = np.random.default_rng(2 + changes), 0
    orders = list(itertools.permutations(range(classes)))
    for _ in range(30 * changes):
        likes = draw.permuted(np.tile(np.arange(classes), (parts, 1)), axis=1)
        likes[: (parts + changes - 1) // 2, 0] = classes  # a favourite, for radii above 0
        (winner,), (radius,) = rules.by_run_off(*counted(likes))
        largest = max(largest, int(radius))
        for changed in itertools.combinations(range(parts), min(int(radius), changes)):
            for cast in itertools.product(orders, repeat=len(changed)):
                other = likes.copy()
                other[list(changed)] = np.array(cast).reshape(len(changed), classes)
                assert rules.by_run_off(*counted(other))[0][0] == winner
    assert largest >= changes


@pytest.mark.parametrize("rule", ["nearest", "within", "ramp"])
def test_neighbours_withstand_their_radius(rule: str) -> None:
    (records, labels), (queries, _) = drawn(60, 1), drawn(12, 2)

    def found(records: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = records, labels, queries, 3
        if rule == "nearest":
            return rules.nearest_neighbours(*given, 15)
        if rule == "within":
            return rules.within_cosine(*given, 0.3)
        return rules.by_records(*given, (0.0, 0.5))

    winners, radii = found(records, labels)
    assert radii.max() >= 2
    for query in np.flatnonzero(radii):
        k, own = int(radii[query]), np.flatnonzero(labels == winners[query])
        near = own[np.argsort(-(records[own] @ queries[query]))]
        for name in range(3):
            for gone in (0, k // 2, k):
                rest = np.delete(np.arange(60), near[:gone])
                more = np.repeat(queries[[query]], k - gone, axis=0)
                after = found(
                    np.concatenate([records[rest], more]),
                    np.concatenate([labels[rest], np.full(k - gone, name)]),
                )
                assert after[0][query] == winners[query]


def test_all_rules_run_on_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PARTS": 40, "DUEL_PARTS": 30, "SPREAD": 3, "NEIGHBOURS": 50}.items():
        monkeypatch.setattr(rules, name, value)
    (records, labels), (queries, truth) = drawn(900, 1), drawn(100, 2)
    found = dict(rules.certified_by_others(records, labels, queries, 3))
    assert len(found) == 7
    for winners, radii in found.values():
        assert np.mean(winners == truth) > 0.6
        assert (radii >= 0).all()
