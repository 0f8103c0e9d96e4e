"""Connections are kept where opening would cost more than the question, and none stays open behind a close."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.sqlite.world import made, table

from lakefeed.capture.dialect import SpareSessions
from lakefeed.capture.sqlite.database import Database, Mode, OpenedFile, inode_of
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.errors import SourceUnavailableError


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[sqlite3.Connection]]:
    """Every connection that Lakefeed opens."""
    connections: list[sqlite3.Connection] = []
    connect = Database.connect

    def noted(self: Database, mode: Mode) -> sqlite3.Connection:
        connections.append(connect(self, mode))
        return connections[-1]

    monkeypatch.setattr(Database, "connect", noted)
    yield connections
    for connection in connections:
        connection.close()


def still_open(connections: list[sqlite3.Connection]) -> int:
    count = 0
    for connection in connections:
        with suppress(sqlite3.ProgrammingError):
            connection.execute("SELECT 1")
            count += 1
    return count


def opened_file(path: Path, kind: type[OpenedFile] = OpenedFile) -> OpenedFile:
    path.touch()
    file = kind(Database(str(path)), inode_of(str(path)))
    file.keep()
    return file


def test_short_questions_share_a_connection_until_the_capture_is_closed(
    tmp_path: Path, opened: list[sqlite3.Connection]
) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE t (id INTEGER PRIMARY KEY)") as world:
        world.seed()
        capture, before = world.capture, len(opened)
        assert len({capture.end() for _ in range(5)}) == 1
        assert capture.identity() is not None
        assert len(opened) == before
        capture.close()
        assert still_open(opened) == 0
        assert capture.end() is not None  # also of a closed capture
        assert still_open(opened) == 0


def test_two_uses_at_a_time_have_two_connections_and_one_is_kept(
    tmp_path: Path, opened: list[sqlite3.Connection]
) -> None:
    file = opened_file(tmp_path / "x.db")
    with file.use() as one, file.use() as other:
        assert one is not other
    assert still_open(opened) == 1
    with file.use() as again:
        assert again is other
    file.close()
    file.close()
    assert still_open(opened) == 0


def test_a_connection_that_is_lent_while_the_capture_is_closed_is_closed_by_its_use(
    tmp_path: Path, opened: list[sqlite3.Connection]
) -> None:
    file = opened_file(tmp_path / "x.db")
    with file.use() as connection:
        file.close()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert still_open(opened) == 0


def test_a_close_that_comes_while_a_use_ends_leaves_no_connection_open(
    tmp_path: Path, opened: list[sqlite3.Connection]
) -> None:
    """The close comes after the use has seen that connections are kept, and before it has put its own away."""

    class Closing(OpenedFile):
        @property
        def _keeps(self) -> bool:
            keeps = self.kept
            if keeps and self.in_use:
                closer.start()
                closer.join(0.05)  # it returns now, or once the use lets it
            return keeps

        @_keeps.setter
        def _keeps(self, keeps: bool) -> None:
            self.kept = keeps

        kept = False
        in_use = False

    file = opened_file(tmp_path / "x.db", Closing)
    closer = threading.Thread(target=file.close)
    with file.use():
        Closing.in_use = True
    closer.join(10)
    assert still_open(opened) == 0


def test_no_connection_is_lent_or_left_open_for_a_file_that_was_replaced(
    tmp_path: Path, opened: list[sqlite3.Connection]
) -> None:
    file = opened_file(tmp_path / "x.db")
    opened_file(tmp_path / "y.db")
    with file.use():
        (tmp_path / "y.db").rename(tmp_path / "x.db")
    with pytest.raises(SourceUnavailableError, match="replaced or removed"), file.use():
        pass
    file.close()
    assert still_open(opened) == 0


def test_a_session_describes_a_table_again_only_under_another_version_of_the_schema(
    tmp_path: Path, opened: list[sqlite3.Connection]
) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as writer:
        writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
        with closing(SqliteDialect(str(tmp_path / "x.db")).connect()) as session:
            first = session.describe([table("t"), table("none")])
            asked: list[str] = []
            opened[-1].set_trace_callback(asked.append)
            assert session.describe([table("t"), table("none")]) == first
            assert asked == ["PRAGMA main.schema_version"]
            writer.execute("ALTER TABLE t ADD COLUMN b TEXT")
            writer.execute("CREATE TABLE none (id INTEGER PRIMARY KEY)")
            again = session.describe([table("t"), table("none")])
            assert again[table("t")].schema.names == ("id", "a", "b")
            assert table("none") in again


def test_the_chunks_of_many_tables_are_read_by_one_connection(tmp_path: Path, opened: list[sqlite3.Connection]) -> None:
    names = [f"t{number}" for number in range(5)]
    statements = [f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)" for name in names]
    with made(tmp_path / "x.db", *statements) as world:
        capture = world.open()
        capture.prepare([table(name) for name in names])
        plans = [capture.snapshot(table(name)) for name in names]
        before = len(opened)
        for plan in plans:
            for chunk in plan.chunks:
                with capture.chunk(chunk.to_json()).open() as reader:
                    assert list(reader) is not None
            capture.comments(plan.schema.table)
        assert len(opened) == before + 1
        capture.close()
        assert still_open(opened) == 0


def test_a_spare_connection_is_not_used_after_an_error_or_for_another_file(tmp_path: Path) -> None:
    path, sessions = tmp_path / "x.db", SpareSessions()
    path.touch()
    sessions.keep()
    dialect = SqliteDialect(str(path))
    with sessions.use(dialect) as first:
        pass
    with suppress(RuntimeError), sessions.use(dialect) as again:
        assert again is first
        raise RuntimeError
    with sessions.use(dialect) as second:
        assert second is not first
    path.unlink()
    path.touch()
    with sessions.use(dialect) as third:
        assert third is not second
    sessions.close()


def test_spare_connections_stay_in_their_process() -> None:
    sessions = SpareSessions()
    sessions.keep()
    assert not pickle.loads(pickle.dumps(sessions))._keeps
