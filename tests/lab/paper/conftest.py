"""The caches of experiments, for the tests of what is built on them."""

from tests.lab.conftest import checkout, own_cache  # noqa: F401
