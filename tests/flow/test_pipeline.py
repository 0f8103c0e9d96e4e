"""The pipeline with a real database and a real journal; the lake is the one in memory."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakefeed import Listener, Pipeline, PipelineOptions, Sqlite
from lakefeed.capture.base import Level
from lakefeed.change.segment import Window
from lakefeed.change.table import TableId
from lakefeed.errors import (
    CommitFailedError,
    ConfigError,
    LakefeedError,
    LeaseError,
    PositionLostError,
    SourceChangedError,
    SourceUnavailableError,
    StateError,
    TableStoppedError,
)
from lakefeed.failpoint import armed
from lakefeed.flow.copies import TableCopies
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import Applied, TableCopy
from lakefeed.lake.mode import Append, Mirror
from lakefeed.lake.route import Rule
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable

T, U = TableId("main", "t"), TableId("main", "u")
MADE_ANEW = """
BEGIN; CREATE TABLE c (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO c VALUES (7, 'moved');
DROP TABLE t; ALTER TABLE c RENAME TO t; COMMIT;
"""
QUICK = PipelineOptions(interval_seconds=0.01, enrol_seconds=0.05, journal=JournalOptions(fsync=False))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'a'), (2, 'b');"
        "CREATE TABLE u (id INTEGER PRIMARY KEY, v TEXT);"
    )
    yield connection
    connection.close()


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path / "lake"))


Make = Callable[..., Pipeline]


@pytest.fixture
def make(tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection) -> Iterator[Make]:
    made: list[Pipeline] = []

    def factory(options: PipelineOptions = QUICK, listener: Listener | None = None, name: str = "p") -> Pipeline:
        made.append(Pipeline(Sqlite(tmp_path / "s.db"), lake, name=name, options=options, listener=listener))
        return made[-1]

    yield factory
    for pipeline in made:
        pipeline.close()


def rows(lake: MemoryLake, table: str = "main.t") -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.rows(table)}


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_the_first_sync_copies_and_the_next_ones_follow(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    first = pipeline.sync_once()
    assert (first.counts.inserted, first.last_seq) == (2, None)
    database.executescript(
        "INSERT INTO t VALUES (3, 'c'); UPDATE t SET v = 'x' WHERE id = 1; DELETE FROM t WHERE id = 2;"
    )
    second = pipeline.sync_once()
    assert (second.counts.inserted, second.counts.updated, second.counts.deleted) == (1, 1, 1)
    assert (second.change_sets, second.last_seq) == (1, 3)
    assert rows(lake) == {1: "x", 3: "c"}


def test_b02_a_sync_with_nothing_new_says_so_and_touches_nothing(make: Make, lake: MemoryLake) -> None:
    pipeline = make()
    pipeline.sync_once()
    commits = lake.commits
    result = pipeline.sync_once()
    assert (result.change_sets, result.counts.total, result.tables, result.last_seq) == (0, 0, {}, None)
    assert lake.commits == commits


def test_b09_two_threads_that_sync_at_once_apply_everything_once(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    pipeline.sync_once()
    commits = lake.commits
    database.execute("INSERT INTO t VALUES (9, 'z')")
    threads = [threading.Thread(target=pipeline.sync_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (rows(lake)[9], lake.commits) == ("z", commits + 1)


def test_a_second_pipeline_object_on_the_same_state_is_refused(make: Make) -> None:
    make().sync_once()
    with pytest.raises(LeaseError, match="written by process"):
        make().sync_once()


def test_a_second_process_on_the_same_state_is_refused(make: Make, tmp_path: Path) -> None:
    make().sync_once()
    program = (
        "from lakefeed import Pipeline, Sqlite\nfrom lakefeed.testing.memory_lake import MemoryLake\n"
        "from lakefeed.errors import LeaseError\nimport sys\n"
        "try: Pipeline(Sqlite(sys.argv[1]), MemoryLake(sys.argv[2]), name='p').sync_once()\n"
        "except LeaseError as error: print(error, error.remedy)"
    )
    arguments = [str(tmp_path / "s.db"), str(tmp_path / "lake")]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert "is written by process" in done.stdout
    assert "Stop the other process first" in done.stdout


def test_two_pipelines_follow_one_database_side_by_side(
    make: Make, lake: MemoryLake, database: sqlite3.Connection, tmp_path: Path
) -> None:
    other_lake = MemoryLake(str(tmp_path / "other"))
    first = make()
    with Pipeline(Sqlite(tmp_path / "s.db"), other_lake, name="other", options=QUICK) as second:
        first.sync_once()
        second.sync_once()
        database.execute("DELETE FROM t WHERE id = 1")
        first.sync_once()
        second.sync_once()
    assert rows(lake) == rows(other_lake) == {2: "b"}


def test_a_table_that_appears_later_is_taken_in(make: Make, lake: MemoryLake, database: sqlite3.Connection) -> None:
    pipeline = make()
    pipeline.sync_once()
    database.executescript("CREATE TABLE w (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO w VALUES (1, 'w');")
    pipeline.sync_once()
    assert rows(lake, "main.w") == {1: "w"}


def test_a_dropped_table_stays_in_the_lake_and_is_copied_anew_when_it_comes_back(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    pipeline.sync_once()
    database.execute("DROP TABLE t")
    pipeline.sync_once()
    assert pipeline.status().tables[T].state == "dropped"
    assert rows(lake) == {1: "a", 2: "b"}
    database.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (5, 'new');")
    pipeline.sync_once()
    assert rows(lake) == {5: "new"}


def test_a_table_lost_from_the_lake_is_copied_anew_after_a_restart(make: Make, lake: MemoryLake) -> None:
    pipeline = make()
    pipeline.sync_once()
    pipeline.close()
    del lake.tables[T]
    make().sync_once()
    assert rows(lake) == {1: "a", 2: "b"}


def test_an_error_of_one_table_does_not_hold_up_the_others_and_is_in_the_status(
    make: Make, lake: MemoryLake, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make()
    pipeline.sync_once()
    apply = MemoryLakeTable.apply

    def broken(self: MemoryLakeTable, window: Window, generation: int) -> Applied:
        if window.table == T:
            raise TableStoppedError("t is in a bad way", remedy="lakefeed rebuild FILE main.t", table=str(T))
        return apply(self, window, generation)

    monkeypatch.setattr(MemoryLakeTable, "apply", broken)
    database.executescript("INSERT INTO t VALUES (3, 'c'); INSERT INTO u VALUES (1, 'u');")
    result = pipeline.sync_once()
    assert (set(result.errors), rows(lake, "main.u")) == ({T}, {1: "u"})
    assert result.errors[T].remedy == 'pipeline.rebuild("main.t")', "there is no file: a call"
    status = pipeline.status()
    assert (status.tables[T].error, status.tables[T].remedy) == ("t is in a bad way", 'pipeline.rebuild("main.t")')
    assert status.tables[U].error is None
    assert status.verdict == "stalled"
    monkeypatch.undo()
    until(lambda: pipeline.sync_once() is not None and rows(lake).get(3) == "c")
    assert pipeline.status().tables[T].error is None


def test_b04_run_syncs_again_and_again_until_stop(make: Make, lake: MemoryLake, database: sqlite3.Connection) -> None:
    pipeline = make()
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    until(lambda: T in lake.tables and len(rows(lake)) == 2)
    database.execute("INSERT INTO t VALUES (7, 'live')")
    until(lambda: rows(lake).get(7) == "live")
    until(lambda: pipeline.status().verdict == "idle")
    pipeline.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert pipeline.status().verdict == "stopped"


def test_a_busy_source_is_not_cut_into_a_change_set_per_transaction(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    until(lambda: T in lake.tables)
    started = time.monotonic()
    for number in range(100, 300):
        database.execute("INSERT INTO t VALUES (?, 'busy')", (number,))
        time.sleep(0.005)
    until(lambda: len(rows(lake)) == 202)
    cuts = (time.monotonic() - started) / 0.2
    pipeline.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert pipeline.status().journal_head <= cuts + 5


def test_run_ends_by_itself_after_the_seconds_it_was_given(make: Make) -> None:
    started = time.monotonic()
    make().run(for_seconds=0.3)
    assert 0.3 <= time.monotonic() - started < 60


def test_run_while_it_works_already_is_refused(make: Make) -> None:
    pipeline = make()
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    until(lambda: pipeline.status().verdict in ("idle", "healthy"))
    with pytest.raises(StateError, match="already working"):
        pipeline.run()
    pipeline.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_run_goes_on_after_a_failure_that_passes(make: Make, lake: MemoryLake, database: sqlite3.Connection) -> None:
    told: list[Exception] = []

    class Hears(Listener):
        def retrying(self, error: Exception, seconds: float) -> None:
            told.append(error)

    pipeline = make(listener=Hears())
    append, failures = Journal.append, [CommitFailedError("once"), CommitFailedError("twice")]

    def fails(self: Journal, change_set: object) -> object:
        if failures:
            raise failures.pop()
        return append(self, change_set)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", fails)
        thread = threading.Thread(target=pipeline.run)
        thread.start()
        until(lambda: len(told) == 2)
        until(lambda: T in lake.tables)
        database.execute("INSERT INTO t VALUES (8, 'late')")
        until(lambda: rows(lake).get(8) == "late")
        pipeline.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert [str(error).splitlines()[0] for error in told] == ["twice", "once"]


def test_run_raises_an_error_that_does_not_pass(make: Make, database: sqlite3.Connection) -> None:
    pipeline = make()
    pipeline.sync_once()
    database.execute("INSERT INTO t VALUES (8, 'late')")
    with armed("journal.before_commit", "raise"), pytest.raises(LakefeedError, match=r"journal\.before_commit"):
        pipeline.run(for_seconds=60)


def test_capture_waits_while_the_lake_is_too_far_behind(
    make: Make, lake: MemoryLake, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make(options=replace(QUICK, max_backlog_bytes=1))

    def down(self: MemoryLakeTable, window: Window, generation: int) -> None:
        raise CommitFailedError("the lake is down")

    pipeline.sync_once()
    monkeypatch.setattr(MemoryLakeTable, "apply", down)
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    database.execute("INSERT INTO t VALUES (3, 'c')")
    until(lambda: pipeline.status().journal_head == 2)
    database.execute("INSERT INTO t VALUES (4, 'd')")
    time.sleep(0.7)
    assert pipeline.status().journal_head == 2
    assert (pipeline.status().lag.rows or 0) >= 1
    monkeypatch.undo()
    until(lambda: rows(lake).get(4) == "d")
    pipeline.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_what_is_trimmed_is_what_every_table_has_and_a_restart_knows_it(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    """Table u gets nothing for long: its own commits name an old change set that the journal no longer has."""
    options = replace(QUICK, journal=JournalOptions(keep_seconds=0, keep_change_sets=1, fsync=False))
    pipeline = make(options=options)
    for number in range(80):
        database.execute("INSERT INTO t VALUES (?, 'n')", (100 + number,))
        pipeline.sync_once()
    pipeline.close()
    with Journal.read(pipeline.root) as journal:
        assert 0 < journal.trimmed < journal.head
    again = make(options=options)
    database.execute("INSERT INTO u VALUES (1, 'at last')")
    again.sync_once()
    assert rows(lake, "main.u") == {1: "at last"}
    assert len(rows(lake)) == 82


def test_a_lake_table_put_back_to_an_older_state_is_healed_from_the_journal(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    pipeline.sync_once()
    before = replace(lake.tables[T], rows=dict(lake.tables[T].rows))
    database.execute("INSERT INTO t VALUES (3, 'c')")
    pipeline.sync_once()
    pipeline.close()
    lake.tables[T] = before
    make().sync_once()
    assert rows(lake) == {1: "a", 2: "b", 3: "c"}


def test_a_source_that_forgot_the_pipeline_stops_it_loudly(
    make: Make, database: sqlite3.Connection, tmp_path: Path
) -> None:
    pipeline = make()
    pipeline.sync_once()
    pipeline.close()
    capture = Sqlite(tmp_path / "s.db").bind("p")
    capture.open()
    capture.uninstall()
    capture.close()
    with pytest.raises(PositionLostError, match="knows nothing of this pipeline"):
        make().sync_once()


def test_another_database_under_the_same_name_is_refused(make: Make, tmp_path: Path, lake: MemoryLake) -> None:
    first = make()
    first.sync_once()
    first.close()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT);")
    connection.close()
    with Pipeline(Sqlite(other), MemoryLake(str(tmp_path / "elsewhere")), name="p") as pipeline:
        pipeline.sync_once()
    with Pipeline(Sqlite(other), lake, name="p") as pipeline, pytest.raises(SourceChangedError):
        pipeline.sync_once()


def test_uninstall_cleans_the_source_keeps_the_lake_and_allows_a_new_start(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    pipeline.sync_once()
    assert pipeline.uninstall()
    left = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE name LIKE '%lakefeed%'")]
    assert left == []
    assert rows(lake) == {1: "a", 2: "b"}
    assert pipeline.status().reason == "the pipeline has never run"
    database.execute("DELETE FROM t WHERE id = 1")
    pipeline.sync_once()
    assert rows(lake) == {2: "b"}


def test_a_notice_that_a_crash_cut_off_is_acted_on_at_the_next_start(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    pipeline.sync_once()
    database.executescript(MADE_ANEW)
    with armed("journal.after_commit", "raise"), pytest.raises(LakefeedError):
        pipeline.sync_once()
    again = make()
    again.sync_once()
    again.sync_once()
    assert rows(lake) == {7: "moved"}


def test_one_sync_leaves_the_lake_right_even_if_a_table_was_made_anew(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    pipeline.sync_once()
    database.executescript(MADE_ANEW)
    pipeline.sync_once()
    assert rows(lake) == {7: "moved"}


def test_a_table_that_cannot_be_captured_is_blocked_and_the_others_go_on(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    bad = TableId("main", "bad")
    database.executescript("CREATE TABLE bad (k TEXT PRIMARY KEY, v TEXT); INSERT INTO bad VALUES (NULL, 'x');")
    pipeline = make()
    result = pipeline.sync_once()
    assert result.errors.keys() == {bad}
    assert "NULL" in (result.tables[bad].error or "")
    assert rows(lake) == {1: "a", 2: "b"}
    database.execute("INSERT INTO t VALUES (3, 'c')")
    assert pipeline.sync_once().errors == {}, "it is told once"
    assert rows(lake)[3] == "c"
    status = pipeline.status().tables[bad]
    assert (status.state, status.error) == ("blocked", result.tables[bad].error)
    pipeline.close()
    database.execute("DELETE FROM bad")
    again = make()
    again.sync_once()
    assert again.status().tables[bad].state == "live"


def test_a_table_that_lost_its_key_is_blocked_in_every_process_until_it_has_one_again(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    """SQLite has the rowid for tables without a key, unless columns have taken all of its names."""
    bad, columns = TableId("main", "bad"), "rowid TEXT, oid TEXT, _rowid_ TEXT"
    database.execute(f"CREATE TABLE bad (id INTEGER PRIMARY KEY, {columns})")
    pipeline = make()
    pipeline.sync_once()
    database.executescript(f"DROP TABLE bad; CREATE TABLE bad (id INTEGER, {columns}); INSERT INTO t VALUES (3, 'c');")
    for key in (3, 4, 5):
        result = pipeline.sync_once()
        assert result.errors.keys() == {bad}
        status = pipeline.status().tables[bad]
        assert (status.state, status.error) == ("blocked", result.tables[bad].error)
        assert "no key" in (status.error or "")
        assert "primary key" in (status.remedy or "")
        assert rows(lake)[key] == "c", "it does not hold up the others"
        pipeline.close()
        database.execute(f"INSERT INTO t VALUES ({key + 1}, 'c')")
        pipeline = make()
    pipeline.sync_once()
    database.executescript(f"DROP TABLE bad; CREATE TABLE bad (id INTEGER PRIMARY KEY, {columns});")
    assert pipeline.sync_once().errors == {}
    assert pipeline.status().tables[bad].state == "live"


def test_a_table_that_becomes_impossible_while_running_is_told_by_the_same_sync(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    database.executescript("CREATE TABLE bad (k TEXT PRIMARY KEY, v TEXT); INSERT INTO bad VALUES ('a', 'x');")
    pipeline = make()
    pipeline.sync_once()
    database.executescript("INSERT INTO bad VALUES (NULL, 'y'); INSERT INTO t VALUES (3, 'c');")
    result = pipeline.sync_once()
    assert result.errors.keys() == {TableId("main", "bad")}
    assert rows(lake)[3] == "c"


def test_a_table_that_the_lake_refuses_keeps_its_error_in_the_status(
    make: Make, lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: MemoryLakeTable, seed: TableCopy, progress: object) -> None:
        raise TableStoppedError("no such column", remedy="Rename it.", table=str(seed.table))

    monkeypatch.setattr(MemoryLakeTable, "load", refuses)
    pipeline = make()
    assert pipeline.sync_once().errors.keys() == {T, U}
    assert pipeline.status().tables[T].error == "no such column"


def test_between_two_tries_the_status_says_stalled_and_why(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make()
    pipeline.sync_once()
    pipeline.close()

    def away(self: object) -> None:
        raise SourceUnavailableError("the disk is away")

    monkeypatch.setattr(TableCopies, "enrol", away)
    told = threading.Event()

    class Hears(Listener):
        def retrying(self, error: Exception, seconds: float) -> None:
            told.set()

    again = make(listener=Hears())
    thread = threading.Thread(target=again.run)
    thread.start()
    assert told.wait(60)
    again.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert (again.status().verdict, again.status().reason) == ("stalled", "the disk is away")


def test_seeds_survive_and_a_damaged_one_is_named(make: Make) -> None:
    pipeline = make()
    pipeline.sync_once()
    states = TableStates(pipeline.root)
    assert {record.phase for record in states.all().values()} == {Phase.LIVE}
    pipeline.close()
    path = pipeline.root / "tables" / "main.t.json"
    path.write_text(json.dumps({"table": "main.t"}))
    with pytest.raises(LakefeedError, match=r"main\.t\.json"):
        TableStates(pipeline.root)


def test_a_name_that_cannot_be_a_directory_is_refused(tmp_path: Path, lake: MemoryLake, make: Make) -> None:
    with pytest.raises(ConfigError, match=r"'\.\./x' cannot name a pipeline"):
        make(name="../x")


def test_one_source_table_feeds_two_lake_tables(tmp_path: Path, database: sqlite3.Connection) -> None:
    lake = MemoryLake(str(tmp_path / "two"), rules=[Rule("t", Mirror(), "{table}_too")])
    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="two", options=QUICK) as pipeline:
        pipeline.sync_once()
        database.execute("UPDATE t SET v = 'x' WHERE id = 1")
        result = pipeline.sync_once()
        assert {str(table) for table in result.tables} == {"main.t", "main.t_too"}
        assert rows(lake) == rows(lake, "main.t_too") == {1: "x", 2: "b"}
        assert set(map(str, pipeline.status().tables)) == {"main.t", "main.t_too", "main.u"}


def test_a_lake_table_that_is_taken_out_of_the_configuration_stays_as_it_is(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    lake = MemoryLake(str(tmp_path / "two"), rules=[Rule("t", Mirror(), "{table}_too")])
    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="two", options=QUICK) as pipeline:
        pipeline.sync_once()
    fewer = MemoryLake(lake.path)
    fewer.tables = lake.tables
    with Pipeline(Sqlite(tmp_path / "s.db"), fewer, name="two", options=QUICK) as pipeline:
        database.execute("UPDATE t SET v = 'x' WHERE id = 1")
        pipeline.sync_once()
        assert rows(fewer) == {1: "x", 2: "b"}
        assert rows(fewer, "main.t_too") == {1: "a", 2: "b"}
        assert pipeline.status().tables[TableId("main", "t_too")].state == "dropped"


def test_another_mode_in_the_configuration_is_refused_and_not_taken_for_the_old_one(
    tmp_path: Path, lake: MemoryLake, make: Make
) -> None:
    with make() as pipeline:
        pipeline.sync_once()
    other = MemoryLake(lake.path, rules=[Rule("t", Append())])
    other.tables = lake.tables
    with (
        Pipeline(Sqlite(tmp_path / "s.db"), other, name="p", options=QUICK) as pipeline,
        pytest.raises(
            ConfigError, match=r"was made as mirror of main\.t; the configuration now says append"
        ) as refused,
    ):
        pipeline.sync_once()
    assert "lakefeed rebuild" in refused.value.remedy
    assert rows(other) == {1: "a", 2: "b"}


def test_the_end_of_the_log_is_at_or_behind_everything_that_is_committed(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    capture = Sqlite(tmp_path / "s.db").bind("p")
    capture.open()
    try:
        assert capture.end() is None, "there is no log yet"
        capture.prepare([T])
        database.execute("INSERT INTO t VALUES (3, 'c')")
        end = capture.end()
        change_set = next(capture.live(None, wait_seconds=0))
        assert change_set.rows == 1
        assert end is not None
        assert change_set.end <= end
        database.execute("INSERT INTO t VALUES (4, 'd')")
        later = capture.end()
        assert later is not None
        assert later > end
    finally:
        capture.close()


def test_a_sync_of_some_tables_leaves_the_others_and_the_next_one_brings_them(
    make: Make, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    pipeline = make()
    pipeline.sync_once(tables=["t"])
    assert rows(lake) == {1: "a", 2: "b"}
    assert U not in lake.tables
    assert pipeline.status().tables[U].applied is None
    database.executescript("INSERT INTO t VALUES (3, 'c'); INSERT INTO u VALUES (1, 'u');")
    pipeline.sync_once(tables=["main.u"])
    assert rows(lake, "main.u") == {1: "u"}
    assert rows(lake) == {1: "a", 2: "b"}, "it waits in the journal"
    database.executescript("CREATE TABLE later (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO later VALUES (7, 'x');")
    pipeline.sync_once(tables=["main.l*"])
    assert rows(lake, "main.later") == {7: "x"}
    assert rows(lake) == {1: "a", 2: "b"}
    with pytest.raises(ConfigError, match="no lake table matches 'nope'") as refused:
        pipeline.sync_once(tables=["t", "nope"])
    assert pipeline.status().verdict == "stopped", "a mistake in the call is no error of the pipeline"
    assert "main.later, main.t, main.u" in refused.value.remedy
    pipeline.sync_once()
    assert rows(lake) == {1: "a", 2: "b", 3: "c"}


def test_a_renamed_pipeline_is_told_its_old_name_before_anything_is_made_in_the_source(
    make: Make, database: sqlite3.Connection
) -> None:
    make().sync_once()
    made = "SELECT count(*) FROM sqlite_master"
    before = database.execute(made).fetchone()
    renamed = make(name="q")
    (finding,) = [one for one in renamed.check() if one.level is Level.ERROR]
    assert "belong to the pipeline 'p', not to 'q'" in finding.problem
    assert "set pipeline: p." in finding.remedy
    assert "remove" not in finding.remedy
    with pytest.raises(ConfigError, match="belong to the pipeline 'p'"):
        renamed.sync_once()
    with pytest.raises(ConfigError, match="belong to the pipeline 'p'"):
        renamed.plan()
    assert database.execute(made).fetchone() == before
    assert not renamed.root.exists()
