"""Crash: a child process is killed with SIGKILL at each failpoint; the journal it leaves is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import at, batch, change_set, read_window, table

T = table("main.t", {"id": pa.int64()}, key=("id",))
OPTIONS = JournalOptions(keep_seconds=0, keep_change_sets=2)
CHILD = """
import sys
from pathlib import Path
import pyarrow as pa
from lakefeed.failpoint import arm_from_environment
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import batch, change_set, table

arm_from_environment()
schema = table("main.t", {"id": pa.int64()}, key=("id",))
options = JournalOptions(keep_seconds=0, keep_change_sets=2)
with Journal.open(Path(sys.argv[1]), identity="db", options=options) as journal:
    for place in range(journal.head, 6):
        rows = batch(schema, [("insert", {"id": place + 1})])
        journal.append(change_set(journal.end, place + 1, rows))
        journal.trim(place)
"""
# Failpoint, at which hit, then head and trim mark of the journal that is found. The third append is number 3; the
# first trim that takes something is the one after change set 3.
CASES = [
    ("journal.after_segments", 3, 2, 0),
    ("journal.before_commit", 3, 2, 0),
    ("journal.after_commit", 3, 3, 0),
    ("journal.during_trim", 1, 3, 1),
    ("journal.after_segments", 1, 0, 0),
    ("journal.before_commit", 1, 0, 0),
]


def run(root: Path, failpoints: str) -> int:
    environment = {**os.environ, "LAKEFEED_FAILPOINTS": failpoints}
    return subprocess.run([sys.executable, "-c", CHILD, str(root)], env=environment, check=False).returncode


@pytest.mark.crash
@pytest.mark.parametrize(("name", "hit", "head", "trimmed"), CASES)
def test_a_kill_leaves_whole_change_sets_and_the_next_run_goes_on(
    tmp_path: Path, name: str, hit: int, head: int, trimmed: int
) -> None:
    assert run(tmp_path, f"{name}=kill@{hit}") == -signal.SIGKILL
    with Journal.open(tmp_path, identity="db", options=OPTIONS) as journal:
        assert (journal.head, journal.trimmed) == (head, trimmed)
        assert journal.end == (at(head) if head else None)
        assert journal.verify() == head - trimmed
        named = {segment.path for commit in journal.commits() for segment in commit.segments}
        assert {str(path) for path in tmp_path.glob("segments/*/*")} == named
        assert list(tmp_path.rglob("*.tmp")) == []
        if head:
            rows = read_window(journal.window(T.table, trimmed, head))
            assert [row["id"] for row in rows] == list(range(trimmed + 1, head + 1))
    assert run(tmp_path, "") == 0
    with Journal.open(tmp_path, identity="db", options=OPTIONS) as journal:
        assert (journal.head, journal.end, journal.last_seq, journal.committed_rows) == (6, at(6), 6, 6)
        assert journal.append(change_set(6, 7, batch(T, [("insert", {"id": 7})]))).number == 7
