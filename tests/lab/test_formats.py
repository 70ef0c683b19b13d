import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent_lab import named_datasets as formats
from prudent_lab.features.sentences import unpacked_texts
from tests.lab import writers
from tests.tiers import examples


def cifar(count, seed=0):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    # Real images are smooth somewhere: an even ramp in one, a constant in another.
    images[0] = np.arange(32, dtype=np.uint8)
    images[-1] = 255
    return images, generator.integers(0, 10, count, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0, 28, 28)])
def test_idx_files_come_back_as_written(tmp_path, shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "plain").write_bytes(writers.idx(array))
    (tmp_path / "zipped.gz").write_bytes(gzip.compress(writers.idx(array)))
    for name in ("plain", "zipped.gz"):
        read = formats.read_idx(tmp_path / name)
        assert read.shape == shape
        assert (read == array).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "idx file of unsigned bytes"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "idx file of unsigned bytes"),
        (writers.idx(np.zeros(4))[:-1], "idx file of unsigned bytes"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        formats.read_idx(tmp_path / "file")


@pytest.mark.unhurried
@examples(25)
@given(seed=st.integers(0, 2**32 - 1), low=st.integers(0, 255), width=st.integers(1, 256))
def test_packing_loses_nothing_whatever_the_contrast(tmp_path_factory, seed, low, width):
    generator = np.random.default_rng(seed)
    high = min(low + width, 256)
    images = generator.integers(low, high, (1, 3, 32, 32), dtype=np.uint8)
    path = tmp_path_factory.mktemp("packed") / "images.xz"
    path.write_bytes(writers.cifar_packed(images, np.array([7], np.uint8)))
    assert (formats.read_cifar_packed(path)[0] == images).all()


def test_cut_files_are_refused(tmp_path):
    images, labels = cifar(2)
    (tmp_path / "batch.bin").write_bytes(writers.cifar_binary(images, labels)[:-1])
    with pytest.raises(ValueError, match="records of 3073 bytes"):
        formats.read_cifar_binary([tmp_path / "batch.bin"])


def test_texts_come_back_as_written():
    texts = ["short", "", "café ☕", "é" * formats.TEXT_BYTES]
    rows = formats.packed_texts(texts)
    assert rows.shape == (4, formats.TEXT_BYTES)
    again = unpacked_texts(rows)
    assert again[:3] == texts[:3]
    assert again[3] == "é" * (formats.TEXT_BYTES // 2)
    cut = formats.packed_texts(["a" + "é" * formats.TEXT_BYTES])  # in the middle of a character
    assert unpacked_texts(cut)[0] == "a" + "é" * (formats.TEXT_BYTES // 2 - 1)


def test_reviews_and_odd_entries(tmp_path):
    entries = [{"t": "good", "s": 1}, {"t": "bad", "s": 0}, {"s": 1}, "text", {"t": 3, "s": "one"}]
    (tmp_path / "reviews.json").write_text(json.dumps(entries))
    texts, labels = formats.read_reviews(tmp_path / "reviews.json")
    assert unpacked_texts(texts) == ["good", "bad", "", "", "3"]
    assert labels.tolist() == [1, 0, 1, -1, -1]


def census_line(age="38", education=" High school graduate", income=" - 50000."):
    fields = [" 7"] * formats.CENSUS_COLUMNS
    fields[0], fields[4], fields[24], fields[-1] = age, education, " 1700.09", income
    return ",".join(fields)


@pytest.mark.parametrize("name", ["census-income.data", "census-income.data.gz"])
def test_census_records_and_odd_lines(tmp_path, name):
    lines = [
        census_line(),
        census_line(age="40", income=" 50000+."),
        census_line(education=" Bachelors degree(BA AB BS)"),
        census_line(age="old"),
        census_line(income=" much"),
        "only, three, fields",
    ]
    content = "\n".join(lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    rows, labels = formats.read_census(tmp_path / name)
    assert rows.shape == (6, 40)
    assert labels.tolist() == [0, 1, 0, 0, -1, -1]
    assert rows[:2, 0].tolist() == [38.0, 40.0]
    assert rows[0, 4] == rows[1, 4] != rows[2, 4]
    assert 0 <= rows[2, 4] < 1 << 24
    assert (rows[0, 24:] < 1 << 24).all()  # the weight of the record is left out
    assert np.isnan(rows[3, 0])
    assert np.isnan(rows[5]).all()
