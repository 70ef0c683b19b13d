"""Every engine a model can be given to."""

from functools import partial

import pytest

from prudent.training.gradients import BookKeeping, Materialised

ENGINES = {
    "book-keeping": BookKeeping,
    "recomputed": partial(BookKeeping, recompute=True),
    "materialised": Materialised,
    "materialised twice": partial(Materialised, recompute=True),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest):
    return ENGINES[request.param]
