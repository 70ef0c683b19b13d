"""No password is ever shown: not in messages, causes, tracebacks or reprs."""

import traceback
import urllib.parse
from collections.abc import Callable

import pytest

from prudent import cli, median
from prudent._validate import redacted, without_password
from prudent.budget.ledger import Ledger, LedgerError, StorageError, datasets

SECRETS = ["hunter", "p/w/hunter", "hunter@tiger", "hunter tiger", "h?unter#tiger", "tiger%2Funter"]
PARTS = ["unter", "tiger"]


def server_of(location: str) -> str:
    return urllib.parse.urlsplit(location).netloc.partition("@")[2]


def shown_by(act: Callable[[], object]) -> str:
    """Everything that a failure can print: its message, those of its causes, and the traceback."""
    with pytest.raises((ValueError, OSError)) as caught:
        act()
    texts = [repr(caught.value), "".join(traceback.format_exception(caught.value))]
    error: BaseException | None = caught.value
    while error is not None:
        texts.append(f"{error} {error.args!r}")
        error = error.__cause__ or error.__context__
    # The lines of a traceback quote the source of the test, where the password stands.
    return "\n".join(line for text in texts for line in text.splitlines() if "Ledger" not in line)


def assert_hidden(text: str) -> None:
    assert not [part for part in PARTS if part in text], text


@pytest.mark.parametrize("secret", SECRETS)
def test_an_address_with_a_password(postgres_location: str, secret: str) -> None:
    address = f"postgresql://someone:{secret}@{server_of(postgres_location)}/nowhere"
    for act in (
        lambda: Ledger.open(address),
        lambda: Ledger.create(address, epsilon=1.0, delta=1e-6),
        lambda: datasets(address),
    ):
        text = shown_by(act)
        assert_hidden(text)
        assert "postgresql" in text


@pytest.mark.parametrize("secret", SECRETS)
def test_a_connection_string_with_a_password(postgres_location: str, secret: str) -> None:
    host, _, port = server_of(postgres_location).partition("/")[0].partition(":")
    text = shown_by(
        lambda: Ledger.open(
            f"host={host} port={port} dbname=nowhere user=someone password='{secret}'"
        )
    )
    assert_hidden(text)
    assert "dbname=nowhere" in text


def test_a_password_among_the_options(postgres_location: str) -> None:
    address = f"postgresql://someone@{server_of(postgres_location)}/nowhere"
    text = shown_by(lambda: Ledger.open(f"{address}?password=hunter&sslpassword=hunter"))
    assert "hunter" not in text
    assert "someone" in text


def with_password(location: str) -> str:
    return location.replace("postgres@", "postgres:hunter@", 1)


def test_a_ledger_that_is_there_already(postgres_location: str) -> None:
    address = with_password(postgres_location)
    with Ledger.create(address, epsilon=1.0, delta=1e-6) as ledger:
        assert "hunter" not in repr(ledger)
        assert "postgres:***@" in repr(ledger)
    with pytest.raises(LedgerError, match="already has a budget") as caught:
        Ledger.create(address, epsilon=1.0, delta=1e-6)
    assert "hunter" not in str(caught.value)
    with pytest.raises(LedgerError, match="already has a budget") as caught:
        Ledger(address, epsilon=2.0, delta=1e-6)
    assert "hunter" not in str(caught.value)
    with pytest.raises(LedgerError, match="only for 'default'") as caught:
        Ledger.open(address, dataset="other")
    assert "hunter" not in str(caught.value)


def test_a_second_create_on_the_command_line(
    postgres_location: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRUDENT_TRACEBACK", "1")
    address = with_password(postgres_location)
    command = ["budget", "create", address, "--epsilon", "1", "--delta", "1e-6"]
    assert cli.main(command) == 0
    assert cli.main(command) == 2
    assert cli.main(["budget", "show", address, "--dataset", "other"]) == 2
    captured = capsys.readouterr()
    assert "already has a budget" in captured.err
    assert "hunter" not in captured.out + captured.err


def test_an_address_in_place_of_a_ledger() -> None:
    with pytest.raises(StorageError, match="Expected a password without") as caught:
        median(
            [1.0, 2.0],
            propose=1.0,
            epsilon=1.0,
            delta=1e-6,
            ledger="postgresql://me:p/hunter@host/db",
        )
    assert "unter" not in str(caught.value)


def test_a_password_that_needs_encoding_is_said_to(postgres_location: str) -> None:
    server = server_of(postgres_location)
    with pytest.raises(StorageError, match=r"percent-encoded \('/' as %2F\)"):
        Ledger.open(f"postgresql://someone:a/b@{server}/postgres")


def test_other_text_is_left_as_it_is() -> None:
    for text in ("budget.db", "/data/a@b/budget.db", "postgresql://me@host/db", "Row 3 is gone."):
        assert redacted(text) == text
        assert without_password(text) == text
    assert redacted("at postgresql://me:x@host/db now") == "at postgresql://me:***@host/db now"
    assert redacted("password='a b' host=h") == "password=*** host=h"
    assert redacted("no password for user me", "postgresql://me:pass@h/d") == (
        "no ***word for user me"
    )
