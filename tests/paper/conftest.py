"""The caches of experiments, for the tests of what is built on them."""

from tests.experiments.conftest import checkout, own_cache  # noqa: F401
