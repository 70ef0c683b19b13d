"""Data sets of items: dictionaries, collators, workers, random reading, and items that fail."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from prudent.records import PUBLIC
from prudent.records.reader import RecordReader, inputs_and_targets
from prudent.training import Execution, Plan, Sum, fit
from prudent.training.run.reading import ReadDraws
from prudent.training.run.run import Run
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered

RECORDS, RATE = 60, 0.2
PLAN = Plan(sampling_rate=RATE, steps=6, aggregation=Sum(clip=1.0, noise_multiplier=0.8))


def records():
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(RECORDS) % 3
    return torch.randn(RECORDS, 4, generator=generator), labels


def train(data, model=None, plan=PLAN, workers=0, **options):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    execution = {"seed": 3, "workers": workers} | options.pop("execution", {})
    settings = {"execution": Execution(**execution), "lr": 0.1}
    if not isinstance(data, tuple | TensorDataset):
        options.setdefault("example", PAIR if model is None else ENTRY)
    model = network if model is None else model(network)
    fitted = fit(plan, model, cross_entropy, data, **gathered(settings | options))
    return torch.cat([p.detach().flatten() for p in fitted.model.parameters()])


class Bare:
    """Items by number, like a Hugging Face data set: no subclass of torch's."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        return self.make(index)


class Together(Bare):
    """Reads several items at once."""

    def __getitems__(self, ids):
        return [self.make(index) for index in ids]


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


INPUTS, TARGETS = records()
PAIR = torch.zeros(4), 0
ENTRY = {"x": torch.zeros(4), "labels": 0}


def pair(index):
    return INPUTS[index], int(TARGETS[index])


def entry(index):
    return {"x": INPUTS[index], "labels": int(TARGETS[index])}


def numpy_pair(index):
    return INPUTS[index].numpy(), np.int64(TARGETS[index])


def popping(items):
    """Changes the items it gets, as some collators do."""
    labels = torch.tensor([item.pop("labels") for item in items])
    return {"x": torch.stack([item.pop("x") for item in items])}, labels


class TestForms:
    @pytest.mark.unhurried
    @pytest.mark.parametrize(
        ("data", "options"),
        [
            (Bare(pair), {}),
            (Together(pair), {}),
            (Bare(numpy_pair), {}),
            ([pair(index) for index in range(RECORDS)], {}),
            (Bare(entry), {"model": Named}),
            ([entry(index) for index in range(RECORDS)], {"model": Named, "collate_fn": popping}),
            (TensorDataset(INPUTS, TARGETS), {"collate_fn": torch.utils.data.default_collate}),
            (Bare(pair), {"execution": {"physical_batch": 5, "recompute": True}}),
        ],
        ids=["pairs", "at once", "numpy", "list", "dictionaries", "collator", "tensors", "chunks"],
    )
    def test_all_give_the_model_of_tensors(self, data, options):
        torch.testing.assert_close(train(data, **options), train((INPUTS, TARGETS)))

    def test_workers_read_the_same(self):
        """Their number, what they prefetch and the chunks of a batch change nothing."""
        expected = train(Bare(entry), Named)
        assert torch.equal(train(Bare(entry), Named, workers=2), expected)

    def test_a_mapping_is_divided_by_its_labels(self):
        assert inputs_and_targets({"a": 1, "labels": 2}) == ({"a": 1}, 2)
        assert inputs_and_targets([{"labels": 1}, 2]) == ({"labels": 1}, 2)

    @pytest.mark.parametrize(
        ("data", "options", "message"),
        [
            (Bare(entry), {"example": {"x": INPUTS[0]}}, "with the key 'labels'"),
            (Bare(pair), {"example": INPUTS[0]}, r"of items \(inputs, targets\)"),
            (Bare(pair), {"collate_fn": lambda items: (INPUTS, TARGETS)}, "one row per item"),
            (Bare(lambda index: 1 / 0), {"example": None}, "Expected example a public item"),
            ((INPUTS, TARGETS), {"collate_fn": popping}, "Expected collate_fn None"),
        ],
    )
    def test_what_is_refused_before_anything_is_paid(self, tmp_path, data, options, message):
        with pytest.raises(ValueError, match=message) as error:
            train(data, out=tmp_path, **options)
        assert "division" not in str(error.value)
        assert not list(tmp_path.iterdir())


def padded(items):
    """Pads with zeros to the longest item, as collators of text do."""
    length = max(len(item["x"]) for item in items)
    rows = [nn.functional.pad(item["x"], (0, length - len(item["x"]))) for item in items]
    return {"x": torch.stack(rows), "labels": torch.tensor([item["labels"] for item in items])}


