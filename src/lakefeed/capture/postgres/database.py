"""Connections to a PostgreSQL database, and the one place where its errors become Lakefeed's.

Every session has the settings of SESSION, so that values are printed the same way in the stream and in a copy, and
limits (``Timeouts``): Lakefeed never waits for a lock without a limit, and gives up on a server that does not answer.
The password comes from the connection string, PGPASSWORD or a password file, and never appears in a message.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import generators
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from lakefeed.capture.base import Statement
from lakefeed.errors import (
    IN_CONFIGURATION,
    ConfigError,
    LakefeedError,
    SourceError,
    SourceSetupError,
    SourceUnavailableError,
)

RV = TypeVar("RV")

SESSION = (
    "SET client_encoding = 'UTF8'; SET datestyle = 'ISO, MDY'; SET intervalstyle = 'postgres'; SET timezone = 'UTC';"
    " SET extra_float_digits = 1; SET bytea_output = 'hex'; SET search_path = pg_catalog; SET row_security = off"
)
"""``search_path``, because regclass and the like print a schema only if the path does not contain it; ``row_security``,
because rows that a policy hides must be an error, not a shorter copy."""

_SETUP = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ObjectNotInPrerequisiteState,  # wal_level is not logical, for one
    psycopg.errors.ConfigurationLimitExceeded,  # all replication slots are in use
)
_REFUSED = (
    "password", "authentication", "pg_hba.conf", "does not exist", "permission denied", "certificate",
    "does not support SSL",  # not "SSL" alone: a lost connection is reported with it, too
)  # fmt: skip
_UNREACHABLE = (
    ("failed to resolve host", "Correct host in source.dsn, or check the network's name server."),
    ("Connection refused", "Start the server, or correct host and port in source.dsn."),
    ("No such file or directory", "Start the server, or name its address in source.dsn: host=… port=…"),
)
"""Remedies for a connection that could not be made, by libpq's text: it gives nothing else."""
_ATTEMPT = re.compile(r"(?:connection failed: )?connection to server (?:at|on) .*? failed: (?:FATAL: +)?")
_BAD_OPTION = re.compile(r"connection is bad: (invalid .* value.*)")
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # used for every transaction
_CONNECT_SECONDS = 10
_DEFAULTS = {
    "connect_timeout": _CONNECT_SECONDS, "keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5,
    "keepalives_count": 4, "tcp_user_timeout": 30_000,
}  # fmt: skip
_LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
_TRANSACTION_TIMEOUT, _LONGEST_NAME = 170_000, 63  # the first version that has it; the maximum length of any name


class Timeouts(NamedTuple):
    """Limits of one session, in seconds; 0 means no limit, on purpose. They override the settings of the server and the
    role. ``answer``: how long the client waits for a reply to a statement, even from a frozen server."""

    lock: float = 2.0
    statement: float = 60.0
    idle_in_transaction: float = 60.0
    transaction: float = 300.0
    answer: float = 70.0


