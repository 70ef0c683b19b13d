"""Maps for photographs, texts and tables, on made-up records: similarities, and no broken proof."""

import json

import attrs
import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need the extra `train`")
import torch
from tools.feature_files.sentences import fitted, make, write
from torch import nn

from prudent import ArgumentError
from prudent.certify import CertifiedClassifier
from prudent.certify.counts import STEPS
from prudent.certify.features import CENSUS, BinnedColumn, Partitions
from prudent.release.columns.column import SourceError
from prudent.release.noise import ReproducibleNoise
from prudent_lab import certifying as experiment
from prudent_lab.features.resnet import ResNet18Embedding, ResNet18Features, Whitened
from prudent_lab.features.sentences import (
    Intervals,
    MiniLMEmbedding,
    SentenceEncoder,
    minilm_map,
    read,
)
from prudent_lab.named_datasets import packed_texts

FIRST, SECOND = BinnedColumn(0, (1.0, 2.0)), BinnedColumn(1, cells=5)
BOTH = BinnedColumn(0, (1.5,)), BinnedColumn(1, cells=3)
PARTITIONS = Partitions("small", ((FIRST,), (SECOND,), BOTH, (BinnedColumn(2, (0.0,)),)), 3)


def people(count, seed=0):
    draw = np.random.default_rng(seed)
    labels = (draw.random(count) < 0.45).astype(np.int64)
    numbers = draw.normal(1.2 + labels, 0.6)
    return np.column_stack([numbers, draw.integers(0, 40, count), draw.normal(labels)]), labels


def attacked(features, train, test, classes=2):
    """Fit, certify and attack; raises BrokenCertificateError if a certified prediction changes."""
    return experiment.run(
        lambda: (train, test),
        features=features,
        classes=classes,
        epsilon=1.0,
        records=(0, 5, 40, 400),
        noise=ReproducibleNoise(3),
    )[1]


def similarity(partition, queries, records):
    """The mean weight of the cells of each record, at each query."""
    weights, cells = partition.weights(queries), partition.cells(records)
    return np.stack([weights[:, row].mean(axis=1) for row in cells], axis=1) / STEPS


def test_similarity_is_the_fraction_of_shared_cells():
    x, _ = people(40)

    def cells(row):
        a, b = int(row[0] >= 1) + int(row[0] >= 2), round(row[1])
        return a, b % 5, (row[0] >= 1.5, b % 3), row[2] >= 0

    shared = [
        [np.mean([p == q for p, q in zip(cells(r), cells(s), strict=True)]) for r in x] for s in x
    ]
    np.testing.assert_allclose(similarity(PARTITIONS, x, x), shared)
    assert PARTITIONS.sizes == (3, 5, 6, 2)
    assert len(CENSUS.sizes) == 8


@pytest.mark.parametrize(
    "column",
    [
        {"edges": (30, 60, 45)},
        {"edges": (30, 30)},
        {"edges": (30, np.nan)},
        {"edges": (10, 20, 30), "cells": 2},
        {"edges": (10, 20, 30, 40), "cells": 1},
        {"edges": (10,), "cells": 3},
        {"cells": 0},
        {"cells": 2.5},
        {"index": -1},
    ],
    ids=str,
)
def test_columns_whose_cells_are_not_those_of_their_edges_are_refused(column):
    with pytest.raises(ArgumentError):
        BinnedColumn(**({"index": 0} | column))


@pytest.mark.parametrize("partitions", [(), ((),), ((BinnedColumn(3, (1,)),),)], ids=str)
def test_partitions_are_of_columns_that_records_have(partitions):
    with pytest.raises(ArgumentError, match="partitions"):
        Partitions("odd", partitions, 3)


@attrs.frozen
class Astray:
    """A partition whose records go where the test says."""

    places: tuple
    name: str = "astray"
    digest: str = "1"
    sizes: tuple = (3, 4)

    def cells(self, records):
        return np.array([self.places] * len(records))

    def weights(self, queries):
        return np.full((len(queries), 7), STEPS, np.float32)


@pytest.mark.parametrize(
    ("places", "counted"),
    [((0, 3), 5), ((2, 6), 5), ((2, 2), 0), ((3, 4), 0), ((0, 7), 0), ((0, -2), 0), ((-1, 3), 0)],
)
def test_a_record_adds_one_to_a_cell_of_each_table_or_nothing(places, counted):
    found = CertifiedClassifier(1.0, 2, features=Astray(places)).count(np.zeros((5, 1)), [0] * 5)
    assert found.totals.tolist() == [counted, 0]
    assert found.cells.sum() == 2 * counted
    assert found.cells[0, :3].sum() == found.cells[0, 3:].sum() == counted


def test_records_in_too_few_tables_are_no_counts():
    with pytest.raises(SourceError):
        CertifiedClassifier(1.0, 2, features=Astray((0,))).count(np.zeros((5, 1)), [0] * 5)


