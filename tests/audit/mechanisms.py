"""A mechanism that can be sent to another process."""

import numpy as np

DRAW = np.random.default_rng()


def laplace_count(count: int) -> float:
    return count + float(DRAW.laplace(scale=1.0))
