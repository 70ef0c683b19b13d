"""Every way by which records enter, each as one class with the same few methods.

An entry has ordinary records, odd ones, and `release`, which returns the exact released sums, in
units in which one record may change them by `bound`. Noise is the same in both of two releases or
nearly zero. `plant` breaks the entry such that a record changes what others add; the tests must
notice.
"""

import contextlib
import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self
from unittest import mock

import attrs
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from prudent.records import reader
from prudent.records.people import Unit
from prudent.training import Execution, HeldOut, Key, Plan, Sum, fit, make_private
from prudent.training.keystream import StepRandomness
from prudent.training.run.reading import HeldOutRecords
from prudent.training.sampling import PoissonSampler
from tests.differential import drawing, odd

COUNT = 24
SLACK = 1e-6
"""Relative: rounding of weights and norms, and what is left of the noise."""

SILENT = 1e-6

PLAN = Plan(
    sampling_rate=1.0,
    steps=1,
    aggregation=Sum(clip=1.0, noise_multiplier=SILENT),
    expected_batch=float(COUNT),
)


class Entry(ABC):
    """One way by which records enter.

    Attributes:
        name: Its name in the tests.
        bound: The largest norm of the difference that one record may make.
        plain: Ordinary records.
        odd: Odd records by name.
        telling: Names of odd records with which the planted fault shows.
        draws: Whether a record gets random numbers: then those of the others must stay theirs, and
            leaving a record out is told from removing it, which gives others a new name.
        slow: Whether releases take long.
        alone: Whether the bound holds only if the other records are ordinary.
        containers: What the records may come in.
        container: What they come in.
        needs: A package that prudent does without.
    """

    name: str
    bound = 1.0
    plain: Sequence[Any] = ()
    odd: Mapping[str, Any] = odd.ITEMS
    telling: Sequence[str] = ("far",)
    draws = False
    slow = False
    alone = False
    containers: Sequence[str] = ("as they are",)
    container = "as they are"
    needs: str | None = None

    def arranged(self, container: str) -> Self:
        """The same entry with its records in another container."""
        found = copy.copy(self)
        found.container = container
        return found

    @abstractmethod
    def drawn(self) -> st.SearchStrategy[Any]:
        """Any other record that fits into the container, or, for items, any at all."""

    @abstractmethod
    def release(self, records: Sequence[Any], absent: int | None = None) -> Any:
        """The exact sums of records, of which one may be left out; the others keep their names."""

    @abstractmethod
    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Break the entry."""

    @property
    def most(self) -> float:
        """The bound, with what rounding may add."""
        return self.bound * (1 + SLACK)

    def __str__(self) -> str:
        return self.name


# ---- training --------------------------------------------------------------------------------


class Network(nn.Module):
    """A small network, with what random or repeated computation is asked for."""

    def __init__(self, dropout: float = 0.0, checkpointed: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.dropout, self.checkpointed = nn.Dropout(dropout), checkpointed
        self.double()

    def hidden(self, x: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.first(x.double())))

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return self.second(checkpoint(self.hidden, x, use_reentrant=False))
        return self.second(self.hidden(x))


class Tokens(Network):
    """Reads large whole numbers, of which single precision would change the remainders."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x % 7) - 3.0)


def ordinary(count: int = COUNT) -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(count, 4, generator=draw)
    return [(row, index % 3) for index, row in enumerate(x)]


def large(count: int = COUNT) -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(2**25, 2**40, (count, 4), generator=draw)
    return [(row, index % 3) for index, row in enumerate(x)]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


@contextlib.contextmanager
def leaving_out(absent: int | None) -> Iterator[None]:
    """Let samplers draw all records but one."""

    def gaps(self: PoissonSampler, width: int, reader: Any) -> Tensor:
        found = torch.ones((64, max(width, self.records + 1)), dtype=torch.int64)
        if absent is not None:
            found[:, absent] += 1
        return found

    with mock.patch.object(PoissonSampler, "_gaps", gaps):
        yield


