"""The proof of the classifier, tried on all small data sets, by attacks and with odd records."""

import functools
import itertools
import json
import operator
import pickle
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from prudent import ArgumentError
from prudent.accounting import PldAccountant
from prudent.budget.ledger import Ledger, OverBudgetError
from prudent.certify import CertifiedClassifier, Counts, Landmarks, NotFittedError
from prudent.certify.counts import STEPS, UNTOUCHABLE, decided, moves_of
from prudent.release.columns.column import SourceError
from prudent.release.noise import Distribution, ReproducibleNoise, SecureNoise

POINTS = np.array([[1.0, 0.0], [0.6, 0.8], [-0.3, 0.5]])
QUERIES = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.28, 0.96], [-1.0, 0.2]])


class Given:
    """Noise of a test: the numbers given, again and again."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def of_test(self, test: Any) -> int:
        raise AssertionError

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        assert distribution is Distribution.LAPLACE
        return list(itertools.islice(itertools.cycle(self.values), size))

    def integer(self, bound: int) -> int:
        raise AssertionError


SILENT = Given(0)


class Halves:
    """Two tables: by the sign of the first number, and by that of the second, of two cells each."""

    name, digest, sizes = "halves", "", (2, 2)

    def cells(self, rows: Any) -> np.ndarray:
        rows = np.asarray(rows)
        return np.stack([(rows[:, 0] > 0).astype(int), 2 + (rows[:, 1] > 0)], axis=1)

    def weights(self, rows: Any) -> np.ndarray:
        found = np.zeros((len(rows), 4), np.float32)
        np.put_along_axis(found, self.cells(rows), STEPS, axis=1)
        found[0, 3] = STEPS // 3
        return found


def model(**options: Any) -> CertifiedClassifier:
    return CertifiedClassifier(**({"epsilon": 1.0, "classes": 2, "landmarks": POINTS} | options))


def small_data_sets(size: int) -> list[tuple[int, ...]]:
    """All data sets of up to `size` records: how many there are of each point and class."""
    kinds = 2 * len(POINTS)
    return [
        tuple(Counter(chosen)[kind] for kind in range(kinds))
        for n in range(size + 1)
        for chosen in itertools.combinations_with_replacement(range(kinds), n)
    ]


def all_predictions(options: dict[str, Any]) -> tuple[np.ndarray, ...]:
    counts = np.array(small_data_sets(5))
    labels, radii = [], []
    for row in counts:
        kinds = np.repeat(np.arange(len(row)), row)
        fitted = model(**options).fit(POINTS[kinds // 2], kinds % 2)
        label, radius = fitted.predict_radius(QUERIES)
        labels.append(label)
        radii.append(radius)
    return counts, np.array(labels), np.array(radii)


def counterexamples(counts: np.ndarray, labels: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """For each query, data sets with another within their radius whose prediction differs."""
    found = np.zeros(labels.shape[1], int)
    for row, label, radius in zip(counts, labels, radii, strict=True):
        distance = np.abs(counts - row).sum(axis=1)[:, None]
        found += ((distance <= radius) & (labels != label)).any(axis=0)
    return found


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "options",
    [
        {"noise": SILENT},
        {"noise": Given(2, -1, 0, 1, -3, 2, 1), "ramp": (-0.5, 0.5)},
        {"noise": Given(1, 0, -1, 2), "ramp": (0.2, 1.0)},
        {"noise": Given(1, -2, 0), "features": Halves()},
    ],
    ids=["silent", "noise", "partial weights", "two tables"],
)
def test_brute_force_over_all_small_data_sets_agrees_with_each_radius(
    options: dict[str, Any],
) -> None:
    counts, labels, radii = all_predictions(options)
    assert radii.max() >= 3
    assert not counterexamples(counts, labels, radii).any()
    larger = counterexamples(counts, labels, radii + 1)
    if "features" in options:  # no record has the extreme weight in both tables
        assert larger.any()
        return
    # Sharp: of every small data set another one is r + 1 records away that is predicted otherwise.
    inner = (counts.sum(axis=1)[:, None] + radii + 1 <= 5) & (radii < 5)
    for query in range(len(QUERIES)):
        for row, label, radius in zip(
            counts[inner[:, query]],
            labels[inner[:, query], query],
            radii[inner[:, query], query],
            strict=True,
        ):
            near = np.abs(counts - row).sum(axis=1) <= radius + 1
            assert (labels[near, query] != label).any()


@pytest.mark.parametrize(
    ("scores", "move", "radius"),
    [
        ((5, 5), 2, 0),
        ((6, 5), 2, 0),
        ((7, 5), 2, 1),  # the first class wins a draw
        ((5, 7), 2, 0),  # the second does not
        ((5, 8), 2, 1),
        ((9, 5, 8), 2, 0),
        ((5, 5), 0, UNTOUCHABLE),
    ],
)
def test_the_radius_is_the_largest_number_that_keeps_the_order(
    scores: tuple[int, ...], move: int, radius: int
) -> None:
    assert decided(np.array([scores]), np.array([move]))[1].tolist() == [radius]


def test_moves_are_the_largest_distance_of_a_similarity_from_a_half() -> None:
    weights = np.array([[0, STEPS, STEPS // 2, STEPS // 4], [STEPS // 2] * 4], np.float32)
    assert moves_of(weights, [4]).tolist() == [STEPS, 0]
    assert moves_of(weights, [2, 2]).tolist() == [3 * STEPS // 2, 0]


def blobs(seed: int, size: int, classes: int = 4, width: int = 12) -> tuple[np.ndarray, Any]:
    """Records around a centre per class, far enough apart to be told from each other."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((classes, width))
    labels = draw.integers(classes, size=size)
    return centres[labels] + 0.5 * draw.standard_normal((size, width)), labels


