"""The page is served to this machine alone, and a wrong request is answered, not obeyed."""

import http.client
import json
import threading
from collections.abc import Iterator

import pytest

from prudent.lab.explore import answers
from prudent.lab.explore.server import serve
from prudent.lab.explore.settings import Training


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serve() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def get(port: int, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    return reply.status, reply.read().decode(), reply.headers


def test_the_page_asks_nobody_else(port: int) -> None:
    status, text, headers = get(port, "/")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for mark in ("http:", "https:", "//cdn", "@import"):
        assert mark not in text.replace("http://www.w3.org/2000/svg", "")


def test_an_answer_is_that_of_the_function(port: int) -> None:
    query = "records=2000&batch=200&scale=2&trim=0.3"
    status, text, _ = get(port, f"/api/passing?{query}")
    expected = answers.passing(Training(records=2000, batch=200, scale=2, trim=0.3))
    assert (status, json.loads(text)) == (200, expected)


@pytest.mark.unhurried
def test_a_drawn_shape_is_rehearsed(port: int) -> None:
    path = "/api/tables?quantiles=0.05=1,0.25=2,0.5=3,0.75=4,0.95=5&count=300"
    status, text, _ = get(port, path)
    found = json.loads(text)
    assert status == 200
    assert found["epsilons"] == list(answers.EPSILONS)
    assert all(error is not None for error in found["errors"]["exponential"])


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/spent?steps=0", 400, "Expected steps in [10, 100000]"),
        ("/api/spent?__class__=1", 400, "Expected settings"),
        ("/api/tables?quantiles=x", 400, "Expected quantiles"),
        ("/api/tables?quantiles=0.1=1,0.9=2&count=1e12", 400, "Expected count"),
        ("/api/tables?quantiles=0.1=1,0.9=2&count=nan", 400, "integer"),
        ("/../../etc/passwd", 404, "no such page"),
        ("/api/everything", 404, "no such page"),
    ],
)
def test_a_wrong_request_is_answered(port: int, path: str, status: int, message: str) -> None:
    found, text, _ = get(port, path)
    assert found == status
    assert message in json.loads(text)["error"]


def test_pages_of_other_sites_get_nothing(port: int) -> None:
    """Another site can point a name of its own at this address, and its pages then send that."""
    status, text, _ = get(port, "/api/passing", Host="evil.example")
    assert status == 403
    assert "chances" not in text
