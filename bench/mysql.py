"""A throwaway MySQL or MariaDB with the two workloads: W1, a wide table; W2, a log of changes to a copy of it.

The server's binlog has the two tables' definitions and W2, and nothing else: the rows that are there at first were
written beside it. Every contestant reads it from its start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from lakefeed.testing.server.mysql import Flavour, MysqlServer

SCHEMA, WIDE, CHANGED = "bench", "wide", "wide_cdc"
COLUMNS = 16
TRANSACTION = 100
VERSIONS: dict[Flavour, str] = {"mysql": "8.0.33", "mariadb": "11.4"}
_SETTINGS = {
    "innodb_buffer_pool_size": "2G", "loose_innodb_log_file_size": "512M", "max_binlog_size": "1G",
    "innodb_doublewrite": "0", "max_allowed_packet": "64M",
}  # fmt: skip

_TABLE = """
CREATE TABLE {table} (
  id bigint PRIMARY KEY, i1 int NOT NULL, i2 int, s1 smallint NOT NULL,
  amount decimal(18,4) NOT NULL, price decimal(18,4), name varchar(100) NOT NULL, note text,
  created timestamp(6) NOT NULL, updated timestamp(6) NULL, active boolean NOT NULL, uid char(36) NOT NULL,
  doc json, score double NOT NULL, ratio double, d date NOT NULL) CHARACTER SET utf8mb4"""

_DOCUMENT = "json_object('k', {g}, 'tag', concat('t', {g} % 100), 'v', round(({g} % 1000) / 7, 3), 'ok', {g} % 2 = 0)"
_ROWS = """
INSERT INTO wide
SELECT g, crc32(g) % 1000000, CASE WHEN g % 5 > 0 THEN g % 100000 END, g % 30000,
  round((crc32(g * 7) % 1000000000) / 10000, 4),
  CASE WHEN g % 10 <> 3 THEN round((crc32(g * 11) % 100000000) / 10000, 4) END,
  concat('name-', md5(g), 'ab'), CASE WHEN g % 10 >= 3 THEN concat('note ', md5(g * 3), 'xyz') END,
  timestamp '2024-01-01 00:00:00' + interval g * 1234567 microsecond,
  CASE WHEN g % 4 > 0 THEN timestamp '2025-01-01 00:00:00' + interval g * 987654 microsecond END,
  g % 3 = 0, insert(insert(insert(insert(md5(concat('u', g)), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'),
  CASE WHEN g % 20 > 0 THEN {document} END,
  crc32(g * 13) / 1e3, CASE WHEN g % 10 <> 7 THEN g / 3e0 END,
  date '2020-01-01' + interval (g % 2000) day
FROM (SELECT 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * h.d AS g
      FROM digits a, digits b, digits c, digits e, digits f, digits h) numbers
WHERE g <= {rows}"""

_CHANGES = """
CREATE PROCEDURE change_rows(transactions int, present bigint, deletable bigint)
BEGIN
  DECLARE t, k int DEFAULT 0; DECLARE gone, n bigint DEFAULT 0; DECLARE last bigint DEFAULT present;
  WHILE t < transactions DO
    START TRANSACTION;
    SET k = 0;
    WHILE k < 100 DO
      SET n = n + 1;
      IF k % 10 IN (0, 3, 5, 6, 8, 9) THEN
        UPDATE wide_cdc SET amount = amount + 1.25, i1 = i1 + 1, active = NOT active,
               updated = timestamp '2026-01-01 00:00:00' + interval n * 1000 microsecond
         WHERE id = deletable + 1 + crc32(n) % (present - deletable);
      ELSEIF k % 10 IN (1, 4, 7) THEN
        SET last = last + 1;
        INSERT INTO wide_cdc VALUES (last, n, CASE WHEN n % 5 > 0 THEN n % 100000 END, n % 30000, 1.5 + n, NULL,
          concat('name-', md5(last), 'ab'), concat('note ', md5(last * 3), 'xyz'),
          timestamp '2026-01-01 00:00:00' + interval n * 1000 microsecond, NULL, n % 3 = 0,
          insert(insert(insert(insert(md5(concat('u', last)), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'),
          {document}, n / 7e0, n / 3e0, date '2020-01-01' + interval (n % 2000) day);
      ELSE
        SET gone = gone + 1;
        DELETE FROM wide_cdc WHERE id = gone;
      END IF;
      SET k = k + 1;
    END WHILE;
    COMMIT;
    SET t = t + 1;
  END WHILE;
END"""


@dataclass(frozen=True, slots=True)
class Workload:
    """A running server with the wide table in it."""

    server: MysqlServer
    rows: int

    @property
    def versions(self) -> str:
        """For the report."""
        name = "MySQL" if self.server.flavour == "mysql" else "MariaDB"
        return f"{name} {self.execute('SELECT version()')} on loopback, binlog and redo log not flushed at commit."

    def execute(self, *statements: str, logged: bool = True) -> str:
        """The one value that the last answers, as text; empty if there is none."""
        with self.server.connect(read_timeout=None) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION sql_log_bin = {int(logged)}, time_zone = '+00:00'")
            if cursor.execute(f"SHOW DATABASES LIKE '{SCHEMA}'"):
                cursor.execute(f"USE {SCHEMA}")
            for statement in statements:
                cursor.execute(statement)
            row = cursor.fetchone() if cursor.description else None
        return str(row[0]) if row is not None else ""

    def change(self, changes: int) -> None:
        """W2: 60 % updates, 30 % inserts, 10 % deletes. The first tenth of the rows is deleted, the rest updated."""
        self.execute(_CHANGES.replace("{document}", _DOCUMENT.format(g="last")), logged=False)
        self.execute(f"CALL change_rows({changes // TRANSACTION}, {self.rows}, {self.rows // 10})")


@contextlib.contextmanager
def workload(flavour: Flavour, rows: int, *, copy: bool = False, version: str = "") -> Iterator[Workload]:
    """W1's table, and with ``copy`` the one that W2 changes."""
    with MysqlServer.start(flavour, _SETTINGS, version) as server:
        made = Workload(server, rows)
        made.execute(f"CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4")
        made.execute(*(_TABLE.format(table=table) for table in (WIDE, CHANGED)))
        digits = ", ".join(f"({digit})" for digit in range(10))
        made.execute("CREATE TABLE digits (d int PRIMARY KEY)", f"INSERT INTO digits VALUES {digits}", logged=False)
        made.execute(_ROWS.format(rows=rows, document=_DOCUMENT.format(g="g")), logged=False)
        if copy:
            made.execute(f"INSERT INTO {CHANGED} SELECT * FROM {WIDE}", logged=False)
        made.execute("ANALYZE TABLE wide, wide_cdc", logged=False)
        yield made
