"""Connections to a PostgreSQL database, and the one place where its errors become Lakefeed's.

Every session has the settings of SESSION, so that values are printed the same way everywhere: in the stream, in a copy,
on the driver and in a Spark task. Passwords come from the connection string, PGPASSWORD or a password file, and are
never part of a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lakefeed.errors import ConfigError, LakefeedError, SourceError, SourceSetupError, SourceUnavailableError

Connection = psycopg.Connection[tuple[Any, ...]]

SESSION = (
    "SET client_encoding = 'UTF8'; SET datestyle = 'ISO, MDY'; SET intervalstyle = 'postgres'; SET timezone = 'UTC';"
    " SET extra_float_digits = 1; SET bytea_output = 'hex'; SET search_path = pg_catalog;"
    " SET row_security = off; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0"
)
"""``search_path`` because regclass and its kin print a schema only where the path does not have it; ``row_security``
because rows that a policy hides must be an error, not a shorter copy."""

_REFUSED = (
    "password", "authentication", "pg_hba.conf", "does not exist", "permission denied", "certificate",
    "does not support SSL",  # and not "SSL" alone: the loss of a connection begins so, too
)  # fmt: skip
_SETUP = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ObjectNotInPrerequisiteState,  # wal_level is not logical, for one
    psycopg.errors.ConfigurationLimitExceeded,  # all replication slots are in use
)
_CONNECT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Database:
    """Where the database is. Picklable: chunks carry it to other processes."""

    dsn: str = field(repr=False)

    def __post_init__(self) -> None:
        try:
            conninfo_to_dict(self.dsn)
        except psycopg.ProgrammingError:
            raise ConfigError("source.dsn is not a PostgreSQL connection string") from None  # it may hold a password

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(conninfo_to_dict(self.dsn))

    def __str__(self) -> str:
        known = self.parameters
        return (
            f"{known.get('host', 'localhost')}:{known.get('port', 5432)}/{known.get('dbname', known.get('user', ''))}"
        )

    def connect(self, name: str, *, replication: bool = False) -> Connection:
        """A connection of the caller's own, in autocommit mode. ``name`` is what pg_stat_activity shows."""
        wanted: dict[str, Any] = {"application_name": name[:63]}
        if "connect_timeout" not in self.parameters:
            wanted["connect_timeout"] = _CONNECT_SECONDS
        if replication:
            wanted["replication"] = "database"
        with self.errors():
            connection = psycopg.connect(make_conninfo(self.dsn, **wanted), autocommit=True)
            try:
                # Through libpq: a replication connection knows the simple query protocol only.
                require(connection, SESSION)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def connection(self, name: str, *, replication: bool = False) -> Iterator[Connection]:
        """A connection for one block, with errors mapped."""
        connection = self.connect(name, replication=replication)
        try:
            with self.errors():
                yield connection
        finally:
            connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the driver inside the block come out as Lakefeed's."""
        try:
            yield
        except psycopg.Error as error:
            raise self.mapped(error) from error

    def mapped(self, error: psycopg.Error) -> LakefeedError:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        message = f"{self}: {text}"
        if isinstance(error, _SETUP):
            return SourceSetupError(message)
        if isinstance(error, psycopg.OperationalError):
            if error.sqlstate is None and any(word in text for word in _REFUSED):
                return SourceSetupError(message, remedy="Correct the connection string, or give the role the right.")
            return SourceUnavailableError(message)
        if type(error) is psycopg.DatabaseError and error.sqlstate is None:
            return SourceUnavailableError(message)  # libpq's own word and not the server's: the connection is lost
        return SourceError(message)


def require(connection: Connection, sql: str) -> list[tuple[str | None, ...]]:
    """Run statements in the simple query protocol; the rows of the last one, as text. psycopg.Error if one fails."""
    result = connection.pgconn.exec_(sql.encode())
    if result.status not in (psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK):
        raise psycopg.errors.error_from_result(result)
    return rows_of(result)


def rows_of(result: psycopg.pq.abc.PGresult) -> list[tuple[str | None, ...]]:
    """The rows of a result, as text."""
    return [
        tuple(None if (value := result.get_value(row, column)) is None else value.decode()
              for column in range(result.nfields))
        for row in range(result.ntuples)
    ]  # fmt: skip