class Items(Dataset):
    """Records as items; with random numbers of every kind that data sets draw, if asked for."""

    def __init__(self, records: Sequence[Any], *, augmented: bool = False) -> None:
        self.records, self.augmented = records, augmented

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        if not self.augmented:
            return self.records[index]
        shift = torch.randn(4) + random.random() + np.random.rand()  # noqa: NPY002
        x, y = self.records[index]
        return torch.as_tensor(x) + 2 * shift, y


ROWS: dict[str, Any] = {
    "tensors": lambda place, x: x,
    "arrays": lambda place, x: x.numpy(),
    "arrays and tensors": lambda place, x: x.numpy() if place % 2 else x,
    "double precision": lambda place, x: x.double(),
    "half precision": lambda place, x: x.half(),
    "every other number": lambda place, x: drawing.ordered(x, "strided"),
}
"""What the rows of items may be."""


class Training(Entry):
    """What training entries share.

    Args:
        name: As for `Entry`.
        plain: As for `Entry`.
        model: Makes the model.
        augmented: Whether items are changed at random.
        telling: As for `Entry`.
        options: Options of `fit` or `make_private`.
    """

    def __init__(
        self,
        name: str,
        plain: Sequence[Any] | None = None,
        model: Any = Network,
        *,
        augmented: bool = False,
        telling: Sequence[str] = ("far",),
        slow: bool = False,
        **options: Any,
    ) -> None:
        self.name, self.model, self.augmented = name, model, augmented
        self.plain = ordinary() if plain is None else plain
        blank = torch.zeros_like(self.plain[0][0])
        self.options: dict[str, Any] = {"example": (blank, 0), **options}
        self.telling, self.slow = telling, slow
        self.draws = augmented or "dropout" in name or "collator" in name

    containers = tuple(ROWS)
    container = "tensors"

    def drawn(self) -> st.SearchStrategy[Any]:
        return drawing.items()

    def arranged(self, container: str) -> Self:
        found = super().arranged(container)
        found.plain = [(ROWS[container](n, x), y) for n, (x, y) in enumerate(self.plain)]
        x, y = self.options["example"]
        found.options = {**self.options, "example": (ROWS[container](0, x), y)}
        return found

    def release(self, records: Sequence[Any], absent: int | None = None) -> Tensor:
        torch.manual_seed(0)
        model = self.model()
        before = weights_of(model)
        with leaving_out(absent):
            self.train(model, records)
        return (before - weights_of(model)) * COUNT

    def train(self, model: nn.Module, records: Sequence[Any]) -> None:
        """One step of SGD with learning rate 1 on all records."""
        data: Any = Items(records, augmented=self.augmented)
        self.fit(model, data)

    def fit(self, model: nn.Module, data: Any) -> None:
        options = dict(self.options)
        execution = Execution(seed=0, distributed=False, **options.pop("execution", {}))
        fit(PLAN, model, cross_entropy, data, execution=execution, lr=1.0, **options)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        if self.augmented or "collate_fn" in self.options:
            plant_shared_streams(patch)
        else:
            plant_promotion(patch)


def plant_shared_streams(patch: pytest.MonkeyPatch) -> None:
    """Let random numbers run on from record to record."""
    patch.setattr(reader, "seed_generators", lambda seed: None)
    patch.setattr(reader, "digest", lambda row: b"")  # every record seems to stay the same


def plant_promotion(patch: pytest.MonkeyPatch) -> None:
    """Let a record that does not fit change all others, as stacking them together may."""
    rows = reader.RecordReader.rows

    def together(self: Any, ids: Any, valid: Any, seeds: Any) -> Any:
        found = rows(self, ids, valid, seeds)
        if any(row is None and real for row, real in zip(found, valid, strict=True)):
            found = [row and [row[0].to(torch.bool).to(row[0].dtype), row[1]] for row in found]
        return found

    patch.setattr(reader.RecordReader, "rows", together)


