from tests.cli.conftest import run  # noqa: F401
