"""The form of a record, and the conversion of one record to it."""

from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch

from prudent.records.reader import Form, StructureError, inputs_and_targets, row_of

Pair = namedtuple("Pair", "a b")
FLOAT, WHOLE = torch.zeros(2), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("like", "value", "expected"),
    [
        (FLOAT, [0.0, 1.0], None),
        (FLOAT, torch.tensor([0.1, 0.2], dtype=torch.float64), torch.tensor([0.1, 0.2])),
        (FLOAT, torch.tensor([2**24 + 1, 1]), torch.tensor([2.0**24, 1.0])),
        (FLOAT, torch.tensor([True, False]), torch.tensor([1.0, 0.0])),
        (FLOAT, torch.tensor([1j, 0]), None),
        (FLOAT, np.array([1.0, 2.0], dtype=">f8"), torch.tensor([1.0, 2.0])),
        (FLOAT, np.array([1.0, 2.0])[::-1], torch.tensor([2.0, 1.0])),
        (FLOAT, np.array([None, None]), None),
        (FLOAT, torch.zeros(3), None),
        (FLOAT, torch.zeros(1, 2), None),
        (WHOLE, torch.tensor([3.0, -2.0], dtype=torch.bfloat16), torch.tensor([3, -2])),
        (WHOLE, torch.tensor([0.5, 1.0]), None),
        (WHOLE, torch.tensor([torch.nan, 1.0]), None),
        (WHOLE, torch.tensor([2.0**63, 1.0], dtype=torch.float64), None),
        (WHOLE, torch.tensor([7, 8], dtype=torch.uint8), torch.tensor([7, 8])),
        (torch.zeros(2, dtype=torch.uint8), torch.tensor([7, 256]), None),
        (torch.zeros(2, dtype=torch.bool), torch.tensor([0, 1]), torch.tensor([False, True])),
        (torch.zeros(2, dtype=torch.bool), torch.tensor([0, 2]), None),
        (torch.zeros(2).to(torch.complex64), torch.tensor([1.0, 2.0]), torch.tensor([1 + 0j, 2])),
        (0, 2**70, None),
        (0, 1.0, torch.tensor(1)),
        (0.5, 1, torch.tensor(1.0, dtype=torch.float64)),
        (0, "1", None),
        (0, None, None),
    ],
)
def test_numbers_are_rounded_to_floating_types_and_exact_otherwise(like, value, expected):
    row = Form.of(like).row(value)
    if expected is None:
        assert row is None
    else:
        assert row[0].dtype == expected.dtype
        assert torch.equal(row[0], expected)


def test_a_read_only_array_warns_nobody():
    """A warning would tell of a record; made an error, as here, it would make the record absent."""
    array = np.array([1.0, 2.0])
    array.flags.writeable = False
    torch.set_warn_always(True)  # torch warns once in a process otherwise
    try:
        assert Form.of(FLOAT).row(array)[0].tolist() == [1.0, 2.0]
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_the_memory_order_of_a_batch_is_not_that_of_a_record(dtype):
    """A batch in the order of its rows would run through other kernels, which round otherwise."""
    image = torch.arange(3 * 4 * 5).reshape(3, 4, 5).to(dtype)
    strided = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    form = Form.of(image)
    batch = form.batch([form.row(strided), form.row(strided)])
    assert batch.is_contiguous()
    assert batch.stride() == form.batch([form.row(image)] * 2).stride()
    assert torch.equal(batch, torch.stack([image, image]))


@pytest.mark.parametrize(
    "value",
    [
        {"a": FLOAT, "labels": 1},
        OrderedDict(a=FLOAT, b=1),
        UserDict(a=FLOAT, b=1),
        Pair(FLOAT, 1),
        (FLOAT, (1, WHOLE)),
        [FLOAT, {"x": [1, 2.0]}],
    ],
)
def test_a_batch_has_the_structure_of_a_record(value):
    form = Form.of(value)
    assert form == Form.of(value)
    batch = form.batch([form.row(value)] * 3)
    assert type(batch) is type(value)
    again = form.batch([form.row(row_of(batch, 3))])
    assert type(again) is type(value)
    empty = form.batch([])
    first = empty["a"] if hasattr(value, "keys") else empty[0]
    assert first.shape == (0, 2)


def test_a_record_may_hold_more_than_the_form_but_not_less():
    form = Form.of({"a": FLOAT})
    assert form.row({"b": 1, "a": FLOAT}) is not None
    assert form.row({"b": 1}) is None
    assert form.row([FLOAT]) is None
    assert Form.of([FLOAT]).row([FLOAT, FLOAT]) is None


def test_longer_rows_are_cut_if_that_is_asked_for():
    assert Form.of(FLOAT, cut=True).row(torch.arange(5.0))[0].tolist() == [0, 1]
    assert Form.of(FLOAT, cut=True).row(torch.arange(1.0)) is None


@pytest.mark.parametrize("value", ["text", None, {}, (), [object()], {"a": None}, [b"x"]])
def test_what_holds_no_tensors_has_no_form(value):
    with pytest.raises(StructureError, match="tensors alone"):
        Form.of(value)


def test_a_collated_batch_has_one_row_per_record():
    assert row_of((FLOAT, WHOLE), 2) == (torch.tensor(0.0), torch.tensor(0))
    for batch in (FLOAT, torch.tensor(1.0), [FLOAT, "a"]):
        with pytest.raises(StructureError):
            row_of(batch, 1)


def test_a_batch_is_divided_by_its_labels():
    assert inputs_and_targets({"x": 1, "labels": 2}) == ({"x": 1}, 2)
    with pytest.raises(StructureError, match="with the key 'labels'"):
        inputs_and_targets({"x": 1})
