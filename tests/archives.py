"""Small data sets in files, as `npz:PATH` takes them."""

from pathlib import Path

import numpy as np


def save_easy_classes(path: Path) -> None:
    """Write three easy classes of a table with six columns."""
    chance, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 600), ("test", 150)):
        labels = np.arange(count) % 3
        features = chance.normal(size=(count, 6)) + 3 * np.eye(6)[labels]
        arrays |= {f"{part}_features": features.astype(np.float32), f"{part}_labels": labels}
    np.savez(path, **arrays, classes=3, owners=np.arange(600) // 4)
