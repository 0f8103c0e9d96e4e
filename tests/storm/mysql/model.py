"""The types of MySQL and MariaDB and their own kinds of action; those that every database has are ``SqlModel``'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.storm.database import Action
from tests.storm.model import COMMON, Column, SqlModel

TYPES = {
    "int": "{g} * 7 - 1000",
    "smallint": "{g} % 30000",
    "bigint": "{g} * 1000000007",
    "bigint unsigned": "18446744073709551615 - {g}",
    "tinyint(1)": "{g} % 2",
    "bit(1)": "{g} % 2",
    "bit(12)": "{g} % 4096",
    "float": "sqrt({g}) / 3",
    "double": "{g} / 7e0",
    "decimal(20,4)": "{g} / 3",
    "decimal(50,10)": "{g} * 1000000000000000000000000.5 / 7",
    "varchar(20)": "left(md5({g}), 5 + {g} % 15)",
    "char(5)": "left(md5({g}), {g} % 6)",
    "varchar(30) character set latin1": "concat('\u00e9', {g})",
    "text": "concat('t', {g}, ' ü \U0001f40b ''\" #')",
    "longtext": "repeat(md5({g}), 120)",
    "blob": "unhex(sha2({g}, 256))",
    "varbinary(20)": "unhex(md5({g}))",
    "binary(8)": "unhex(left(md5({g}), 2 * ({g} % 8)))",
    "date": "date '1999-12-31' + interval ({g} % 20000) day",
    "datetime(6)": "timestamp '2001-02-03 04:05:06.789012' + interval ({g} % 90000) * 3600000137 microsecond",
    "datetime": "timestamp '2001-02-03 04:05:06' + interval ({g} % 90000) minute",
    "timestamp(6) null": "timestamp '2001-02-03 04:05:06.7' + interval ({g} % 90000) * 3600000137 microsecond",
    "time(3)": "sec_to_time({g} % 86400 + 0.25)",
    "year": "1950 + {g} % 150",
    "json": "json_object('n', {g}, 'x', json_array(null, 'ü', {g} / 4e0))",
    "enum('m0','m1','ü')": "elt(1 + {g} % 3, 'm0', 'm1', 'ü')",
    "set('a','b','c')": "{g} % 8",
}
ONLY_MARIADB = {
    "uuid": "concat(left(md5({g}), 8), '-1234-4123-8123-', left(md5({g}), 12))",
    "inet6": "concat('2001:db8::', hex({g} % 65536))",
}
# The new types; the server converts the values, and the log has no row of it.
RETYPES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "widen_type": {"smallint": ("int", ""), "int": ("bigint", ""), "float": ("double", ""),
                   "varchar(20)": ("varchar(60)", ""), "varbinary(20)": ("varbinary(40)", ""),
                   "enum('m0','m1','ü')": ("enum('m0','m1','ü','z')", ""), "datetime": ("datetime(6)", "")},
    "change_type": dict.fromkeys(("int", "date", "decimal(20,4)", "year"), ("varchar(60)", "")),
    "change_typmod": {"datetime(6)": ("datetime", ""), "decimal(20,4)": ("decimal(22,2)", ""),
                      "char(5)": ("char(10)", ""), "binary(8)": ("binary(12)", ""), "time(3)": ("time", ""),
                      "enum('m0','m1','ü')": ("enum('ü','m1','m0')", ""), "double": ("float", ""),
                      "varchar(30) character set latin1": ("varchar(30) character set utf8mb4", "")},
}  # fmt: skip
VALUES = {
    **TYPES, **ONLY_MARIADB, "varchar(60)": TYPES["varchar(20)"], "varbinary(40)": TYPES["varbinary(20)"],
    "enum('m0','m1','ü','z')": "elt(1 + {g} % 4, 'm0', 'm1', 'ü', 'z')", "decimal(22,2)": TYPES["decimal(20,4)"],
    "char(10)": TYPES["char(5)"], "binary(12)": TYPES["binary(8)"], "time": "sec_to_time({g} % 86400)",
    "enum('ü','m1','m0')": TYPES["enum('m0','m1','ü')"],
    "varchar(30) character set utf8mb4": TYPES["varchar(30) character set latin1"],
}  # fmt: skip

_XA = "XA START '{s}_{n}'; {change}; {insertion}; XA END '{s}_{n}'; XA PREPARE '{s}_{n}'; DO sleep(2); "
STATEMENTS = {
    **COMMON,
    "insert_shared": ("none", ("INSERT IGNORE INTO shared_account VALUES ({shared}, 1.5, 'x'); "
                      "INSERT INTO shared_event (what) VALUES ('{s} {n}')")),
    "update_shared": ("none", ("UPDATE shared_account SET balance = balance + 1, note = right(concat(note, 1), 50) "
                      "WHERE id = {shared}")),
    "delete_shared": ("none", ("DELETE FROM shared_account WHERE id = {shared}; "
                      "DELETE FROM shared_event WHERE id % 400 = {shared}")),
    "truncate": ("any", "TRUNCATE {t}"),
    "set_default": ("column", "ALTER TABLE {t} ALTER {c} SET DEFAULT ({value})"),
    "drop_default": ("column", "ALTER TABLE {t} ALTER {c} DROP DEFAULT"),
    "analyze": ("any", "ANALYZE TABLE {t}"),
    # Out of the pattern and back, with changes meanwhile.
    "move_schema": ("any", ("RENAME TABLE {t} TO elsewhere.{t}; DELETE FROM elsewhere.{t} WHERE id % 3 = 0; "
                    "RENAME TABLE elsewhere.{t} TO storm.{t}")),
    "rename_and_back": ("any", "RENAME TABLE {t} TO {s}_away, {s}_away TO {t}; {change}"),
    # A new table takes the name of an old one; the second as the tools for online schema changes do it.
    "swap_tables": ("copied", ("CREATE TABLE {s}_new{n} LIKE {t}; INSERT INTO {s}_new{n} SELECT * FROM {t} LIMIT 10; "
                    "RENAME TABLE {t} TO {s}_old{n}, {s}_new{n} TO {t}; DROP TABLE {s}_old{n}")),
    "ghost_swap": ("copied", ("CREATE TABLE _{t}_gho LIKE {t}; LOCK TABLES {t} WRITE, _{t}_gho WRITE; "
                   "INSERT INTO _{t}_gho SELECT * FROM {t}; UNLOCK TABLES; "
                   "RENAME TABLE {t} TO _{t}_del, _{t}_gho TO {t}; DROP TABLE _{t}_del")),
    "truncate_partition": ("parts", "ALTER TABLE {t} TRUNCATE PARTITION {part}"),
    "exchange_partition": ("parts", ("CREATE TABLE {s}_x{n} LIKE {t}; ALTER TABLE {s}_x{n} REMOVE PARTITIONING; "
                           "ALTER TABLE {t} EXCHANGE PARTITION {part} WITH TABLE {s}_x{n}; DROP TABLE {s}_x{n}")),
    "drop_key": ("keyed", "ALTER TABLE {t} DROP PRIMARY KEY"),
    "index": ("any", "CREATE INDEX {s}_ix{n} ON {t} (id)"),
    "rebuild": ("any", "ALTER TABLE {t} FORCE"),
    "optimize": ("any", "OPTIMIZE TABLE {t}"),
    "convert_charset": ("any", "ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4"),
    "flush_logs": ("none", "FLUSH LOGS"),
    "flush_tables": ("none", "FLUSH TABLES"),
    "long_transaction": ("any", "BEGIN; {change}; DO sleep({seconds}); {insertion}; COMMIT"),
    "long_rollback": ("any", "BEGIN; {change}; DO sleep({seconds}); {insertion}; ROLLBACK"),
    # A metadata lock that is held while nothing runs.
    "long_reader": ("any", "BEGIN; SELECT count(*) FROM {t}; DO sleep({seconds}); COMMIT"),
    "lock_table": ("any", "LOCK TABLES {t} WRITE; DO sleep({seconds}); {change}; UNLOCK TABLES"),
    "xa_commit": ("any", _XA + "XA COMMIT '{s}_{n}'"),
    "xa_rollback": ("any", _XA + "XA ROLLBACK '{s}_{n}'"),
}  # fmt: skip


class MysqlModel(SqlModel):
    types, values, retypes, statements = TYPES, VALUES, RETYPES, STATEMENTS
    default_types = ("int", "varchar(20)")

    def _series(self, names: str, values: str, table: str, first: int, last: int) -> str:
        numbers = f"(SELECT {first - 1} + n AS g FROM elsewhere.numbers WHERE n <= {last - first + 1}) AS s"
        return f"INSERT INTO {table} ({names}) SELECT {values} FROM {numbers}"

    def _on_conflict(self, column: str) -> str:
        return f" ON DUPLICATE KEY UPDATE {column} = VALUES({column})"

    def _retype(self, column: Column, new: str, using: str) -> str:
        return f"MODIFY {column.name} {new}"

    # Rows

    def replace(self) -> Action:
        table = self._table("keyed")
        table.next = max(1, table.next - 3)
        return Action([self._insertion(table, 6).replace("INSERT", "REPLACE", 1)], table.name)

    def odd_value(self) -> Action:
        """A date that no calendar has: the table is blocked, and the remedy is zero_dates."""
        table, column = self._column(lambda column: column.type in ("date", "datetime(6)", "datetime"))
        update = f"UPDATE {table.name} SET {column.name} = '0000-00-00' WHERE id = {self._id(table)}"
        return Action(["SET SESSION sql_mode = ''", update, "SET SESSION sql_mode = DEFAULT"], table.name)

    # Tables and columns

    def create_partitioned(self) -> Action:
        parts = "PARTITION p0 VALUES LESS THAN (100), PARTITION rest VALUES LESS THAN MAXVALUE"
        table, create = self._new(tail=f" PARTITION BY RANGE (id) ({parts})")
        table.parts = ["p0"]
        return self._created(table, create)

    def add_partition(self) -> Action:
        table = self._table("partitioned")
        low = table.next + 300
        parts = f"PARTITION p{low} VALUES LESS THAN ({low}), PARTITION rest VALUES LESS THAN MAXVALUE"

        def done() -> None:
            table.next = low
            table.parts = [*(table.parts or []), f"p{low}"]

        return self._alter(table, f"REORGANIZE PARTITION rest INTO ({parts})", done)

    def drop_partition(self) -> Action:
        table = self._table("parts")
        parts = table.parts or []
        part = self._chance.choice(parts)
        return self._alter(table, f"DROP PARTITION {part}", lambda: parts.remove(part))

    def remove_partitioning(self) -> Action:
        table = self._table("partitioned")
        return self._alter(table, "REMOVE PARTITIONING", lambda: setattr(table, "parts", None))

    def add_column_default_dropped(self) -> Action:
        column = self._new_column("int")
        drop = f"ALTER TABLE {{t}} ALTER {column.name} DROP DEFAULT"
        return self._add(column, "DEFAULT 5", drop, one_string=self._chance.random() < 0.5)

    def add_column_copied(self) -> Action:
        return self._add(self._new_column(), ", ALGORITHM = COPY")

    def add_column_first(self) -> Action:
        return self._add(self._new_column(), "FIRST")

    def add_generated(self) -> Action:
        kind = self._chance.choice(["STORED", "VIRTUAL"])
        return self._add(replace(self._new_column("bigint"), written=False), f"GENERATED ALWAYS AS (id * 2) {kind}")

    def change_key(self) -> Action:
        """The key gets a second column, in one statement."""
        table = self._table("keyed")
        column = replace(self._new_column("int"), not_null=True, written=False)
        what = f"ADD {column.name} int NOT NULL DEFAULT 1, DROP PRIMARY KEY, ADD PRIMARY KEY (id, {column.name})"

        def done() -> None:
            table.columns.append(column)
            table.keyed = False

        return self._alter(table, what, done)


class MariadbModel(MysqlModel):
    types = TYPES | ONLY_MARIADB
