"""The proof of the classifier, tried on all small data sets, by attacks and with odd records."""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from scipy import sparse

from prudent import ArgumentError
from prudent.accounting import PldAccountant
from prudent.certify import CertifiedClassifier, NotFittedError
from prudent.certify.attacks import Records, RepeatedNoise, Target, best_attacks
from prudent.certify.classifier import (
    MOVE,
    decided,
    radius_of,
    scores_of,
    sensitivity,
)
from prudent.certify.features import FeatureMap, Vectors
from prudent.certify.vectors import LENGTH, Euclidean, Mixed, Pairing, Votes
from prudent.release.budget.ledger import Ledger, OverBudgetError
from prudent.release.failures import SourceError
from prudent.release.noise import Law, ReproducibleNoise
from prudent.release.sums.additive import least_gaussian
from tests.certify.attacking import attacked

EUCLIDEAN = Euclidean()
LONGEST = sensitivity(EUCLIDEAN)
VECTORS = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 0.5]])


class Given:
    """Noise of a test: the numbers given, in units of a vector's length."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def of_test(self, test: Any) -> int:
        raise AssertionError

    def of_value(self, law: Law, scale: float, size: int) -> list[int]:
        return [round(LENGTH * value) for value in itertools.islice(self.values, size)]


def small_data_sets(size: int) -> list[tuple[int, ...]]:
    """All data sets of up to `size` records: how many there are of each vector and class."""
    kinds = 2 * len(VECTORS)
    return [
        tuple(Counter(chosen)[kind] for kind in range(kinds))
        for n in range(size + 1)
        for chosen in itertools.combinations_with_replacement(range(kinds), n)
    ]


def all_predictions(noise: Given, queries: np.ndarray) -> tuple[np.ndarray, ...]:
    counts = np.array(small_data_sets(6))
    labels, radii = [], []
    for row in counts:
        kinds = np.repeat(np.arange(len(row)), row)
        model = CertifiedClassifier("vectors:2", 2, noise=noise)
        model.fit(VECTORS[kinds // 2], kinds % 2)
        label, radius = model.predict_with_radius(queries)
        labels.append(label)
        radii.append(radius)
    return counts, np.array(labels), np.array(radii)


def counterexamples(counts: np.ndarray, labels: np.ndarray, radii: np.ndarray) -> int:
    """Pairs of data sets within the radius of the first whose predictions differ."""
    found = 0
    for row, label, radius in zip(counts, labels, radii, strict=True):
        distance = np.abs(counts - row).sum(axis=1)[:, None]
        found += int(((distance <= radius) & (labels != label)).sum())
    return found


@pytest.mark.parametrize("noise", [(0.0,) * 6, (0.3, -0.7, 0.1, -0.4, 0.25, -0.05)])
def test_no_small_data_set_contradicts_a_radius_and_a_larger_one_is_contradicted(
    noise: tuple[float, ...],
) -> None:
    queries = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.28, 0.96]])
    counts, labels, radii = all_predictions(Given(*noise), queries)
    assert radii.max() >= 4
    assert counterexamples(counts, labels, radii) == 0
    assert counterexamples(counts, labels, radii + 1) > 0  # a planted off-by-one is caught


@pytest.mark.parametrize(
    ("gap", "radius"),
    [(0, 0), (1, 0), (MOVE, 0), (MOVE + 1, 1), (2 * MOVE, 1), (2 * MOVE + 1, 2), (10 * MOVE, 9)],
)
def test_the_radius_is_the_largest_whole_number_below_twice_the_gap(gap: int, radius: int) -> None:
    assert radius_of(np.array([gap])).tolist() == [radius]


def scattered(seed: int, size: int, classes: int = 4, width: int = 12) -> tuple[np.ndarray, Any]:
    """Records around a centre per class, far enough apart to be told from each other."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(0).random((classes, width)) ** 3
    labels = draw.integers(classes, size=size)
    rows = (centres[labels] + 0.35 * draw.standard_normal((size, width))).clip(0)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


class Ballots:
    """Twelve numbers become a vote in each of two tables: the largest of either half."""

    name, width, digest, pairing = "ballots", 12, "", Votes(2)

    def records(self, rows: np.ndarray) -> np.ndarray:
        votes = np.zeros((len(rows), 12))
        for half in (0, 6):
            chosen = np.nan_to_num(rows[:, half : half + 6]).argmax(axis=1)
            votes[np.arange(len(rows)), half + chosen] = 0.5
        return votes

    def queries(self, rows: np.ndarray) -> np.ndarray:
        return (3 * rows - 0.3).clip(0, 1)


