"""A TCP proxy that cuts its connections after so many bytes from the server, speaks as a pooler does, or speaks TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


class CuttingProxy:
    """``host`` is where it listens. With ``pooler``, clients are told another process than the server's own.

    With ``tls`` clients speak TLS with the proxy, which the binaries of the test dependencies cannot by themselves.
    """

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", pooler: bool = False, tls: ssl.SSLContext | None = None
    ) -> None:
        self._target = port
        self._pooler = pooler
        self._tls = tls
        self._listener = socket.create_server((host, 0))
        self._left: int | None = None
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut_after(self, size: int) -> None:
        """Once, counted over all connections from now on."""
        self._left = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._open):
            _shut(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._tls is not None:
                    client = _secured(client, self._tls)
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is down, or the client gave up: the next one may have more luck
                _shut(client)
                continue
            self._open += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(4096):
                if counted and self._pooler:
                    data = _with_another_pid(data)
                if counted and self._left is not None:
                    if len(data) > self._left:
                        target.sendall(data[: self._left])
                        self._left = None
                        break
                    self._left -= len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            _shut(source)
            _shut(target)


def self_signed(directory: Path) -> ssl.SSLContext:
    """What a server needs for TLS: a key and a certificate that it made itself."""
    key, certificate = directory / "server.key", directory / "server.crt"
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command = ["openssl", "req", *made, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def _secured(client: socket.socket, tls: ssl.SSLContext) -> socket.socket:
    """The other questions (GSSAPI) are answered with no."""
    while (asked := client.recv(8, socket.MSG_WAITALL)) != _SSL_REQUEST:
        if not asked:
            raise ConnectionResetError("the client is gone")
        client.sendall(b"N")
    client.sendall(b"S")
    return tls.wrap_socket(client, server_side=True)


def _with_another_pid(data: bytes) -> bytes:
    """BackendKeyData: K, length 12, process, secret."""
    at = data.find(b"K\0\0\0\x0c")
    return data if at < 0 else data[: at + 5] + (1).to_bytes(4, "big") + data[at + 9 :]


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
