"""Maps that begin with a large frozen network, whose output is computed once and cached.

The network turns a record into numbers, its embedding; a small map turns these into vectors. Both
are public. Embedding all records takes minutes, the rest seconds, so embeddings are kept in the
user's cache, under a name made of the records and everything the embedding depends on.
"""

import hashlib
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _progress
from prudent.certify.features import FeatureMap
from prudent.certify.vectors import Pairing, in_chunks
from prudent.experiments.files import cached_array

Real = npt.NDArray[np.float64]


class Embedding(Protocol):
    """A frozen network. Row i of what it returns is a function of record i alone.

    Attributes:
        name: For messages and the cache.
        digest: Changes whenever the numbers do.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    def __call__(self, records: npt.NDArray[np.generic], /) -> npt.ArrayLike:
        """The embeddings of records, one per row."""
        ...


@attrs.frozen(eq=False)
class Embedded:
    """A feature map in two steps.

    Attributes:
        embedding: From records to embeddings.
        rest: From embeddings to vectors.
    """

    embedding: Embedding
    rest: FeatureMap

    @property
    def name(self) -> str:
        """The name of the second step."""
        return self.rest.name

    @property
    def width(self) -> int:
        """Entries of a vector."""
        return self.rest.width

    @property
    def digest(self) -> str:
        """Of both steps."""
        both = f"{self.embedding.digest} {self.rest.digest}"
        return hashlib.sha256(both.encode()).hexdigest()

    @property
    def pairing(self) -> Pairing:
        """That of the second step."""
        return self.rest.pairing

    def records(self, records: npt.NDArray[np.generic]) -> npt.ArrayLike:
        """The vectors of records."""
        return self.rest.records(np.asarray(self.embedding(records)))

    def queries(self, queries: npt.NDArray[np.generic]) -> npt.ArrayLike:
        """The vectors of queries."""
        return self.rest.queries(np.asarray(self.embedding(queries)))


def computed_once(
    features: FeatureMap, *parts: npt.NDArray[np.generic]
) -> tuple[FeatureMap, list[npt.NDArray[np.generic]]]:
    """The second step of a map and the embeddings of some arrays of records.

    A map of one step is returned as it is, with the records.
    """
    if not isinstance(features, Embedded):
        return features, list(parts)
    return features.rest, [_embeddings(features.embedding, part) for part in parts]


def _embeddings(embedding: Embedding, records: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    def compute() -> npt.NDArray[np.float32]:
        rows = []
        with _progress.part(f"embedding by {embedding.name}", len(records)):
            for _, values in in_chunks(embedding, records):
                rows.append(values.astype(np.float32))
                _progress.advance(len(values))
        return np.concatenate(rows)

    return cached_array(cache_key(embedding, records), compute)


def cache_key(embedding: Embedding, records: npt.NDArray[np.generic]) -> str:
    """The name under which the embeddings of an array of records are cached."""
    content = hashlib.sha256(repr((records.shape, records.dtype)).encode())
    content.update(np.ascontiguousarray(records).data)
    return f"{embedding.name}-{embedding.digest[:32]}-{content.hexdigest()[:32]}"
