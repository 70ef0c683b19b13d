"""Writers of the formats the package reads, made for the tests from the formats' descriptions."""

import gzip
import lzma
import struct

import numpy as np


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder, prefix, images, labels):
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))


def cifar_binary(images, labels):
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).tobytes()


def cifar_packed(images, labels):
    """One image, plane and pixel at a time."""
    planes = images.astype(np.int64)[:, [1, 0, 2]]
    planes[:, 1:] = (planes[:, 1:] - planes[:, :1] + 128) % 256 - 128
    out = np.zeros(planes.shape, np.uint8)
    for image, plane, row, column in np.ndindex(planes.shape):
        grid = planes[image, plane]
        if row and column:
            left, up, corner = (
                grid[row, column - 1],
                grid[row - 1, column],
                grid[row - 1, column - 1],
            )
            guess = sorted((left, up, min(max(left + up - corner, min(left, up)), max(left, up))))[
                1
            ]
        elif row:
            guess = grid[row - 1, 0]
        else:
            guess = grid[0, column - 1] if column else 0
        residual = (grid[row, column] - guess + 128) % 256 - 128
        out[image, plane, row, column] = 2 * residual if residual >= 0 else -2 * residual - 1
    return lzma.compress(labels.astype(np.uint8).tobytes() + out.tobytes())
