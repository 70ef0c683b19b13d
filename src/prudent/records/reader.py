"""Reading the records of a data set of items, one at a time.

A batch is secret and so is everything about its items, errors included. So reading never fails
because of records:

| case | what happens |
|---|---|
| a record that cannot be read, collated or converted to the form | counts as absent |
| no declared form | an error at the start, whatever the records are |
| more than a quarter of the first eight change when they are read again | an error at the start |

The form is declared: by an example, or by a data set of tensors. It is never taken from records,
of which one more or less could then decide whether a run starts. So whether a record counts depends
on that record and the form, and one that does not has the effect and the price of one that is
absent, even if no record has the form.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from prudent._validate import ArgumentError
from prudent.records import PUBLIC, Seeds, generators_kept, seed_generators
from prudent.records.containers import digest
from prudent.records.form import Form, Row, row_of

Collate = Callable[[list[Any]], Any]  # makes a batch of a list of items
TRIES = 8  # so many records are read again before a run
_REPEATS = 3


class RecordReader:
    """Reads records by id and converts each of them, alone, to one form.

    Every record is read and collated by itself, after the generators of torch, `random` and numpy
    were seeded with its own seed. `__getitems__` is not used. With an example, the collator gets
    the example and the record, and the row of the example is dropped: a collator that pads to the
    longest of a batch then pads to the example's length.

    Args:
        items: Anything with `__getitem__`.
        collate_fn: Makes a batch of items; None: items are stacked as they are.
        first: Ids of the first records, which are read several times to see whether they stay the
            same.
        example: A public record that has the form, as an item.
        like: Or a public value that has it, as the collator makes one of a record.
        cut: Cut tensors that are longer than the form along their first axis.
        check: Called with a batch of one record; raises a `StructureError` if the caller cannot
            use batches of its structure.

    Attributes:
        form: The form of a record.
        stand_in: A row that has the form, for padding, which has weight zero.

    Raises:
        ArgumentError: If no form is declared, or too few of the first records stay the same when
            they are read again with the same seed.
    """

    def __init__(
        self,
        items: Any,
        collate_fn: Collate | None,
        first: Iterable[int],
        *,
        example: Any = None,
        like: Any = None,
        cut: bool = False,
        check: Callable[[Any], object] = lambda batch: None,
    ) -> None:
        self.items = items
        self._collate = None if collate_fn is default_collate else collate_fn
        self._example = example
        if example is None and like is None:
            raise ArgumentError(
                "example",
                "a public item in the form of the records",
                got=None,
                why="the form of items is declared, not taken from records, of which one could "
                "then decide whether training starts",
                hint="Made-up values of the right shapes and types will do, such as "
                "example=(torch.zeros(3, 32, 32), 0); or pass a pair of tensors or a "
                "TensorDataset, whose form is known.",
            )
        with generators_kept():
            if example is not None:
                seed_generators(0)
                like = self._value(example)
            self.form = Form.of(like, cut=cut)
            stand_in = self.form.row(like)
            assert stand_in is not None
            check(self.form.batch([stand_in]))
            self.stand_in = stand_in
            tried = list(islice(first, TRIES))
            steady = [
                len({digest(self.row(n, PUBLIC.of(n))) for _ in range(_REPEATS)}) == 1
                for n in tried
            ]
        if 4 * sum(steady) < 3 * len(tried):
            raise ArgumentError(
                "train_set",
                "with items that stay the same when they are read again with the same seeds",
                shown="others",
                why="a random generator that runs on from record to record makes each depend on "
                "the ones before it",
                hint="Draw from the default generators of torch, numpy or random, which are seeded "
                "for every record; or seed your own with torch.initial_seed() in __getitem__ or "
                "the collate_fn.",
            )

    def rows(self, ids: Sequence[int], valid: Sequence[bool], seeds: Seeds) -> list[Row | None]:
        """The rows of records; None for padding, which is not read, and for absent records."""
        with generators_kept():
            return [
                self.row(number, seeds.of(number)) if real else None
                for number, real in zip(ids, valid, strict=True)
            ]

    def batch(self, rows: Sequence[Row | None]) -> Any:
        """Rows as one value in the form's structure, with the stand-in in place of None."""
        return self.form.batch([self.stand_in if row is None else row for row in rows])

    def shares(self, rows: Sequence[Row | None]) -> Tensor | None:
        """What the loss in each row of a batch is multiplied by; None: a record counts as one."""
        return None

    def content(self, number: int) -> bytes | None:
        """A digest of a record, read with one seed for all; None if it is absent."""
        row = self.row(number, PUBLIC.of(0))
        return None if row is None else digest(row)

    def row(self, number: int, seed: int) -> Row | None:
        """The row of a record, read after the generators were seeded; None if it is absent."""
        seed_generators(seed)
        try:
            value = self._value(self.items[number])
        except Exception:  # its text may quote the record
            return None
        return self.form.row(value)

    def _value(self, item: Any) -> Any:
        """One record, as the collator makes it."""
        if self._collate is None:
            return list(item) if type(item) is tuple else item  # as torch's default_collate does
        together = [item] if self._example is None else [self._example, item]
        # A collator may change what it gets.
        return row_of(self._collate([copy.copy(each) for each in together]), len(together))
