"""The page on this machine: a small server that only this machine can reach."""

import contextlib
import functools
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from prudent._validate import ArgumentError
from prudent.lab.explore import answers
from prudent.lab.explore.page import page
from prudent.lab.explore.settings import Training

HOST = "127.0.0.1"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "connect-src 'self'",
        "img-src data:",
    )
)


@functools.lru_cache(maxsize=2000)
def _answer(question: str, query: str) -> answers.Answer:
    texts = dict(parse_qsl(query))
    if question == "tables":
        return answers.tables(
            _quantiles(texts.get("quantiles", "")),
            int(float(texts.get("count", "20000"))),
            float(texts.get("delta", "1e-6")),
        )
    return answers.QUESTIONS[question](Training.read(texts))


def _quantiles(text: str) -> dict[float, float]:
    try:
        return {
            float(p): float(value) for p, value in (each.split("=") for each in text.split(","))
        }
    except ValueError:
        raise ArgumentError("quantiles", "P=VALUE,P=VALUE,…", got=text[:60]) from None


class Handler(BaseHTTPRequestHandler):
    """Answers GET requests for the page and for numbers; nothing else, and to nobody else."""

    def do_GET(self) -> None:
        """Send the page, or one answer as JSON."""
        # Another site could point its own name at this address; its pages must not read answers.
        if self.headers.get("Host", "") not in self._own_names():
            self._send(403, {"error": "This page is for this machine alone."})
            return
        parts = urlsplit(self.path)
        question = parts.path.removeprefix("/api/")
        if parts.path == "/":
            self._send_text(200, "text/html; charset=utf-8", page())
        elif question in answers.QUESTIONS or question == "tables":
            try:
                self._send(200, _answer(question, parts.query))
            except (ArgumentError, ValueError) as error:
                self._send(400, {"error": str(error)})
        else:
            self._send(404, {"error": "There is no such page."})

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal stays readable."""

    def _own_names(self) -> set[str]:
        port = self.server.server_port  # type: ignore[attr-defined]
        return {f"{HOST}:{port}", f"localhost:{port}"}

    def _send(self, status: int, content: Any) -> None:
        self._send_text(status, "application/json", json.dumps(content, allow_nan=False))

    def _send_text(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the slider has moved on
            self.wfile.write(body)


def serve(port: int = 0) -> ThreadingHTTPServer:
    """A server on this machine, ready to `serve_forever`; port 0 picks a free one."""
    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    return server