MAPS: list[FeatureMap] = [Vectors(12), Ballots()]


def mapped(features: FeatureMap, rows: np.ndarray) -> tuple[sparse.csr_array, np.ndarray]:
    """Vectors of rows as records, and as queries."""
    vectors, _ = features.pairing.records(features.records(rows))
    return sparse.csr_array(vectors), features.pairing.queries(features.queries(rows))


@pytest.mark.parametrize("features", MAPS, ids=lambda each: each.name)
def test_thousands_of_attacks_change_no_certified_prediction_and_some_others(
    features: FeatureMap,
) -> None:
    rows, labels = scattered(1, 400)
    noise = RepeatedNoise(ReproducibleNoise(3))
    model = CertifiedClassifier(features, 4, epsilon=8.0, noise=noise).fit(rows, labels)
    images, queries = mapped(features, scattered(2, 100)[0])
    pairing, sums = features.pairing, model.released_
    assert np.median(decided(scores_of(queries, sums, pairing))[1]) > 20
    found = attacked(sums, images, queries, pairing, each=50, most=120)
    assert found.tries == 5_000  # and as many with the other map
    assert found.broken == 0
    assert found.changed > 1000
    if pairing == EUCLIDEAN:
        assert found.sharp >= 95  # ⌈2g⌉ copies bring a tie, one more a change: radii are sharp
        planted = attacked(sums, images, queries, pairing, each=5, most=120, radius_off=2)
        assert planted.broken > 0


@pytest.mark.parametrize("features", MAPS, ids=lambda each: each.name)
def test_attacks_that_train_anew_change_no_certified_prediction(features: FeatureMap) -> None:
    rows, labels = scattered(5, 600)
    queries, truth = scattered(6, 300)
    noise = RepeatedNoise(ReproducibleNoise(7))
    members = Records(mapped(features, rows)[0], labels)
    like = CertifiedClassifier(features, 4, epsilon=4.0)
    images, asked = mapped(features, queries)
    released = members.fitted(like, features, noise)
    target = Target(members, released, asked, images, truth, features.pairing)
    before, radii = decided(target.scores)
    worst = 1.0
    for k in (1, 20, 60, 100):
        for attack in best_attacks(target, k):
            assert len(attack) <= k
            poisoned = attack.applied(members).fitted(like, features, noise)
            assert np.array_equal(poisoned, released + attack.sums(target))
            now, _ = decided(scores_of(asked, poisoned, features.pairing))
            assert not (now != before)[radii >= len(attack)].any()
            worst = min(worst, float(np.mean(now == truth)))
    assert worst < np.mean(before == truth) - 0.1


@pytest.mark.parametrize("pairing", [EUCLIDEAN, Votes(4), Mixed(5, Votes(2), 0.75)], ids=str)
def test_similarities_are_from_0_to_1_and_records_are_short_whatever_the_rows_are(
    pairing: Pairing,
) -> None:
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((400, 12)) * 10.0 ** draw.integers(-2, 3, size=(400, 1))
    rows[:200, 5:] = 0.5 * (draw.random((200, 7)) < 0.2)  # as votes are
    vectors, _ = pairing.records(rows)
    products = pairing.queries(draw.standard_normal((400, 12)) * 2) @ vectors.T
    assert 0 <= products.min() < products.max() <= LENGTH**2
    extended = np.column_stack([vectors, np.full(400, LENGTH * pairing.constant)])
    assert np.sqrt(np.square(extended).sum(axis=1)).max() <= sensitivity(pairing)