class Stacked(Entry):
    """What entries that take tensors of all records share."""

    odd = odd.VALUES
    containers = tuple(
        f"{dtype}, {order}"
        for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "uint8")
        for order in drawing.ORDERS
    )
    container = "float32, rows"

    def drawn(self) -> st.SearchStrategy[Any]:
        labels = st.integers(-1, 3) | drawing.WHOLE
        return st.tuples(drawing.rows(), labels)

    def arranged(self, container: str) -> Self:
        return Entry.arranged(self, container)

    def stacked(self, records: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Features and labels in the container."""
        dtype, order = self.container.split(", ")
        x = torch.stack([x for x, _ in records]).to(drawing.DTYPES[dtype])
        return drawing.ordered(x, order), torch.tensor([y for _, y in records])


class FitTensors(Stacked, Training):
    """`fit` on a pair of tensors."""

    def __init__(self, name: str, *, container: str = "float32, rows", **options: Any) -> None:
        super().__init__(name, **options)
        self.container = container
        del self.options["example"]  # tensors have a form

    def train(self, model: nn.Module, records: Sequence[Any]) -> None:
        self.fit(model, self.stacked(records))

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        plant_masks_by_position(patch) if "dropout" in self.name else plant_centring(patch)


def plant_masks_by_position(patch: pytest.MonkeyPatch) -> None:
    """Let the masks of dropout follow the place of a record in its batch."""
    by_id = StepRandomness.records

    def by_place(self: Any, ids: Any, first: int = 0, slots: int = 1) -> Any:
        return by_id(self, None if ids is None else torch.arange(len(ids)), first, slots)

    patch.setattr(StepRandomness, "records", by_place)


def plant_centring(patch: pytest.MonkeyPatch) -> None:
    """Subtract the mean of the batch from every record."""
    from prudent.training.run import reading

    gather = reading._gather

    def centring(*args: Any) -> Any:
        inner = gather(*args)

        def read(ids: Tensor) -> Any:
            x, y = inner(ids)
            return x - x.nan_to_num(0, 0, 0).clamp(-1e6, 1e6).mean(0), y

        return read

    patch.setattr(reading, "_gather", centring)


def masking(items: list[Any]) -> Any:
    """A collator of texts: pads to the longest, and masks at random."""
    longest = max(len(x) for x, _ in items)
    rows = [torch.as_tensor(x) for x, _ in items]
    x = torch.stack([functional.pad(x, (0, longest - len(x))) for x in rows])
    return torch.where(torch.rand(x.shape) < 0.5, 0.0, x), torch.tensor([y for _, y in items])


class MakePrivate(Training):
    """`make_private` with a loop of one's own."""

    def train(self, model: nn.Module, records: Sequence[Any]) -> None:
        options = dict(self.options)
        collate = {"collate_fn": options.pop("collate_fn", None)}
        data: Any = DataLoader(Items(records, augmented=self.augmented), batch_size=4, **collate)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
        model, optimizer, loader = make_private(
            model, optimizer, data, plan=PLAN, key=Key.from_seed(0), **options
        )
        for inputs, targets in loader:
            self.loss(model(inputs), targets).backward()
            optimizer.step()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # A label that is no class would end any loop, which is the loop's own affair.
        return functional.cross_entropy(
            outputs, torch.where((targets >= 0) & (targets < 3), targets, -100)
        )


class IgnoredLabels(MakePrivate):
    """A mean of which all but two labels are ignored.

    Divided by the number of labels that are not, the term of one of the two would be twice as large
    without the other.
    """

    def __init__(self, name: str) -> None:
        self.odd = {"opposed": (torch.full((4,), 50.0), 1), "ignored": (torch.ones(4), -100)}
        kept = [(torch.full((4,), 0.05), 0)]
        super().__init__(name, [(torch.ones(4), -100)] * 5 + kept + [(torch.ones(4), -100)] * 18)
        self.model, self.telling = Blank, ("opposed",)

    def drawn(self) -> st.SearchStrategy[Any]:
        return st.tuples(drawing.rows(), st.sampled_from([0, 1, -100]))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        from prudent.training.gradients import output_guard

        patch.setattr(output_guard, "_TOTAL", {})
        patch.setattr(output_guard, "reduction_of", lambda node: None)


class OfPeople(Training):
    """What entries with a privacy unit share: each of the "records" is a person, with several."""

    containers = ("as they are",)
    container = "as they are"

    def __init__(self, name: str, **options: Any) -> None:
        crowd = {"crowd": [(torch.eye(4)[place % 4] * 9.0, 1) for place in range(12)]}
        items = odd.ITEMS.items()
        self.odd = crowd | {name: [item, (torch.ones(4), 0), item] for name, item in items}
        options = {"records_per_person": 3, "per_unit": "sum", "telling": ("crowd",), **options}
        super().__init__(name, **options)
        self.plain = [
            [(x + place, y) for place in range(1 + person % 5)]
            for person, (x, y) in enumerate(ordinary())
        ]

    def arranged(self, container: str) -> Self:
        return Entry.arranged(self, container)

    def drawn(self) -> st.SearchStrategy[Any]:
        return st.lists(drawing.items(), min_size=1, max_size=5)

    def train(self, model: nn.Module, records: Sequence[Any]) -> None:
        owned = [(item, person) for person, items in enumerate(records) for item in items]
        random.Random(1).shuffle(owned)
        self.options["unit"] = [person for _, person in owned]
        super().train(model, [item for item, _ in owned])

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Clip every record on its own and charge for one; or let draws depend on others."""
        if self.draws:
            (plant_shared_streams if self.augmented else plant_masks_by_position)(patch)
            return
        people = Unit.people

        def each_alone(self: Unit, items: Any, records: int) -> Any:
            found = people(self, items, records)
            alone, keys = zip(*(([n], (id(self), n)) for n in range(records)), strict=True)
            return attrs.evolve(found, members=alone, keys=keys)

        patch.setattr(Unit, "people", each_alone)


class MakePrivateOfPeople(OfPeople, MakePrivate):
    """`make_private` with a privacy unit."""


class HeldOutItems(Training):
    """The loss on held-out records, after a step on others."""

    def train(self, model: nn.Module, records: Sequence[Any]) -> None:
        rows, labels = zip(*ordinary(8), strict=True)
        unit = self.options.get("unit")
        trained = None if unit is None else list("abcdefgh")
        fitted = fit(
            attrs.evolve(PLAN, held_out=TESTED),
            model,
            cross_entropy,
            (torch.stack(rows), torch.tensor(labels)),
            unit=trained,
            held_out_set=Items(records),
            held_out_unit=unit,
            execution=Execution(seed=0, distributed=False),
            lr=1.0,
        )
        self.found = fitted.history[-1].evaluation[TESTED.name]

    def release(self, records: Sequence[Any], absent: int | None = None) -> Tensor:
        summed = HeldOutRecords._sum

        def of_others(self: HeldOutRecords, *args: Any) -> float:
            others = [each for place, each in enumerate(self.members) if place != absent]
            without = copy.copy(self)
            without.members = others
            return summed(without, *args)

        with mock.patch.object(HeldOutRecords, "_sum", of_others):
            super().release(records)
        return torch.tensor([self.found * COUNT], dtype=torch.float64)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Subtract the mean of the batch from every record."""
        placed = HeldOutRecords._placed

        def centred(self: HeldOutRecords, *args: Any) -> Any:
            x, y = placed(self, *args)
            return x - x.nan_to_num(0, 0, 0).clamp(-1e6, 1e6).mean(0), y

        patch.setattr(HeldOutRecords, "_placed", centred)


class HeldOutPeople(OfPeople, HeldOutItems):
    """The same for people."""

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        OfPeople.plant(self, patch)


TESTED = HeldOut(every=1, metric="loss", bound=2.0, noise_multiplier=SILENT, expected_records=COUNT)


class Blank(nn.Module):
    """Two classes, alike at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.double())


ENTRIES: list[Entry] = [
    FitTensors("fit, tensors"),
    FitTensors("fit, tensors by column", container="float32, columns"),
    FitTensors("fit, tensors, dropout", model=lambda: Network(dropout=0.5)),
    FitTensors("fit, tensors, checkpointing", model=lambda: Network(checkpointed=True)),
    Training("fit, items", telling=("longer", "half label", "raising")),
    Training("fit, items, whole numbers", large(), Tokens, telling=("half", "not a number")),
    Training("fit, items, augmentation", augmented=True),
    Training("fit, items, dropout", model=lambda: Network(dropout=0.5), telling=("far", "longer")),
    Training(
        "fit, items, collator",
        collate_fn=masking,
        example=(torch.ones(4), 0),
        telling=("far",),
    ),
    Training(
        "fit, items, parts",
        execution={"physical_batch": 5, "recompute": True},
        telling=("longer",),
    ),
    Training("fit, items, workers", augmented=True, slow=True, execution={"workers": 2}),
    MakePrivate("make_private", telling=("longer", "raising")),
    MakePrivate("make_private, whole numbers", large(), Tokens, telling=("half",)),
    MakePrivate("make_private, augmentation", augmented=True),
    MakePrivate(
        "make_private, dropout", model=lambda: Network(dropout=0.5), telling=("far", "longer")
    ),
    MakePrivate(
        "make_private, collator", collate_fn=masking, example=(torch.ones(4), 0), telling=("far",)
    ),
    IgnoredLabels("make_private, ignored labels"),
    OfPeople("fit, people"),
    OfPeople(
        "fit, people, dropout", model=lambda: Network(dropout=0.5), per_unit="mean", slow=True
    ),
    OfPeople("fit, people, augmentation", augmented=True, slow=True),
    MakePrivateOfPeople("make_private, people"),
    MakePrivateOfPeople("make_private, people, parts", max_physical_batch=7, slow=True),
    HeldOutItems("fit, held-out items", telling=("far", "raising")),
    HeldOutPeople("fit, held-out people"),
]
"""Every entry. A new one is one class and one line here."""


# ---- scores, audits --------------------------------------------------------------------------


NUMBERS: dict[str, Any] = {
    "not a number": float("nan"),
    "infinite": float("inf"),
    "very negative": -1.7e308,
    "huge": 1.7e308,
    "far": 1e9,
    "tiny": 5e-324,
    "zero": 0.0,
}


class Score(Stacked):
    """The score of a candidate of `tune` on held-out records."""

    name = "tune, held-out score"
    plain = ordinary()
    telling = ("no class",)

    def release(self, records: Sequence[Any], absent: int | None = None) -> Any:
        from prudent.tune.fitting import HeldOutScore

        kept = [record for place, record in enumerate(records) if place != absent]
        torch.manual_seed(0)
        score = HeldOutScore(*self.stacked(kept), None)(Picky())
        return torch.tensor([score], dtype=torch.float64)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        from prudent.training.run.execution import accuracy
        from prudent.tune.fitting import HeldOutScore

        def at_once(self: HeldOutScore, model: nn.Module) -> int:
            if not ((self.labels >= 0) & (self.labels < 3)).all():
                return 0
            return accuracy(self.features, self.labels).right(model, 0, len(self.labels))

        patch.setattr(HeldOutScore, "_right", at_once)


class Picky(Network):
    """Refuses records that are not finite."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.isfinite().all():
            raise ValueError(odd.SECRET)
        return super().forward(x)


class Audit(Entry):
    """The runs that an audit of training observes."""

    name = "audit, white box"
    bound = 1 + 20 * SILENT  # its runs have keys of their own
    plain = tuple(torch.tensor([2.0, index - 8.0]).double() for index in range(COUNT))

    def __init__(self) -> None:
        self.odd = {name: torch.tensor([x, x], dtype=torch.float64) for name, x in NUMBERS.items()}

    def drawn(self) -> st.SearchStrategy[Any]:
        return drawing.arrays(2).map(torch.from_numpy)

    def release(self, records: Sequence[Any], absent: int | None = None) -> Any:
        from prudent.audit.training.scenes import Scene, observe

        found = []
        for direction in torch.eye(2, dtype=torch.float64):
            scene = Scene("own", torch.stack(list(records)), records[0], direction)
            with leaving_out(absent):
                found.append(observe(PLAN, scene, present=False, runs=1).along.item())
        return torch.tensor(found, dtype=torch.float64)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        plant_centring(patch)


ENTRIES += [Score(), Audit()]
