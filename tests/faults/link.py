"""Link: a TCP connection between the pipeline and its database that can be cut, frozen, slowed, half-open, and can lose
one answer. It leads to ``target``, which may be another server after a fail-over."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

_BLOCK_BYTES = 16_384
_SLOW_BYTES, _SLOW_SECONDS = 512, 0.01


class Link:
    """``mode``: ``pass``; ``freeze`` reads nothing; ``hole`` reads and throws away; ``slow``: 50 kB/s each way.

    ``met``: how many connections or blocks faults have met. One that nothing met did nothing.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._mode, self._loses_answer = "pass", False
        self.met = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """Every connection ends now; new ones are let through."""
        with self._lock:
            ended, self._open = self._open, set()
            self.met += len(ended)
        for one in ended:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        self._mode = "freeze"

    def hole(self) -> None:
        self._mode = "hole"

    def slow(self) -> None:
        self._mode = "slow"

    def lose_answer(self) -> None:
        """The next thing a client sends arrives, and the connection ends before the server's answer comes back."""
        self._loses_answer = True

    def heal(self) -> None:
        """What was half-open is reset, as a router does in the end."""
        was, self._mode, self._loses_answer = self._mode, "pass", False
        if was == "hole":
            self.cut()

    def close(self) -> None:
        self._listener.close()
        self.heal()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                except OSError:  # the server is down
                    client.close()
                    continue
                server.settimeout(None)
                with self._lock:
                    self._open |= {client, server}
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=pair, name="link", daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_question: bool) -> None:
        with suppress(OSError):
            while True:
                if self._mode == "freeze":
                    self.met += 1
                while self._mode == "freeze":
                    time.sleep(0.01)
                block = source.recv(_SLOW_BYTES if self._mode == "slow" else _BLOCK_BYTES)
                if not block:
                    break
                if self._mode == "hole":
                    self.met += 1
                    continue
                if self._mode == "slow":
                    self.met += 1
                    time.sleep(_SLOW_SECONDS)
                target.sendall(block)
                if is_question and self._loses_answer:
                    self._loses_answer = False
                    self.met += 1
                    time.sleep(0.005)  # so that the server has it
                    break
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, target}
        source.close()
