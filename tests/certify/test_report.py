"""What other rules certify, tried by brute force."""

import itertools

import numpy as np
import pytest

from prudent.certify import report
from prudent.certify.landmarks import whole


def drawn(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    labels = draw.integers(3, size=size)
    centres = np.random.default_rng(0).standard_normal((3, 8))
    return whole(centres[labels] + draw.standard_normal((size, 8))), labels


@pytest.mark.parametrize("votes", list(itertools.product(range(4), repeat=3)), ids=str)
def test_a_majority_withstands_its_radius_and_no_more(votes: tuple[int, ...]) -> None:
    (winner,), (radius,) = report.by_votes(np.array([votes]))

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


@pytest.mark.thorough
def test_no_change_of_few_parts_changes_a_certified_run_off() -> None:
    draw = np.random.default_rng(3)
    parts = 9
    for _ in range(60):
        likes = draw.permuted(np.tile(np.arange(3), (parts, 1)), axis=1)

        def counted(likes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            votes = np.bincount(likes.argmax(axis=1), minlength=3)[None]
            duels = np.array(
                [[[(likes[:, a] > likes[:, b]).sum() for b in range(3)] for a in range(3)]]
            )
            return votes, duels

        (winner,), (radius,) = report.by_run_off(*counted(likes))
        for changed in itertools.combinations(range(parts), min(int(radius), 2)):
            for orders in itertools.product(itertools.permutations(range(3)), repeat=len(changed)):
                other = likes.copy()
                other[list(changed)] = np.array(orders).reshape(len(changed), 3)
                assert report.by_run_off(*counted(other))[0][0] == winner


def test_all_rules_run_on_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PARTS", 40)
    (records, labels), (queries, truth) = drawn(900, 1), drawn(200, 2)
    found = dict(report.certified_by_others(records, labels, queries, 3))
    assert len(found) == 4
    for winners, radii in found.values():
        assert np.mean(winners == truth) > 0.6
        assert (radii >= 0).all()
    assert (
        np.median(found["run-off election, 40 parts"][1])
        >= np.median(found["DPA, 40 parts"][1]) * 0.9
    )
