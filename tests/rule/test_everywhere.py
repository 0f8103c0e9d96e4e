"""Every option of a rule at once, from every source by log and by polling, into both formats: what an independent
reader then sees is what the database says, with the rule applied here by hand."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from tests.mysql.conftest import new_database as new_mysql_database
from tests.postgres.conftest import new_database as new_postgres_database
from tests.rule.test_rows import SALT, config_of, verified

from lakefeed.app.build import build_pipeline
from lakefeed.lake.reader import read_table
from lakefeed.lake.rule.changes import EARLY, REPLACED
from lakefeed.testing.server.mysql import Flavour, MysqlServer
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
CONFIG = """
pipeline: everywhere_{format}
source:
  {source}
lake:
  path: ./lake
  format: {format}
  salt: "${{SALT}}"
  tables:
    - match: "*.people"
      columns: ["*", "!tax_*"]
      mask: {{email: hash, phone: partial, pin: redact, iban: tokenize, fax: "null"}}
      sensitive: true
      types: {{code: string}}
      {out_of_range}
    - match: "*.people"
      name: persons
      namespace: hr
      only: true
      where: country IN ('DE', 'AT')
      transform: {{full_name: "concat(first_name, ' ', last_name)"}}
      rename: {{"Order ID": order_id}}
      naming: lower
      partition_by: [country]
      cluster_by: [last_name]
      file_megabytes: 16
      properties: {{{property}: "{value}"}}