@pytest.mark.parametrize("pairing", [EUCLIDEAN, Votes(4)], ids=str)
def test_the_nearest_vector_is_one_of_a_record_and_no_other_is_nearer(pairing: Pairing) -> None:
    draw = np.random.default_rng(3)
    rows = draw.random((300, 12))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if pairing != EUCLIDEAN:
        rows = np.array([0.25 * (np.argsort(row) < 4) for row in rows])
    vectors, _ = pairing.records(rows)
    for direction in draw.standard_normal((50, 12)):
        nearest = pairing.nearest(direction)
        assert np.array_equal(pairing.records(nearest[None] / LENGTH)[0][0], nearest)
        assert nearest @ direction >= (vectors @ direction).max() - 20  # rounded to the lattice


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (1.0, 1e-6), (3.0, 1e-9)])
def test_the_noise_costs_what_was_asked_and_hardly_less(epsilon: float, delta: float) -> None:
    multiplier = least_gaussian(epsilon, delta)
    spent = PldAccountant().compose(dp.GaussianDpEvent(multiplier)).get_epsilon(delta)
    assert 0.999 * epsilon < spent <= epsilon
    exact = normal_cdf(0.5 / multiplier - epsilon * multiplier) - math.exp(epsilon) * normal_cdf(
        -0.5 / multiplier - epsilon * multiplier
    )  # of the Gaussian mechanism (Balle and Wang, 2018)
    assert 0.99 * delta < exact <= delta


def normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def test_one_record_moves_the_sums_by_no_more_than_the_sensitivity() -> None:
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((500, 7)) * 10.0 ** draw.integers(-3, 300, size=(500, 1))
    rows[::50, 3] = math.inf
    silent = Given(*(0.0,) * 24)
    for row, label in zip(rows, draw.integers(-1, 5, size=500), strict=True):
        model = CertifiedClassifier("vectors:7", 3, noise=silent)
        moved = model.fit(row[None], [label]).released_.astype(float)
        assert np.sqrt(np.square(moved).sum()) <= LONGEST
    assert math.isclose(LONGEST, LENGTH * math.sqrt(1.25), rel_tol=1e-9)
    assert LONGEST**2 > 1.25 * LENGTH**2


def test_the_noise_has_the_scale_that_is_priced() -> None:
    model = CertifiedClassifier("vectors:99", 20, epsilon=1.0, noise=ReproducibleNoise(1))
    model.fit(np.zeros((0, 99)), np.zeros(0))
    deviation = model.released_.std() / LONGEST / least_gaussian(1.0, 1e-6)
    assert abs(deviation - 1) < 0.1  # 2,000 draws: six standard errors


ODD = [np.nan, np.inf, -np.inf, 1e308, -1.0]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("label", [0, 1, 7, -1, 2**40])
def test_one_odd_record_changes_the_sums_of_its_own_class_only(value: float, label: int) -> None:
    rows, labels = scattered(1, 300, classes=2)
    odd = rows[:1].copy()
    odd[0, 0] = value
    noise = RepeatedNoise(ReproducibleNoise(2))

    def released(rows: np.ndarray, labels: Any) -> np.ndarray:
        return CertifiedClassifier("vectors:12", 2, noise=noise).fit(rows, labels).released_

    clean = released(rows, labels)
    changed = released(np.concatenate([odd, rows]), np.concatenate([[label], labels])) - clean
    assert np.square(changed).sum() <= LONGEST**2
    if not math.isfinite(value) or label not in (0, 1):
        assert not changed.any()


@pytest.mark.parametrize("labels", [["a", "b", "zebra"], [None, "a", 3], [0.5, math.nan, 1.0]])
def test_labels_of_any_kind_are_left_out_if_they_are_no_class(labels: list[Any]) -> None:
    column = np.array(labels, dtype=object)
    rows = np.eye(3)
    model = CertifiedClassifier("vectors:3", ["a", "b"], noise=Given(*(0.0,) * 8)).fit(rows, column)
    kept = sum(label in ("a", "b") for label in labels)
    assert model.released_[:, -1].sum() == kept * LENGTH // 2


def test_a_query_that_is_not_finite_is_answered() -> None:
    rows, labels = scattered(1, 300)
    model = CertifiedClassifier("vectors:12", 4).fit(rows, labels)
    found, radii = model.predict_with_radius(np.full((2, 12), np.nan))
    assert set(found.tolist()) <= {0, 1, 2, 3}
    assert (radii >= 0).all()


class Refusing:
    """A ledger without budget."""

    def charge(self, event: dp.DpEvent, label: str = "", *, delta: float | None = None) -> None:
        raise NoBudgetError


class NoBudgetError(ValueError):
    pass