CATALOG = Timeouts()
# A chunk, or its plan, takes hours at most: a slower consumer has died.
READING = Timeouts(lock=10, statement=21_600, idle_in_transaction=21_600, transaction=21_600, answer=600)
# Holds an exported snapshot and is queried every second: if this process freezes, the server ends it.
KEEPING = Timeouts(statement=10, idle_in_transaction=120, transaction=0, answer=20)
SLOT = Timeouts(lock=600, statement=0, transaction=0)  # a new slot waits for transactions, which counts as lock waits
STREAM = Timeouts(lock=10, statement=0, idle_in_transaction=0, transaction=0)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements always end: OperationalError if the server does not answer in time."""

    database: Database
    answer_seconds: float = _CONNECT_SECONDS

    def wait(self, gen: Generator[Any, Any, RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        def bounded() -> Generator[Any, Any, RV]:
            until = time.monotonic() + self.answer_seconds
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if not ready and time.monotonic() > until:
                        self.pgconn.finish()  # in the middle of a reply the connection is useless
                        raise psycopg.OperationalError(f"the server answered nothing for {self.answer_seconds:.0f} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                value: RV = end.value
                return value

        return super().wait(bounded(), interval) if timeout is None else super().wait(bounded(), interval, timeout)

    def one(self, query: str, *values: Any) -> tuple[Any, ...]:
        """The row of a query that always returns one."""
        row = self.execute(query.encode(), values or None).fetchone()
        assert row is not None, query  # noqa: S101  # functions and aggregates always return a row
        return row

    def sever(self) -> None:
        """Make everything that waits on the connection fail at once. Any thread; never raises."""
        with suppress(psycopg.Error, OSError, ValueError), socket.socket(fileno=os.dup(self.pgconn.socket)) as other:
            other.shutdown(socket.SHUT_RDWR)


def _mistakes(dsn: str) -> Iterator[str]:
    """What libpq rejects, without any value: it might be the password."""
    if "://" in dsn:
        yield "it is not a valid URI"
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for number, part in enumerate(re.findall(r"(?:'(?:\\.|[^'\\])*(?:'|$)|[^\s'])+", dsn), start=1):
        name, separator, _ = part.partition("=")
        if not separator:
            yield f"part {number} has no '='"
        elif name not in known:
            yield f"there is no option '{name}'" if name.isidentifier() else f"part {number} has no name before '='"
    yield "a quote is not closed, or a value is missing"


@dataclass(frozen=True, slots=True)
class Database:
    """The address of a database. Picklable: chunks carry it to other processes."""

    dsn: str = field(repr=False)
    is_primary: bool = False
    """Refuse a standby until it is promoted: only a primary has a log to follow."""

    def __post_init__(self) -> None:
        """ConfigError for an invalid connection string. It leaves out libpq's message, which may quote the string."""
        try:
            conninfo_to_dict(self.dsn)
        except psycopg.ProgrammingError:
            problem = f"source.dsn is not a PostgreSQL connection string: {next(_mistakes(self.dsn))}"
            forms = (
                "host=localhost port=5432 dbname=shop user=lakefeed, or as postgresql://lakefeed@localhost:5432/shop"
            )
            raise ConfigError(problem, remedy=f"Write it as {forms}.") from None
        for port in str(self.parameters.get("port", "")).split(","):
            if port and not (port.isdigit() and 0 < int(port) < 65_536):
                problem = f"source.dsn: the port '{port}' is not a number from 1 to 65535"
                raise ConfigError(problem, remedy=f"Correct the port in source.dsn {IN_CONFIGURATION}.")

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(conninfo_to_dict(self.dsn))

    def __str__(self) -> str:
        known = {"host": "localhost", "port": 5432, "dbname": self.parameters.get("user", ""), **self.parameters}
        return "{host}:{port}/{dbname}".format_map(known)

    def connect(self, name: str, timeouts: Timeouts = CATALOG, *, replication: bool = False) -> Connection:
        """A new connection, in autocommit mode, which the caller closes. ``name`` is shown in pg_stat_activity."""
        wanted = {**_DEFAULTS, **self.parameters, "application_name": name[:63]}
        wanted |= {"replication": "database"} if replication else {}
        with self.errors():
            connection = Connection.connect(make_conninfo(**wanted), autocommit=True)
            try:
                if self.is_primary and connection.info.parameter_status("in_hot_standby") == "on":
                    raise SourceUnavailableError(
                        f"{self}: the server at {connection.info.host}:{connection.info.port} is a standby",
                        remedy="Lakefeed retries until it is promoted. To follow whichever server is the primary, "
                        "name all of them in source.dsn: host=a,b port=5432,5432 target_session_attrs=primary",
                    )
                connection.database, connection.answer_seconds = self, timeouts.answer
                names = _LIMITS if connection.info.server_version >= _TRANSACTION_TIMEOUT else _LIMITS[:-1]
                limits = [f"SET {one} = '{most * 1000:.0f}ms'" for one, most in zip(names, timeouts, strict=False)]
                run(connection, "; ".join([SESSION, *limits]))
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def connection(self, name: str, timeouts: Timeouts = CATALOG, *, replication: bool = False) -> Iterator[Connection]:
        """A connection for one block, with the driver's errors mapped."""
        with closing(self.connect(name, timeouts, replication=replication)) as connection, self.errors():
            yield connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the driver's errors inside the block into Lakefeed's."""
        try:
            yield
        except psycopg.Error as error:
            raise self.mapped(error) from error

    def mapped(self, error: psycopg.Error) -> LakefeedError:
        """Errors that libpq raises itself have no SQLSTATE, only a text."""
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if (mistake := _BAD_OPTION.match(text)) is not None:
            return ConfigError(f"source.dsn: {mistake[1]}")
        # The message names the address already; with several servers, libpq names the one it means.
        shown = text if "," in str(self.parameters.get("host", "")) else _ATTEMPT.sub("", text)
        message, is_libpqs = f"{self}: {shown}", error.sqlstate is None
        if isinstance(error, _SETUP):
            return SourceSetupError(message)
        if isinstance(error, psycopg.OperationalError) and is_libpqs and any(word in text for word in _REFUSED):
            return SourceSetupError(message, remedy=self._refusal_remedy(error))
        if isinstance(error, psycopg.OperationalError) or (type(error) is psycopg.DatabaseError and is_libpqs):
            remedy = next((remedy for words, remedy in _UNREACHABLE if words in text), None)
            return SourceUnavailableError(message, remedy=remedy)
        return SourceError(message)

    def _refusal_remedy(self, error: psycopg.Error) -> str:
        """What to do about a refused connection, from what libpq knows about the attempt."""
        if error.pgconn is not None and error.pgconn.needs_password:
            return "The server asks for a password: export PGPASSWORD=…, or add password=${NAME} to source.dsn."
        if error.pgconn is not None and error.pgconn.used_password and "password" in str(error):
            return "Set the right password, export PGPASSWORD=…, or correct user and password in source.dsn."
        if "database" in str(error) and "does not exist" in str(error):
            return "Correct dbname in source.dsn, or create the database."
        user, dbname = (str(self.parameters.get(key, "")) for key in ("user", "dbname"))
        if "permission denied for database" in str(error) and user and dbname:
            return Statement(f"GRANT CONNECT ON DATABASE {quoted(dbname)} TO {quoted(user)};")
        return "Correct host, port, user or dbname in source.dsn, or admit this role in pg_hba.conf."


class Connections:
    """Short-lived connections of one capture, all under one name. Any thread may call it."""

    def __init__(self, database: Database, name: str) -> None:
        self.database, self._name, self._open = database, name, WeakSet[Connection]()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with self.database.connection(self._name) as connection:
            self._open.add(connection)
            yield connection

    def sever(self) -> None:
        """Make everything that waits on one of them fail at once. Never raises."""
        for connection in tuple(self._open):
            connection.sever()


def run(connection: Connection, sql: str) -> psycopg.pq.abc.PGresult:
    """Run statements in the simple query protocol, the only one that a replication connection supports; see
    ``finish``."""
    connection.pgconn.send_query(sql.encode())
    return finish(connection)


def finish(connection: Connection) -> psycopg.pq.abc.PGresult:
    """The result of the last statement that was sent. psycopg.Error if one of them failed."""
    results: list[psycopg.pq.abc.PGresult] = connection.wait(generators.execute(connection.pgconn))
    for result in results:
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
    return results[-1]


def wait_while(connection: Connection, query: str, seconds: float, *values: Any) -> list[Any]:
    """Wait until the query no longer returns any of the names that it returns now. Returns those that remain when time
    is up."""
    until = time.monotonic() + seconds
    left = {row[0]: row[-1] for row in connection.execute(query.encode(), values or None)}
    while left and time.monotonic() < until:
        time.sleep(0.01)
        there = {row[0] for row in connection.execute(query.encode(), values or None)}
        left = {name: shown for name, shown in left.items() if name in there}
    return list(left.values())


def quoted(name: str) -> str:
    """``name`` as an SQL identifier, safe for any name."""
    return '"' + name.replace('"', '""') + '"'


class Names:
    """The names of what one pipeline has in the source. Slot and publication share a name, in lower case with
    underscores, as slots require. A digest is added if the pipeline's name differs from that, so that no two pipelines
    share a slot."""

    def __init__(self, pipeline: str) -> None:
        clean = re.sub("[^a-z0-9_]", "_", pipeline)
        self.slot = f"lakefeed_{clean}"
        if clean != pipeline or len(self.slot) > _LONGEST_NAME:
            digest = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
            self.slot = f"{self.slot[: _LONGEST_NAME - 9]}_{digest}"
        self.publication = self.slot
        self.inserts = f"{self.slot}_inserts"  # the publication of tables without a key
        if len(self.inserts) > _LONGEST_NAME:  # the slot's name ends in a digest, or is unique as it is
            self.inserts = f"{self.slot[:44]}_{hashlib.sha256(self.slot.encode()).hexdigest()[:8]}_inserts"
        self.readers = f"{self.slot[:57]}_copy"  # the application name of connections that read chunks
