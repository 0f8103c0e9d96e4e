"""A window's small files are put together once, row for row, and go when the journal trims what they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.reading.journals import PEOPLE, add, add_people, opened

from lakefeed.change.segment import Window
from lakefeed.errors import JournalDamagedError
from lakefeed.reading.pack import PackedLog


def rows(window: Window) -> list[dict[str, Any]]:
    return [row for segment in window.segments for row in pq.ParquetFile(segment.path).read().to_pylist()]


def test_two_hundred_files_become_a_handful_with_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as journal:
        log = PackedLog(journal)
        add_people(journal, range(200))
        add(journal, ("update", {"id": 3, "name": "x"}), ("delete", {"id": 4}))
        for after, upto in ((0, 201), (0, 203), (77, 203), (150, 160), (202, 203)):
            while journal.head < upto:
                add(journal, ("insert", {"id": journal.head + 1000, "name": "late"}))
            plain, packed = journal.window(PEOPLE.table, after, upto), log.window(PEOPLE.table, after, upto)
            assert rows(packed) == rows(plain)
            assert (packed.counts, packed.rows, packed.last_seq) == (plain.counts, plain.rows, plain.last_seq)
            assert len(packed.segments) <= 7 * 3
            log.check(packed)
        before = {segment.path for segment in log.window(PEOPLE.table, 0, 203).segments}
        assert {
            segment.path for segment in log.window(PEOPLE.table, 0, 203).segments
        } == before  # nothing is made twice


def test_other_schemas_and_unsent_columns_are_not_mixed_and_a_truncate_is_known(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as journal:
        log = PackedLog(journal)
        for number in range(24):
            absent = {0: ("name",)} if number in (5, 6) else {}
            add(journal, ("update", {"id": number, "name": None if absent else "n"}), absent=absent)
        add(journal, ("truncate", {}))
        add_people(journal, range(30, 40))
        plain, packed = (one.window(PEOPLE.table, 0, journal.head) for one in (journal, log))
        assert rows(packed) == rows(plain)
        assert (packed.truncated_at, packed.absent) == (plain.truncated_at, plain.absent)
        assert len(packed.segments) < len(plain.segments)


def test_damage_is_named_before_it_is_copied_and_trimmed_packs_are_removed(tmp_path: Path) -> None:
    with opened(tmp_path / "journal", keep=4) as journal:
        log = PackedLog(journal)
        add_people(journal, range(16))
        made = [Path(segment.path) for segment in log.window(PEOPLE.table, 0, 16).segments]
        assert len(made) == 2
        assert all(path.exists() for path in made)
        add_people(journal, range(16, 40))
        journal.trim(20, needed={})
        window = log.window(PEOPLE.table, 20, 28)
        assert len(window.segments) == 1
        assert not any(path.exists() for path in made)
        damaged = journal.window(PEOPLE.table, 28, 36).segments[3].path
        Path(damaged).write_bytes(b"\0" * Path(damaged).stat().st_size)
        with pytest.raises(JournalDamagedError, match="checksum"):
            log.window(PEOPLE.table, 28, 36)
