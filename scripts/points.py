"""Writes docs/points.md: every point of the requirements and the tests that prove it, found by their names.

A test proves point C28 if its name begins with ``test_c28_`` (or ``test_c27_c28_`` for two). `make points` writes the
page; a test fails if the page is out of date or a point has no test.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "points.md"
_NAME = re.compile(r"test_((?:[abcdet]\d{1,2}_)+)")

POINTS = {
    "A": (
        "Polling",
        [
            "only SELECT: a read-only file, a role with SELECT, a replica; nothing is created in the source",
            "the same workload through triggers or the log gives the same mirror",
            "one query for each table and cycle, each row one event",
            "events in (updated_at, key…) order",
            "a watermark is a time and a key; without one everything is read",
            "the predicate is compound: ties across batches, each row once",
            "composite keys are compared as tuples",
            "ties across batches and across restarts",
            "late commits are caught: transactions held open across polls",
            "the latest image only, and the event says so",
            "rows without updated_at: a stated policy with a count",
            "times that move back are noticed, or found by comparing",
            "keys in the database's own order, whatever their type",
            "microseconds are kept",
            "the store of watermarks is an interface",
            "the store in memory forgets",
            "a durable store, and the pipeline's journal: no old row, every new one",
            "a store that fails rolls the watermark back; a damaged one is an error",
            "insert or update by instants, not by text",
            "inserted and updated between two polls is an upsert",
            "deletes are invisible without a rule, and that is said",
            "soft deletes by the compound predicate",
            "a soft delete that also moves updated_at is one delete",
            "un-delete brings the row back",
            "FullDiff: chunked, anti-join, safe beside writers, refuses, resumes, scheduled",
            "a user's own database adds a connector and nothing else",
            "columns: the key and the times are always read",
            "batch size and delete detection are per table",
            "watermarks in memory by default, in a store if one is given",
            "errors are typed",
            "an unknown table or column is named at the start",
            "one slow or broken table does not hold up the others",
        ],
    ),
    "B": (
        "SyncEngine",
        [
            "sync_once takes new changes and applies them",
            "nothing new: all counters 0, last_seq None",
            "a cycle that failed half-way is made good by running it again",
            "a loop calls sync_once at an interval",
            "modes by name; mirror is the destructive one",
            "errors are typed, and raised only if they cannot be recovered from",
            "status is cheap and never blocks",
            "lag: latest minus last synced, never negative, None before the first sync",
            "concurrent sync_once calls do not apply twice",
            "temporal mode: versions with valid_from and valid_to, the same however changes are grouped",
            "nothing is skipped in silence: a table that cannot go on stops with a remedy",
            "changes are applied in groups; the log is pruned only behind what is durable",
        ],
    ),
    "C": (
        "Runtime lifecycle",
        [
            "states Idle, Running, Stopping, Stopped; restart works",
            "start while running is refused",
            "start while stopping is refused",
            "the schema history is bounded, noticed changes come of it, and no retention is said loudly",
            "the committed count is read first; a failure is recorded and raised",
            "the commit barrier is hydrated with it",
            "a disabled source runs without connecting",
            "both snapshot modes at once are refused",
            "an error of loading the checkpoint is never taken for no checkpoint",
            "a snapshot checkpoint is known by its source type",
            "a snapshot checkpoint and incremental mode exclude each other",
            "a connector that cannot resume a snapshot starts it again, with a warning",
            "resuming a snapshot needs its tables",
            "a failed connect leaves the state as it was",
            "incremental mode: chunks beside the stream",
            "resume inside a snapshot",
            "a stream checkpoint: the stream from it, no snapshot",
            "no checkpoint, no tables: the stream from the default position",
            "no checkpoint, tables: resume point first, snapshot, then stream",
            "what a successful start sets and clears",
            "PostgreSQL: stream offset from a snapshot checkpoint",
            "MySQL: the same",
            "MariaDB: the same",
            "SQL Server: the same",
            "any other source: refused, because an unknown position loses changes",
            "stop when idle or stopped",
            "stop while stopping is refused",
            "stop with uncommitted events is refused and changes nothing",
            "stop with nothing pending",
            "force_stop when idle, stopped or stopping",
            "force_stop drains in delivery order",
            "force_stop moves no checkpoint; a restart delivers again",
            "stop is safe, force_stop leaves duplicates to the embedder",
            "a failed start closes the connection; a failed close does not stay in Stopping",
            "stop counts everything that force_stop would drain",
        ],
    ),
    "D": (
        "Checkpoints",
        [
            "fields, and a JSON round trip",
            "position types",
            "a PostgreSQL LSN as text",
            "an LSN given as text is kept",
            "a binlog place as text",
            "a GTID set is kept as given",
            "with_transaction_id, with_metadata",
            "parse_postgres_lsn",
            "parse_mysql_binlog",
            "age is never negative",
            "LSN parts beyond 32 bits are refused; GTID, SQL Server and SQLite positions exist",
            "the store makes its directory, fsync on by default",
            "an empty key or one with a slash is refused",
            "a save is atomic",
            "the directory is forced to disk after the rename",
            "load: absent is None, corrupt is an error",
            "deleting what is not there succeeds",
            "list and all",
            "one damaged file does not hide: it is reported, the others work",
            "a new store on the directory gives back equal checkpoints",
            "keys are validated everywhere, in every backend",
            "unique temporary names, one writer, litter cleaned up",
            "checksum, no rewind, source identity",
            "one interface, two backends",
            "many keys side by side",
        ],
    ),
    "E": (
        "ChangeCapture",
        [
            "live and snapshot are independent abilities",
            "live resumes from the durable position",
            "a snapshot is finite and has the current rows",
            "whether a copy is needed is the lake's answer",
            "not confirmed: delivered again; confirmed: not again",
            "snapshots can be resumed by chunk",
            "iterators own what they need and work in another thread",
            "lag is sampled on its own connection, never negative",
            "log, trigger and polling are behind one interface",
            "confirm is cumulative; old and repeated confirms are harmless",
            "continuity first, prepare before any snapshot",
            "commit boundaries, key changes as two changes, truncation propagated",
            "preflight with the statements that repair",
            "objects of somebody else are refused, not overwritten",
            "errors are transient or fatal",
        ],
    ),
    "T": (
        "Traps: defects that capture systems have shipped",
        [
            "a restart replays no transaction: the position is the end of a commit record",
            "REPLICA IDENTITY FULL marks every column as key; the key is the catalog's",
            "values that were not sent are listed for the old and the new row apart",
            "a part of a composite key is never a key",
            "the bracket of a chunk goes by visibility, not by log position alone",
            "a chunk's row that gives way to a change keeps the columns that the change did not send",
            "a chunk counts as copied only once its rows are durable",
            "a reconnect during a copy goes on with the copy",
            "a stopped re-snapshot stays stopped after a restart",
            "a deliberate re-snapshot is not taken for duplicates",
            "equal rows of tables without a key are counted, not dropped",
            "an acknowledgement counts once",
            "a checkpoint that cannot be saved is rolled back and tried again",
            "DDL that is read again changes nothing",
            "positions inside MySQL's compressed transactions",
            "binlog names compare as numbers, without checksum bytes",
            "GTID positions are sets, MySQL's and MariaDB's apart",
            "MySQL's ENUM, SET, DATE, BLOB and UNSIGNED values",
            "copy, stream and polling give the same value",
            "no number passes through a float",
            "SQL Server: several capture instances, quiet databases",
            "an idle source's log does not grow for us, and lag is always measured",
            "timeouts of the server cannot keep a stream or a copy from ever finishing",
            "patterns: case, globs, and a list that matches nothing is an error",
            "a mask that never matches is an error",
            "transforms keep keys and absent columns consistent",
            "TLS means TLS, and a handshake has an end",
            "one fsync for many changes",
            "MySQL's time stamps are whole seconds",
            "tests compare every field, and a skip is not a pass",
            "one writer, also within a process",
            "batches are bounded in time",
            "the dead replication connection is closed before the wait",
            "a row condition stands in parentheses on every path",
            "a copy of a table that is not there is refused",
        ],
    ),
}


LATER = {
    ("T", 9): "comes with re-snapshots beside a live stream",
    ("T", 10): "comes with re-snapshots beside a live stream",
    ("T", 21): "comes with SQL Server",
    ("T", 28): "a rule of the journal: a change set is one commit; `python -m bench journal` measures it",
    ("T", 30): "a rule for tests: CONTRIBUTING.md",
}
"""Points without a test by name, and why."""


def proofs() -> dict[tuple[str, int], list[str]]:
    """(part, number) → tests, as ``file::name``, over the tests and the shipped contract suites."""
    found: dict[tuple[str, int], list[str]] = {}
    files = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "src/lakefeed/testing").glob("*_contract.py"))]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := _NAME.match(node.name)):
                for point in match[1].strip("_").upper().split("_"):
                    key = (point[0], int(point[1:]))
                    found.setdefault(key, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def page() -> str:
    tests = proofs()
    lines = ["# Requirement points and their tests", ""]
    lines += [
        "Written by `make points`. Comments and test names cite points (C8, test_t31_…).",
        "",
    ]
    for part, (title, statements) in POINTS.items():
        lines += [f"## {part}. {title}", "", "| point | what | proven by |", "|---|---|---|"]
        for number, statement in enumerate(statements, start=1):
            names = "<br>".join(f"`{name}`" for name in sorted(tests.get((part, number), []))) or LATER.get(
                (part, number), "**no test**"
            )
            lines.append(f"| {part}{number} | {statement} | {names} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    missing = page().count("**no test**")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {missing} points without a test\n")
