"""PostgreSQL for the storm: a server of its own, its sessions, who waits for whom, and its tables as it prints them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import psycopg
from tests.storm.database import (
    ConnectionLostError,
    Database,
    Relation,
    Row,
    Session,
    StatementError,
    Wait,
    because_of,
)
from tests.storm.postgres.model import PostgresModel
from tests.storm.profile import Profile

from lakefeed.testing.server.postgres import PostgresServer, find_binaries

OURS = "lakefeed"
"""How the application_name of every session of the product begins. Those of the storm begin with "storm"."""

_SETTINGS = {"max_prepared_transactions": "20", "max_connections": "60", "log_lock_waits": "on"}
# An application does not wait for ever, either: what ends here is its own failure unless Lakefeed was the blocker.
_SESSION = """
SET lock_timeout = '15s'; SET statement_timeout = '60s'; SET client_min_messages = error;
SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET bytea_output = 'hex'
"""
_CREATE = """
CREATE SCHEMA elsewhere;
CREATE TABLE heartbeat (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE shared_account (id int PRIMARY KEY, balance numeric(30, 4) NOT NULL, note text);
CREATE TABLE shared_event (id bigserial PRIMARY KEY, what text, at timestamptz DEFAULT clock_timestamp());
"""
_TYPES = """
CREATE TYPE s{n}_mood AS ENUM ('m0', 'm1'); CREATE TYPE s{n}_pair AS (a int, b text);
CREATE DOMAIN s{n}_short AS integer CHECK (VALUE < 100000);
"""
_ACTIVITY = """
SELECT pid, coalesce(application_name, ''), left(regexp_replace(coalesce(query, ''), '\\s+', ' ', 'g'), 200),
       backend_type, CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) ELSE '{}' END
  FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datid IS NOT NULL
"""
# Partitions belong to their table. What nothing could follow: no identity in the log, or no log at all.
_TABLES = """
SELECT c.oid, c.relname,
       ARRAY(SELECT attname::text FROM pg_attribute
              WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum),
       CASE WHEN EXISTS (SELECT FROM pg_class p
                          WHERE (p.oid = c.oid OR p.oid IN (SELECT relid FROM pg_partition_tree(c.oid)))
                            AND p.relpersistence <> 'p') THEN 'unlogged'
            WHEN EXISTS (SELECT FROM pg_class p
                          WHERE (p.oid = c.oid OR p.oid IN (SELECT relid FROM pg_partition_tree(c.oid)))
                            AND (p.relreplident = 'n' OR p.relreplident = 'd' AND NOT EXISTS (
                                SELECT FROM pg_index WHERE indrelid = p.oid AND indisprimary AND indimmediate)
                             OR p.relreplident = 'i' AND NOT EXISTS (
                                SELECT FROM pg_index WHERE indrelid = p.oid AND indisreplident AND indisvalid)))
            THEN 'no replica identity'
            WHEN current_setting('server_version_num')::int >= 180000 AND c.relreplident = 'f' AND EXISTS
                 (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attgenerated <> '' AND NOT attisdropped)
            THEN 'full identity with a generated column'
       END
  FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
 ORDER BY c.relname
