"""What a lake wants of PostgreSQL's tables: some columns, inserts alone, types that stay; verify by the same rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from scripts.types import postgres as documented
from tests.postgres.conftest import new_database
from tests.postgres.rows import changes, drain

from lakefeed import Pipeline
from lakefeed.app.build import build_verification
from lakefeed.app.config import load_config
from lakefeed.capture.base import Statement
from lakefeed.capture.poll.source import Pace, PostgresPolling, TableRule
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.choice import Choices, TableChoice
from lakefeed.change.table import OutOfRange, TableId
from lakefeed.errors import ConfigError, SourceSetupError
from lakefeed.lake.route import Rule
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

SECRET = "s3cr3t"
PEOPLE = TableId("public", "people")
_NULL, _CLAMP = OutOfRange.NULL, OutOfRange.CLAMP


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def synced(source: Any, lake: MemoryLake) -> None:
    with Pipeline(source, lake, name="p") as pipeline:
        result = pipeline.sync_once()
        assert not result.errors, result.errors


def by_id(lake: MemoryLake, table: str) -> list[dict[str, Any]]:
    return sorted(lake.rows(table), key=lambda row: int(row["id"]))


def published(writer: Any) -> dict[tuple[str, str], list[str]]:
    query = "SELECT pubname, tablename, attnames::text[] FROM pg_publication_tables"
    return {(name, table): columns for name, table, columns in writer.execute(query).fetchall()}


# Columns


@pytest.fixture
def people(writer: Any) -> Any:
    writer.execute("CREATE TABLE people (id int PRIMARY KEY, name text, tax text, note text)")
    writer.execute(f"INSERT INTO people VALUES (1, 'a', '{SECRET}', 'x')")
    return writer


def test_a_column_that_is_left_out_never_leaves_a_server_that_publishes_column_lists(
    dsn: str, people: Any, tmp_path: Path
) -> None:
    lake = MemoryLake(str(tmp_path), rules=[Rule("people", columns=("!tax",))])
    source = Postgres(dsn, column_lists=True)
    synced(source, lake)
    assert published(people) == {("lakefeed_p", "people"): ["id", "name", "note"]}
    people.execute(
        f"UPDATE people SET tax = '{SECRET}', note = 'y'; INSERT INTO people VALUES (2, 'b', '{SECRET}', 'z')"
    )
    people.execute("UPDATE people SET id = 3 WHERE id = 2")
    synced(source, lake)
    assert by_id(lake, "public.people") == [{"id": 1, "name": "a", "note": "y"}, {"id": 3, "name": "b", "note": "z"}]
    sent = b"".join(
        bytes(row[0])
        for row in people.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('lakefeed_p', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'lakefeed_p')"
        )
    )
    assert SECRET.encode() not in sent
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_new_column_comes_into_the_list_and_the_table_is_copied_again(dsn: str, people: Any, tmp_path: Path) -> None:
    """What changed before the list had it is in no stream."""
    lake = MemoryLake(str(tmp_path), rules=[Rule("people", columns=("!tax",))])
    source = Postgres(dsn, column_lists=True)
    synced(source, lake)
    people.execute("ALTER TABLE people ADD COLUMN age int; UPDATE people SET age = 41")
    for _ in range(2):
        synced(source, lake)
    assert published(people)["lakefeed_p", "people"] == ["id", "name", "note", "age"]
    assert by_id(lake, "public.people") == [{"id": 1, "name": "a", "note": "x", "age": 41}]


def test_a_full_identity_has_no_column_list_because_updates_would_be_refused(
    dsn: str, people: Any, tmp_path: Path
) -> None:
    lake = MemoryLake(str(tmp_path), rules=[Rule("people", columns=("!tax",))])
    source = Postgres(dsn, column_lists=True)
    synced(source, lake)
    people.execute("ALTER TABLE people REPLICA IDENTITY FULL")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        people.execute("UPDATE people SET note = 'refused'")
    for _ in range(2):  # noticed, then copied again
        synced(source, lake)
    people.execute("UPDATE people SET note = 'taken'")
    assert "tax" in published(people)["lakefeed_p", "people"]
    synced(source, lake)
    assert by_id(lake, "public.people") == [{"id": 1, "name": "a", "note": "taken"}]


def test_a_column_in_the_list_is_dropped_with_cascade_and_the_table_is_copied_again(
    dsn: str, people: Any, tmp_path: Path
) -> None:
    """PostgreSQL refuses it without: so no list is made that nobody asked for."""
    lake = MemoryLake(str(tmp_path), rules=[Rule("people", columns=("!tax",))])
    synced(Postgres(dsn), lake)
    assert "tax" in published(people)["lakefeed_p", "people"]
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        pipeline.uninstall()
    lake = MemoryLake(str(tmp_path / "lists"), rules=[Rule("people", columns=("!tax",))])
    source = Postgres(dsn, column_lists=True)
    synced(source, lake)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        people.execute("ALTER TABLE people DROP COLUMN note")
    people.execute("ALTER TABLE people DROP COLUMN note CASCADE; INSERT INTO people VALUES (2, 'b', 'x')")
    for _ in range(2):
        synced(source, lake)
    assert by_id(lake, "public.people") == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_check_prints_the_column_list_where_somebody_else_publishes(dsn: str, people: Any) -> None:
    capture = Postgres(dsn, column_lists=True, provision=False).bind("p")
    capture.represent(Choices((("people", TableChoice(("!tax",))),)))
    statements = [one.remedy for one in capture.check() if isinstance(one.remedy, Statement) and "PUBLI" in one.remedy]
    assert statements[0] == (
        'CREATE PUBLICATION "lakefeed_p" FOR TABLE ONLY "public"."people" ("id", "name", "note") '
        "WITH (publish_via_partition_root = true);"
    )
    for finding in capture.check():
        if isinstance(finding.remedy, Statement) and finding.level.value == "error":
            people.execute(finding.remedy)
    assert [one.problem for one in capture.check() if one.level.value == "error"] == []


def test_polling_asks_for_no_column_that_is_left_out(dsn: str, writer: Any, tmp_path: Path) -> None:
    """The role may not read it."""
    writer.execute(
        "CREATE TABLE people (id int PRIMARY KEY, tax text, note text, updated_at timestamptz DEFAULT now())"
    )
    writer.execute("INSERT INTO people (id, tax, note) VALUES (1, 's3cr3t', 'x')")
    writer.execute("CREATE ROLE narrow LOGIN; GRANT SELECT (id, note, updated_at) ON people TO narrow")
    try:
        lake = MemoryLake(str(tmp_path), rules=[Rule("people", columns=("!tax",))])
        rules = {"people": TableRule(updated_at="updated_at", safety_lag_seconds=0)}
        narrow = dsn.replace("user=postgres", "user=narrow")
        source = PostgresPolling(narrow, tables=["people"], rules=rules, pace=Pace(poll_seconds=0.01))
        synced(source, lake)
        writer.execute("UPDATE people SET note = 'y', updated_at = clock_timestamp()")
        synced(source, lake)
        assert [(row["id"], row["note"]) for row in lake.rows("public.people")] == [(1, "y")]
    finally:
        writer.execute("DROP OWNED BY narrow; DROP ROLE narrow")


def test_a_time_that_polling_needs_and_the_lake_does_not_take_is_in_no_other_column(
    dsn: str, writer: Any, tmp_path: Path
) -> None:
    writer.execute("CREATE TABLE people (id int PRIMARY KEY, updated_at timestamptz, seen_at timestamptz)")
    writer.execute("INSERT INTO people VALUES (1, now(), '2001-02-03')")
    lake = MemoryLake(str(tmp_path), rules=[Rule("people", columns=("!updated_at",))])
    rules = {"people": TableRule(updated_at="updated_at", safety_lag_seconds=0)}
    synced(PostgresPolling(dsn, tables=["people"], rules=rules), lake)
    ((key, seen),) = [(row["id"], row["seen_at"].year) for row in lake.rows("public.people")]
    assert (key, seen) == (1, 2001)


# Tables without a key


@pytest.fixture
def logs(writer: Any) -> Any:
    writer.execute("CREATE TABLE logs (id int, what text); INSERT INTO logs VALUES (1, 'a')")
    writer.execute("CREATE TABLE other (id int PRIMARY KEY)")
    return writer


BY_INSERTS = [Rule("logs", keyless="inserts")]


def test_a_table_without_a_key_is_followed_by_its_inserts_and_nothing_is_refused_to_the_application(
    dsn: str, logs: Any, tmp_path: Path
) -> None:
    lake = MemoryLake(str(tmp_path), rules=BY_INSERTS)
    synced(Postgres(dsn), lake)
    assert published(logs).keys() == {("lakefeed_p", "other"), ("lakefeed_p_inserts", "logs")}
    logs.execute("INSERT INTO logs VALUES (2, 'b'), (2, 'b')")
    logs.execute("UPDATE logs SET what = 'z' WHERE id = 1; DELETE FROM logs WHERE id = 1")
    synced(Postgres(dsn), lake)
    assert [(row["id"], row["what"]) for row in by_id(lake, "public.logs")] == [(1, "a"), (2, "b"), (2, "b")]
    logs.execute("TRUNCATE logs; INSERT INTO logs VALUES (3, 'c')")
    synced(Postgres(dsn), lake)
    assert [(row["id"], row["what"]) for row in by_id(lake, "public.logs")] == [(3, "c")]
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        assert any("updates and deletes are not seen" in one.problem for one in pipeline.check())
        assert ["not seen" in one.reason for one in pipeline.plan().tables] == [True, False]
        assert "publication lakefeed_p_inserts" in pipeline.uninstall()
    assert published(logs) == {}


@pytest.mark.parametrize("version", [min(find_binaries()), max(find_binaries())])
def test_a_table_without_a_key_can_be_added_to_a_pipeline_that_runs(
    servers: Callable[[int], PostgresServer], version: int, tmp_path: Path
) -> None:
    """Up to PostgreSQL 17 a stream must not name a publication over changes from before it was made."""
    with new_database(servers(version)) as dsn, psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE logs (id int, what text); CREATE TABLE other (id int PRIMARY KEY)")
        lake = MemoryLake(str(tmp_path))
        synced(Postgres(dsn), lake)
        writer.execute("INSERT INTO other SELECT generate_series(1, 10); INSERT INTO logs VALUES (1, 'a')")
        lake._routes = MemoryLake(str(tmp_path), rules=BY_INSERTS)._routes
        with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
            pipeline.sync_once()
            writer.execute("INSERT INTO other VALUES (11); INSERT INTO logs VALUES (2, 'b')")
            result = pipeline.sync_once()
            assert not result.errors, result.errors
        writer.execute("INSERT INTO other VALUES (12); INSERT INTO logs VALUES (3, 'c')")
        synced(Postgres(dsn), lake)
        assert [row["id"] for row in by_id(lake, "public.logs")] == [1, 2, 3]
        assert [row["id"] for row in by_id(lake, "public.other")] == list(range(1, 13))


def test_the_copy_of_a_table_without_a_key_waits_until_the_stream_has_its_inserts(
    servers: Callable[[int], PostgresServer],
) -> None:
    """Else what is inserted between the two is in neither."""
    logs = TableId("public", "logs")
    with new_database(servers(min(find_binaries()))) as dsn, psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE logs (id int); CREATE TABLE other (id int PRIMARY KEY)")
        capture = Postgres(dsn).bind("p")
        capture.open()
        start = capture.prepare([TableId("public", "other")])
        capture.close()
        writer.execute("INSERT INTO other VALUES (1)")
        capture = Postgres(dsn).bind("p")
        capture.represent(Choices((("logs", TableChoice(inserts_only=True)),)))
        capture.open()
        try:
            capture.prepare([logs])
            with pytest.raises(SourceSetupError, match="does not include the inserts"):
                capture.snapshot(logs)
            (first, *_) = drain(capture, start)
            capture.snapshot(logs)
            writer.execute("INSERT INTO logs VALUES (7)")
            assert [row["id"] for row in changes(drain(capture, first.end))] == [7]
        finally:
            capture.close()


def test_a_table_that_loses_its_key_goes_on_by_its_inserts(dsn: str, writer: Any, tmp_path: Path) -> None:
    writer.execute("CREATE TABLE logs (id int PRIMARY KEY, what text); INSERT INTO logs VALUES (1, 'a')")
    lake = MemoryLake(str(tmp_path), rules=BY_INSERTS)
    synced(Postgres(dsn), lake)
    writer.execute("ALTER TABLE logs DROP CONSTRAINT logs_pkey")
    for _ in range(2):
        synced(Postgres(dsn), lake)
    writer.execute("UPDATE logs SET what = 'b'; INSERT INTO logs VALUES (2, 'c')")  # nothing is refused
    synced(Postgres(dsn), lake)
    assert [(row["id"], row["what"]) for row in by_id(lake, "public.logs")] == [(1, "a"), (2, "c")]


# Rules


def test_a_rule_that_matches_no_table_is_reported_and_nothing_begins(dsn: str, people: Any, tmp_path: Path) -> None:
    lake = MemoryLake(str(tmp_path), rules=[Rule("public.poeple", columns=("!tax",)), Rule("people")])
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        (finding,) = [one for one in pipeline.check() if "lake.tables" in one.problem]
        assert finding.problem == "the rule for public.poeple in lake.tables matches no table"
        assert pipeline.plan().unused_rules == ("the rule for public.poeple in lake.tables matches no table",)
        with pytest.raises(ConfigError, match=r"public\.poeple"):
            pipeline.sync_once()
    assert lake.tables == {}


def test_a_rule_that_does_not_fit_its_table_blocks_that_table_alone(dsn: str, people: Any, tmp_path: Path) -> None:
    people.execute("CREATE TABLE other (id int PRIMARY KEY)")
    for rule, reason in (
        (Rule("people", types={"tax": "list"}), "gives tax the type list, but it is text"),
        (Rule("people", types={"taxes": "string"}), "'taxes', which matches no column"),
        (Rule("people", types={"name": "variant"}), "variant, which Lakefeed does not have"),
        (Rule("people", out_of_range={"id": "clamp"}), "out_of_range of id is clamp, but it is integer"),
    ):
        lake = MemoryLake(str(tmp_path / str(abs(hash(reason)))), rules=[rule])
        with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
            pipeline.sync_once()
            status = pipeline.status()
            assert reason in str(status.tables[PEOPLE].error), reason
            assert "public.other" in map(str, lake.tables)
            pipeline.uninstall()


def test_an_array_that_was_followed_as_text_stays_text_until_the_table_is_rebuilt(
    dsn: str, writer: Any, tmp_path: Path
) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, tags text[]); INSERT INTO t VALUES (1, '{a}')")
    as_text = MemoryLake(str(tmp_path), rules=[Rule("t", types={"tags": "string"})])
    synced(Postgres(dsn), as_text)  # as an earlier version did without a rule
    lake = MemoryLake(str(tmp_path))
    lake.tables = as_text.tables
    writer.execute("INSERT INTO t VALUES (2, '{b}')")
    synced(Postgres(dsn), lake)
    writer.execute("ALTER TABLE t RENAME tags TO labels; UPDATE t SET labels = '{c}' WHERE id = 2")
    synced(Postgres(dsn), lake)
    assert [row["labels"] for row in by_id(lake, "public.t")] == ["{a}", "{c}"]
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        pipeline.rebuild("public.t", from_source=True)
    writer.execute("INSERT INTO t VALUES (3, '{d,e}')")
    synced(Postgres(dsn), lake)
    assert [row["labels"] for row in by_id(lake, "public.t")] == [["a"], ["c"], ["d", "e"]]


def test_a_changed_rule_is_refused_with_the_command_that_brings_it_about(dsn: str, writer: Any, tmp_path: Path) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, tags text[]); INSERT INTO t VALUES (1, '{a}')")
    lake = MemoryLake(str(tmp_path))
    synced(Postgres(dsn), lake)
    lake._routes = MemoryLake(str(tmp_path), rules=[Rule("t", types={"tags": "string"})])._routes
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        (planned,) = pipeline.plan().tables
        assert (planned.action, 'pipeline.rebuild("public.t", from_source=True)' in planned.remedy) == ("stop", True)
        with pytest.raises(ConfigError, match="no longer matches its rule") as refused:
            pipeline.sync_once()
        assert "lakefeed rebuild FILE public.t --from-source" in refused.value.remedy
        pipeline.rebuild("public.t", from_source=True)
        assert not pipeline.sync_once().errors
    assert lake.rows("public.t") == [{"id": 1, "tags": "{a}"}]


def test_another_rule_for_values_out_of_range_makes_the_column_stale(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, until date); INSERT INTO t VALUES (1, 'infinity')")
    capture = Postgres(dsn).bind("p")
    table = TableId("public", "t")
    capture.represent(Choices((("t", TableChoice(out_of_range={"until": _NULL})),)))
    capture.open()
    start = capture.prepare([table])
    delivered = capture.snapshot(table).schema
    capture.close()
    for rule, expected in ((_CLAMP, ["the configuration has another out_of_range for until than before"]), (_NULL, [])):
        capture = Postgres(dsn).bind("p")
        capture.represent(Choices((("t", TableChoice(out_of_range={"until": rule})),)))
        capture.open()
        capture.continuity(start, [table])
        capture.recall([delivered])
        capture.discover()
        notices = [notice for change_set in drain(capture, start) for notice in change_set.notices]
        assert [notice.reason for notice in notices] == expected  # type: ignore[union-attr]
        capture.close()


# Verify, and the page of types


CONFIG = """
pipeline: p
source: {{kind: postgres, dsn: "{dsn}", tables: ["public.*"]}}
lake:
  path: ./lake
  out_of_range: {rule}
  tables:
    - {{match: t, types: {{opens: microseconds, amount: "decimal(8,2)"}}}}
