"""Servers for tests of this folder."""

from tests.servers import postgres_url as postgres_url
