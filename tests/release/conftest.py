"""The servers that tests of releases read from."""

from tests.servers import postgres_location as postgres_location
from tests.servers import postgres_url as postgres_url
from tests.servers import spark_session as spark_session
