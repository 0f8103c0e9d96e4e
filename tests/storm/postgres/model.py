"""PostgreSQL's types and its own kinds of action; those that every database has are ``SqlModel``'s."""

from __future__ import annotations

from dataclasses import replace

from tests.storm.database import Action
from tests.storm.model import COMMON, Column, NothingFitsError, SqlModel
from tests.storm.profile import Profile

TYPES = {
    "integer": "({g} * 7 - 1000)::integer",
    "smallint": "({g} % 30000)::smallint",
    "bigint": "{g}::bigint * 1000000007",
    "boolean": "({g} % 3 = 0)",
    "real": "(sqrt({g}::float8) / 3)::real",
    "float8": "CASE {g} % 9 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' WHEN 2 THEN '-0' ELSE {g} / 7.0 END::float8",
    "numeric": "({g}::numeric / 7) * 10::numeric ^ ({g} % 40 - 20)",
    "numeric(20,4)": "({g}::numeric / 3)::numeric(20,4)",
    "text": "'t' || {g} || ' ü \U0001f40b ''\" \\'",
    "varchar(20)": "left(md5(({g})::text), 5 + ({g} % 15)::int)::varchar(20)",
    "char(5)": "left(md5(({g})::text), ({g} % 6)::int)::char(5)",
    "bytea": "sha256(({g})::text::bytea)",
    "date": "date '1999-12-31' + ({g} % 20000)::int",
    "timestamp": "timestamp '2001-02-03 04:05:06.789012' + ({g} % 90000) * interval '1:00:00.000137'",
    "timestamptz": "timestamptz '1969-02-03 04:05:06.7+05' + ({g} % 90000) * interval '1:00:00.01'",
    "time": "time '00:00' + ({g} % 86400) * interval '1.25 s'",
    "interval": "({g} % 1000) * interval '1 month 2 days 3.5 s'",
    "uuid": "md5(({g})::text)::uuid",
    "json": "json_build_object('n', {g}, 'x', repeat('y', ({g} % 9)::int))",
    "jsonb": "jsonb_build_object('n', {g} / 7.0, 'x', ARRAY[NULL, 'ü'])",
    "integer[]": "ARRAY[{g}, NULL, {g} % 5]::integer[]",
    "text[]": "ARRAY['x' || {g}, NULL, 'ü \"q\"', 'null']",
    "timestamp[]": "ARRAY[timestamp '2001-02-03 04:05:06.789' + ({g} % 900) * interval '1 hour']",
    "inet": "('10.0.' || {g} % 256 || '.1/24')::inet",
    # Larger than a page's share and hard to compress: it goes out of line, and updates do not send it.
    "text /* large */": "(SELECT string_agg(md5(({g} + i)::text), '') FROM generate_series(1, 120) i)",
    # Types of the session's own, whatever their labels and attributes are by now.
    "{s}_mood": "(enum_range(NULL::{s}_mood))[1 + {g} % 2]",
    "{s}_pair": "jsonb_populate_record(NULL::{s}_pair, jsonb_build_object('a', {g}, 'b', 'x'))",
    "{s}_short": "({g} % 100)::{s}_short",
}
# Kind → type → the new type and its USING. Rows change without a row in the log.
RETYPES = {
    "widen_type": {"smallint": ("integer", "{c}"), "integer": ("bigint", "{c}"), "real": ("float8", "{c}"),
                   "varchar(20)": ("text", "{c}")},
    "change_type": dict.fromkeys(("integer", "boolean", "date", "uuid", "bytea"), ("text", "{c}::text")),
    "rewrite_same_type": {"integer": ("integer", "{c} / 2"), "text": ("text", "lower({c}) || '!'"),
                          "numeric(20,4)": ("numeric(20,4)", "-{c}"), "date": ("date", "{c} + 1")},
    "change_typmod": {"timestamp": ("timestamp(0)", "{c}::timestamp(0)"), "varchar(20)": ("varchar(3)", "left({c}, 3)"),
                      "timestamp[]": ("timestamp(0)[]", "{c}::timestamp(0)[]"), "char(5)": ("char(10)", "{c}"),
                      "numeric": ("numeric(40,2)", "CASE WHEN abs({c}) < 1e37 THEN {c} END"),
                      "numeric(20,4)": ("numeric(22,2)", "{c}::numeric(22,2)")},
}  # fmt: skip
VALUES = {
    **TYPES, "varchar(3)": "left(md5(({g})::text), 3)", "char(10)": TYPES["char(5)"],
    "numeric(40,2)": TYPES["numeric(20,4)"], "numeric(22,2)": TYPES["numeric(20,4)"],
    "timestamp(0)": TYPES["timestamp"], "timestamp(0)[]": TYPES["timestamp[]"],
}  # fmt: skip

