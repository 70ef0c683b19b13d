"""Faults of a ledger on a server: a lost connection, a lost answer, a server that crashes."""

import contextlib
import select
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import dp_accounting as dp
import pytest

from prudent.budget import storage
from prudent.budget.ledger import Ledger, StorageError

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: the extra `tables`")

EVENT = dp.GaussianDpEvent(48.0)
DOUBT = "Release nothing: the charge may or may not have been written. The history"


@pytest.fixture
def server(postgres_url: str) -> Iterator:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def dataset(postgres_url: str) -> str:
    name = uuid.uuid4().hex
    Ledger.create(postgres_url, epsilon=1.0, delta=1e-6, dataset=name).close()
    return name


def labels(address: str, dataset: str) -> list[str]:
    with Ledger.open(address, dataset=dataset) as ledger:
        assert ledger.verify() == len(ledger.history())
        return [charge.label for charge in ledger.history()]


def cut(server, ledger: Ledger) -> None:
    """Ends the process of the server that answers this ledger."""
    number = ledger._store._connection.info.backend_pid
    server.execute("SELECT pg_terminate_backend(%s, 5000)", (number,))


@pytest.mark.unhurried
def test_a_connection_lost_between_charges_is_made_anew(postgres_url, server, dataset) -> None:
    with Ledger.open(postgres_url, dataset=dataset) as ledger:
        charge = ledger.charge(EVENT, "before")
        cut(server, ledger)
        ledger.record_outcome(charge, "released")
        cut(server, ledger)
        ledger.charge(EVENT, "after")
        (setting,) = ledger._store._execute("SHOW synchronous_commit")
        assert setting == ("on",)
        assert [charge.outcome for charge in ledger.history()] == [{"released": 1}, {}]
    assert labels(postgres_url, dataset) == ["before", "after"]
    with pytest.raises(StorageError):
        ledger.charge(EVENT, "closed on purpose")


@pytest.mark.parametrize("statement", ["SELECT pg_advisory", "SELECT sequence", "INSERT"])
def test_a_connection_lost_inside_a_charge_is_not(
    postgres_url, server, dataset, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Else the row would be written without the lock, and outside the transaction."""
    with Ledger.open(postgres_url, dataset=dataset) as ledger:
        ledger.charge(EVENT, "before")
        execute = ledger._store._execute

        def executing(text: str, parameters: tuple = ()) -> list:
            if ledger._store._holds and text.startswith(statement):
                cut(server, ledger)
            found = execute(text, parameters)
            if statement.startswith("SELECT pg") and text.startswith(statement):
                cut(server, ledger)  # with the lock, before the rows are read
            return found

        with monkeypatch.context() as patched:
            patched.setattr(ledger._store, "_execute", executing)
            with pytest.raises(StorageError, match="stopped or restarted; try again") as caught:
                ledger.charge(EVENT, "lost")
        assert DOUBT in str(caught.value)
        ledger.charge(EVENT, "after")
    assert labels(postgres_url, dataset) == ["before", "after"]


class Proxy:
    """Passes on what client and server say, up to the answer to a commit, which it keeps."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._target = parts.hostname, parts.port
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.address = address.replace(f":{parts.port}/", f":{port}/")
        self.keeps = False
        self._kept: socket.socket | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    said = source.recv(1 << 16)
                    if self._kept is source or not said:
                        return
                    if self.keeps and source is client and b"COMMIT" in said:
                        self._kept = server
                    (server if source is client else client).sendall(said)


def test_the_answer_to_a_commit_is_lost(postgres_url, dataset) -> None:
    """The charge stands although it was not acknowledged: the message says where to look."""
    proxy = Proxy(postgres_url)
    try:
        with Ledger.open(proxy.address, dataset=dataset) as ledger:
            proxy.keeps = True
            with pytest.raises(StorageError, match="the connection was lost") as caught:
                ledger.charge(EVENT, "unacknowledged")
            proxy.keeps = False
            assert DOUBT in str(caught.value)
            assert [charge.label for charge in ledger.history()] == ["unacknowledged"]
            ledger.charge(EVENT, "after")
    finally:
        proxy.close()
    assert labels(postgres_url, dataset) == ["unacknowledged", "after"]


def test_another_process_that_holds_the_data_set(
    postgres_url, server, dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_PATIENCE", 1)
    lock = "pg_advisory_lock(hashtext('prudent_ledger'), hashtext(%s))"
    with Ledger.open(postgres_url, dataset=dataset) as ledger:
        server.execute(f"SELECT {lock}", (dataset,))
        with pytest.raises(StorageError, match="another process is charging; try again"):
            ledger.charge(EVENT, "while it was locked")
        server.execute("SELECT pg_advisory_unlock_all()")
        ledger.charge(EVENT, "after")
    assert labels(postgres_url, dataset) == ["after"]


def test_a_server_of_repeatable_reads(postgres_url, dataset) -> None:
    """Who waited for the lock sees what was charged meanwhile."""
    address = f"{postgres_url}?options=-cdefault_transaction_isolation%3Drepeatable%5C%20read"
    with (
        Ledger.open(address, dataset=dataset) as first,
        Ledger.open(address, dataset=dataset) as second,
    ):
        waiting = threading.Thread(target=second.charge, args=(EVENT, "second"))
        with first._store.exclusive(dataset):
            waiting.start()
            time.sleep(0.5)
            first.charge(EVENT, "first")
        waiting.join()
    assert labels(postgres_url, dataset) == ["first", "second"]


def test_a_database_that_may_only_be_read(postgres_url, dataset) -> None:
    standby = f"{postgres_url}?options=-cdefault_transaction_read_only%3Don"
    message = "give the address of the primary server"
    with (
        Ledger.open(standby, dataset=dataset) as ledger,
        pytest.raises(StorageError, match=message),
    ):
        ledger.charge(EVENT, "on a standby")
    assert labels(postgres_url, dataset) == []


def test_a_user_without_rights(postgres_url, server, dataset) -> None:
    server.execute("CREATE ROLE reader LOGIN")
    server.execute("GRANT SELECT ON prudent_ledger TO reader")
    reader = psycopg.conninfo.make_conninfo(postgres_url, user="reader")
    message = "the user needs SELECT and INSERT"
    with Ledger.open(reader, dataset=dataset) as ledger, pytest.raises(StorageError, match=message):
        ledger.charge(EVENT, "without rights")
    assert labels(postgres_url, dataset) == []


def test_a_server_that_does_not_answer(postgres_url) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = postgres_url.replace(f":{urlsplit(postgres_url).port}/", f":{port}/")
    with pytest.raises(StorageError, match="the connection was lost; try again when the server"):
        Ledger.open(where)