def test_a_row_that_is_not_finite_is_absent():
    x, _ = people(4)
    x[2, 1] = np.nan
    assert (PARTITIONS.cells(x)[2] == -1).all()
    assert not PARTITIONS.weights(x)[2].any()
    np.testing.assert_array_equal(PARTITIONS.cells(x)[0], PARTITIONS.cells(x[:1])[0])


def test_attacks_on_a_table():
    result = attacked(PARTITIONS, people(3000), people(300, seed=1))
    assert result.certified[40] > 0.6
    assert result.attacked[400] < result.accuracy  # some uncertified ones do change
    truth = people(300, seed=1)[1]
    assert result.largest == pytest.approx(np.mean(truth == 0))
    assert result.balanced[400] <= result.balanced[0] <= 1


def test_thinning_decides_on_each_record_alone():
    x, y = people(900)
    kept, labels = experiment.thinned((x, y), 0, 4)
    assert np.sum(labels == 1) == np.sum(y == 1)
    assert 0.15 < np.sum(labels == 0) / np.sum(y == 0) < 0.35
    rest = np.delete(np.arange(900), [7, 450])
    again, _ = experiment.thinned((x[rest], y[rest]), 0, 4)
    gone = {row.tobytes() for row in kept} - {row.tobytes() for row in again}
    assert gone <= {x[7].tobytes(), x[450].tobytes()}


def scale(seed=0):
    draw = np.random.default_rng(seed)
    labels = np.arange(600) % 2
    rows = draw.normal(size=(600, 6)) + 1.0 + 1.5 * labels[:, None] * (np.arange(6) < 2)
    return rows, labels


def test_a_histogram_weighs_intervals_near_the_query():
    found = fitted(*scale(), {})
    rows, _ = scale(1)
    numbers = found.numbers(rows)
    alike = similarity(found, rows[:50], rows)
    distance = np.abs(numbers[:50, None] - numbers)
    assert (alike[distance < 0.9] == 1).all()
    assert (alike[distance > 2.1] == 0).all()
    np.testing.assert_allclose(alike, np.clip(2 - distance, 0, 1), atol=0.051)
    rows[3] = np.inf
    assert found.cells(rows)[3] == -1
    assert not found.weights(rows)[3].any()


def test_attacks_on_a_histogram_and_its_file(tmp_path):
    found = fitted(*scale(), {"reviews": 600})
    result = attacked(found, scale(2), scale(3))
    assert result.certified[40] > 0.6
    write(tmp_path / "map.npz", found)
    again = read(tmp_path / "map.npz")
    assert again.provenance == {"reviews": 600}
    np.testing.assert_allclose(again.numbers(scale()[0]), found.numbers(scale()[0]), atol=1e-4)


def test_the_direction_that_comes_with_the_package():
    features = minilm_map()
    assert isinstance(features, Intervals)
    assert features.direction.shape == (384,)
    assert features.provenance["reviews"] == 6000
    assert features.name == "minilm"


class Doubling:
    """An embedding that counts its calls."""

    name, digest = "doubling", "1"

    def __init__(self):
        self.calls = 0

    def __call__(self, records):
        self.calls += 1
        return 2.0 * np.asarray(records)


def test_embeddings_are_computed_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows, labels = scale()
    network = Doubling()
    features = attrs.evolve(fitted(*scale(), {}), embedding=network)
    fast = experiment.of_codes(features)
    first, second = (experiment.coded_by(features, rows) for _ in range(2))
    assert network.calls == 1
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(fast.cells(first), features.cells(rows))
    experiment.coded_by(features, rows[1:])  # other records, another entry
    assert network.calls == 3
    model = CertifiedClassifier(1.0, 2, features=features).fit(rows, labels)
    model.save(tmp_path / "model.npz")
    assert CertifiedClassifier.load(tmp_path / "model.npz", features).classes_.tolist() == [0, 1]
    assert experiment.of_codes(fast) is fast


def test_an_image_has_the_same_features_wherever_it_stands():
    torch.manual_seed(0)
    embedding = ResNet18Embedding(ResNet18Features(1).eval(), "given", 64)
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    found = embedding(images)
    np.testing.assert_array_equal(embedding(images[::-1])[::-1], found)
    floats = (images / np.float32(255)).astype(np.float32)
    np.testing.assert_array_equal(embedding(floats), found)
    floats[2, 0, 0, 0] = np.nan
    assert np.isnan(embedding(floats)[2]).all()
    np.testing.assert_array_equal(np.delete(embedding(floats), 2, 0), np.delete(found, 2, 0))


class Raising:
    """An object that is no array, and says so in its own way."""

    def __array__(self, *given, **named):
        raise RuntimeError("a secret")

    def __len__(self):
        raise RuntimeError("a secret")


