"""Connections to a MySQL or MariaDB server, and the one place where its errors become Lakefeed's.

Every session has limits: how long it waits for a metadata lock, how long a statement may run, how long the client waits
for an answer. The TLS modes are those of the server's own clients, except PREFERRED, which silently falls back to plain
text. The password comes from the address or from MYSQL_PWD, and never appears in a message.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pymysql
from pymysql.connections import Connection as Driver

from lakefeed.capture.mysql.columns import Flavour
from lakefeed.errors import ConfigError, LakefeedError, SourceError, SourceSetupError, SourceUnavailableError

MODES = ("VERIFY_IDENTITY", "VERIFY_CA", "REQUIRED", "DISABLED")
_OPTIONS = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "unix_socket")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_CONNECT_SECONDS = 10
_LOGIN = frozenset({1045, 1698})
"""Access denied: wrong user or password."""
_SETUP = frozenset({1044, 1049, 1142, 1143, 1227, 1235, 1290, 2026, 2059, 3118, 4151})
"""Unknown database, missing privilege, TLS refused: errors that do not go away by themselves."""
_UNAVAILABLE = frozenset({1040, 1053, 1077, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317, 1927, 3024, 1969})
"""Too many connections, shutdown, network, lock wait, deadlock, killed, timeout."""

SESSION = "SET SESSION time_zone = '+00:00', sql_mode = '', group_concat_max_len = 1048576"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of one session, in seconds. ``answer``: how long the client waits for a silent server."""

    lock: int = 2
    statement: int = 60
    answer: int = 70


CATALOG = Timeouts()
READING = Timeouts(lock=10, statement=21_600, answer=600)
"""A chunk takes hours at most. The server sends rows as it finds them, so ten silent minutes mean that it is dead."""
STREAM = Timeouts(statement=0, answer=60)
KILLING = Timeouts(statement=2, answer=2)
"""Somebody waits for this to end, and the server may not answer at all."""


