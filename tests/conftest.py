"""What every test shares: reproducible property tests, and the promise that the wheel is tested."""

import gc
import os
from pathlib import Path

import hypothesis
import numpy as np
import pytest

import prudent

SOURCE = Path(__file__).resolve().parents[1] / "src"

# The same examples on every run, and no clock: a shared machine must not decide what passes.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure() -> None:
    """Refuses to test the source tree where the wheel was meant (`make test`)."""
    location = Path(str(prudent.__file__)).resolve()
    if os.environ.get("PRUDENT_TEST_WHEEL") == "1" and location.is_relative_to(SOURCE):
        raise pytest.UsageError(
            f"PRUDENT_TEST_WHEEL=1, but `import prudent` found the source tree: {location}. "
            "Put the directory the wheel was installed into on PYTHONPATH, as `make test` does."
        )


def pytest_collection_finish() -> None:
    """Takes what was imported out of the garbage collector's sight: none of it is ever freed.

    A full collection otherwise visits millions of objects, a third of a second each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three easy classes of a table with six columns, as `npz:PATH` takes them."""
    path, chance = tmp_path_factory.mktemp("data") / "easy.npz", np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 600), ("test", 150)):
        labels = np.arange(count) % 3
        features = chance.normal(size=(count, 6)) + 3 * np.eye(6)[labels]
        arrays |= {f"{part}_features": features.astype(np.float32), f"{part}_labels": labels}
    np.savez(path, **arrays, classes=3)
    return path