ODD = {
    "ragged": [[[1, 2], [3]], [[4]], [[5, 6], [7, 8]]],
    "raising": Raising(),
    "text": "none",
    "number": 3,
    "nothing": None,
    "two channels": np.zeros((2, 8, 8)),
    "empty": np.zeros((3, 0, 8)),
    "too large": np.full((3, 8, 8), 256.0),
    "complex": np.full((3, 8, 8), 1j),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_image_is_absent_and_the_others_are_counted(odd):
    torch.manual_seed(0)
    embedding = ResNet18Embedding(ResNet18Features(1).eval(), "given", 64)
    features = Whitened(np.zeros(64), np.eye(64), "given", embedding)
    images = list(np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8))
    model = CertifiedClassifier(1.0, 2, 8, features)
    without = model.count(images, [0, 1, 0, 1])
    beside = model.count([*images[:2], ODD[odd], *images[2:]], [0, 1, 1, 0, 1])
    assert np.array_equal(without.cells, beside.cells)
    assert without.totals.tolist() == beside.totals.tolist() == [2, 2]


def test_the_layout_of_an_image_changes_no_bit():
    torch.manual_seed(0)
    embedding = ResNet18Embedding(ResNet18Features(1).eval(), "given", 64)
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 20, 20), dtype=np.uint8)
    last = torch.from_numpy(images).contiguous(memory_format=torch.channels_last)
    wanted = embedding(images)
    for same in (np.asfortranarray(images), last, last.numpy(), images.astype(object).tolist()):
        np.testing.assert_array_equal(embedding(same), wanted)


def bert(layers=2, width=24, inner=40, words=30):
    """Weights under BERT's names, and torch's own layers with the same weights."""
    torch.manual_seed(0)
    weights, stack = {}, []
    for name, rows in (("word", words), ("position", 256), ("token_type", 2)):
        weights[f"embeddings.{name}_embeddings.weight"] = torch.randn(rows, width)
    first = nn.LayerNorm(width, eps=1e-12)
    norms = {"embeddings.": first}
    for index in range(layers):
        layer = nn.TransformerEncoderLayer(
            width, 12, inner, 0.0, "gelu", batch_first=True, layer_norm_eps=1e-12
        )
        stack.append(layer)
        name = f"encoder.layer.{index}."
        for part, at in (("query", 0), ("key", 1), ("value", 2)):
            rows = slice(at * width, (at + 1) * width)
            weights[f"{name}attention.self.{part}.weight"] = layer.self_attn.in_proj_weight[rows]
            weights[f"{name}attention.self.{part}.bias"] = layer.self_attn.in_proj_bias[rows]
        dense = {
            "attention.output.dense": layer.self_attn.out_proj,
            "intermediate.dense": layer.linear1,
            "output.dense": layer.linear2,
        }
        for part, module in dense.items():
            weights[f"{name}{part}.weight"] = module.weight
            weights[f"{name}{part}.bias"] = module.bias
        norms |= {f"{name}attention.output.": layer.norm1, f"{name}output.": layer.norm2}
    for name, norm in norms.items():
        nn.init.normal_(norm.weight, 1, 0.1)
        weights |= {f"{name}LayerNorm.weight": norm.weight, f"{name}LayerNorm.bias": norm.bias}
    return {name: value.detach() for name, value in weights.items()}, first, stack


def test_the_encoder_is_that_of_torch():
    weights, norm, stack = bert()
    tokens = torch.randint(1, 30, (3, 9))
    tokens[1, 5:] = 0
    values = norm(
        weights["embeddings.word_embeddings.weight"][tokens]
        + weights["embeddings.position_embeddings.weight"][:9]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    for layer in stack:
        values = layer.train()(values, src_key_padding_mask=tokens == 0)
    present = (tokens > 0)[:, :, None]
    expected = (values * present).sum(1) / present.sum(1)
    with torch.no_grad():
        torch.testing.assert_close(SentenceEncoder(weights)(tokens), expected.detach())
        shorter = SentenceEncoder(weights, layers=1)(tokens)
    assert not torch.allclose(shorter, expected)


def test_texts_become_votes(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `huggingface`")
    words = {"[UNK]": 1, "the": 2, "film": 3, "was": 4, "wonderful": 5, "awful": 6, "é": 7}
    model = tokenizers.models.WordLevel(words, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    embedding = MiniLMEmbedding(SentenceEncoder(bert()[0], layers=1), tokenizer, "given")
    texts = ["the film was wonderful", "the film was awful", "", "é é"]
    rows = packed_texts(texts)
    found = embedding(rows)
    assert found.shape == (4, 24)
    np.testing.assert_array_equal(embedding(rows[::-1].copy())[::-1], found)
    np.testing.assert_array_equal(embedding(rows / np.float32(255)), found)
    tokenizer.enable_truncation(256)
    provenance = make(tmp_path / "made.npz", 12, embedding)
    assert provenance["reviews"] == 12
    assert json.loads(str(np.load(tmp_path / "made.npz")["header"]))["provenance"] == provenance
    features = attrs.evolve(read(tmp_path / "made.npz"), embedding=embedding)
    assert np.array_equal(features.cells(rows), features.cells(texts))
    assert (features.cells([*texts, 3])[:, 0] >= 0).tolist() == [True] * 4 + [False]
    odd = [*texts, [[1, 2], [3]], Raising(), "\ud800", [300]]
    assert (features.cells(odd)[:, 0] >= 0).tolist() == [True] * 4 + [False] * 4
