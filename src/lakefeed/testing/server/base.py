"""Server: what the test servers have in common. Each has a temporary directory and a port on loopback."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

_PORTS = range(15_000, 30_000)
"""Below the ports that the system gives to clients, which could take a port between two starts of its server."""
_TRIES = 3
_START_SECONDS = 120.0


class Server(ABC):
    """A server process with its data in ``directory / "data"`` and its output in ``directory / "log"``."""

    orderly: ClassVar[signal.Signals]
    crash: ClassVar[signal.Signals]
    port_is_taken: ClassVar[str]
    """The log contains this text if the port is taken."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts it on its data."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it accepts logins, on this very data: an open port is not a ready server."""

    def process_options(self) -> dict[str, Any]:
        """Options for ``subprocess``: another user, another environment."""
        return {}

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def begin(self) -> None:
        """Start it for the first time; on another port if this one has been taken."""
        for left in reversed(range(_TRIES)):
            try:
                self.resume()
            except AssertionError:
                if not left or self.port_is_taken not in self.log():
                    raise
                self.port = free_port()
            else:
                return

    def resume(self) -> None:
        """Start it again on the same data, and wait until it accepts logins."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.directory, **self.process_options()
            )
        until = time.monotonic() + _START_SECONDS
        while True:
            output = self.log()
            assert self._process.poll() is None, output
            if self.answers():
                return
            assert time.monotonic() < until, output
            time.sleep(0.02)

    def halt(self, *, immediate: bool = False) -> None:
        """Stop it: in an orderly way, or as a crash would."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(self.crash if immediate else self.orderly)
            process.wait(timeout=60)

    def close(self) -> None:
        self.halt(immediate=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")


def is_root() -> bool:
    return os.geteuid() == 0


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(_PORTS)  # a seeded choice would be the same in parallel test processes
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