LANDMARKS = blobs(9, 60)[0]


def fitted(**options: Any) -> CertifiedClassifier:
    settings = {"epsilon": 2.0, "classes": 4, "landmarks": LANDMARKS, "noise": ReproducibleNoise(3)}
    return CertifiedClassifier(**(settings | options)).fit(*blobs(1, 2000))


def test_it_classifies_and_certifies() -> None:
    found = fitted()
    queries, truth = blobs(2, 300)
    certified = found.certified_score(queries, truth, records=(0, 100, 400))
    assert certified[0] == found.score(queries, truth) > 0.9
    assert certified[0] >= certified[100] > certified[400] > 0.0
    labels, radii = found.predict_radius(queries)
    assert np.array_equal(labels, found.predict(queries))
    assert (radii.min(), found.predict([]).tolist()) >= (0, [])


def test_copies_of_a_landmark_change_a_prediction_one_beyond_its_radius_and_not_at_it() -> None:
    noise = Given(3, -2, 5, 0, -1)
    records, labels = blobs(1, 400)
    found = fitted(noise=noise).fit(records, labels)
    queries = blobs(2, 40)[0]
    scores, _ = found.scores(queries)
    before, radii = found.predict_radius(queries)
    weights = found.partition_.weights(queries)
    for query in range(len(queries)):
        order = np.argsort(-scores[query], kind="stable")
        up, down = weights[query].argmax(), weights[query].argmin()
        raising = 2 * weights[query, up] - STEPS >= STEPS - 2 * weights[query, down]
        place, name = (up, order[1]) if raising else (down, order[0])
        for extra in (0, 1):
            k = int(radii[query]) + extra
            more = np.concatenate([records, np.repeat(LANDMARKS[[place]], k, axis=0)])
            after = fitted(noise=noise).fit(more, np.concatenate([labels, np.full(k, name)]))
            assert (after.predict(queries[[query]])[0] != before[query]) == bool(extra)


def test_what_a_fit_costs_is_pure_and_charged_before_records_are_read(tmp_path: Path) -> None:
    found = model(epsilon=0.3)
    assert PldAccountant().compose(found.event).get_epsilon(0.0) <= 0.3 * (1 + 1e-12)
    totals, cells = found.pricing.parts
    assert Fraction(totals) + Fraction(cells) <= Fraction(0.3)

    class Unread:
        def __len__(self) -> int:
            raise AssertionError

        __getitem__ = __iter__ = __len__

    with (
        Ledger.create(tmp_path / "x.db", epsilon=0.5, delta=1e-6) as ledger,
    ):
        model(epsilon=0.3, ledger=ledger).fit(POINTS, [0, 1, 0])
        entries = list(ledger.history())
        assert "landmarks" in str(entries[-1]) or "vectors" in str(entries[-1])
        with pytest.raises(OverBudgetError):
            model(epsilon=0.3, ledger=ledger).fit_chunks(Unread())  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [7, SecureNoise])
