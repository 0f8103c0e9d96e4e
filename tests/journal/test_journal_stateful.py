"""Property: any mix of appends, schema changes, trims, failures and reopens equals a list in memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakefeed.change.batch import ABSENT, OP, SEQ, ChangeBatch, Operation
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import at, batch, change_set, read_window, table

COLUMNS: tuple[dict[str, pa.DataType], ...] = (
    {"id": pa.int64()},
    {"id": pa.int64(), "b": pa.string()},
    {"id": pa.int64(), "b": pa.float64(), "c": pa.list_(pa.string())},
)
SHAPES = {name: [table(name, columns, ("id",)) for columns in COLUMNS] for name in ("main.t", "main.U/2")}
TABLES = [TableId.parse(name) for name in SHAPES]
OPERATIONS = ["insert", "update", "delete", "truncate", "read", "before"]

shapes = st.builds(lambda name, place: SHAPES[name][place], st.sampled_from(list(SHAPES)), st.integers(0, 2))
parts = st.lists(
    st.tuples(
        shapes, st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9)), max_size=4), st.integers(0, 2)
    ),
    max_size=4,
)
Parts = list[tuple[TableSchema, list[tuple[str, int]], int]]


@dataclass
class Entry:
    """What the model knows of one change set."""

    end: int
    last_seq: int
    rows: dict[TableId, list[dict[str, Any]]] = field(default_factory=dict)
    shape: dict[TableId, TableSchema] = field(default_factory=dict)


class JournalMachine(RuleBasedStateMachine):
    journal: Journal
    options: JournalOptions

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.entries: list[Entry] = []
        self.shape: dict[TableId, TableSchema] = {}
        self.trimmed = 0
        self.attempted = 0  # where a failed append ended: its schemas are known as of there
        self.copied_at = 0  # a copy has been recorded since, so that no later change set ends before that

    @initialize(keep=st.integers(0, 3), schemas=st.sampled_from([1, 2, 256]), size=st.sampled_from([1, 2**20]))
    def open(self, keep: int, schemas: int, size: int) -> None:
        self.options = JournalOptions(
            fsync=False, keep_seconds=0, keep_change_sets=keep, keep_schemas=schemas, segment_bytes=size
        )
        self.journal = Journal.open(self.root, identity="db", options=self.options)

    @rule(parts=parts, step=st.integers(1, 3), announced=st.lists(shapes, max_size=2))
    def append(self, parts: Parts, step: int, announced: list[TableSchema]) -> None:
        made, entry = self.plan(parts, step, announced)
        commit = self.journal.append(made)
        assert commit.number == len(self.entries) + 1
        self.accept(entry)

    @rule(
        parts=parts,
        announced=st.lists(shapes, max_size=2),
        name=st.sampled_from(["journal.after_segments", "journal.before_commit", "journal.after_commit"]),
        reopen=st.booleans(),
    )
    def append_and_fail(self, parts: Parts, announced: list[TableSchema], name: str, reopen: bool) -> None:
        made, entry = self.plan(parts, 2, announced)
        self.attempted = max(self.attempted, entry.end)
        with armed(name, "raise"), pytest.raises(FailpointError):
            self.journal.append(made)
        if name == "journal.after_commit":
            self.accept(entry)
        if reopen or name == "journal.after_commit":
            self.reopen()

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.journal = Journal.open(self.root, identity="db", options=self.options)

    @rule(schema=shapes)
    def record(self, schema: TableSchema) -> None:
        position = at(self.entries[-1].end) if self.entries else at(0)
        numbered = self.journal.record_schema(schema, position)
        assert numbered.same_shape(schema)
        assert self.journal.record_schema(schema, position) == numbered
        self.shape[schema.table] = schema
        self.copied_at = self.attempted

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), crash=st.booleans())
    def trim(self, data: st.DataObject, crash: bool) -> None:
        applied = data.draw(st.integers(0, len(self.entries)))
        kept = max(self.options.keep_change_sets, 1)
        expected = max(self.trimmed, min(applied, len(self.entries) - kept))
        if crash and expected > self.trimmed:
            with armed("journal.during_trim", "raise"), pytest.raises(FailpointError):
                self.journal.trim(applied)
            self.reopen()
        else:
            assert self.journal.trim(applied).trimmed == expected
        self.trimmed = expected

    @invariant()
    def the_counters_are_those_of_the_model(self) -> None:
        if not hasattr(self, "journal"):
            return
        newest = self.entries[-1] if self.entries else None
        assert self.journal.head == len(self.entries)
        assert self.journal.trimmed == self.trimmed
        assert self.journal.end == (at(newest.end) if newest else None)
        assert self.journal.last_seq == (newest.last_seq if newest else 0)
        rows = sum(len(rows) for entry in self.entries for rows in entry.rows.values())
        assert self.journal.committed_rows == rows
        for name in TABLES:
            latest, expected = self.journal.latest_schema(name), self.shape.get(name)
            assert (latest is None) == (expected is None)
            assert latest is None or expected is None or latest.same_shape(expected)

    @rule(data=st.data(), reading=st.booleans())
    def windows_are_those_of_the_model(self, data: st.DataObject, reading: bool) -> None:
        journal = Journal.read(self.root) if reading else self.journal
        after = data.draw(st.integers(self.trimmed, len(self.entries)))
        upto = data.draw(st.integers(after, len(self.entries)))
        for name in TABLES:
            known = [entry.shape[name] for entry in self.entries[:upto] if name in entry.shape]
            if not known:
                continue
            window = journal.window(name, after, upto)
            assert window.target.same_shape(known[-1])
            rows = [row for entry in self.entries[after:upto] for row in entry.rows.get(name, [])]
            self.compare(read_window(window), rows)
            assert window.rows == len(rows)
            assert window.counts.total == sum(row[OP] != Operation.BEFORE for row in rows)
            for segment in window.segments:
                assert journal.schema(name, segment.schema_version) == window.schemas[segment.schema_version]
        if self.trimmed:
            with pytest.raises(JournalError, match="trimmed"):
                journal.window(TABLES[0], self.trimmed - 1, len(self.entries))

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.verify()
            named = {item.path for commit in self.journal.commits() for item in commit.segments}
            self.reopen()
            assert {str(path) for path in self.root.glob("segments/*/*")} == named
            self.journal.close()
        self.folder.cleanup()

    def plan(self, parts: Parts, step: int, announced: list[TableSchema]) -> tuple[ChangeSet, Entry]:
        """A change set and what the model will hold once it is durable."""
        newest = self.entries[-1] if self.entries else Entry(0, 0)
        entry = Entry(max(newest.end + step, self.copied_at), newest.last_seq, shape={})
        batches: list[ChangeBatch] = []
        place = 0
        told = {schema.table: schema for schema in announced}
        seen: dict[TableId, list[TableSchema]] = {}
        for schema in announced:
            seen.setdefault(schema.table, [self.shape[schema.table]] if schema.table in self.shape else []).append(
                schema
            )
        entry.shape |= told
        for schema, operations, gap in parts:
            place += gap
            rows = [(operation, {"id": key}) for operation, key in operations]
            batches.append(batch(schema, rows, start_seq=place))
            stored = entry.rows.setdefault(schema.table, [])
            for offset, (operation, key) in enumerate(operations):
                seq = newest.last_seq + 1 + place + offset
                stored.append({"id": key, OP: int(Operation[operation.upper()]), SEQ: seq})
                entry.last_seq = max(entry.last_seq, seq)
            place += len(operations)
            if schema.table not in told or schema not in seen[schema.table]:
                entry.shape[schema.table] = schema
                seen.setdefault(schema.table, []).append(schema)
        start = at(newest.end) if self.entries else None
        return change_set(start, entry.end, *batches, schemas=announced), entry

    def accept(self, entry: Entry) -> None:
        # A table may be in effect by a record alone; from here on the change set says so too.
        entry.shape = {**self.shape, **entry.shape}
        self.shape = dict(entry.shape)
        self.entries.append(entry)

    def compare(self, found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
        assert [{name: row[name] for name in ("id", OP, SEQ)} for row in found] == expected
        assert all(row[ABSENT] is None for row in found)


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