"""
PROPERTIES = {"delta": ("delta.logRetentionDuration", "interval 60 days"), "iceberg": ("commit.retry.num-retries", "7")}
COLUMNS = ("id", "first_name", "last_name", "email", "phone", "pin", "iban", "fax", "tax_number", "Order ID", "code")


@dataclass(frozen=True)
class Place:
    """One database with a table ``people``. ``odd`` is a ``valid_to`` that the lake cannot hold, ``rule`` its rule."""

    source: str
    execute: Callable[[str], Any]
    select: Callable[[str], list[tuple[Any, ...]]]
    table: str = "people"
    quote: str = '"'
    time: str = "timestamptz"
    odd: str = "'2030-01-01'"
    rule: str = ""

    def statement(self, text: str) -> None:
        self.execute(text.replace("people", self.table).replace('"', self.quote))


@contextmanager
def sqlite_place(path: Path, _server: Any, capture: str) -> Iterator[Place]:
    with closing(sqlite3.connect(path / "s.db", isolation_level=None)) as writer:
        source = f"{{kind: sqlite, path: s.db{capture}}}"
        yield Place(source, writer.execute, lambda sql: writer.execute(sql).fetchall(), time="text")


@contextmanager
def postgres_place(_path: Path, server: PostgresServer, capture: str) -> Iterator[Place]:
    with new_postgres_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as writer:
        yield Place(
            f"{{kind: postgres, dsn: '{dsn}'{capture}}}",
            lambda sql: writer.execute(sql.encode()),
            lambda sql: writer.execute(sql.encode()).fetchall(),
            odd="'infinity'",
            rule="out_of_range: {valid_to: clamp}",
        )


@contextmanager
def mysql_place(_path: Path, server: MysqlServer, capture: str) -> Iterator[Place]:
    with new_mysql_database(server) as name, server.connect(autocommit=True) as writer, writer.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")

        def select(sql: str) -> list[tuple[Any, ...]]:
            cursor.execute(sql.replace("people", f"{name}.people").replace('"', "`"))
            return list(cursor.fetchall())

        yield Place(
            f"{{kind: {server.flavour}, dsn: '{server.dsn}', tables: ['{name}.*']{capture}}}",
            cursor.execute,
            select,
            table=f"{name}.people",
            quote="`",
            time="datetime(6)",
            odd="'0000-00-00'",
            rule="out_of_range: {valid_to: 'null'}",
        )


PLACES: dict[str, Any] = {
    "sqlite": sqlite_place,
    "postgres": postgres_place,
    "mysql": mysql_place,
    "mariadb": mysql_place,
}
CAPTURES = {"log": "", "poll": ", capture: poll, rules: {'*.people': {updated_at: changed_at, safety_lag_seconds: 0}}"}
IN_MAKE_TEST = ("postgres", "log", "iceberg")
CASES = [
    pytest.param(*case, marks=[] if case == IN_MAKE_TEST else [pytest.mark.slow], id="-".join(case))
    for case in itertools.product(PLACES, CAPTURES, PROPERTIES)
]


@pytest.fixture(scope="module")
def server_of() -> Iterator[Callable[[str], Any]]:
    """One server of each kind for all cases, when the first of them asks."""
    running: dict[str, Any] = {}
    flavours: dict[str, Flavour] = {"mysql": "mysql", "mariadb": "mariadb"}
    with ExitStack() as stack:

        def get(kind: str) -> Any:
            if kind in flavours and kind not in running:
                running[kind] = stack.enter_context(MysqlServer.start(flavours[kind]))
            if kind == "postgres" and kind not in running:
                running[kind] = stack.enter_context(PostgresServer.start(max(find_binaries().items())[1]))
            return running.get(kind)

        yield get


def row(place: Place, number: int, country: str, *, odd: bool = False) -> str:
    """An INSERT of one person; ``number`` is in all of its values, and in its time."""
    until = place.odd if odd else f"'2030-01-{number:02}'"
    values = (
        f"{number}, 'First{number}', 'Last{number}', 'e{number}@x.org', '030-12345{number}', '{number}', 'DE{number}'"
    )
    values += f", 'fax', 'tax{number}', {number}, {number * 1000}, '{country}', {until}, '2026-01-01 00:00:{number:02}'"
    return f"INSERT INTO people VALUES ({values})"


def expected(place: Place) -> list[dict[str, Any]]:
    """What the database has now, with the rule applied."""
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    made = []
    for found in place.select(f"SELECT {names}, country FROM people WHERE country IN ('DE', 'AT') ORDER BY id"):
        said = dict(zip((*COLUMNS, "country"), found, strict=True))
        made.append(
            {
                "id": said["id"], "first_name": said["first_name"], "last_name": said["last_name"],
                "email": hashlib.sha256((SALT + said["email"]).encode()).hexdigest(),
                "phone": f"{said['phone'][:3]}***", "pin": "***", "fax": None,
                "order_id": said["Order ID"], "code": str(said["code"]),
                "country": said["country"], "full_name": f"{said['first_name']} {said['last_name']}",
            }
        )  # fmt: skip
    return made


@pytest.mark.parametrize(("kind", "capture", "format_"), CASES)
def test_every_option_holds_for_copy_and_changes_of_every_source_in_both_formats(
    kind: str, capture: str, format_: str, server_of: Callable[[str], Any], spark: SparkSession, tmp_path: Path
) -> None:
    with PLACES[kind](tmp_path, server_of(kind), CAPTURES[capture]) as place:
        date_type = "text" if kind == "sqlite" else "date"
        place.statement(
            "CREATE TABLE people (id integer PRIMARY KEY, first_name varchar(50), last_name varchar(50),"
            " email varchar(99), phone varchar(50), pin varchar(9), iban varchar(40), fax varchar(9),"
            f' tax_number varchar(20), "Order ID" integer, code integer, country varchar(2), valid_to {date_type},'
            f" changed_at {place.time} NOT NULL)"
        )
        for number, country in enumerate(("DE", "DE", "FR", "AT"), start=1):
            place.statement(row(place, number, country, odd=number == 2))
        name, value = PROPERTIES[format_]
        config = config_of(
            tmp_path,
            CONFIG.format(source=place.source, format=format_, property=name, value=value, out_of_range=place.rule),
        )
        with build_pipeline(config, spark=spark) as pipeline:
            assert [one.error for one in pipeline.sync_once().errors.values()] == []
            assert stored(tmp_path) == expected(place)
            for number, change in enumerate(
                (
                    "country = 'FR' WHERE id = 1",  # leaves
                    "country = 'DE' WHERE id = 3",  # comes in
                    "country = 'DE', last_name = 'Moved' WHERE id = 4",  # into another partition
                    "email = 'new@x.org', code = -7 WHERE id = 2",
                ),
                start=10,
            ):
                place.statement(f"UPDATE people SET changed_at = '2026-01-01 00:00:{number}', {change}")
            place.statement(row(place, 20, "AT", odd=True))
            if capture == "log":
                place.statement("DELETE FROM people WHERE id = 3")
            assert [one.error for one in pipeline.sync_once().errors.values()] == []
            touched = next(iter(pipeline.status().tables.values())).rules
        assert stored(tmp_path) == expected(place)
        ends = {one["id"]: one["valid_to"] for one in raw(tmp_path)}
        assert ends[20] == {"sqlite": "2030-01-01", "postgres": date(9999, 12, 31)}.get(kind)
        assert touched[f"{EARLY} email"] > 0
        assert touched["where: rows left out"] > 0
        # One in the copy; in the log one that is inserted, and one of a row that is updated elsewhere.
        replaced = 0 if kind == "sqlite" else 3 if capture == "log" else 1
        assert touched.get(f"{REPLACED} valid_to", 0) == replaced
        tokens = [one["iban"] for one in raw(tmp_path)]
        assert all(len(token) == 32 for token in tokens)
        assert len(set(tokens)) == len(tokens)
        compared = verified(config, spark)
        assert {str(table): one.differences for table, one in compared.items()} == {"hr.persons": ()}
    assert not secrets_in(tmp_path / "lake")
    check_layout(tmp_path / "lake" / "hr" / "persons", format_)


UNION = """
pipeline: union_{format}
source:
  {source}
