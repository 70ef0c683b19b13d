"""`synthesize`: a synthetic table from one charge, made before anything is read."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prudent.accounting import ApproximateDpEvent
from prudent.estimators.shares import BudgetPart, calibrate, choices, sums
from prudent.synth.domain import CHOICES, discover
from prudent.synth.engine import TableEngine
from prudent.synth.reading import Field, Source
from prudent.synth.structure import PARENTS, Structure, pairs_repaired, projected

SHARES = {
    "size": 0.01,
    "forms": 0.02,
    "keys": 0.10,
    "spans": 0.04,
    "cuts": 0.08,
    "oneway": 0.15,
    "select": 0.04,
    "repair": 0.04,
    "tables": 0.52,
}


def parts_of(fields: Sequence[Field]) -> dict[str, BudgetPart]:
    count = len(fields)
    numeric = sum(each.numeric for each in fields)
    repaired = pairs_repaired(count) if count > 2 else 0
    selected = 1 + PARENTS * max(count - 2, 0) if count > 1 else 0
    return {
        "size": sums(SHARES["size"]),
        "forms": sums(SHARES["forms"], sum(each.form_is_private for each in fields)),
        "keys": sums(SHARES["keys"], sum(not each.boolean for each in fields)),
        "spans": sums(SHARES["spans"], numeric),
        "cuts": choices(SHARES["cuts"], CHOICES * numeric),
        "oneway": sums(SHARES["oneway"], count),
        "select": choices(SHARES["select"], selected),
        "repair": choices(SHARES["repair"], repaired),
        "tables": sums(SHARES["tables"], max(count - 1, 0) + repaired),
    }
