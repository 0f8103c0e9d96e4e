"""E13: preflight names what stands in the way, with the statement that repairs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import CuttingProxy
from tests.postgres.rows import changes, drain, opened

from lakefeed import Pipeline
from lakefeed.app.cli import execute
from lakefeed.capture.base import Finding, Level, Statement
from lakefeed.capture.postgres.database import Database, Names
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, PositionLostError, SourceSetupError, SourceUnavailableError
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

VIA_ROOT = "publish_via_partition_root = true"


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("DO $$ BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        yield connection


def found(dsn: str, **options: Any) -> tuple[Finding, ...]:
    return Postgres(dsn, **options).bind("check").check()


def remedies(findings: tuple[Finding, ...], level: Level = Level.ERROR) -> list[str]:
    return [finding.remedy for finding in findings if finding.level is level]


def test_a_sound_source_has_no_errors(dsn: str, writer: Any) -> None:
    assert remedies(found(dsn)) == []


def test_a_role_that_may_neither_replicate_nor_read_is_told_both(dsn: str, writer: Any) -> None:
    listed = remedies(found(dsn.replace("user=postgres", "user=poor")))
    assert 'ALTER ROLE "poor" REPLICATION;' in listed
    assert 'GRANT SELECT ON "public"."t" TO "poor";' in listed


@pytest.fixture
def guest(dsn: str, writer: Any) -> Any:
    """The DSN of an ordinary role that owns nothing and may do nothing, in a database where nobody may do much."""
    role = f"guest_{writer.info.dbname}"
    writer.execute(f"CREATE ROLE {role} LOGIN")
    writer.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    writer.execute("CREATE TABLE hidden (id int PRIMARY KEY); ALTER TABLE hidden ENABLE ROW LEVEL SECURITY")
    yield dsn.replace("user=postgres", f"user={role}")
    writer.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def script(file: Path, capsys: pytest.CaptureFixture[str], expected: int) -> str:
    capsys.readouterr()
    code = execute(["check", str(file), "--sql"])
    printed = capsys.readouterr()
    assert code == expected, printed.out + printed.err
    return printed.out


@pytest.mark.parametrize("provision", [True, False])
def test_an_ordinary_role_is_ready_after_the_printed_script_was_run_as_it_is(
    guest: str, writer: Any, provision: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an administrator runs it, from top to bottom; then what check calls ready works."""
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"pipeline: check\nsource: {{kind: postgres, dsn: {guest}, provision: {str(provision).lower()}}}\n"
        f"lake: {{path: {tmp_path}/lake}}\n"
    )
    assert remedies(found(guest, provision=provision))
    printed = script(file, capsys, expected=1)
    assert "CURRENT_USER" not in printed
    for line in printed.splitlines():  # as psql does: a slot cannot be made in one transaction with the rest
        writer.execute(line or "SELECT 1")
    assert remedies(found(guest, provision=provision)) == []
    assert "Error" not in script(file, capsys, expected=0)
    tables = [TableId("public", "hidden"), TableId("public", "t")]
    with opened(Postgres(guest, provision=provision), "check") as capture:
        start = capture.prepare(tables)
        assert [len(capture.snapshot(table).chunks) for table in tables] == [1, 1]
        writer.execute("INSERT INTO t VALUES (1)")
        assert [row["id"] for row in changes(drain(capture, start))] == [1]


def test_a_role_that_owns_its_tables_and_may_not_create_is_told_the_grant(guest: str, writer: Any) -> None:
    role = guest.partition("user=")[2].split()[0]
    writer.execute(f"ALTER ROLE {role} REPLICATION; GRANT USAGE ON SCHEMA public TO {role}")
    writer.execute(f"DROP TABLE hidden; ALTER TABLE t OWNER TO {role}; REVOKE CREATE ON SCHEMA public FROM {role}")
    (remedy,) = remedies(found(guest))
    assert remedy == f'GRANT CREATE ON DATABASE "{writer.info.dbname}" TO "{role}";'
    with opened(Postgres(guest), "check") as capture, pytest.raises(SourceSetupError):
        capture.prepare([TableId("public", "t")])
    writer.execute(remedy)
    assert remedies(found(guest)) == []
    with opened(Postgres(guest), "check") as capture:
        capture.prepare([TableId("public", "t")])


def test_every_statement_of_a_server_that_is_not_set_up_runs_as_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found_binaries = find_binaries()
    settings = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}
    with PostgresServer.start(found_binaries[max(found_binaries)], settings) as server:
        file = tmp_path / "shop.yaml"
        file.write_text(f"pipeline: check\nsource: {{kind: postgres, dsn: {server.dsn}}}\nlake: {{path: {tmp_path}}}\n")
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
            printed = script(file, capsys, expected=1)
            assert printed.count("-- then restart the server") == 3
            for line in printed.splitlines():
                admin.execute(line or "SELECT 1")
        server.settings = {key: value for key, value in server.settings.items() if key not in settings}
        server.halt()
        server.begin()
        assert remedies(found(server.dsn)) == []


