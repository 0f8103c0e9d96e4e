"""The disk of the journal is full: nothing is confirmed, nothing is lost, and it goes on when there is room again."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakefeed.capture.postgres.source import Postgres
from lakefeed.errors import JournalFullError, Retry
from lakefeed.flow.pipeline import Pipeline
from lakefeed.testing.memory_lake import MemoryLake

DISK_BYTES = 16 << 20


@contextmanager
def small_disk(place: Path) -> Iterator[Callable[[bool], None]]:
    """A file system of a few megabytes at ``place``; the function fills it up, and makes room again.

    A real one where this user may mount it; elsewhere the operating system's refusal is injected into ``os.write``.
    """
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "lakefeed", str(place)], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        try:
            yield lambda full: _ballast(place / "ballast", full)
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
        return
    with pytest.MonkeyPatch.context() as patch:
        yield lambda full: patch.setattr(os, "write", _refuse) if full else patch.undo()


def _ballast(file: Path, full: bool) -> None:
    file.unlink(missing_ok=True)
    if full:
        with file.open("wb", buffering=0) as opened, suppress(OSError):
            while True:
                opened.write(bytes(1 << 12))


def _refuse(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_journal_without_room_stops_confirms_nothing_and_goes_on_exactly_once(dsn: str, tmp_path: Path) -> None:
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    writer: Any
    with psycopg.connect(dsn, autocommit=True) as writer, small_disk(tmp_path / "disk") as fill:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        lake = MemoryLake(str(tmp_path / "disk"))
        with Pipeline(Postgres(dsn), lake, name="full") as pipeline:
            writer.execute("INSERT INTO t VALUES (0, 'first')")
            pipeline.sync_once()
            before = writer.execute(confirmed).fetchone()
            fill(True)
            writer.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 20000) i")
            with pytest.raises(JournalFullError, match="no room left") as caught:
                pipeline.sync_once()
            assert caught.value.retry is Retry.BACKOFF
            assert writer.execute(confirmed).fetchone() == before
            fill(False)
            pipeline.sync_once()
            assert {row["id"]: row["v"] for row in lake.rows("public.t")} == dict(
                writer.execute("SELECT id, v FROM t").fetchall()
            )
            assert writer.execute(confirmed).fetchone() > before
            assert pipeline.sync_once().counts.total == 0
