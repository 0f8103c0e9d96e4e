"""The files that say where each lake table stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakefeed.change.table import TableId
from lakefeed.durable import unpack
from lakefeed.errors import JournalDamagedError
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.retry import TableErrors
from lakefeed.flow.table_state import TableStates
from lakefeed.lake.base import TableResult
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Route

T = TableId("main", "t")


def stored(directory: Path) -> Path:
    states = TableStates(directory)
    states.stage(Route(T, T, Mirror()), reason="it is new")
    (file,) = (directory / "tables").glob("*.json")
    return file


def test_a_state_that_was_changed_behind_our_back_is_refused_and_its_file_named(tmp_path: Path) -> None:
    """A digit is enough: another generation would be another table, and nothing but a checksum tells."""
    file = stored(tmp_path)
    text = file.read_text()
    assert '"notices_upto": 0' in text
    file.write_text(text.replace('"notices_upto": 0', '"notices_upto": 8'))
    with pytest.raises(JournalDamagedError, match=r"main\.t\.json cannot be read: .* checksum") as damaged:
        TableStates(tmp_path)
    assert damaged.value.remedy.endswith(f"rm {file}")
    file.unlink()
    assert TableStates(tmp_path).all() == {}


def test_a_state_of_a_version_without_checksums_is_read(tmp_path: Path) -> None:
    file = stored(tmp_path)
    before = TableStates(tmp_path).all()
    file.write_text(json.dumps(unpack(file.read_bytes(), file)))
    assert TableStates(tmp_path).all() == before


def test_a_table_that_is_dropped_after_it_failed_fails_no_more(tmp_path: Path) -> None:
    """Its error stayed in every sync and status until the process ended."""
    states = TableStates(tmp_path)
    errors = TableErrors(states, Listener())
    table = TableId("main", "t")
    states.stage(Route(table, table, Mirror()), reason="it is new")
    errors.record(table, TableResult(applied=0, error="no"))
    assert errors.all() == {table: ("no", "")}
    states.leave(table, "dropped", last_change_set=None)
    assert errors.all() == {}
    assert not errors.is_paused(table)
