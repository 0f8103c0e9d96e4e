"""The dashboard's HTTP server: read-only, a few fixed paths, answers at once from the last document of a Watch.

| path           | answers                                                        | without a token |
|----------------|----------------------------------------------------------------|-----------------|
| `/`            | the dashboard, with `/page.css`, `/page.js` and `/icon.svg`    | no              |
| `/status.json` | what `lakefeed status --json` prints, and the last hour        | no              |
| `/metrics`     | Prometheus text                                                | no              |
| `/healthz`     | 200 while the process lives                                    | yes             |
| `/readyz`      | 200 if the verdict is good and every table is live, else 503   | yes             |

Who may ask: on a loopback address, everybody on this machine; on any other address, whoever has the token, as
`Authorization: Bearer …` or as the password of HTTP Basic, which a browser asks for by itself. Without a token, the
server refuses to start on other addresses, and refuses requests whose `Host` is not a name of this machine: otherwise a
page of another site whose name points here could read it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from lakefeed.errors import ConfigError
from lakefeed.monitor.metrics import prometheus_text
from lakefeed.monitor.watch import Watch

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 32
_REQUEST_SECONDS = 10.0
_TOKEN_LETTERS = 16
_STALE_SECONDS = 60.0
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_OPEN = ("/healthz", "/readyz")
"""Answered without a token, and then in one word, for a container's probes."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:8765``, ``[::1]:8765`` or ``8765``. Port 0 means any free one. ConfigError for
    anything else."""
    host, separator, port = text.rpartition(":")
    host = (host if separator else "127.0.0.1").removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"'{text}' is not an address to listen on", remedy="Write host:port, as in 127.0.0.1:8765.")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address. No name but localhost is trusted to be one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class DashboardServer:
    """Serves one Watch from ``start`` to ``close``; a ``with`` block does both. ``url`` is where people find it."""

    def __init__(self, watch: Watch, address: str, *, token: str | None = None) -> None:
        host, port = parse_address(address)
        if token is not None and len(token) < _TOKEN_LETTERS:
            raise ConfigError(
                f"the dashboard's token has {len(token)} characters; it needs at least {_TOKEN_LETTERS}",
                remedy="Make one: openssl rand -hex 32",
            )
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"the dashboard would be open to everybody who can reach {host}",
                remedy="Listen on 127.0.0.1, or set a token: export LAKEFEED_HTTP_TOKEN=$(openssl rand -hex 32)",
            )
        self._watch = watch
        handler = type("Handler", (_Handler,), {"watch": watch, "token": token, "files": _page_files()})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise ConfigError(
                f"the dashboard cannot listen on {address}: {error.strerror or error}",
                remedy="Choose another port, or 0 for any free one: --http 127.0.0.1:0",
            ) from error
        shown, self.port = "localhost" if host == "localhost" else host, int(self._server.server_address[1])
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="lakefeed-http", daemon=True)

    def start(self) -> None:
        self._watch.start()
        self._thread.start()

    def close(self) -> None:
        self._watch.stop()
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, up to a limit: a client that keeps many open gets no more."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # a client that went away
        log.debug("a request ended with an error", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request. Everything but GET and HEAD is refused by the base class, with 501."""

    protocol_version = "HTTP/1.1"
    server_version = "Lakefeed"
    sys_version = ""
    timeout = _REQUEST_SECONDS
    watch: ClassVar[Watch]
    token: ClassVar[str | None]
    files: ClassVar[Mapping[str, tuple[bytes, str]]]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        is_trusted = self._is_trusted()
        if not is_trusted and path not in _OPEN:
            self._refuse()
        elif path in self.files:
            self._answer(HTTPStatus.OK, *self.files[path])
        elif path == "/healthz":
            self._answer(HTTPStatus.OK, b"ok\n")
        elif path == "/readyz":
            why = unready(self.watch.document())
            text = "ready" if why is None else f"not ready: {why}" if is_trusted else "not ready"
            self._answer(HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE, f"{text}\n".encode())
        elif path == "/metrics":
            text = prometheus_text(self.watch.document())
            self._answer(HTTPStatus.OK, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/status.json":
            body = json.dumps(self.watch.document(), ensure_ascii=False, default=str).encode()
            self._answer(HTTPStatus.OK, body, "application/json; charset=utf-8")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"There is nothing here; the dashboard is at /.\n")

    do_HEAD = do_GET  # noqa: N815  # http.server finds it by this name

    def _is_trusted(self) -> bool:
        if self.token is None:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            return name is not None and is_loopback(name)
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.token.encode())

    def _refuse(self) -> None:
        if self.token is None:
            text = b"This dashboard is for this machine only: open it as http://127.0.0.1 or http://localhost.\n"
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, text)
        else:
            self._answer(HTTPStatus.UNAUTHORIZED, b"The dashboard needs its token; any user name.\n")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="Lakefeed", charset="UTF-8"')
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as the base class has it
        log.debug(format, *args)


def unready(document: Mapping[str, Any]) -> str | None:
    """Why the lake cannot be relied on yet; None if it can."""
    if document["read_seconds_ago"] > _STALE_SECONDS:
        return f"the status was read {document['read_seconds_ago']:.0f} s ago"
    if document["verdict"] not in ("healthy", "idle"):
        return f"{document['verdict']}, {document['reason']}"
    waiting = [name for name, table in document["tables"].items() if table["state"] not in ("live", "dropped")]
    return f"{waiting[0]} is {document['tables'][waiting[0]]['state']}" if waiting else None


def _page_files() -> dict[str, tuple[bytes, str]]:
    folder = files("lakefeed.monitor").joinpath("page")
    return {path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