class Pooled(nn.Module):
    """The sum over positions, to which padding adds nothing."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(nn.functional.one_hot((x.sum(1) > 0).long(), 4).float())


def test_items_of_any_length_need_a_collator_that_pads_to_a_public_one():
    def ragged(index):
        return {"x": INPUTS[index][: 1 + index % 4], "labels": int(TARGETS[index])}

    def whole(index):
        item = ragged(index)
        return item | {"x": nn.functional.pad(item["x"], (0, 4 - len(item["x"])))}

    dynamic = train(Bare(ragged), Pooled, collate_fn=padded)
    torch.testing.assert_close(dynamic, train(Bare(whole), Pooled))


def test_a_pair_of_tensors_needs_no_example():
    with pytest.raises(ValueError, match="Expected example None with a pair of tensors"):
        train((INPUTS, TARGETS), example=pair(0))


BAD = 38  # in five of the six batches


def broken(index):
    if index == BAD:
        raise ValueError("secret 918273")
    return pair(index)


def longer(index):
    return (torch.zeros(9), 2) if index == BAD else pair(index)


def unlabelled(index):
    return {"x": INPUTS[index]} if index == BAD else entry(index)


def real(index):
    """A float where the others hold integers, which stacking would turn all others into."""
    return (INPUTS[index], 1.5) if index == BAD else pair(index)


class TestOddItems:
    """One item never ends a run, and has the effect of an absent one."""

    @pytest.mark.parametrize(
        ("make", "options"),
        [
            (broken, {}),
            (broken, {"workers": 1}),
            (longer, {}),
            (unlabelled, {"model": Named}),
            (unlabelled, {"model": Named, "collate_fn": popping}),
            (real, {}),
        ],
        ids=["raises", "raises in a worker", "longer", "no label", "no label, collator", "type"],
    )
    def test_it_counts_as_absent(self, make, options, capfd):
        inputs = INPUTS.clone()
        inputs[BAD] = torch.nan  # counts as a record with gradient zero
        expected = train((inputs, TARGETS))
        for kind in (Bare, Together):
            torch.testing.assert_close(train(kind(make), **options), expected)
        assert "918273" not in "".join(capfd.readouterr())

    def test_the_example_stands_in(self):
        data = Bare(lambda i: pair(i) if i > 1 else 1 / 0)
        reader = RecordReader(data, None, range(RECORDS), example=pair(2))
        valid = torch.tensor([True, True, False])
        part = ReadDraws(reader).read(torch.tensor([0, 5, 0]), valid, PUBLIC)
        assert part.readable.tolist() == [False, True, False]
        assert torch.equal(part.batch[0], INPUTS[[2, 5, 2]])


@pytest.mark.parametrize("first", [0, 1])
def test_no_record_decides_whether_a_run_starts(first):
    """Six of the first eight items have one form, and a ninth another; or the first is removed."""

    def mixed(index):
        return pair(index) if 2 <= index + first < 8 else (torch.zeros(9), 1)

    assert torch.isfinite(train(Bare(mixed))).all()
    with pytest.raises(ValueError, match="Expected example a public item"):
        train(Bare(mixed), example=None)


class Augmented(Dataset):
    """Draws from every generator that data sets use."""

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        shift = torch.randn(4) + random.random() + np.random.rand()  # noqa: NPY002
        return INPUTS[index] + shift, int(TARGETS[index])


class TestRandomReading:
    def test_it_follows_the_key_alone(self):
        """Not the number of workers, nor how often a chunk is run, nor what was drawn before."""
        expected = train(Augmented())
        random.seed(5)
        assert torch.equal(train(Augmented(), workers=2), expected)
        torch.testing.assert_close(train(Augmented(), execution={"recompute": True}), expected)
        assert not torch.equal(train(Augmented(), execution={"seed": 4}), expected)

    def test_it_leaves_the_generators_alone(self):
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].sum()  # noqa: NPY002
        RecordReader(Augmented(), None, range(9), example=PAIR).rows([1], [True], PUBLIC)
        after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].sum()  # noqa: NPY002
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_killed_run_reads_the_same_again(self, tmp_path, workers):
        class Stopped(BaseException):
            pass

        def stopping(model, metrics):
            if metrics.step == 4:
                raise Stopped

        expected = train(Augmented(), evaluate_every=2)
        options = {"out": tmp_path, "evaluate_every": 2, "workers": workers}
        with pytest.raises(Stopped):
            train(Augmented(), callbacks=[stopping], **options)
        assert torch.equal(train(Augmented(), resume=True, **options), expected)


def test_padding_is_not_read():
    seen = []

    def noted(index):
        seen.append(index)
        return pair(index)

    run = Run(
        PLAN,
        nn.Linear(4, 3),
        cross_entropy,
        Bare(noted),
        options={"lr": 0.1},
        example=PAIR,
        execution=Execution(seed=3, physical_batch=50),
    )
    seen.clear()
    drawn = [int(run.sampler.batch(step).valid.sum()) for step in range(2)]
    run.take()
    run.take()
    assert len(seen) == sum(drawn)
    run.close()
