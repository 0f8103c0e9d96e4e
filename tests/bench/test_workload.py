"""The workload makes exactly the changes that are asked for: every one of them is captured."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.load import write
from bench.pipeline import open_session
from bench.workload import connected, create, write_changes

from lakefeed.testing.memory_lake import MemoryLake


@pytest.mark.parametrize("tables", [("account",), ("a", "b", "c", "d")])
@pytest.mark.parametrize("rows", [0, 1_000])
def test_every_change_asked_for_is_made_and_captured(tables: tuple[str, ...], rows: int, tmp_path: Path) -> None:
    database = create(tmp_path / "shop.db", rows, tables)
    session = open_session(database, MemoryLake(str(tmp_path / "lake")))
    try:
        write_changes(database, 3_000, rows, tables)
        session.capture.drain()
        assert session.journal.committed_rows == 3_000
    finally:
        session.close()


def test_the_mix_is_updates_inserts_and_deletes_in_their_shares(tmp_path: Path) -> None:
    database = create(tmp_path / "shop.db", 1_000)
    write_changes(database, 1_000, 1_000)
    with connected(database) as connection:
        assert connection.execute("SELECT count(*) FROM account").fetchone() == (1_000 + 300 - 100,)
        assert connection.execute("SELECT count(*) FROM account WHERE id > 1000").fetchone() == (300,)


def test_the_writer_keeps_its_rate_and_the_times_of_its_commits(tmp_path: Path) -> None:
    database = create(tmp_path / "shop.db", 100)
    times = write(database, rows=100, changes=200, size=20, rate=400)
    assert len(times) == 10
    assert times[-1] - times[0] == pytest.approx(9 * 20 / 400, abs=0.3)
    with connected(database) as connection:
        assert connection.execute("SELECT max(tick) FROM account").fetchone() == (10,)