def test_what_is_no_source_of_noise_is_refused_before_the_charge(
    noise: Any, tmp_path: Path
) -> None:
    with Ledger.create(tmp_path / "x.db", epsilon=0.5, delta=1e-6) as ledger:
        with pytest.raises(ArgumentError, match="Expected noise"):
            model(epsilon=0.3, ledger=ledger, noise=noise).fit(POINTS, [0, 1, 0])
        assert list(ledger.history()) == []


@pytest.mark.parametrize(
    "labels",
    [[0, 1], None, 3, "010", {0: 1, 1: 0, 2: 1}, np.zeros((3, 2)), np.array(1), np.zeros(4)],
    ids=str,
)
def test_labels_that_fit_no_records_are_refused_before_the_charge(
    labels: Any, tmp_path: Path
) -> None:
    with Ledger.create(tmp_path / "x.db", epsilon=0.5, delta=1e-6) as ledger:
        with pytest.raises(ArgumentError, match="one label per record"):
            model(epsilon=0.3, ledger=ledger).fit(POINTS, labels)
        with pytest.raises(ArgumentError, match="pairs"):
            model(epsilon=0.3, ledger=ledger).fit_chunks(None)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="count returns"):
            model(epsilon=0.3, ledger=ledger).fit_counts(None)  # type: ignore[arg-type]
        assert list(ledger.history()) == []


def test_more_counts_than_memory_holds_are_refused_before_the_charge(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "x.db", epsilon=0.5, delta=1e-6) as ledger:
        many = CertifiedClassifier(0.3, 10**5, 1024, ledger=ledger)
        with pytest.raises(ArgumentError, match="at most 100,000,000 counts, got 102,400,000"):
            many.fit(POINTS, [0, 1, 0])
        assert list(ledger.history()) == []


def test_classes_of_several_types_are_what_they_are(tmp_path: Path) -> None:
    found = CertifiedClassifier(9.0, [1, "a"], POINTS, ramp=(0.1, 0.9), noise=SILENT)
    found.fit(POINTS, [1, "a", "1"])
    assert found.counts_.totals.tolist() == [1, 1]
    assert found.predict(POINTS[:2]).tolist() == [1, "a"]
    found.save(tmp_path / "x.npz")
    again = CertifiedClassifier.load(tmp_path / "x.npz")
    assert again.predict(POINTS[:2]).tolist() == [1, "a"]


def test_noise_has_the_scale_of_its_share() -> None:
    asked = []

    class Watched(Given):
        def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
            asked.append((scale, size))
            return super().of_value(distribution, scale, size)

    model(epsilon=0.5, noise=Watched(0), share=0.2).fit(POINTS, [0, 1, 1])
    model(epsilon=0.5, noise=Watched(0), share=0.2, features=Halves()).fit(POINTS, [0, 1, 1])
    (one, cells), (two, classes), (both, _), (same, _) = asked
    assert (cells, classes) == (6, 2)
    assert one == pytest.approx(1 / 0.4)
    assert two == same == pytest.approx(1 / 0.1)
    assert both == pytest.approx(2 / 0.4)  # a record is in two cells
    assert one >= 1 / 0.4


ODD_RECORDS = {
    "float": np.array([0.5, 0.25]),
    "nan": np.array([np.nan, 1.0]),
    "huge": np.array([1e308, -1e308]),
    "tiny": np.array([5e-324, 0.0]),
    "bool": [True, False],
    "text": "ab",
    "short": [1.0],
    "object": object(),
    "half": np.array([1, 2], np.float16),
    "tensor": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
    "integers": [2**70, 1],
    "blank": [0, 0],
}