def test_check_finds_a_slot_that_is_gone_and_what_is_printed_helps(
    dsn: str, writer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Pipeline(Postgres(dsn), MemoryLake(str(tmp_path)), name="check") as pipeline:
        pipeline.sync_once()
        assert remedies(pipeline.check()) == []
    assert remedies(pipeline.check()) == []
    writer.execute("SELECT pg_drop_replication_slot('lakefeed_check')")
    (problem,) = [one.problem for one in pipeline.check() if one.level is Level.ERROR]
    assert "the source knows nothing of this pipeline" in problem or "is gone" in problem
    with pytest.raises(PositionLostError):
        pipeline.sync_once()
    pipeline.close()
    pipeline.uninstall()
    assert remedies(pipeline.check()) == []


def test_the_remedies_work(dsn: str, writer: Any) -> None:
    writer.execute('CREATE TABLE bad (id int PRIMARY KEY, "a,b" int)')
    for remedy in remedies(found(dsn)):
        writer.execute(remedy)
    assert remedies(found(dsn)) == []


def test_a_pattern_that_matches_nothing_is_a_finding(dsn: str, writer: Any) -> None:
    assert any("matches no table" in finding.problem for finding in found(dsn, tables=["nope.*"]))


def test_a_table_without_identity_that_was_asked_for_by_name_is_an_error(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE keyless (a int)")
    assert remedies(found(dsn, tables=["keyless"])) == ['ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL;']


def test_wal_level_and_full_slots_are_found() -> None:
    found_binaries = find_binaries()
    settings = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}
    with PostgresServer.start(found_binaries[max(found_binaries)], settings) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        listed = remedies(found(server.dsn))
        assert any("wal_level" in remedy for remedy in listed)
        assert any("max_replication_slots" in remedy for remedy in listed)
        with opened(Postgres(server.dsn)) as capture, pytest.raises(SourceSetupError, match="wal_level"):
            capture.prepare([TableId("public", "t")])


def test_t27_a_plain_connection_to_another_host_is_warned_about(server: PostgresServer, dsn: str, writer: Any) -> None:
    with CuttingProxy(server.port, host="127.0.0.2") as proxy:
        other = dsn.replace(f"host=127.0.0.1 port={server.port}", f"host=127.0.0.2 port={proxy.port}")
        assert "Add sslmode=verify-full to source.dsn." in remedies(found(other), Level.WARNING)
    with pytest.raises((SourceUnavailableError, SourceSetupError)):
        found(other)  # nobody listens there any more: an error, not a finding
    assert not [finding for finding in found(dsn) if "sslmode" in finding.problem]


def test_a_pooler_in_between_is_found(server: PostgresServer, dsn: str, writer: Any) -> None:
    with CuttingProxy(server.port, pooler=True) as proxy:
        listed = found(dsn.replace(f"port={server.port}", f"port={proxy.port}"))
    assert any("pooler" in finding.problem for finding in listed if finding.level is Level.ERROR)
    with CuttingProxy(server.port) as proxy:
        assert remedies(found(dsn.replace(f"port={server.port}", f"port={proxy.port}"))) == []


def test_without_provision_the_statements_are_errors_until_somebody_has_run_them(dsn: str, writer: Any) -> None:
    for _ in range(2):
        for remedy in remedies(found(dsn, provision=False)):
            assert remedy.startswith(("CREATE PUBLICATION", "SELECT pg_create_logical_replication_slot"))
            writer.execute(remedy)
    assert remedies(found(dsn, provision=False)) == []
    with opened(Postgres(dsn, provision=False), "check") as capture:
        start = capture.prepare([TableId("public", "t")])
        writer.execute("INSERT INTO t VALUES (1)")
        assert [row["id"] for row in changes(drain(capture, start))] == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE PUBLICATION lakefeed_check FOR TABLE t (id)",
        "CREATE PUBLICATION lakefeed_check FOR TABLE t WHERE (id > 5)",
        "CREATE PUBLICATION lakefeed_check FOR TABLE t WITH (publish = 'insert, update')",
        "CREATE PUBLICATION lakefeed_check FOR ALL TABLES WITH (publish_via_partition_root = false)",
    ],
)
def test_a_publication_that_leaves_something_out_is_refused_with_the_statement_that_helps(
    dsn: str, writer: Any, statement: str
) -> None:
    writer.execute(statement if "FOR ALL" in statement or "WITH" in statement else f"{statement} WITH ({VIA_ROOT})")
    if "publish =" in statement:
        writer.execute(f"ALTER PUBLICATION lakefeed_check SET ({VIA_ROOT})")
    with opened(Postgres(dsn), "check") as capture, pytest.raises(ConfigError, match="changes would be missing"):
        capture.prepare([TableId("public", "t")])
    (remedy,) = remedies(found(dsn))
    writer.execute(remedy)
    assert remedies(found(dsn)) == []
    with opened(Postgres(dsn), "check") as capture:
        capture.prepare([TableId("public", "t")])