_KEY = "SELECT conname FROM pg_constraint WHERE conrelid = ''{t}''::regclass AND contype = ''p''"
_WITH_KEY = "DO 'BEGIN EXECUTE format(''%s'', (" + _KEY + "));END'"  # a key keeps its name when its table is renamed
_LABEL = "SELECT enumlabel FROM pg_enum WHERE enumtypid = ''{s}_mood''::regtype ORDER BY 1 LIMIT 1"

_LOCK = "BEGIN; LOCK TABLE {t} IN %s MODE; SELECT pg_sleep({seconds}); {change}; COMMIT"
_CHILD = "INSERT INTO {name} (id) SELECT generate_series(1, 20); SELECT pg_sleep(4); UPDATE {name} SET id = id + 1000"

STATEMENTS = {
    **COMMON,
    "insert_shared": ("none", ("INSERT INTO shared_account VALUES ({shared}, 1.5, 'x') ON CONFLICT DO NOTHING; "
                      "INSERT INTO shared_event (what) VALUES ('{s} {n}')")),
    "update_shared": ("none", "UPDATE shared_account SET balance = balance + 1, note = note || 1 WHERE id = {shared}"),
    "delete_shared": ("none", ("DELETE FROM shared_account WHERE id = {shared}; "
                      "DELETE FROM shared_event WHERE id % 400 = {shared}")),
    "truncate": ("any", "TRUNCATE {t}"),
    "truncate_cascade": ("any", "TRUNCATE shared_event, {t} RESTART IDENTITY CASCADE"),
    "set_default": ("column", "ALTER TABLE {t} ALTER {c} SET DEFAULT {value}"),
    "drop_default": ("column", "ALTER TABLE {t} ALTER {c} DROP DEFAULT"),
    # Out of the pattern and back, with changes meanwhile.
    "move_schema": ("plain", ("ALTER TABLE {t} SET SCHEMA elsewhere; DELETE FROM elsewhere.{t} WHERE id % 3 = 0; "
                    "ALTER TABLE elsewhere.{t} SET SCHEMA public")),
    "set_unlogged": ("plain", "ALTER TABLE {t} SET UNLOGGED; {change}; ALTER TABLE {t} SET LOGGED"),
    "create_child": ("plain", "CREATE TABLE {s}_child{n} (LIKE {t} INCLUDING ALL) INHERITS ({t}); "
                     + _CHILD.replace("{name}", "{s}_child{n}")),
    # Without a key, in a schema that no pattern matches; the application goes on changing it.
    "create_child_elsewhere": ("plain", "CREATE TABLE elsewhere.{s}_child{n} () INHERITS ({t}); "
                               + _CHILD.replace("{name}", "elsewhere.{s}_child{n}")),
    # A new table takes the name of an old one.
    "swap_tables": ("copied", ("BEGIN; CREATE TABLE {s}_new{n} (LIKE {t} INCLUDING ALL); "
                    "INSERT INTO {s}_new{n} SELECT * FROM {t} LIMIT 10; ALTER TABLE {t} RENAME TO {s}_old{n}; "
                    "ALTER TABLE {s}_new{n} RENAME TO {t}; DROP TABLE {s}_old{n} CASCADE; COMMIT")),
    "add_enum_value": ("none", "ALTER TYPE {s}_mood ADD VALUE 'z{n}'"),
    "rename_enum_value": ("none", "DO 'BEGIN EXECUTE format(''ALTER TYPE {s}_mood RENAME VALUE %L TO ''''n{n}'''''', ("
                          + _LABEL + "));END'"),
    "add_composite_attribute": ("none", "ALTER TYPE {s}_pair ADD ATTRIBUTE x{n} integer CASCADE"),
    "truncate_partition": ("parts", "TRUNCATE {part}"),
    "identity_full": ("any", "ALTER TABLE {t} REPLICA IDENTITY FULL"),
    "identity_default": ("keyed", "ALTER TABLE {t} REPLICA IDENTITY DEFAULT"),
    # With the one kind of write that PostgreSQL allows then for a published table.
    "identity_nothing": ("plain", ("ALTER TABLE {t} REPLICA IDENTITY NOTHING; {insertion}; "
                         "ALTER TABLE {t} REPLICA IDENTITY FULL")),
    "identity_index": ("keyed", ("CREATE UNIQUE INDEX {s}_ix{n} ON {t} (id); "
                       "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {s}_ix{n}")),
    "drop_key": ("keyed", _WITH_KEY % "ALTER TABLE {t} DROP CONSTRAINT %I CASCADE"),
    "analyze": ("any", "ANALYZE {t}"),
    "index_concurrently": ("plain", "CREATE INDEX CONCURRENTLY {s}_ix{n} ON {t} (id)"),
    "reindex_concurrently": ("plain", "REINDEX TABLE CONCURRENTLY {t}"),
    "vacuum_full": ("any", "VACUUM FULL {t}"),
    "vacuum_full_catalog": ("none", "VACUUM FULL pg_class; VACUUM FULL pg_publication_rel"),
    "cluster": ("keyed", _WITH_KEY % "CLUSTER {t} USING %I"),
    "long_transaction": ("any", "BEGIN; {change}; SELECT pg_sleep({seconds}); {insertion}; COMMIT"),
    "long_rollback": ("any", "BEGIN; {change}; SELECT pg_sleep({seconds}); {insertion}; ROLLBACK"),
    "prepared_transaction": ("any", ("BEGIN; {change}; {insertion}; PREPARE TRANSACTION '{s} {n}'; "
                             "SELECT pg_sleep({seconds}); COMMIT PREPARED '{s} {n}'")),
    "lock_share_update": ("any", _LOCK % "SHARE UPDATE EXCLUSIVE"),
    "lock_exclusive": ("any", _LOCK % "ACCESS EXCLUSIVE"),
}  # fmt: skip