lake:
  path: ./lake
  format: {format}
  tables:
    - match: "*.people_*"
      name: people
      namespace: all
      only: true
      mode: {mode}
      union: {{column: shard, value: "{{table}}"}}
"""
UNIONS = [
    pytest.param(kind, format_, mode, key, id=f"{kind}-{format_}-{mode}{'' if key else '-keyless'}")
    for kind in PLACES
    for format_, mode, key in (
        ("delta", "append", "PRIMARY KEY"),
        ("iceberg", "mirror", "PRIMARY KEY"),
        ("delta", "mirror", ""),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "format_", "mode", "key"), UNIONS)
def test_shards_of_every_source_are_one_lake_table(
    kind: str, format_: str, mode: str, key: str, server_of: Callable[[str], Any], spark: SparkSession, tmp_path: Path
) -> None:
    with PLACES[kind](tmp_path, server_of(kind), "") as place:
        for shard in "ab":
            place.statement(f"CREATE TABLE people_{shard} (id integer {key}, name varchar(50))")
            place.statement(f"INSERT INTO people_{shard} VALUES (1, '{shard}1'), (2, '{shard}2'), (3, '{shard}3')")
        if kind == "postgres" and not key:
            for shard in "ab":
                place.statement(f"ALTER TABLE people_{shard} REPLICA IDENTITY FULL")
        config = config_of(tmp_path, UNION.format(source=place.source, format=format_, mode=mode))
        with build_pipeline(config, spark=spark) as pipeline:
            assert [one.error for one in pipeline.sync_once().errors.values()] == []
            place.statement("UPDATE people_a SET name = 'A1' WHERE id = 1")
            place.statement("DELETE FROM people_b WHERE id = 1")
            place.statement("INSERT INTO people_b VALUES (4, 'b4')")
            assert [one.error for one in pipeline.sync_once().errors.values()] == []
        there = {
            (f"people_{shard}", *one) for shard in "ab" for one in place.select(f"SELECT id, name FROM people_{shard}")
        }
    table = read_table(tmp_path / "lake" / "all" / "people")
    assert table is not None
    rows = table.to_pylist()
    if mode == "append":
        events = sorted((one["shard"], one["id"], one["_lakefeed_operation"]) for one in rows)
        copied = [(f"people_{shard}", number, "read") for shard in "ab" for number in (1, 2, 3)]
        later = [("people_a", 1, "update"), ("people_b", 1, "delete"), ("people_b", 4, "insert")]
        assert events == sorted(copied + later)
    else:
        assert len(rows) == len(there) == 6
        assert {(one["shard"], one["id"], one["name"]) for one in rows} == there


def raw(path: Path) -> list[dict[str, Any]]:
    table = read_table(path / "lake" / "hr" / "persons")
    assert table is not None
    return sorted(table.to_pylist(), key=lambda one: int(one["id"]))


def stored(path: Path) -> list[dict[str, Any]]:
    """Without what differs between sources: times, and the value that the lake cannot hold."""
    return [{key: one[key] for key in one if key not in ("iban", "valid_to", "changed_at")} for one in raw(path)]


def secrets_in(lake: Path) -> list[str]:
    """Files, of the journal first of all, that have a value that is masked before the journal, or is left out."""
    words = [b"e2@x.org", b"new@x.org", b"030-12345", b"tax2"]
    return [
        str(file) for file in lake.rglob("*") if file.is_file() and any(word in file.read_bytes() for word in words)
    ]


def check_layout(table: Path, format_: str) -> None:
    if format_ == "delta":
        delta = DeltaTable(table)
        assert delta.metadata().partition_columns == ["country"]
        assert delta.metadata().configuration["delta.logRetentionDuration"] == "interval 60 days"
        return
    newest = max((table / "metadata").glob("*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
    said = newest.read_text()
    assert '"commit.retry.num-retries":"7"' in said.replace(" ", "")
    assert '"transform":"identity"' in said.replace(" ", "")