@pytest.mark.parametrize("odd", ODD_RECORDS)
@pytest.mark.parametrize("label", [0, 1, 2.0, "1", None])
def test_one_odd_record_changes_one_cell_by_one(odd: str, label: Any) -> None:
    rows = list(np.random.default_rng(0).integers(0, 256, (20, 2)).astype(np.uint8))
    names: list[Any] = [0, 1] * 10
    without = model().count(rows, names)
    beside = model().count(
        [*rows[:7], ODD_RECORDS[odd], *rows[7:]], [*names[:7], label, *names[7:]]
    )
    assert np.abs(beside.cells - without.cells).sum() <= 1
    assert np.abs(beside.totals - without.totals).sum() <= 1


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, object])
def test_a_label_enters_one_class_at_most(kind: type) -> None:
    class Everything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

    classes = [2048, 2049, 2**24, 2**24 + 1, 0, 1, 2, 3, 4]
    labels = np.array([2048] * 3, dtype=kind)
    if kind is object:
        labels[1] = Everything()
    found = model(classes=classes).count(POINTS, labels)
    assert found.totals.sum() <= 3
    assert found.cells.sum() == found.totals.sum() == (2 if kind is object else 3)


def test_memory_order_containers_and_chunks_change_no_bit() -> None:
    draw = np.random.default_rng(5)
    rows = draw.standard_normal((700, 7)) * np.exp(6 * draw.standard_normal((700, 7)))
    labels = draw.integers(2, size=700)
    landmarks = draw.standard_normal((50, 7))
    like = model(landmarks=landmarks)
    wanted = like.count(rows, labels)
    others = [
        (np.asfortranarray(rows), labels),
        (rows[::-1][::-1], labels.tolist()),
        (list(rows), labels),
        (pd.DataFrame(rows), pd.Series(labels)),
        (torch.from_numpy(rows), torch.from_numpy(labels)),
    ]
    for records, names in others:
        assert np.array_equal(like.count(records, names).cells, wanted.cells)
    for size in (1, 13, 699):
        pieces = [slice(start, start + size) for start in range(0, 700, size)][:60]
        chunked = functools.reduce(
            operator.add, [like.count(rows[each], labels[each]) for each in pieces]
        )
        end = pieces[-1].stop
        assert np.array_equal(chunked.cells, like.count(rows[:end], labels[:end]).cells)
    order = draw.permutation(700)
    assert np.array_equal(like.count(rows[order], labels[order]).cells, wanted.cells)
    codes, _ = like.known().partition.features.codes(rows)  # type: ignore[attr-defined]
    alone = [like.known().partition.features.codes(row[None])[0] for row in rows]  # type: ignore[attr-defined]
    assert codes.tobytes() == np.concatenate(alone).tobytes()


def test_a_function_sees_one_record_at_a_time() -> None:
    seen = []

    def centred(rows: np.ndarray) -> np.ndarray:
        seen.append(len(rows))
        if rows[0, 0] > 100:
            raise KeyError("secret")
        return rows - rows.mean()  # of many rows it would mix them

    rows = np.array([[1.0, 2.0], [3.0, 5.0], [200.0, 1.0]])
    found = model(features=centred).count(rows, [0, 1, 1])
    assert set(seen) == {1}
    assert found.totals.tolist() == [1, 1]


def digits_of(rows: Any) -> list[list[int]]:
    """A map that tells the whole number 3 from 3.0."""
    (row,) = rows.itertuples(index=False) if hasattr(rows, "itertuples") else rows
    text = str(row[0] if hasattr(row, "__len__") else row)
    return [[1, len(text), text.count("."), text.count("1")]]


NUMBERED = [[value % 37] for value in range(100)]


@pytest.mark.parametrize("odd", [1.5, None, 2**70, True])
@pytest.mark.parametrize("container", [np.array, pd.DataFrame, list])
@pytest.mark.parametrize("public", [np.array, pd.DataFrame, list])
def test_a_function_sees_no_type_that_another_record_decided(
    public: Any, container: Any, odd: Any
) -> None:
    like = model(landmarks=public([[1], [22], [333], [5]]), features=digits_of)
    without = like.count(container(NUMBERED), [0, 1] * 50)
    beside = like.count(container([*NUMBERED, [odd]]), [*[0, 1] * 50, 0])
    assert without.totals.sum() == 100
    assert np.abs(beside.cells - without.cells).sum() <= 1