class PostgresModel(SqlModel):
    types, values, retypes, statements = TYPES, VALUES, RETYPES, STATEMENTS
    default_types = ("integer", "text")

    def __init__(self, number: int, profile: Profile, version: int) -> None:
        super().__init__(number, profile)
        self._version = version

    def _series(self, names: str, values: str, table: str, first: int, last: int) -> str:
        return f"INSERT INTO {table} ({names}) SELECT {values} FROM generate_series({first}, {last}) g"

    def _on_conflict(self, column: str) -> str:
        return f" ON CONFLICT (id) DO UPDATE SET {column} = excluded.{column}"

    def _retype(self, column: Column, new: str, using: str) -> str:
        name = column.name
        return f"ALTER {name} DROP DEFAULT, ALTER {name} TYPE {new} USING {using.format(c=name)}"

    # Rows

    def odd_value(self) -> Action:
        """A value that the lake's type does not have: the table is blocked, and the remedy is text_columns."""
        table, column = self._column(lambda column: column.type in ("date", "timestamp", "numeric(20,4)"))
        odd = "NaN" if column.type == "numeric(20,4)" else self._chance.choice(["infinity", "0044-03-15 BC"])
        return Action([f"UPDATE {table.name} SET {column.name} = '{odd}' WHERE id = {self._id(table)}"], table.name)

    # Tables

    def create_unlogged(self) -> Action:
        return self._created(*self._new(head="UNLOGGED TABLE"))

    def create_partitioned(self) -> Action:
        table, create = self._new(tail=" PARTITION BY RANGE (id)")
        table.parts = [f"{table.name}_0"]
        first = f"CREATE TABLE {table.name}_0 PARTITION OF {table.name} FOR VALUES FROM (0) TO (100)"
        return self._created(table, create, first, f"CREATE TABLE {table.name}_rest PARTITION OF {table.name} DEFAULT")

    # Columns

    def add_column_default_dropped(self) -> Action:
        column = self._new_column("integer")
        drop = f"ALTER TABLE {{t}} ALTER {column.name} DROP DEFAULT"
        return self._add(column, "DEFAULT 5", drop, one_string=self._chance.random() < 0.5)

    def add_column_volatile(self) -> Action:
        column = self._new_column("float8")
        drop = [f"ALTER TABLE {{t}} ALTER {column.name} DROP DEFAULT"] if self._chance.random() < 0.5 else []
        return self._add(column, "DEFAULT random()", *drop)

    def add_column_locked(self) -> Action:
        """DDL in a transaction that stays open for a while."""
        action = self.add_column()
        return replace(action, statements=["BEGIN", *action.statements, "SELECT pg_sleep(5)", "COMMIT"])

    def add_generated(self) -> Action:
        column = replace(self._new_column("bigint"), written=False)
        stored = self._version < 18 or self._chance.random() < 0.5
        return self._add(column, f"GENERATED ALWAYS AS (id * 2) {'STORED' if stored else 'VIRTUAL'}")

    def add_identity(self) -> Action:
        return self._add(replace(self._new_column("bigint"), written=False), "GENERATED BY DEFAULT AS IDENTITY")

    def drop_expression(self) -> Action:
        """On whichever unwritten column comes first: PostgreSQL passes over one that is not generated."""
        found = [(table, column) for table in self._tables.values() for column in table.columns if not column.written]
        if not found:
            raise NothingFitsError
        table, column = self._chance.choice(found)
        return self._alter(table, f"ALTER {column.name} DROP EXPRESSION IF EXISTS", lambda: None)

    def set_not_null(self) -> Action:
        table, column = self._column(lambda column: not column.not_null)
        filled = self._value(replace(column, not_null=True), "8")
        fill = f"UPDATE {table.name} SET {column.name} = {filled} WHERE {column.name} IS NULL"
        alter = f"ALTER TABLE {table.name} ALTER {column.name} SET NOT NULL"
        done = lambda: setattr(column, "not_null", True)  # noqa: E731 reads best beside its statements
        return Action(["BEGIN", fill, alter, "COMMIT"], table.name, done=done)

    def drop_not_null(self) -> Action:
        table, column = self._column(lambda column: column.not_null)
        return self._alter(table, f"ALTER {column.name} DROP NOT NULL", lambda: setattr(column, "not_null", False))

    # Partitions

    def _part(self, *, filled: bool, persistence: str = "") -> Action:
        """A partition above all ids there are: made as one, or made and filled apart and then attached."""
        table = self._table("partitioned")
        low = table.next + 300
        part = replace(table, name=f"{table.name}_{low}", next=low)
        bounds = f"FOR VALUES FROM ({low}) TO ({low + 200})"
        if filled:
            make = f"CREATE TABLE {part.name} (LIKE {table.name} INCLUDING ALL EXCLUDING IDENTITY)"
            statements = [
                make,
                self._insertion(part, 20),
                f"ALTER TABLE {table.name} ATTACH PARTITION {part.name} {bounds}",
            ]
        else:
            statements = [f"CREATE {persistence} TABLE {part.name} PARTITION OF {table.name} {bounds}"]
            statements.append(self._insertion(replace(part, name=table.name), 20))

        def done() -> None:
            table.next = low + 200
            table.parts = [*(table.parts or []), part.name]

        return Action(statements, table.name, done=done)

    def add_partition(self) -> Action:
        return self._part(filled=False)

    def attach_partition(self) -> Action:
        return self._part(filled=True)

    def unlogged_partition(self) -> Action:
        return self._part(filled=False, persistence="UNLOGGED")

    def _without_part(self, statement: str) -> Action:
        table = self._table("parts")
        parts = table.parts or []
        part = self._chance.choice(parts)
        return Action([statement.format(t=table.name, p=part)], table.name, done=lambda: parts.remove(part))

    def detach_partition(self) -> Action:
        return self._without_part("ALTER TABLE {t} DETACH PARTITION {p}")

    def drop_partition(self) -> Action:
        return self._without_part("DROP TABLE {p}")

    # Keys

    def change_key(self) -> Action:
        """The key gets a second column, in one transaction."""
        table = self._table("keyed")
        column = replace(self._new_column("integer"), not_null=True, written=False)
        drop = (_WITH_KEY % "ALTER TABLE {t} DROP CONSTRAINT %I").format(t=table.name)
        add = f"ALTER TABLE {table.name} ADD {column.name} int DEFAULT 1, ADD PRIMARY KEY (id, {column.name})"

        def done() -> None:
            table.columns.append(column)
            table.keyed = False

        return Action(["BEGIN", drop, add, "COMMIT"], table.name, done=done)