def test_a_slot_that_is_about_to_lose_its_log_or_has_lost_it_is_found() -> None:
    binaries = find_binaries()
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with (
        PostgresServer.start(binaries[max(binaries)], settings) as server,
        psycopg.connect(server.dsn, autocommit=True) as writer,
        opened(Postgres(server.dsn), "check") as capture,
    ):
        writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
        start = capture.prepare([TableId("public", "t")])
        switch = "SELECT pg_switch_wal() FROM pg_logical_emit_message(false, 'x', 'y')"
        writer.execute(switch)
        assert any("about to lose its log" in finding.problem for finding in found(server.dsn))
        assert capture.lag().source["wal_status"] == "unreserved"
        for _ in range(3):
            writer.execute(switch)
        writer.execute("CHECKPOINT")
        assert any("was invalidated" in finding.problem for finding in found(server.dsn))
        assert capture.lag().source["wal_status"] == "lost"
        with pytest.raises(PositionLostError, match="invalidated"):
            capture.continuity(start, [TableId("public", "t")])


def test_t27_required_encryption_is_never_downgraded(dsn: str, writer: Any) -> None:
    with pytest.raises(SourceSetupError, match="SSL"):
        found(f"{dsn} sslmode=require")


def test_a_password_is_never_shown(dsn: str, writer: Any) -> None:
    source = Postgres(f"{dsn} password=hunter2")
    capture = source.bind("secret")
    assert "hunter2" not in repr(source)
    assert "hunter2" not in repr(Database(source.dsn)) + str(Database(source.dsn))
    with pytest.raises((SourceSetupError, SourceUnavailableError)) as caught:
        Postgres("host=127.0.0.1 port=1 password=hunter2").bind("secret").open()
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as refused:
        Postgres("host=x password=hunter2 nonsense")
    assert "hunter2" not in str(refused.value)
    capture.open()
    capture.prepare([TableId("public", "t")])
    assert "hunter2" not in str(capture.snapshot(TableId("public", "t")).chunks[0].to_json())
    capture.close()


@pytest.mark.parametrize("options", [{"capture": "magic"}, {"tables": "t"}, {"tables": []}, {"text_columns": "x"}])
def test_a_wrong_option_is_a_config_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Postgres("host=x", **options)


def test_slot_names_are_lower_case_and_never_shared() -> None:
    assert Names("shop").slot == "lakefeed_shop"
    names = {Names(pipeline).slot for pipeline in ("a-b", "a_b", "A_b", "a.b", "x" * 64, "x" * 65)}
    assert len(names) == 6
    assert all(len(name) <= 63 and name.replace("_", "").isalnum() and name == name.lower() for name in names)


def test_a_missing_and_a_wrong_password_are_answered_with_where_to_put_it(
    server: PostgresServer, dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    writer.execute("CREATE ROLE guarded LOGIN REPLICATION PASSWORD 'hunter2'")
    try:
        rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{before}")
        writer.execute("SELECT pg_reload_conf()")
        guarded = dsn.replace("user=postgres", "user=guarded")
        until(lambda: "asks for a password: export PGPASSWORD=" in refusal(guarded))
        monkeypatch.setenv("PGPASSWORD", "wrong")
        assert "Set the right password, export PGPASSWORD=" in refusal(guarded)
        monkeypatch.setenv("PGPASSWORD", "hunter2")
        assert refusal(guarded) == ""
    finally:
        rules.write_text(before)
        writer.execute("SELECT pg_reload_conf()")
        writer.execute("DROP ROLE guarded")


def test_a_role_that_may_not_connect_is_told_the_grant(guest: str, writer: Any) -> None:
    name = writer.info.dbname
    writer.execute(f'REVOKE CONNECT ON DATABASE "{name}" FROM PUBLIC')
    with pytest.raises(SourceSetupError, match="permission denied for database") as refused:
        found(guest)
    assert isinstance(refused.value.remedy, Statement)
    writer.execute(refused.value.remedy)
    found(guest)


def refusal(dsn: str) -> str:
    """The remedy, if the server does not let us in."""
    try:
        found(dsn)
    except SourceSetupError as error:
        return error.remedy
    return ""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_uninstall_finishes_or_names_what_is_left_to_run(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn), "check") as capture:
        capture.prepare([TableId("public", "t")])
    writer.execute("ALTER ROLE poor REPLICATION")
    with opened(Postgres(dsn.replace("user=postgres", "user=poor")), "check") as guest:
        with pytest.raises(SourceSetupError, match="removed replication slot lakefeed_check; the rest cannot") as left:
            guest.uninstall()
        statement = left.value.remedy.partition(": ")[2]
        assert statement == 'DROP PUBLICATION "lakefeed_check";'
        writer.execute(statement)
        assert guest.uninstall() == ()