def test_a_function_is_called_with_tensors_where_landmarks_are() -> None:
    seen = set()

    def spy(rows: Any) -> Any:
        seen.add(rows.dtype)
        return rows.float()

    whole = torch.tensor([[1, 0], [0, 1]])
    for records in (np.eye(2), torch.eye(2, dtype=torch.bfloat16), torch.eye(2)):
        found = model(landmarks=whole, features=spy).count(records, [0, 1])
        assert found.totals.tolist() == [1, 1]
    assert seen == {torch.int64}
    found = model(landmarks=whole, features=spy).count(np.eye(2) / 2, [0, 1])
    assert found.totals.tolist() == [1, 1]
    assert seen == {torch.int64, torch.float64}


def test_texts_reach_a_function_whatever_holds_them() -> None:
    texts = ["a" * (place % 5 + 1) for place in range(100)]
    like = model(landmarks=["ab", "c", "xyz"], features=lambda rows: [[1, len(rows[0])]])
    wanted = like.count(texts, [0, 1] * 50).cells
    assert wanted.sum() == 100
    for same in (np.array(texts), np.array(texts, dtype=object), pd.Series(texts)):
        assert np.array_equal(like.count(same, [0, 1] * 50).cells, wanted)


def test_one_text_makes_no_record_absent_but_its_own(tmp_path: Path) -> None:
    """numpy makes texts of all numbers beside one."""
    rows, names = [*POINTS.tolist(), ["a", "b"]], [0, 1, 0, 1]
    labels = [*names[:3], "x"]
    assert model().count(rows, names).totals.sum() == 3
    assert model().count(pd.DataFrame(rows), labels).totals.sum() == 3
    with Ledger.create(tmp_path / "b.db", epsilon=3.0, delta=1e-6) as ledger:
        private = model(ledger=ledger)
        for act in (private.fit, private.count):
            with pytest.raises(ArgumentError, match="X an array of numbers, got one of texts"):
                act(np.array(rows), names)
            with pytest.raises(ArgumentError, match="X an array of numbers, got one of texts"):
                act(pl.DataFrame(rows, orient="row", strict=False), names)
            with pytest.raises(ArgumentError, match="labels like the classes"):
                act(rows, np.array(labels))
        assert not list(ledger.history())
        with pytest.raises(SourceError):
            private.fit_chunks([(np.array(rows), names)])


def test_tables_of_clients_add_up_to_that_of_all() -> None:
    rows, labels = blobs(4, 100)
    like = fitted()
    one, two = like.count(rows[:30], labels[:30]), like.count(rows[30:], labels[30:])
    both, whole = one + two, like.count(rows, labels)
    assert np.array_equal(both.cells, whole.cells)
    assert np.array_equal(both.totals, whole.totals)
    noise = ReproducibleNoise(8)
    central = fitted(noise=noise).fit_counts(both).counts_
    assert not np.array_equal(central.cells, both.cells)
    assert central.epsilon == 2.0
    sent = [
        fitted(epsilon=each, noise=noise).fit_counts(part).counts_
        for each, part in ((1.0, one), (2.0, two))
    ]
    together = sent[0] + sent[1]
    assert together.epsilon == 2.0
    assert fitted().fit_counts(together).counts_ is together
    with pytest.raises(ArgumentError, match="exact"):
        _ = one + sent[0]
    with pytest.raises(ArgumentError, match="partition"):
        _ = one + model().count(POINTS, [0, 1, 1])
    with pytest.raises(ArgumentError, match="partition"):
        model().fit_counts(one)


def test_a_stream_of_chunks_is_fitted_once() -> None:
    rows, labels = blobs(1, 2000)
    chunks = (
        (rows[start : start + 77], labels[start : start + 77]) for start in range(0, 2000, 77)
    )
    streamed = CertifiedClassifier(2.0, 4, LANDMARKS, noise=ReproducibleNoise(3)).fit_chunks(chunks)
    assert np.array_equal(streamed.counts_.cells, fitted().counts_.cells)
    directions = CertifiedClassifier(2.0, 4, 32, noise=SILENT)
    assert directions.fit_chunks([(rows, labels)], width=12).counts_.cells.sum() == 2000