"""


@pytest.mark.parametrize("rule", ["null", "clamp", "text"])
def test_verify_applies_the_same_rules_by_sql(dsn: str, writer: Any, tmp_path: Path, rule: str) -> None:
    writer.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, n numeric(5,2), amount numeric,"
        " opens time, days date[], words text[], grid int[])"
    )
    writer.execute(
        "INSERT INTO t VALUES (1, 'infinity', '-infinity', '0044-03-15 BC', 'NaN', 1.005, '24:00', '{infinity,NULL}',"
        " '{a,NULL,\"b c\"}', '{{1,2},{3,4}}'), (2, '2024-02-29', '10000-01-01', now(), 1.5, 'Infinity', '12:34:56.7',"
        " '{}', '[0:1]={x,y}', '{1,NULL}')"
    )
    writer.execute("INSERT INTO t (id) VALUES (3)")
    file = tmp_path / "p.yaml"
    file.write_text(CONFIG.format(dsn=dsn, rule=rule))
    if rule == "text":
        file.write_text(file.read_text().replace(', amount: "decimal(8,2)"', ""))
    with Pipeline.from_yaml(file) as pipeline:  # one chunk: no Spark
        assert not pipeline.sync_once().errors
    verification = build_verification(load_config(file), "sync").run(lambda _: lambda _side, _rows: None)
    ((_, comparison),) = verification.tables
    assert comparison.equal, comparison.differences
    assert comparison.lake_rows == 3
    writer.execute("UPDATE t SET d = '2024-01-01' WHERE id = 1")  # and it is no comparison of nothing
    verification = build_verification(load_config(file), "sync").run(lambda _: lambda _side, _rows: None)
    assert not verification.equal


def test_the_page_of_types_says_what_postgresql_gives(dsn: str, writer: Any) -> None:
    rows = list(documented())
    columns = ", ".join(f"c{place} {one.declared}" for place, one in enumerate(rows))
    writer.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
    capture = Postgres(dsn).bind("p")
    capture.open()
    try:
        (schema,) = capture.discover()
    finally:
        capture.close()
    found = {one.declared: column.type for one, column in zip(rows, schema.columns[1:], strict=True)}
    assert found == {one.declared: one.lake for one in rows}


def test_changes_of_a_stream_with_a_column_list_are_whole(dsn: str, people: Any) -> None:
    """What is left out is NULL in the capture's rows, and nobody sees it behind the flow."""
    capture = Postgres(dsn, column_lists=True).bind("p")
    capture.represent(Choices((("people", TableChoice(("!tax",))),)))
    capture.open()
    try:
        start = capture.prepare([PEOPLE])
        people.execute("UPDATE people SET name = 'b'; DELETE FROM people")
        assert [(row["id"], row["name"], row["tax"]) for row in changes(drain(capture, start))] == [
            (1, "b", None),
            (1, None, None),
        ]
    finally:
        capture.close()
