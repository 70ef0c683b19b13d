import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from prudent import ArgumentError
from prudent._files import sha256
from prudent_lab import data_files as files
from prudent_lab import datasets, named_datasets
from prudent_lab.corruption import FeatureNoise, RandomLabelFlip, corrupted_mask
from prudent_lab.features.sentences import unpacked_texts
from tests.lab import writers

SHIPPED = Path(__file__).parents[2] / "data" / "mnist"
DATA = os.environ.get("PRUDENT_DATA")
needs_data = pytest.mark.skipif(
    DATA is None, reason="PRUDENT_DATA is not set: no folder with CIFAR-10 and EMNIST files"
)


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine with no data but those of the checkout."""
    monkeypatch.delenv("PRUDENT_DATA", raising=False)
    monkeypatch.setattr(files, "_SYSTEM_FOLDER", tmp_path / "system")
    return tmp_path


def digits(count, seed=0, classes=10):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return images, generator.integers(0, classes, count, dtype=np.uint8)


def test_the_shipped_files_are_the_official_ones():
    found = {path.name.partition("-ubyte")[0]: sha256(path)[:16] for path in SHIPPED.glob("*.gz")}
    assert found == {
        "train-images-idx3": "440fcabf73cc546f",
        "train-labels-idx1": "3552534a0a558bbe",
        "t10k-images-idx3": "8d422c7b0a1c1c79",
        "t10k-labels-idx1": "f7ae60f92e00ec6d",
    }


def test_mnist_from_the_checkout(monkeypatch):
    monkeypatch.delenv("PRUDENT_DATA", raising=False)
    data = datasets.load("mnist")
    assert data.train_features.shape == (60_000, 1, 28, 28)
    assert data.test_features.shape == (10_000, 1, 28, 28)
    assert data.train_features.dtype == torch.float32
    assert data.train_labels.dtype == torch.int64
    assert data.train_features.aminmax() == (0.0, 1.0)
    assert data.train_labels.bincount().tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert data.test_labels.bincount().tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert data.classes == 10
    assert repr(data) == "Dataset('mnist', 60000 + 10000 records of shape (1, 28, 28), 10 classes)"
    # The ones of the test part are upright: dark pixels spread more over rows than over columns.
    ones = data.test_features[data.test_labels == 1].mean((0, 1))
    assert (ones.sum(1) > 0.5).sum() > (ones.sum(0) > 0.5).sum()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("subfolder", ["", "fashion-mnist"])
def test_a_given_folder_comes_first(nowhere, compressed, subfolder):
    train, test = digits(5), digits(3, seed=1)
    folder = nowhere / "mine" / subfolder
    writers.write_idx(folder, "train", *train)
    writers.write_idx(folder, "t10k", *test)
    if not compressed:
        for path in list(folder.iterdir()):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    data = datasets.load("fashion-mnist", nowhere / "mine")
    expected = torch.from_numpy(train[0]).float()[:, None] / 255
    torch.testing.assert_close(data.train_features, expected, rtol=0, atol=0)
    assert data.train_labels.tolist() == train[1].tolist()
    assert data.test_labels.tolist() == test[1].tolist()


def test_the_environment_comes_before_the_checkout(nowhere, monkeypatch):
    writers.write_idx(nowhere / "mnist", "train", *digits(5))
    writers.write_idx(nowhere / "mnist", "t10k", *digits(3))
    monkeypatch.setenv("PRUDENT_DATA", str(nowhere))
    assert len(datasets.load("mnist").train_labels) == 5


def test_a_folder_that_lacks_a_file_is_passed_over(nowhere):
    writers.write_idx(nowhere / "mnist", "train", *digits(5))
    assert len(datasets.load("mnist", nowhere).train_labels) == 60_000


@pytest.mark.parametrize("name", ["emnist-az", "emnist-letters"])
def test_letters_are_turned_upright_and_counted_from_zero(nowhere, name):
    images, labels = digits(30, classes=26)
    writers.write_idx(nowhere, f"{name}-train", images, labels + 1)
    writers.write_idx(nowhere, f"{name}-test", images[:4], labels[:4] + 1)
    data = datasets.load(name, nowhere)
    assert data.classes == 26
    assert data.train_labels.tolist() == labels.tolist()
    assert (
        (data.train_features[:, 0] * 255)
        .round()
        .to(torch.uint8)
        .equal(torch.from_numpy(images).transpose(1, 2))
    )
    assert ("substitute for EMNIST Letters" in data.note) == (name == "emnist-az")


def cifar_folder(folder, form):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(0, 10, 12, dtype=np.uint8)
    if form == "packed":
        (folder / "cifar10-train.xz").write_bytes(writers.cifar_packed(images[:10], labels[:10]))
        (folder / "cifar10-test.xz").write_bytes(writers.cifar_packed(images[10:], labels[10:]))
        return images, labels
    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    for batch in range(6):
        name = f"data_batch_{batch + 1}" if batch < 5 else "test_batch"
        rows = slice(2 * batch, 2 * batch + 2)
        (place / f"{name}.bin").write_bytes(writers.cifar_binary(images[rows], labels[rows]))
    return images, labels


@pytest.mark.parametrize("form", ["binary", "packed"])
def test_every_form_of_cifar_is_read(nowhere, form, own_cache):
    images, labels = cifar_folder(nowhere, form)
    for _ in range(2):
        data = datasets.load("cifar10", nowhere)
        assert data.train_features.shape == (10, 3, 32, 32)
        assert (data.train_features * 255).round().numpy().astype(np.uint8).tolist() == (
            images[:10].tolist()
        )
        assert data.train_labels.tolist() == labels[:10].tolist()
        assert data.test_labels.tolist() == labels[10:].tolist()
    kept = list((own_cache / "arrays").glob("*.npy"))
    assert len(kept) == (2 if form == "packed" else 0)


@pytest.mark.parametrize("name", ["fashion-mnist", "emnist-letters", "emnist-az", "cifar10"])
def test_without_files_the_error_says_what_to_put_where(nowhere, name, own_cache):
    with pytest.raises(FileNotFoundError) as caught:
        datasets.load(name)
    message = str(caught.value)
    assert named_datasets.NAMED_DATASETS[name].forms[0].train[0] in message
    assert str(own_cache / name) in message
    assert "PRUDENT_DATA" in message
    where = "No public place" if name == "emnist-az" else "They are at http"
    assert where in message


def save(path, **changes):
    arrays = {
        "train_features": np.array([[0.5, -2.0], [3.0, 4.0]]),
        "train_labels": np.array([0, 2]),
        "test_features": np.array([[1.0, 1.0]]),
        "test_labels": np.array([1]),
        "classes": 3,
    } | changes
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return f"npz:{path}"


def test_an_archive_of_floats_is_taken_as_it_is(tmp_path):
    data = datasets.load(save(tmp_path / "table.npz"))
    assert data.train_features.tolist() == [[0.5, -2.0], [3.0, 4.0]]
    assert data.train_features.dtype == torch.float32
    assert data.classes == 3


def test_how_many_classes_there_are_is_told_and_not_read_from_the_labels(tmp_path):
    with pytest.raises(ValueError, match="to hold classes"):
        datasets.load(save(tmp_path / "table.npz", classes=None))
    labels = {"train_labels": np.array([0, 1]), "classes": 7}
    assert datasets.load(save(tmp_path / "table.npz", **labels)).classes == 7


def test_an_archive_of_bytes_is_scaled(tmp_path):
    path = tmp_path / "images.npz"
    pixels = np.array([[[0, 51]], [[255, 102]]], np.uint8)
    np.savez(path, x_train=pixels, y_train=[0, 1], x_test=pixels, y_test=[1, 1], classes=2)
    data = datasets.load(f"npz:{path}")
    torch.testing.assert_close(data.train_features, torch.tensor([[[0.0, 0.2]], [[1.0, 0.4]]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_labels": None}, "to hold train_features, .* got train_features, train_labels"),
        ({"train_labels": np.array([0.0, 1.0])}, "labels in .* to be integers, got float64"),
        ({"test_labels": np.array([0, -1])}, "label of .* in 0 to 2"),
        ({"test_labels": np.array([0, 3])}, "label of .* \\(test\\) in 0 to 2"),
        ({"train_labels": np.array([0])}, "one label for each record"),
    ],
)
def test_archives_that_do_not_fit_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        datasets.load(save(tmp_path / "table.npz", **changes))


def test_a_training_label_that_is_no_class_is_read(tmp_path):
    """One record must not decide whether there is a training."""
    data = datasets.load(save(tmp_path / "table.npz", train_labels=np.array([0, -1])))
    assert data.train_labels.tolist() == [0, -1]


def test_a_number_beyond_single_precision_warns_nobody(tmp_path):
    features = np.array([[1e300, 0.0], [1.0, 2.0]])
    data = datasets.load(save(tmp_path / "table.npz", train_features=features))
    assert data.train_features.isfinite().tolist() == [[False, True], [True, True]]


def small(records=40):
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(records, 6, generator=generator)
    labels = torch.randint(0, 3, (records,), generator=generator)
    return datasets.Dataset("small", features, labels, features[:5], labels[:5], 3, "made here")


@pytest.mark.parametrize("kind", [RandomLabelFlip, FeatureNoise])
def test_only_the_training_part_is_corrupted(kind):
    data = small()
    bad = data.corrupted(kind(0.25), seed=4)
    changed = (bad.train_labels != data.train_labels) | (
        bad.train_features != data.train_features
    ).any(1)
    assert changed.equal(corrupted_mask(40, 0.25, seed=4))
    assert bad.test_features is data.test_features
    assert bad.test_labels is data.test_labels
    assert (bad.name, bad.classes, bad.note) == (data.name, data.classes, data.note)


def test_moving_moves_everything():
    moved = small().to("meta")
    tensors = (moved.train_features, moved.train_labels, moved.test_features, moved.test_labels)
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@needs_data
@pytest.mark.thorough
def test_the_letters_in_the_data_folder():
    if not (Path(DATA) / "emnist-az").is_dir():
        pytest.skip("PRUDENT_DATA holds no emnist-az")
    data = datasets.load("emnist-az")
    assert len(data.train_labels) == 117_248
    assert data.test_labels.bincount().tolist() == [400] * 26
    # The letter L, upright, has its foot below: more ink in the lower half than in the upper.
    letter = data.test_features[data.test_labels == 8 + 3].mean((0, 1))
    assert letter[14:].sum() > letter[:14].sum()


@needs_data
@pytest.mark.slow
def test_the_cifar_in_the_data_folder_is_the_official_one():
    import hashlib

    if not (Path(DATA) / "cifar10").is_dir():
        pytest.skip("PRUDENT_DATA holds no cifar10")
    data = datasets.load("cifar10")
    pixels = (data.test_features * 255).round().to(torch.uint8).flatten(1)
    batch = torch.cat([data.test_labels.to(torch.uint8)[:, None], pixels], 1)
    assert hashlib.md5(batch.numpy()).hexdigest() == "803d5f7f4d78ea53de84dbe85f74fb6d"
    assert data.train_labels.bincount().tolist() == [5000] * 10


def test_reviews_are_split_as_published(tmp_path):
    parts = [("test bad", 0), ("train bad", 0), ("test good", 1), ("train good", 1)]
    entries = [{"t": f"{name} {i}", "s": label} for name, label in parts for i in range(2)]
    (tmp_path / "reviews.json").write_text(json.dumps(entries))
    (train, labels), (test, truth) = datasets.read_arrays("imdb", tmp_path)
    told = unpacked_texts(train)
    assert told == ["train bad 0", "train bad 1", "train good 0", "train good 1"]
    assert all(text.startswith("test") for text in unpacked_texts(test))
    assert labels.tolist() == truth.tolist() == [0, 0, 1, 1]
    with pytest.raises(ArgumentError, match="one of mnist"):
        datasets.load("imdb", tmp_path)  # bytes of text are no input for a network
