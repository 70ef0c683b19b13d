"""Reading the records of a data set of items, one at a time.

A batch is secret and so is everything about its items, errors included. So reading never fails
because of one record:

| case | what happens |
|---|---|
| a record that cannot be read, collated or converted to the form | counts as absent |
| no declared form, and more than a quarter of the first eight differ | an error at the start |
| more than a quarter of them change when they are read again | an error at the start |
| no record of a batch of eight or more has the form | an error |

Whether a record counts depends on that record and the form, so one that does not has the effect and
the price of one that is absent. The errors quote no record. They show that the code does not fit
the data as a whole; no single record can cause one unless others fail as well. Where a form is
declared, it alone decides, and whether the first records have it is not asked.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import attrs
from torch import Tensor
from torch.utils.data import default_collate

from prudent._validate import ArgumentError
from prudent.records import PUBLIC, Seeds, generators_kept, seed_generators
from prudent.records.containers import digest
from prudent.records.form import Form, Row, StructureError, row_of

Collate = Callable[[list[Any]], Any]  # makes a batch of a list of items
TRIES = 8  # so many records show whether code and data fit as a whole
_REPEATS = 3

Part = TypeVar("Part")


class RecordReader:
    """Reads records by id and converts each of them, alone, to one form.

    The form is declared by something public. If not, it is one that at least three quarters of the
    first records have, and that they have it counts as public: one record more or less either
    leaves the form as it is, or makes the reader refuse data of which a quarter differs. Declare
    the form by an example where that must stay secret.

    Every record is read and collated by itself, after the generators of torch, `random` and numpy
    were seeded with its own seed. `__getitems__` is not used. With an example, the collator gets
    the example and the record, and the row of the example is dropped: a collator that pads to the
    longest of a batch then pads to the example's length.

    Args:
        items: Anything with `__getitem__`.
        collate_fn: Makes a batch of items; None: items are stacked as they are.
        first: Ids of the first records, from which the form is taken.
        example: A public record that has the form, as an item.
        like: Or a public value that has it, as the collator makes one of a record.
        cut: Cut tensors that are longer than the form along their first axis.
        check: Called with a batch of one record; raises a `StructureError` if the caller cannot
            use batches of its structure.

    Attributes:
        form: The form of a record.
        stand_in: A row that has the form, for padding, which has weight zero.

    Raises:
        ArgumentError: If too few of the first records have one form, or stay the same when they are
            read again with the same seed.
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
        ids = list(islice(first, TRIES))
        with generators_kept():
            values = [self._attempt(number) for number in ids]
            public = [] if like is None else [like]
            if example is not None:
                seed_generators(0)
                public = [self._value(example)]
            self.form, self.stand_in = _find_form(public or values, cut, check)
            if not public:
                self._refuse_unlike(values)
            self._refuse_unsteady(ids, values)

    def rows(
        self, ids: Sequence[int], valid: Sequence[bool], seeds: Seeds
    ) -> list[Row | None] | None:
        """The rows of records; None for padding, which is not read, and for absent records.

        None in place of the list means that none of eight or more records has the form: `checked`
        makes an error of it, outside of worker processes, which could not send it as it is.
        """
        with generators_kept():
            found = [
                self.row(number, seeds.of(number)) if real else None
                for number, real in zip(ids, valid, strict=True)
            ]
        return None if sum(valid) >= TRIES and all(row is None for row in found) else found

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

    def _attempt(self, number: int) -> Any:
        """One of the first records, or that it failed."""
        seed_generators(PUBLIC.of(number))
        try:
            return self._value(self.items[number])
        except StructureError as error:
            return _Failed(error)
        except Exception:
            return _Failed(None)

    def _refuse_unlike(self, values: list[Any]) -> None:
        """Raise an error unless most of the first records have the form, which may be declared."""
        fitting = sum(_row_of(self.form, value) is not None for value in values)
        if 4 * fitting < 3 * len(values):
            raise _unlike(len(values))

    def _refuse_unsteady(self, ids: list[int], values: list[Any]) -> None:
        """Raise an error unless most of the first records stay the same when read again."""
        steady = 0
        for number, value in zip(ids, values, strict=True):
            again = [self._attempt(number) for _ in range(_REPEATS - 1)]
            steady += all(_same(self.form, value, other) for other in again)
        if 4 * steady < 3 * len(ids):
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


def checked(part: Part | None) -> Part:
    """What was made of rows; raises an error that quotes no record if there were none."""
    if part is None:
        raise ArgumentError(
            "train_set",
            "with items that can be read and collated",
            shown="a batch of records in which none can",
            why="the error is withheld, since it may quote a record",
            hint=_FIXED,
        )
    return part


@attrs.frozen
class _Failed:
    """A record that could not be read, and what was wrong with its structure, if that was it.

    A value is asked for its type alone: an object may raise whatever else it is asked for.
    """

    problem: StructureError | None


_FIXED = (
    "Items of different shapes need a collate_fn that pads to a fixed length, such as "
    "padding='max_length'; or an example of the longest form, to which one that pads to the "
    "longest item will pad."
)


def _unlike(tried: int) -> ArgumentError:
    return ArgumentError(
        "train_set",
        "with items that can be read and collated, of one structure, type and shape",
        shown=f"fewer than three quarters of the first {tried}",
        why="any error is withheld, since it may quote a record",
        hint=f"Try collate_fn([train_set[0]]) yourself. {_FIXED}",
    )


def _find_form(values: list[Any], cut: bool, check: Callable[[Any], object]) -> tuple[Form, Row]:
    """The form of at least three quarters of some values, and a row that has it."""
    forms = [_form_of(value, cut, check) for value in values]
    for value, form in zip(values, forms, strict=True):
        if isinstance(form, Form) and 4 * forms.count(form) >= 3 * len(forms):
            row = form.row(value)
            assert row is not None
            return form, row
    if isinstance(forms[0], StructureError) and not any(isinstance(f, Form) for f in forms):
        raise forms[0] from None
    raise _unlike(len(values))


def _form_of(
    value: Any, cut: bool, check: Callable[[Any], object]
) -> "Form | StructureError | None":
    """The form of a value, or what is wrong with its structure; None for any other error."""
    try:
        if type(value) is _Failed:
            return value.problem
        form = Form.of(value, cut=cut)
        row = form.row(value)
        if row is None:
            return None
        check(form.batch([row]))
    except StructureError as error:
        return error
    except Exception:
        return None
    return form


def _row_of(form: Form, value: Any) -> Row | None:
    """The row of what was read of a record; None if it failed or does not fit."""
    return None if type(value) is _Failed else form.row(value)


def _same(form: Form, one: Any, other: Any) -> bool:
    """Whether two readings of a record give the same row, or both none."""
    return digest(_row_of(form, one)) == digest(_row_of(form, other))