"""


class PostgresSession(Session):
    def __init__(self, database: PostgresStorm, name: str) -> None:
        self._database = database
        self._name = name
        self._connection: psycopg.Connection[Any] | None = None

    def execute(self, statement: str) -> None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._database.connect(self._name)
            # Through libpq, so that a string of several statements stays one message, as an application's may be.
            result = self._connection.pgconn.exec_(statement.encode())
        except psycopg.OperationalError as error:
            self.close()
            raise ConnectionLostError(str(error)) from error
        if result.error_message:
            fields = psycopg.errors.Error(info=result).diag
            if fields.sqlstate is None or (fields.sqlstate[:2] in ("57", "08") and fields.sqlstate != "57014"):
                self.close()
                raise ConnectionLostError(fields.message_primary or "the connection is gone")
            self._connection.pgconn.exec_(b"ROLLBACK")
            text = " ".join(part for part in (fields.message_primary, fields.message_detail) if part)
            ours = self._database.is_ours(fields.sqlstate, text)
            raise StatementError(f"{fields.sqlstate} {text}", ours=ours, passes=fields.sqlstate != "40P01")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class PostgresStorm(Database):
    def __init__(self, version: int | None = None) -> None:
        found = find_binaries()
        self._version = version or max(found)
        self._server = PostgresServer.start(found[self._version], _SETTINGS)
        self._heart = self.session("storm heartbeat")
        self._watcher: psycopg.Connection[Any] | None = None
        self._our_pids: set[int] = set()

    def source(self) -> dict[str, Any]:
        return {"kind": "postgres", "dsn": self._server.dsn}

    def lake_folder(self) -> str:
        return "public"

    def connect(self, name: str) -> psycopg.Connection[Any]:
        connection = psycopg.connect(
            f"{self._server.dsn} application_name='{name}'", autocommit=True, connect_timeout=30
        )
        connection.pgconn.exec_(_SESSION.encode())
        return connection

    def create(self, sessions: int) -> None:
        session = self.session("storm create")
        session.execute(_CREATE + "".join(_TYPES.format(n=number) for number in range(sessions)))
        session.close()

    def session(self, name: str) -> Session:
        return PostgresSession(self, name)

    def model(self, number: int, profile: Profile) -> PostgresModel:
        return PostgresModel(number, profile, self._version)

    def beat(self, number: int) -> None:
        self._heart.execute(f"INSERT INTO heartbeat (id) VALUES ({number})")

    def is_ours(self, sqlstate: str, text: str) -> bool:
        """A publication or an identity that it asks for, or a deadlock with one of Lakefeed's sessions.

        Not SET UNLOGGED: PostgreSQL refuses it for a table of any publication, and docs/postgres.md says what to do."""
        if sqlstate == "40P01":
            return bool({int(pid) for pid in re.findall(r"by process (\d+)", text)} & self._our_pids)
        published = ("cannot update table", "cannot delete from table")
        if "to unlogged because" in text:
            return False
        return text.startswith(published) or "publication" in text or "replica identity" in text or OURS in text

    def waits(self) -> list[Wait]:
        try:
            if self._watcher is None:
                self._watcher = self.connect("storm watcher")
            rows = self._watcher.execute(_ACTIVITY).fetchall()
        except psycopg.OperationalError as error:
            self._watcher = None
            raise ConnectionLostError(str(error)) from error
        ours = {pid: f"{name}: {query}" for pid, name, query, kind, _ in rows if name.startswith(OURS)}
        self._our_pids |= set(ours)
        because = because_of(ours, {pid: blockers for pid, _, _, _, blockers in rows if blockers and pid not in ours})
        return [
            Wait(f"{pid} {name or kind}", query, because[pid]) for pid, name, query, kind, _ in rows if pid in because
        ]

    def restart(self, *, crash: bool) -> None:
        self._server.halt(immediate=crash)
        self._server.resume()

    def settle(self) -> None:
        with self.connect("storm settle") as connection:
            for (name,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(f"COMMIT PREPARED '{name}'")

    def tables(self) -> list[Relation]:
        with self.connect("storm compare") as connection:
            rows = connection.execute(_TABLES).fetchall()
        return [Relation(name, tuple(columns), reason, oid) for oid, name, columns, reason in rows]

    def rows(self, relation: Relation) -> list[Row]:
        """ONLY leaves the children of an inherited table out, which are tables of their own."""
        columns = ", ".join(f'"{column}"' for column in relation.columns)
        with self.connect("storm compare") as connection:
            kind = connection.execute("SELECT relkind FROM pg_class WHERE oid = %s", (relation.oid,)).fetchone()
            only = "" if kind == ("p",) else "ONLY"
            result = connection.pgconn.exec_(f'SELECT {columns} FROM {only} "{relation.name}"'.encode())
        assert not result.error_message, result.error_message
        width = range(result.nfields)
        return [tuple(result.get_value(row, column) for column in width) for row in range(result.ntuples)]

    def close(self, log: Path) -> None:
        self._heart.close()
        if self._watcher is not None:
            self._watcher.close()
        shutil.copyfile(self._server.directory / "log", log)
        self._server.close()
