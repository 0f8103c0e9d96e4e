"""CaptureContract: what every ChangeCapture promises. Subclass it in a test module:

    class TestMyCapture(CaptureContract):
        def make_subject(self, place: Path) -> Subject:
            ...
            return Subject(capture=lambda: MyCapture(...), actor=MyActor(...))

``Subject.capture`` is called again within one test to represent another process on the same source and pipeline: it
must find what the first one left in the source. The ``Actor`` is the application that writes to the database.
"""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

import pytest

from lakefeed.capture.base import Continuity, Level
from lakefeed.change.batch import OP, POSITION, SEQ, Operation
from lakefeed.change.position import Custom, decode_position
from lakefeed.change.table import TableId
from lakefeed.errors import SourceSetupError, SourceUnavailableError, StateError
from lakefeed.testing.capture_subject import Subject, changes, drain, names, opened, row_dicts
from lakefeed.testing.replica import Replica


class CaptureContract(ABC):
    """See the module."""

    @abstractmethod
    def make_subject(self, place: Path) -> Subject:
        """A new source with two empty tables, with nothing prepared in it."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return self.make_subject(tmp_path)

    def test_e01_live_and_snapshot_are_independent_abilities(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            found = drain(capture, start)
            assert changes(found) == [(Operation.INSERT, 1)]  # without any snapshot
            copy = Replica()
            copy.copy(capture.snapshot(actor.table))  # and this does not need live
            assert names(copy, actor.table) == {1: "a"}
            actor.delete(actor.table, 1)
            assert capture.capabilities.deletes is subject.sees_deletes
            assert changes(drain(capture, found[-1].end)) == [(Operation.DELETE, 1)] * subject.sees_deletes

    def test_e02_live_without_a_position_goes_on_from_the_sources_own_resume_point(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            assert changes(drain(capture, None)) == [(Operation.INSERT, 1)]

    def test_e03_a_snapshot_ends_and_has_each_row_once_and_nothing_else(self, subject: Subject) -> None:
        """Either as the row is now, or as it was at the chunk's position: then the stream has the newer state."""
        actor = subject.actor
        for key in range(10):
            actor.put(actor.table, key, f"n{key}")
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            actor.put(actor.table, 3, "newer than the resume point")
            plan = capture.snapshot(actor.table, chunk_rows=3)
            found = []
            for chunk in plan.chunks:
                with chunk.open() as reader:
                    for batch in reader:
                        assert batch.schema.names == list(plan.schema.names)
                        found += batch.to_pylist()
            assert len(found) == 10, "no mark of an end, and no row twice"
            changed = {row["id"]: row["name"] for one in drain(capture, start) for row in row_dicts(one)}
            assert changed == {3: "newer than the resume point"}
            assert {row["id"]: row["name"] for row in found} | changed == actor.rows(actor.table)
            assert len(plan.chunks) > 1
            assert plan.rows_estimate == 10

    def test_e06_a_copy_that_is_over_can_be_said_twice_and_made_again(self, subject: Subject) -> None:
        actor = subject.actor
        actor.put(actor.table, 1, "a")
        with opened(subject) as capture:
            capture.prepare([actor.table])
            capture.copied(actor.table)  # a copy that was never started
            for _ in range(2):
                copy = Replica()
                copy.copy(capture.snapshot(actor.table))
                capture.copied(actor.table)
                capture.copied(actor.table)
                assert names(copy, actor.table) == actor.rows(actor.table)

    def test_e03_an_empty_table_has_an_empty_snapshot(self, subject: Subject) -> None:
        with opened(subject) as capture:
            capture.prepare([subject.actor.table])
            copy = Replica()
            copy.copy(capture.snapshot(subject.actor.table))
            assert copy.rows(subject.actor.table) == []

    def test_e04_a_capture_says_nothing_of_whether_a_table_is_seeded(self, subject: Subject) -> None:
        """The answer is the same whoever copied the table, and however often it is asked."""
        actor = subject.actor
        with opened(subject) as capture:
            position = capture.prepare([actor.table])
            before = capture.continuity(position, [actor.table])
            Replica().copy(capture.snapshot(actor.table))
            assert capture.continuity(position, [actor.table]) is before is Continuity.RESUMED

    def test_e05_what_was_not_confirmed_is_delivered_again(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            first = drain(capture, None)
        with opened(subject) as capture:
            assert changes(drain(capture, None)) == changes(first) == [(Operation.INSERT, 1)]

    def test_e05_what_was_confirmed_is_not_delivered_again(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            capture.confirm(drain(capture, None)[-1].end)
            actor.put(actor.table, 2, "b")
        with opened(subject) as capture:
            assert changes(drain(capture, None)) == [(Operation.INSERT, 2)]

    def test_e06_a_chunk_survives_a_restart_and_reads_the_same(self, subject: Subject) -> None:
        actor = subject.actor
        for key in range(5):
            actor.put(actor.table, key, "x")
        with opened(subject) as capture:
            capture.prepare([actor.table])
            chunks = capture.snapshot(actor.table, chunk_rows=2).chunks
            saved = [chunk.to_json() for chunk in chunks]
        with opened(subject) as capture:
            again = [capture.chunk(data) for data in saved]
            assert again == list(chunks)
            with again[0].open() as one, pickle.loads(pickle.dumps(chunks[0])).open() as two:  # noqa: S301
                assert [batch.to_pylist() for batch in one] == [batch.to_pylist() for batch in two]

    def test_e06_a_chunk_says_between_which_positions_it_was_read(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            with capture.snapshot(actor.table).chunks[0].open() as reader:
                list(reader)
                assert reader.low.compare(start) != -1  # custom positions may have no order
                assert reader.high.compare(reader.low) != -1
                if capture.capabilities.exact_snapshot:
                    assert reader.low == reader.high

    def test_e07_a_stream_owns_what_it_needs_and_is_read_by_another_thread(self, subject: Subject) -> None:
        """It outlives the last reference to the capture that made it; closing the stream releases the rest."""
        actor = subject.actor
        capture = subject.capture()
        capture.open()
        stream = capture.live(capture.prepare([actor.table]), wait_seconds=0)
        maker = weakref.ref(capture)
        del capture
        gc.collect()
        actor.put(actor.table, 1, "a")
        found: list[tuple[Operation, int]] = []
        thread = threading.Thread(target=lambda: found.extend(changes([next(stream)])))
        thread.start()
        thread.join(60)
        assert found == [(Operation.INSERT, 1)]
        if (left := maker()) is not None:
            left.close()

    def test_e07_a_chunk_is_read_when_the_capture_that_planned_it_is_closed(self, subject: Subject) -> None:
        actor = subject.actor
        actor.put(actor.table, 1, "a")
        with opened(subject) as capture:
            capture.prepare([actor.table])
            (chunk,) = capture.snapshot(actor.table).chunks
        with chunk.open() as reader:
            assert [row["id"] for batch in reader for row in batch.to_pylist()] == [1]

    def test_e07_batches_can_be_read_twice_and_while_the_stream_goes_on(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            stream = capture.live(capture.prepare([actor.table]), wait_seconds=0)
            actor.put(actor.table, 1, "a")
            first = next(stream)
            once = row_dicts(first)
            actor.put(actor.table, 1, "b")
            next(stream)
            assert row_dicts(first) == once
            assert len(once) == first.rows

    def test_e07_a_change_set_keeps_its_rows_when_it_was_confirmed_and_the_capture_is_closed(
        self, subject: Subject
    ) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            stream = capture.live(capture.prepare([actor.table]), wait_seconds=0)
            with actor.together():
                for key in range(20):
                    actor.put(actor.table, key, "a")
            change_set = next(stream)
            rows = row_dicts(change_set)
            actor.put(actor.table, 1, "b")
            capture.confirm(change_set.end)
            capture.confirm(next(stream).end)
            assert row_dicts(change_set) == rows
        assert len(row_dicts(change_set)) == change_set.rows == 20
        assert row_dicts(change_set) == rows

    def test_e07_tables_are_discovered_prepared_and_copied_beside_a_stream_that_waits(self, subject: Subject) -> None:
        actor = subject.actor
        actor.put(actor.other, 7, "x")
        with opened(subject) as capture:
            stream = capture.live(capture.prepare([actor.table]), wait_seconds=30)
            wanted = (Operation.INSERT, 1)
            thread = threading.Thread(
                target=lambda: next(one for one in stream if wanted in changes([one])), daemon=True
            )
            thread.start()
            began = time.monotonic()
            capture.discover()
            capture.prepare([actor.other])
            copy = Replica()
            copy.copy(capture.snapshot(actor.other))
            assert names(copy, actor.other) == {7: "x"}
            assert time.monotonic() - began < 15, "it waited for the stream"
            actor.put(actor.table, 1, "a")  # this ends the wait
            thread.join(60)
            assert not thread.is_alive()

    def test_e07_close_from_another_thread_ends_a_stream_that_waits(self, subject: Subject) -> None:
        with opened(subject) as capture:
            stream = capture.live(capture.prepare([subject.actor.table]), wait_seconds=60)
            began = time.monotonic()
            closing = threading.Timer(0.2, capture.close)
            closing.start()
            with suppress(SourceUnavailableError, StateError):  # it either returns or raises
                assert [one for one in stream if not one.is_heartbeat] == []
            closing.join(60)
            assert time.monotonic() - began < 15

    def test_e08_lag_is_never_negative_and_shrinks_with_confirm(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            actor.put(actor.table, 2, "b")
            behind = capture.lag()
            end = drain(capture, start)[-1].end
            capture.confirm(end)
            capture.close()  # writes whatever was postponed
            after = capture.lag()
        assert behind.rows is None or behind.rows >= 2
        assert behind.bytes is None or behind.bytes > 0
        assert after.rows in (None, 0)
        assert behind.bytes is None or (after.bytes is not None and after.bytes < behind.bytes)
        assert all(value is None or value >= 0 for value in (behind.seconds, behind.bytes, after.seconds, after.bytes))

    def test_e08_lag_can_be_asked_from_another_thread_while_live_waits(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            stream = capture.live(capture.prepare([actor.table]), wait_seconds=20)
            thread = threading.Thread(target=lambda: next(stream), daemon=True)
            began = time.monotonic()
            thread.start()
            capture.lag()
            actor.put(actor.table, 1, "a")  # this ends the wait
            thread.join(60)
            assert not thread.is_alive()
            assert time.monotonic() - began < 15, "lag was answered only after the wait"

    def test_e09_a_capture_names_its_kind_as_its_positions_do(self, subject: Subject) -> None:
        with opened(subject) as capture:
            assert capture.prepare([subject.actor.table]).kind in (capture.kind, Custom.kind)

    def test_e10_confirming_an_old_position_again_is_harmless(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            end = drain(capture, start)[-1].end
            for position in (end, start, end):
                capture.confirm(position)
        with opened(subject) as capture:
            assert drain(capture, None) == []

    def test_e10_nothing_is_confirmed_by_reading_on(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            capture.prepare([actor.table])
            stream = capture.live(None, wait_seconds=0)
            for key in (1, 2):
                actor.put(actor.table, key, "a")
                next(stream)
        with opened(subject) as capture:
            assert changes(drain(capture, None)) == [(Operation.INSERT, 1), (Operation.INSERT, 2)]

    def test_e11_continuity_is_fresh_until_prepare_and_asking_changes_nothing(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            assert capture.continuity(None, [actor.table]) is Continuity.FRESH
            assert capture.continuity(None, [actor.table]) is Continuity.FRESH
            assert capture.identity() is None
            position = capture.prepare([actor.table])
            assert capture.continuity(position, [actor.table]) is Continuity.RESUMED
            identity = capture.identity()
        with opened(subject) as capture:
            assert capture.identity() == identity is not None

    def test_e11_prepare_again_keeps_what_was_not_delivered(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            capture.prepare([actor.table])
            actor.put(actor.table, 1, "a")
            capture.prepare([actor.table])
            capture.prepare([actor.table, actor.other])
            actor.put(actor.other, 2, "b")
            assert sorted(changes(drain(capture, None))) == [(Operation.INSERT, 1), (Operation.INSERT, 2)]

    def test_e11_a_write_between_snapshot_and_first_live_read_is_not_lost(self, subject: Subject) -> None:
        actor = subject.actor
        actor.put(actor.table, 1, "before")
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            actor.put(actor.table, 2, "between prepare and snapshot")
            copy = Replica()
            copy.copy(capture.snapshot(actor.table))
            actor.put(actor.table, 1, "after")
            actor.delete(actor.table, 2)
            for change_set in drain(capture, start):
                copy.apply(change_set)
            unseen = {} if capture.capabilities.deletes else {2: "between prepare and snapshot"}
            assert actor.rows(actor.table) == {1: "after"}
            assert names(copy, actor.table) == {1: "after", **unseen}

    def test_e12_a_transaction_is_delivered_whole(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table, actor.other])
            with actor.together():
                for key in range(5):
                    actor.put(actor.table, key, "a")
                    actor.put(actor.other, key, "b")
                assert drain(capture, start) == []
            found = [one.rows for one in drain(capture, start)]
            assert (found if capture.capabilities.transactions else [sum(found)]) == [10]

    def test_e12_change_sets_follow_each_other_without_gap_or_overlap(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            stream = capture.live(start, wait_seconds=0)
            end = start
            for key in range(3):
                actor.put(actor.table, key, "a")
                change_set = next(stream)
                assert change_set.start == end
                assert changes([change_set]) == [(Operation.INSERT, key)]
                end = change_set.end

    def test_e12_rows_are_in_source_order_over_all_tables(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table, actor.other])
            with actor.together():
                actor.put(actor.table, 1, "a")
                actor.put(actor.other, 2, "b")
                actor.put(actor.table, 1, "c")
                actor.delete(actor.other, 2)
            (change_set,) = drain(capture, start)
            places = [row[SEQ] for row in row_dicts(change_set)]
            assert len(set(places)) == len(places)
            assert min(places) >= 0
            sees = capture.capabilities
            made = [(Operation.INSERT, 1), (Operation.INSERT, 2)] if sees.every_change else []
            made += [(Operation.UPDATE, 1)]
            made += [(Operation.DELETE, 2)] if sees.deletes else []
            assert changes([change_set]) == made
            positions = {row[POSITION] for row in row_dicts(change_set)}
            assert {decode_position(text) for text in positions} == {change_set.end}

    def test_rows_as_they_were_come_only_where_they_were_asked_for(self, subject: Subject) -> None:
        """``before_contract`` describes what they are."""
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            for name in ("a", "b"):
                actor.put(actor.table, 1, name)
                operations = {row[OP] for one in drain(capture, start) for row in row_dicts(one)}
            assert (Operation.BEFORE in operations) is capture.capabilities.before_images

    def test_e13_check_finds_no_error_in_a_sound_source(self, subject: Subject) -> None:
        with opened(subject) as capture:
            assert [finding for finding in capture.check() if finding.level is Level.ERROR] == []

    def test_e14_uninstall_removes_the_resume_point_and_nothing_else(self, subject: Subject) -> None:
        actor = subject.actor
        actor.put(actor.table, 1, "a")
        with opened(subject) as capture:
            capture.prepare([actor.table])
            assert capture.uninstall()
            assert capture.uninstall() == ()
            assert capture.continuity(None, [actor.table]) is Continuity.FRESH
        assert actor.rows(actor.table) == {1: "a"}
        actor.put(actor.table, 2, "b")

    def test_e15_a_table_that_is_not_there_is_a_setup_error_and_not_an_empty_copy(self, subject: Subject) -> None:
        with opened(subject) as capture:
            capture.prepare([subject.actor.table])
            missing = TableId(subject.actor.table.schema, "no_such_table")
            with pytest.raises(SourceSetupError, match="no_such_table"):
                capture.snapshot(missing)

    def test_e15_a_capture_that_is_not_open_says_so(self, subject: Subject) -> None:
        with pytest.raises(StateError):
            subject.capture().continuity(None, [])

    def test_an_idle_source_gives_a_heartbeat_in_time(self, subject: Subject) -> None:
        with opened(subject) as capture:
            start = capture.prepare([subject.actor.table])
            began = time.monotonic()
            beat = next(capture.live(start, wait_seconds=0))
            assert beat.is_heartbeat
            assert beat.start == beat.end == start
            assert time.monotonic() - began < 10

    def test_open_and_close_can_be_called_again(self, subject: Subject) -> None:
        actor = subject.actor
        capture = subject.capture()
        capture.open()
        start = capture.prepare([actor.table])
        capture.close()
        capture.close()
        capture.open()
        actor.put(actor.table, 1, "a")
        assert changes(drain(capture, start)) == [(Operation.INSERT, 1)]
        capture.close()

    def test_discover_tells_the_tables_with_their_keys(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            found = {schema.table: schema for schema in capture.discover()}
            assert {actor.table, actor.other} <= set(found)
            assert found[actor.table].key == ("id",)
            assert set(found[actor.table].names) == {"id", "name"}
