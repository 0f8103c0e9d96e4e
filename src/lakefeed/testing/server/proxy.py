"""HttpProxy: between a client and a test server, to count requests, to cut the network, and to slow it down.

with HttpProxy(server.port) as proxy:
    storage_at(address, {**server.options, "endpoint": proxy.endpoint})
    proxy.cut()
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Self

_BLOCK_BYTES = 65_536
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class HttpProxy:
    """``requests`` counts what passed, by kind: PUT, GET, HEAD, LIST, DELETE, POST. It takes requests one at a time
    from each connection, which is how HTTP/1.1 clients send them."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.requests: Counter[str] = Counter()
        self.delay_seconds = 0.0
        self._is_cut = False
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """From now on nothing passes: running requests end, and new connections are closed at once."""
        self._is_cut = True
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), name="proxy", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self._is_cut:
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                with self._lock:
                    self._connections |= {client, server}
                threading.Thread(target=self._answers, args=(server, client), name="proxy", daemon=True).start()
                try:
                    self._requests(client, server)
                finally:
                    with self._lock:
                        self._connections -= {client, server}

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        """Forward head by head: after each follows its body, then the next head."""
        waiting = b""
        while True:
            while b"\r\n\r\n" not in waiting:
                block = client.recv(_BLOCK_BYTES)
                if not block:
                    return
                waiting += block
            head, _, waiting = waiting.partition(b"\r\n\r\n")
            self._count(head)
            time.sleep(self.delay_seconds)
            server.sendall(head + b"\r\n\r\n")
            length = _LENGTH.search(head)
            rest = int(length[1]) if length else 0
            while rest:
                block, waiting = (waiting or client.recv(_BLOCK_BYTES)), b""
                if not block:
                    return
                part, waiting = block[:rest], block[rest:]
                rest -= len(part)
                server.sendall(part)

    def _count(self, head: bytes) -> None:
        method, _, target = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        if not method.isupper() or not method.isalpha():
            return  # the end of a chunked body
        is_list = method == "GET" and ("list-type=" in target or "prefix=" in target)
        with self._lock:
            self.requests["LIST" if is_list else method] += 1

    @staticmethod
    def _answers(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while block := server.recv(_BLOCK_BYTES):
                client.sendall(block)
            client.shutdown(socket.SHUT_WR)


class ProxyProcess:
    """An HttpProxy that counts, in a process of its own: some libraries hold Python's lock while they wait for a
    response, so a thread in the same process could not send it.
    """

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "lakefeed.testing.server.proxy", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = self._asked("endpoint")

    @property
    def requests(self) -> Counter[str]:
        return Counter(json.loads(self._asked("requests")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=10)  # closing its input ends it

    def _asked(self, question: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def main(port: int) -> None:
    with HttpProxy(port) as proxy:
        for question in sys.stdin:
            answer = proxy.endpoint if question.strip() == "endpoint" else json.dumps(proxy.requests)
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