class Unread:
    """Records that must not be looked at."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise AssertionError("read before the charge")

    def __len__(self) -> int:
        raise AssertionError("counted before the charge")


def test_the_ledger_is_charged_before_the_records_are_read() -> None:
    model = CertifiedClassifier("vectors:2", 2, ledger=Refusing())
    with pytest.raises(NoBudgetError):
        model.fit(Unread(), Unread())  # type: ignore[arg-type]


def test_a_fit_is_charged_with_its_price(tmp_path: Path) -> None:
    with Ledger(tmp_path / "budget.db", epsilon=1.0, delta=1e-6, adaptive=False) as ledger:
        model = CertifiedClassifier("vectors:2", 2, epsilon=0.9, delta=1e-6, ledger=ledger)
        model.fit(np.eye(2), [0, 1])
        assert 0.89 < ledger.spent <= 0.9
        released = model.released_
        with pytest.raises(OverBudgetError):
            model.fit(np.eye(2), [0, 1])
        assert (model.released_ == released).all()


def test_records_that_cannot_be_read_are_not_quoted() -> None:
    model = CertifiedClassifier("vectors:2", 2)
    with pytest.raises(SourceError) as caught:
        model.fit(np.array([["secret", "1"]]), [0])
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None
    with pytest.raises(SourceError):
        model.fit(np.eye(2), [0, 1, 1])


def test_a_classifier_is_saved_and_loaded(tmp_path: Path) -> None:
    rows, labels = scattered(1, 300)
    names = np.array(["a", "b", "c", "d"])
    model = CertifiedClassifier("vectors:12", names.tolist(), epsilon=2.0).fit(rows, names[labels])
    model.save(tmp_path / "model.npz")
    again = CertifiedClassifier.load(tmp_path / "model.npz")
    for one, other in zip(
        model.predict_with_radius(rows), again.predict_with_radius(rows), strict=True
    ):
        assert (one == other).all()
    assert (again.epsilon, again.delta, again.event) == (2.0, 1e-6, model.event)
    assert again.score(rows, names[labels]) == model.score(rows, names[labels]) > 0.8


def test_a_file_of_other_features_or_of_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    model = CertifiedClassifier("vectors:2", 2).fit(np.eye(2), [0, 1])
    model.save(path)
    with pytest.raises(ArgumentError, match="features"):
        CertifiedClassifier.load(path, features="vectors:3")
    with np.load(path) as archive:
        header, released = str(archive["header"]), archive["released"]
    np.savez(path, header=np.array(header.replace('"format": 1', '"format": 2')), released=released)
    with pytest.raises(ValueError, match="newer version"):
        CertifiedClassifier.load(path)
    np.savez(path, other=released)
    with pytest.raises(ValueError, match="written by"):
        CertifiedClassifier.load(path)


def test_conventions_of_scikit_learn() -> None:
    model = CertifiedClassifier("vectors:2", 2, epsilon=2.0)
    with pytest.raises(NotFittedError):
        model.predict(np.eye(2))
    copy = type(model)(**model.get_params())
    assert copy.get_params() == model.get_params()
    assert model.fit(np.eye(2), [0, 1]) is model
    assert model.set_params(epsilon=1.0).epsilon == 1.0
    with pytest.raises(NotFittedError):
        model.predict(np.eye(2))


def test_certified_accuracy_falls_with_the_number_of_records() -> None:
    rows, labels = scattered(1, 2000)
    model = CertifiedClassifier("vectors:12", 4).fit(rows, labels)
    found = model.certified_accuracy(rows, labels, records=(0, 10, 50, 200, 2001))
    assert found[0] == model.score(rows, labels) == np.mean(model.predict(rows) == labels)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found[2001] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"classes": 1},
        {"classes": [1, 1]},
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"features": "digits"},
        {"features": "vectors:0"},
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        CertifiedClassifier(**{"features": "vectors:2", **arguments})


def test_vectors_are_short_and_non_negative_whatever_the_rows_are() -> None:
    draw = np.random.default_rng(5)
    rows = draw.standard_normal((2000, 9)) * 10.0 ** draw.integers(-320, 308, size=(2000, 9))
    with np.errstate(over="ignore", invalid="ignore"):
        rows[::7] /= np.linalg.norm(rows[::7], axis=1, keepdims=True) + 1e-300
    whole, finite = EUCLIDEAN.records(rows)
    assert finite.tolist() == np.isfinite(rows).all(axis=1).tolist()
    squares = [sum(int(value) ** 2 for value in row) for row in whole]  # Python's integers
    assert max(squares) <= LENGTH**2
    assert whole.min() >= 0
    assert np.median(squares) > 0.99 * LENGTH**2  # rows longer than 1 lose next to nothing
    again, _ = EUCLIDEAN.records(whole / LENGTH)
    assert (again == whole).all()
