"""Large values: no more of them is in memory at once than a batch may hold, by snapshot and by stream alike."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite.world import World, made, table

from lakefeed.capture.sqlite import dialect, values

DOCUMENTS = "CREATE TABLE t (id INTEGER PRIMARY KEY, doc TEXT, raw BLOB, n INT)"
BOUND = 10_000
ROWS = 3_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "PORTION_BYTES", BOUND)
    monkeypatch.setattr(dialect, "MEMORY_BYTES", 5 * BOUND)


def write(world: World) -> None:
    """Rows of very different sizes: many small ones, then large ones, one that is beyond the bound alone."""
    rows: list[tuple[Any, ...]] = [(number, "x", None, number) for number in range(ROWS)]
    rows += [(ROWS + number, "y" * 900, b"z" * 100, number) for number in range(100)]
    rows += [(2 * ROWS, "y" * 3 * BOUND, b"", 0), (2 * ROWS + 1, None, b"z" * BOUND, 0), (2 * ROWS + 2, 17, b"", 0)]
    world.writer.execute("BEGIN")
    world.writer.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    world.writer.execute("COMMIT")


def assert_bounded(texts: list[list[str | None]]) -> None:
    sizes = [[len(text or "") for text in batch] for batch in texts]
    assert all(sum(batch[:-1]) < BOUND for batch in sizes)  # all but the one that made it full
    assert sum(len(batch) for batch in sizes) == ROWS + 103
    assert len(sizes) < 40


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_copy_is_cut_by_bytes_and_what_is_put_aside_goes_to_disk(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_files: list[Any] = []
    make = tempfile.TemporaryFile

    def noted(**options: Any) -> Any:
        made_files.append(make(**options))
        return made_files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    with made(tmp_path / "x.db", DOCUMENTS, journal_mode=mode) as world:
        write(world)
        world.seed()
        world.assert_equal("t")
        assert [file.closed for file in made_files] == ([] if mode == "wal" else [True])
        (chunk,) = world.capture.snapshot(table("t")).chunks
        with chunk.open() as reader:
            batches = iter(reader)
            first = next(batches)
            world.sql("INSERT INTO t VALUES (-1, 'late', NULL, 0)")  # nobody waits for what is still to be read
            assert_bounded([batch.column("doc").to_pylist() for batch in [first, *batches]])


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_the_log_is_read_in_batches_that_are_cut_by_bytes(tmp_path: Path, mode: str) -> None:
    with made(tmp_path / "x.db", DOCUMENTS, journal_mode=mode) as world:
        world.seed()
        write(world)
        change_set = world.pull()
        world.assert_equal("t")
        texts: list[list[str | None]] = []
        for batch in change_set.batches:
            world.sql("UPDATE t SET n = n WHERE id = 0")
            texts.append(batch.data.column("doc").to_pylist())
        assert_bounded(texts)


def test_text_that_is_not_utf8_in_the_middle_of_a_batch_is_read_on_from_there(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", DOCUMENTS) as world:
        write(world)
        world.sql(f"UPDATE t SET doc = CAST(x'ff41' AS TEXT) WHERE id = {ROWS // 2}")
        world.seed()
        world.sql("UPDATE t SET n = n + 1")
        world.pull()
        world.assert_equal("t")