@dataclass(frozen=True, slots=True)
class Database:
    """The address of a server, as ``mysql://user@host:port/?ssl-mode=VERIFY_IDENTITY``. Picklable. ConfigError for an
    invalid address."""

    dsn: str = field(repr=False)
    flavour: Flavour = "mysql"

    def __post_init__(self) -> None:
        if not self.dsn.startswith(("mysql://", "mariadb://")):
            raise _wrong("it must begin with mysql:// or mariadb://")
        try:
            parts = urlsplit(self.dsn)
        except ValueError:
            raise _wrong("its host cannot be read") from None  # the message may quote the password
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port is not None and not 0 < port < 65_536:
            raise _wrong("its port is not a number from 1 to 65535")
        options = parse_qs(parts.query)
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise _wrong(f"there is no option '{unknown[0]}'; there are {', '.join(_OPTIONS)}")
        if self.ssl_mode not in MODES:
            raise _wrong(f"ssl-mode is {self.ssl_mode}; there are {', '.join(MODES)}")

    @property
    def options(self) -> dict[str, str]:
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.dsn).query).items()}

    @property
    def host(self) -> str:
        return urlsplit(self.dsn).hostname or "localhost"

    @property
    def is_local(self) -> bool:
        return "unix_socket" in self.options or self.host in _LOCAL

    @property
    def ssl_mode(self) -> str:
        """By default: full verification, and no TLS on this machine."""
        return self.options.get("ssl-mode", "DISABLED" if self.is_local else "VERIFY_IDENTITY").upper()

    def __str__(self) -> str:
        return self.options.get("unix_socket") or f"{self.host}:{urlsplit(self.dsn).port or 3306}"

    def connect(self, timeouts: Timeouts = CATALOG) -> Connection:
        """A new connection, in autocommit mode, which the caller closes."""
        parts, options = urlsplit(self.dsn), self.options
        given: dict[str, Any] = {
            "host": self.host,
            "port": parts.port or 3306,
            "user": unquote(parts.username or "") or None,
            "password": unquote(parts.password) if parts.password is not None else os.environ.get("MYSQL_PWD", ""),
            "unix_socket": options.get("unix_socket"),
        }
        if self.ssl_mode == "DISABLED":
            given["ssl_disabled"] = True
        else:
            try:
                context = ssl.create_default_context(cafile=options.get("ssl-ca"))
                if "ssl-cert" in options:
                    context.load_cert_chain(options["ssl-cert"], options.get("ssl-key"))
            except OSError as error:
                raise _wrong(f"ssl-ca, ssl-cert or ssl-key cannot be read ({error})") from error
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # a server's self-made authority does not pass it
            context.check_hostname = self.ssl_mode == "VERIFY_IDENTITY"
            context.verify_mode = ssl.CERT_NONE if self.ssl_mode == "REQUIRED" else ssl.CERT_REQUIRED
            given["ssl"] = context
        if self.ssl_mode in ("DISABLED", "REQUIRED") and "unix_socket" not in options:
            given["auth_plugin_map"] = dict.fromkeys(("mysql_clear_password", "dialog"), _Refusal)
        with self.errors():
            try:
                driver = pymysql.connect(
                    **given, charset="utf8mb4", autocommit=True, connect_timeout=_CONNECT_SECONDS,
                    read_timeout=min(_CONNECT_SECONDS, timeouts.answer), write_timeout=timeouts.answer,
                )  # fmt: skip
            except RuntimeError as error:  # the account's kind of password needs a package that is missing
                raise SourceSetupError(f"{self}: {error}", remedy="pip install 'lakefeed[mysql]'") from error
            connection = Connection(self, driver)
            try:
                is_mariadb = "MariaDB" in connection.driver.get_server_info()
                if is_mariadb != (self.flavour == "mariadb"):
                    there = "mariadb" if is_mariadb else "mysql"
                    raise SourceSetupError(
                        f"{self} is a {there} server, but source.kind is {self.flavour}",
                        remedy=f"Set source.kind: {there}.",
                    )
                name, unit = ("max_statement_time", 1) if is_mariadb else ("max_execution_time", 1000)
                limits = f"lock_wait_timeout = {timeouts.lock}, {name} = {timeouts.statement * unit}"
                connection.run(f"{SESSION}, {limits}")
                connection.run("SET NAMES utf8mb4")
                connection.driver._read_timeout = timeouts.answer  # so far it was the login's
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def connection(self, timeouts: Timeouts = CATALOG) -> Iterator[Connection]:
        """A connection for one block, with the driver's errors mapped."""
        connection = self.connect(timeouts)
        try:
            with self.errors():
                yield connection
        finally:
            connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the driver's errors inside the block into Lakefeed's."""
        try:
            yield
        except (pymysql.err.Error, OSError) as error:
            raise self.mapped(error) from error

    def mapped(self, error: Exception) -> LakefeedError:
        cause = getattr(error, "original_exception", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            remedy = "Add the server's authority to source.dsn (ssl-ca=…), or use the host name in its certificate."
            return SourceSetupError(f"{self}: cannot verify its certificate: {cause.verify_message}", remedy=remedy)
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if len(error.args) > 1 else str(error) or type(error).__name__
        message = f"{self}: {text}"
        if code in _LOGIN:
            remedy = "Set the password in MYSQL_PWD, or correct user and password in source.dsn."
            return SourceSetupError(message, remedy=remedy)
        if code in _SETUP:
            return SourceSetupError(
                message, remedy="Correct source.dsn or the account; `lakefeed check FILE --sql` prints the GRANT."
            )
        if isinstance(cause, socket.gaierror):
            remedy = "Correct the host in source.dsn, or check the network's name server."
            return SourceUnavailableError(message, remedy=remedy)
        if isinstance(cause, ConnectionRefusedError):
            return SourceUnavailableError(message, remedy="Start the server, or correct host and port in source.dsn.")
        is_lost = isinstance(error, OSError) or 2000 <= code < 2100 or isinstance(error, pymysql.err.InterfaceError)
        return SourceUnavailableError(message) if is_lost or code in _UNAVAILABLE else SourceError(message)


class _Refusal:
    """Replaces an authentication that sends the password in clear text: only a verified server may get that."""

    def __init__(self, driver: Any) -> None:
        """The driver creates one for each login."""

    def authenticate(self, packet: Any) -> None:  # noqa: ARG002
        raise pymysql.err.OperationalError(2059, "the unverified server asks for the password in clear text")


class Connection:
    """One connection. ``run`` belongs to one thread at a time; any thread may call ``sever`` and ``kill``."""

    def __init__(self, database: Database, driver: Driver[Any]) -> None:
        self.database = database
        self.driver: Any = driver  # packets.py uses attributes that the driver's stubs do not list

    @property
    def version(self) -> tuple[int, ...]:
        """(8, 0, 33) for 8.0.33."""
        text = self.driver.get_server_info().removeprefix("5.5.5-")
        return tuple(int(part) for part in text.partition("-")[0].split(".")[:3])

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self.driver._sock
        return found

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows, with values as the driver converts them."""
        with self.driver.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def value(self, sql: str) -> Any:
        """The first value of the first row."""
        return self.run(sql)[0][0]

    def kill(self) -> None:
        """End the running statement, by the connection's own id. Never raises."""
        with suppress(LakefeedError), self.database.connection(KILLING) as other:
            other.run(f"KILL QUERY {self.driver.thread_id()}")

    def sever(self) -> None:
        """Make everything that waits on the connection fail at once. Never raises."""
        with suppress(OSError, AttributeError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(pymysql.err.Error, OSError):
            self.driver.close()


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Any text as a SQL literal, whatever the session's modes are."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


def listed(texts: Sequence[str]) -> str:
    return ", ".join(map(literal, texts)) or "NULL"


def _wrong(what: str) -> ConfigError:
    return ConfigError(
        f"source.dsn is not the address of a MySQL or MariaDB server: {what}",
        remedy="Write it as mysql://lakefeed@db.example.org:3306/?ssl-mode=VERIFY_IDENTITY, with the password in "
        "MYSQL_PWD.",
    )
