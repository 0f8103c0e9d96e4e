"""The scripted capture keeps what a real source keeps."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from lakefeed.capture.base import Continuity
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.position import Custom
from lakefeed.errors import PositionLostError, SourceSetupError, SourceUnavailableError, StateError
from lakefeed.testing.builders import at, table
from lakefeed.testing.runtime_contract import PEOPLE, ids, transactions
from lakefeed.testing.scripted import (
    COMMIT,
    CRASH,
    EOF,
    HEARTBEAT,
    SchemaChanged,
    ScriptedCapture,
    ScriptStep,
    delete,
    insert,
    truncate,
    update,
)

ORDERS = table("main.orders", {"id": pa.int64()}, key=("id",))


def opened(*script: ScriptStep) -> ScriptedCapture:
    capture = ScriptedCapture(script)
    capture.open()
    capture.prepare(())
    return capture


def test_a_transaction_is_one_change_set_over_all_tables_in_order() -> None:
    capture = opened(
        insert(PEOPLE, id=1), insert(ORDERS, id=5), update(PEOPLE, id=1, name="x"), delete(PEOPLE, id=1), COMMIT
    )
    change_set = next(capture.live(None))
    assert (change_set.start, change_set.end, change_set.rows) == (at(0), at(1), 4)
    assert [batch.table.name for batch in change_set.batches] == ["people", "orders", "people"]
    seqs = [seq for batch in change_set.batches for seq in batch.data.column("_lakefeed_seq").to_pylist()]
    assert seqs == [0, 1, 2, 3]


def test_an_open_transaction_is_not_seen_until_it_commits() -> None:
    capture = opened(insert(PEOPLE, id=1))
    live = capture.live(None)
    assert next(live).is_heartbeat
    capture.append(COMMIT)
    assert ids([next(live)]) == [1]


def test_a_heartbeat_moves_the_end_and_an_idle_source_does_not() -> None:
    live = opened(HEARTBEAT).live(None)
    first, second = next(live), next(live)
    assert (first.start, first.end) == (at(0), at(1))
    assert (second.start, second.end) == (at(1), at(1))
    assert first.is_heartbeat
    assert second.is_heartbeat


def test_a_crash_breaks_the_connection_once() -> None:
    capture = opened(*transactions(1), CRASH, *transactions(2))
    live = capture.live(None)
    assert ids([next(live)]) == [1]
    with pytest.raises(SourceUnavailableError):
        next(live)
    assert ids([next(capture.live(at(1)))]) == [2]


def test_the_end_of_the_script_can_end_the_iterator() -> None:
    assert ids(opened(*transactions(1), EOF, *transactions(2)).live(None)) == [1]


def test_schema_changes_notices_and_truncation_are_carried() -> None:
    notice = RecopyNeeded(PEOPLE.table, "test")
    change_set = next(opened(SchemaChanged(PEOPLE), notice, truncate(PEOPLE), COMMIT).live(None))
    assert (change_set.schemas, change_set.notices, change_set.rows) == ((PEOPLE,), (notice,), 1)


def test_what_is_not_confirmed_comes_again_and_what_is_does_not() -> None:
    capture = opened(*transactions(1, 2))
    next(capture.live(None))
    assert ids([next(capture.live(None))]) == [1]
    capture.confirm(at(1))
    capture.confirm(at(0))
    assert (ids([next(capture.live(None))]), capture.confirmed) == ([2], at(1))
    assert capture.lag().rows == 1


def test_continuity_tells_fresh_resumed_and_lost_apart() -> None:
    capture = ScriptedCapture(transactions(1, 2))
    capture.open()
    assert (capture.continuity(None, ()), capture.identity()) == (Continuity.FRESH, None)
    capture.prepare(())
    assert (capture.continuity(at(1), ()), capture.identity()) == (Continuity.RESUMED, "scripted")
    capture.confirm(at(2))
    for lost in (at(1), at(3)):
        with pytest.raises(PositionLostError):
            capture.continuity(lost, ())
    assert capture.uninstall() == ("resume point",)
    assert capture.uninstall() == ()
    assert capture.continuity(None, ()) is Continuity.FRESH


def test_a_capture_that_is_not_open_answers_nothing_and_close_ends_its_iterators() -> None:
    capture = ScriptedCapture(transactions(1))
    with pytest.raises(StateError):
        capture.discover()
    capture.open()
    capture.prepare(())
    live = capture.live(None)
    capture.close()
    capture.open()
    with pytest.raises(SourceUnavailableError):
        next(live)


def test_a_stream_before_prepare_is_refused() -> None:
    capture = ScriptedCapture()
    capture.open()
    with pytest.raises(SourceSetupError, match="prepare"):
        capture.live(None)


def test_snapshot_chunks_cover_all_rows_travel_and_come_back_from_json() -> None:
    rows = [{"id": number, "name": str(number)} for number in range(5)]
    capture = ScriptedCapture(transactions(9), snapshot={PEOPLE: rows})
    capture.open()
    plan = capture.snapshot(PEOPLE.table, chunk_rows=2)
    assert (len(plan.chunks), plan.rows_estimate, plan.schema) == (3, 5, PEOPLE)
    read = []
    for chunk in plan.chunks:
        travelled = pickle.loads(pickle.dumps(capture.chunk(chunk.to_json())))
        assert travelled == chunk
        with travelled.open() as reader:
            read += [row for batch in reader for row in batch.to_pylist()]
            assert (reader.low, reader.high) == (at(1), at(1))
    assert read == rows


def test_t35_there_is_no_snapshot_of_a_table_that_is_not_there() -> None:
    capture = opened()
    with pytest.raises(SourceSetupError, match=r"no table main\.orders"):
        capture.snapshot(ORDERS.table)
    with pytest.raises(SourceSetupError):
        capture.prepare([ORDERS.table])


def test_positions_can_be_of_another_kind() -> None:
    capture = ScriptedCapture(transactions(1, 2), position=lambda number: Custom(f"p{number}"))
    capture.open()
    assert capture.prepare(()) == Custom("p0")
    assert ids([next(capture.live(Custom("p1")))]) == [2]


def test_a_capture_that_waits_is_woken_by_more_script() -> None:
    capture = ScriptedCapture(waits=True)
    capture.open()
    capture.prepare(())
    live = capture.live(None, wait_seconds=0)
    assert next(live).is_heartbeat
    capture.append(*transactions(1))
    assert ids([next(live)]) == [1]