def test_a_classifier_is_saved_and_read(tmp_path: Path) -> None:
    queries = blobs(2, 50)[0]
    for options in ({}, {"ramp": (0.0, 0.5)}, {"landmarks": 64}):
        found = fitted(**options)
        found.save(tmp_path / "x.npz")
        again = CertifiedClassifier.load(tmp_path / "x.npz")
        for one, two in zip(
            found.predict_radius(queries), again.predict_radius(queries), strict=True
        ):
            assert np.array_equal(one, two)
    mine = fitted(features=np.sign)
    mine.save(tmp_path / "y.npz")
    again = CertifiedClassifier.load(tmp_path / "y.npz", np.sign, LANDMARKS)
    assert np.array_equal(again.predict(queries), mine.predict(queries))
    with pytest.raises(ArgumentError, match="partition"):
        CertifiedClassifier.load(tmp_path / "y.npz", np.sign, LANDMARKS[1:])
    (tmp_path / "z.npz").write_bytes(b"none")
    with pytest.raises(ValueError, match=r"CertifiedClassifier\.save"):
        CertifiedClassifier.load(tmp_path / "z.npz")


def edited(path: Path, **changes: Any) -> None:
    """Change entries of the header of a saved classifier, or its arrays."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive}
    header = json.loads(str(arrays["header"]))
    for name, value in changes.items():
        (arrays if name in arrays else header)[name] = value
    np.savez(path, **(arrays | {"header": np.array(json.dumps(header))}))


@pytest.mark.parametrize(
    "change",
    [
        {"tables": 7},
        {"epsilon": 0.1},
        {"ramp": [0.0, 0.1]},
        {"share": 0.2},
        {"classes": [0, 1, 3, 2]},
        {"totals": np.array([1, 2, 3, 4])},
        {"cells": np.zeros((4, 60), np.int64)},
        {"landmarks": np.ones((60, 12), np.int16)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_file_that_was_edited_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    fitted().save(tmp_path / "x.npz")
    edited(tmp_path / "x.npz")
    CertifiedClassifier.load(tmp_path / "x.npz")
    edited(tmp_path / "x.npz", **change)
    with pytest.raises(ValueError, match=r"CertifiedClassifier\.save"):
        CertifiedClassifier.load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"totals": np.zeros(3, np.int64)},
        {"cells": np.zeros((4, 59), np.int64)},
        {"cells": np.zeros((3, 60), np.int64)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_counts_have_the_shape_of_their_partition(change: dict[str, Any]) -> None:
    counts = fitted().counts_
    with pytest.raises(ArgumentError, match="partition"):
        attrs.evolve(counts, **change)


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 0.0},
        {"epsilon": np.nan},
        {"classes": 1},
        {"classes": [1, 1]},
        {"classes": [1, None]},
        {"landmarks": None},
        {"landmarks": 0},
        {"landmarks": [[1.0, np.nan]]},
        {"landmarks": []},
        {"landmarks": np.ones((0, 2))},
        {"ramp": (0.5, 0.5)},
        {"ramp": (0.0, 2.0)},
        {"share": 0.0},
        {"share": 1.0},
        {"features": "unknown"},
        {"features": 3},
        {"features": np.sign, "landmarks": 8},
    ],
    ids=str,
)
def test_odd_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        model(**options).fit(POINTS, [0, 1, 0])


def test_failures_quote_no_record() -> None:
    with pytest.raises(SourceError, match="withheld") as caught:
        model().fit_chunks([(POINTS, [0, 1])])
    assert caught.value.__context__ is None
    with pytest.raises(NotFittedError):
        model().predict(POINTS)


def test_odd_queries_are_answered_by_class_sizes_or_refused() -> None:
    found = fitted()
    labels, radii = found.predict_radius(np.full((2, 12), np.nan))
    assert labels[0] == labels[1]
    assert (radii >= 0).all()
    with pytest.raises(ArgumentError, match="12 features"):
        found.predict(np.zeros((3, 5)))
    with pytest.raises(ArgumentError, match="one label per query"):
        found.score(np.zeros((3, 12)), [1])


def test_it_says_what_it_is() -> None:
    assert repr(fitted()) == "<CertifiedClassifier: ε=2, 4 classes, landmarks=60>"
    assert "not fitted" in repr(model(features=np.sign))
    again = pickle.loads(pickle.dumps(fitted()))
    assert isinstance(again.partition_, Landmarks)
    assert isinstance(again.counts_, Counts)
