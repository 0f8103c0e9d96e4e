"""Polling and committing: limits, prefixes, replayed tokens, failures of the store and of the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakefeed.change.batch import ChangeBatch
from lakefeed.change.change_set import ChangeSet, TableDropped
from lakefeed.embed.options import Delivery, RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import CheckpointError, PositionLostError, SourceUnavailableError, StateError
from lakefeed.testing.builders import at, batch, change_set
from lakefeed.testing.faulty import AFTER, BEFORE, Fault, Faults, FaultyCapture, FaultyStore, When
from lakefeed.testing.runtime_contract import PEOPLE, ids, take_all, transactions
from lakefeed.testing.scripted import (
    COMMIT,
    CRASH,
    EOF,
    HEARTBEAT,
    SchemaChanged,
    ScriptedCapture,
    ScriptStep,
    insert,
    truncate,
)

KEY = "shop"
STREAM = RuntimeOptions(wait_seconds=0)
ONE_BY_ONE = replace(STREAM, max_events=1)


class World:
    """A scripted source and a store, both of which can be made to fail, and a runtime over them."""

    def __init__(self, *script: ScriptStep, options: RuntimeOptions = STREAM) -> None:
        self.source = ScriptedCapture(script)
        self.source_faults, self.store_faults = Faults(), Faults()
        self.store = MemoryCheckpointStore()
        capture = FaultyCapture(self.source, self.source_faults)
        store = FaultyStore(self.store, self.store_faults)
        self.runtime = Runtime(capture, store, key=KEY, options=options)
        self.runtime.start()

    def poll(self) -> Delivery:
        delivery = self.runtime.poll()
        assert delivery is not None
        return delivery

    @property
    def saved(self) -> tuple[int, int]:
        """Sequence and committed count of the checkpoint; (0, 0) if there is none."""
        checkpoint = self.store.load(KEY)
        return (int(checkpoint.position.partition("@")[0]), checkpoint.committed) if checkpoint else (0, 0)


def test_a_delivery_ends_before_the_change_set_that_would_exceed_the_rows() -> None:
    one, two = insert(PEOPLE, id=1), insert(PEOPLE, id=2)
    world = World(one, COMMIT, one, two, COMMIT, two, COMMIT, options=replace(STREAM, max_events=2))
    sizes = []
    while delivery := world.runtime.poll():
        sizes.append([part.rows for part in delivery.change_sets])
        world.runtime.commit(delivery.token)
    assert sizes == [[1], [2], [1]]


def test_a_delivery_ends_before_the_change_set_that_would_exceed_the_bytes() -> None:
    (first, second, _third) = World(*transactions(1, 2, 3)).poll().change_sets
    both = sum(part.bytes for parts in (first, second) for part in parts.batches)
    for limit, expected in ((1, [1]), (both - 1, [1]), (both, [1, 2])):
        world = World(*transactions(1, 2, 3), options=replace(STREAM, max_bytes=limit))
        assert ids(world.poll().change_sets) == expected


def test_a_change_set_that_is_read_lazily_goes_alone_and_is_not_read_by_the_runtime() -> None:
    class Lazy:
        def __iter__(self) -> Iterator[ChangeBatch]:
            raise AssertionError("read by the runtime")

    runtime = Runtime(None, MemoryCheckpointStore(), key=KEY)
    runtime.start()
    runtime.inject(ChangeSet(None, at(1), Lazy(), rows=10))
    runtime.inject(change_set(at(1), 2, batch(PEOPLE, [("insert", {"id": 2})])))
    delivery = runtime.poll()
    assert delivery is not None
    assert [part.end for part in delivery.change_sets] == [at(1)]


def test_t32_a_poll_that_may_wait_delivers_at_once_and_gathers_only_while_it_lingers() -> None:
    world = World(*transactions(1, 2, 3))
    delivery = world.runtime.poll(wait_seconds=5)
    assert delivery is not None
    assert ids(delivery.change_sets) == [1]
    now = iter(range(100))
    options = replace(STREAM, wait_seconds=5, linger_seconds=3, clock=lambda: float(next(now)))
    lingering = World(*transactions(*range(1, 30)), options=options)
    assert 1 < len(lingering.poll().change_sets) < 5


def test_the_wait_can_change_from_poll_to_poll_without_losing_or_repeating_anything() -> None:
    world = World(*transactions(1, 2, 3))
    taken = []
    for wait in (1.0, 0.5, 0.0):
        delivery = world.runtime.poll(wait_seconds=wait)
        assert delivery is not None
        taken += ids(delivery.change_sets)
        world.runtime.commit(delivery.token)
    assert taken == [1, 2, 3]


def test_only_one_delivery_is_in_flight_unless_more_are_allowed() -> None:
    world = World(*transactions(1, 2), options=ONE_BY_ONE)
    delivery = world.poll()
    with pytest.raises(StateError, match="commit before the next poll"):
        world.runtime.poll()
    assert world.runtime.errors.tags() == ("runtime.poll.in_flight",)
    world.runtime.commit(delivery.token)
    assert ids(world.poll().change_sets) == [2]


def test_e10_with_more_in_flight_the_checkpoint_moves_only_without_gaps() -> None:
    world = World(*transactions(1, 2, 3), options=replace(ONE_BY_ONE, max_in_flight=3))
    first, second, third = world.poll(), world.poll(), world.poll()
    world.runtime.commit(third.token)
    assert (world.saved, world.source.confirmed) == ((0, 0), at(0))
    world.runtime.commit(first.token)
    assert (world.saved, world.source.confirmed) == ((1, 1), at(1))
    world.runtime.commit(second.token)
    assert (world.saved, world.source.confirmed) == ((3, 3), at(3))


def test_a_prefix_commits_whole_change_sets_from_the_start() -> None:
    world = World(*transactions(1, 2, 3))
    delivery = world.poll()
    for prefix in (1, 2, 3):
        world.runtime.commit(delivery.token, prefix=prefix)
        assert world.saved == (prefix, prefix)
        assert world.source.confirmed == at(prefix)
    assert world.runtime.stop() == []


def test_t12_a_replayed_token_moves_nothing() -> None:
    world = World(*transactions(1, 2), options=ONE_BY_ONE)
    first = world.poll()
    world.runtime.commit(first.token)
    world.poll()
    with pytest.raises(StateError):
        world.runtime.commit(first.token)
    assert world.runtime.errors.tags() == ("runtime.commit.token",)
    assert (world.saved, world.source.confirmed) == ((1, 1), at(1))


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_t13_a_failed_save_moves_nothing_and_the_commit_can_be_tried_again(when: When) -> None:
    world = World(*transactions(1, 2))
    delivery = world.poll()
    world.store_faults.add(Fault("save", when=when, error=lambda: CheckpointError("disk full")))
    with pytest.raises(CheckpointError, match="disk full"):
        world.runtime.commit(delivery.token)
    assert world.runtime.errors.tags() == ("runtime.commit.save",)
    assert world.source.confirmed == at(0)
    assert (world.runtime.barrier.committed, world.runtime.barrier.pending_events) == (0, 2)
    world.runtime.commit(delivery.token)
    assert (world.saved, world.source.confirmed) == ((2, 2), at(2))
    assert world.runtime.stats.committed == 2


def test_t13_a_state_error_of_the_store_itself_is_tagged_as_a_failed_save() -> None:
    world = World(*transactions(1))
    delivery = world.poll()
    world.store.close()
    with pytest.raises(StateError):
        world.runtime.commit(delivery.token)
    assert world.runtime.errors.tags() == ("runtime.commit.save",)


def test_the_source_is_told_only_after_the_checkpoint_is_saved() -> None:
    world = World(*transactions(1))
    delivery = world.poll()
    world.store_faults.add(Fault("save", error=lambda: CheckpointError("no")))
    with pytest.raises(CheckpointError):
        world.runtime.commit(delivery.token)
    assert world.source_faults.counts["confirm"] == 0
    world.runtime.commit(delivery.token)
    assert world.source_faults.counts["confirm"] == 1


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_failed_confirm_is_recorded_does_not_undo_the_commit_and_is_made_good_by_the_next(when: When) -> None:
    world = World(*transactions(1, 2), options=ONE_BY_ONE)
    delivery = world.poll()
    world.source_faults.add(Fault("confirm", when=when))
    world.runtime.commit(delivery.token)
    assert (world.saved, world.runtime.errors.tags()) == ((1, 1), ("runtime.commit.confirm",))
    world.runtime.commit(world.poll().token)
    assert world.source.confirmed == at(2)


def test_a_failed_confirm_is_made_good_when_the_source_is_idle() -> None:
    world = World(*transactions(1))
    delivery = world.poll()
    world.source_faults.add(Fault("confirm"))
    world.runtime.commit(delivery.token)
    assert world.source.confirmed == at(0)
    assert world.runtime.poll() is None
    assert world.source.confirmed == at(1)


def test_t22_a_heartbeat_is_not_delivered_and_moves_the_checkpoint_when_nothing_is_pending() -> None:
    world = World(HEARTBEAT, *transactions(5), HEARTBEAT, HEARTBEAT)
    assert world.runtime.poll() is None
    assert (world.saved, world.source.confirmed) == ((1, 0), at(1))
    delivery = world.poll()
    assert ids(delivery.change_sets) == [5]
    assert world.saved == (1, 0)
    world.runtime.commit(delivery.token)
    assert world.saved == (2, 1)
    while world.source.confirmed != at(4):
        assert world.runtime.poll() is None
    assert world.saved == (4, 1)


def test_t22_what_comes_after_a_heartbeat_begins_where_that_ended() -> None:
    """Also if the heartbeat came in one poll with something else: a journal takes no gap."""
    world = World(*transactions(1), HEARTBEAT, *transactions(2))
    world.runtime.commit(world.poll().token)
    delivery = world.poll()
    assert delivery.change_sets[0].start == world.source.confirmed == at(2)
    assert world.saved == (2, 1)


def test_t22_a_heartbeat_does_not_overtake_what_is_in_flight() -> None:
    world = World(*transactions(1), HEARTBEAT, options=replace(STREAM, max_in_flight=2))
    delivery = world.poll()
    for _ in range(3):
        assert world.runtime.poll() is None
    assert (world.saved, world.source.confirmed) == ((0, 0), at(0))
    world.runtime.commit(delivery.token)
    assert world.saved == (1, 1)
    world.runtime.poll()
    assert world.saved == (2, 1)


def test_an_idle_source_is_not_saved_again_and_again() -> None:
    world = World(*transactions(1))
    take_all(world.runtime)
    saves = world.store_faults.counts["save"]
    for _ in range(5):
        assert world.runtime.poll() is None
    assert world.store_faults.counts["save"] == saves


def test_a_failed_save_of_an_idle_position_is_raised_and_the_next_poll_tries_again() -> None:
    world = World(HEARTBEAT)
    world.store_faults.add(Fault("save", error=lambda: CheckpointError("disk full")))
    with pytest.raises(CheckpointError):
        world.runtime.poll()
    assert world.source.confirmed == at(0)
    world.runtime.poll()
    assert (world.saved, world.source.confirmed) == ((1, 0), at(1))


def test_schema_changes_and_notices_without_rows_are_delivered() -> None:
    world = World(SchemaChanged(PEOPLE), COMMIT, TableDropped(PEOPLE.table), COMMIT, truncate(PEOPLE), COMMIT)
    schema, notice, cut = world.poll().change_sets
    assert (schema.schemas, notice.notices, cut.rows) == ((PEOPLE,), (TableDropped(PEOPLE.table),), 1)


def test_after_a_lost_connection_the_next_poll_goes_on_behind_what_was_pulled() -> None:
    world = World(*transactions(1), CRASH, *transactions(2), options=replace(STREAM, max_in_flight=2))
    first = world.poll()
    assert ids(first.change_sets) == [1]
    assert world.runtime.errors.tags() == ("runtime.poll.source",)
    second = world.poll()
    assert ids(second.change_sets) == [2]
    world.runtime.commit(first.token)
    world.runtime.commit(second.token)
    assert world.saved == (2, 2)


def test_a_source_error_with_nothing_gathered_is_raised_by_that_poll() -> None:
    world = World(CRASH, *transactions(1))
    with pytest.raises(SourceUnavailableError):
        world.runtime.poll()
    assert ids(world.poll().change_sets) == [1]


def test_a_source_that_was_reset_while_the_connection_was_away_is_found_out() -> None:
    world = World(*transactions(1), CRASH)
    world.runtime.commit(world.poll().token)
    world.source.uninstall()
    with pytest.raises(PositionLostError):
        world.runtime.poll()
    assert world.runtime.errors.tags() == ("runtime.poll.source", "runtime.poll.reconnect")


def test_an_iterator_that_ends_is_idle_and_not_an_error() -> None:
    world = World(*transactions(1), EOF, *transactions(2))
    assert take_all(world.runtime) == [1]
    assert world.runtime.poll() is None


def test_what_the_source_gives_again_is_dropped_by_position_and_counted() -> None:
    class Repeating(ScriptedCapture):
        """A source that, as one with its own cursor may, starts every stream at its resume point."""

        def live(self, after: object, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
            return super().live(None, wait_seconds=wait_seconds)

    runtime = Runtime(Repeating([*transactions(1, 2), CRASH, *transactions(3)]), MemoryCheckpointStore(), key=KEY)
    runtime.start()
    taken = []
    for _ in range(2):
        delivery = runtime.poll(wait_seconds=0)
        assert delivery is not None
        taken.append(delivery)
        if len(taken) == 1:
            assert runtime.stats.deduplicated == 0
            runtime._options = replace(runtime._options, max_in_flight=2)
    assert [ids(delivery.change_sets) for delivery in taken] == [[1, 2], [3]]
    assert runtime.stats.deduplicated == 2


def test_injected_change_sets_come_behind_the_source_and_do_not_move_its_position() -> None:
    world = World(*transactions(1))
    world.runtime.inject(change_set(None, 99, batch(PEOPLE, [("insert", {"id": 99})])))
    delivery = world.poll()
    assert ids(delivery.change_sets) == [1, 99]
    world.runtime.commit(delivery.token)
    assert (world.saved, world.source.confirmed) == ((1, 2), at(1))


def test_nothing_works_on_a_runtime_that_does_not_run() -> None:
    world = World(*transactions(1))
    delivery = world.poll()
    world.runtime.force_stop()
    with pytest.raises(StateError, match="it is stopped"):
        world.runtime.poll()
    with pytest.raises(StateError, match="it is stopped"):
        world.runtime.commit(delivery.token)
    with pytest.raises(StateError, match="it is stopped"):
        world.runtime.inject(delivery.change_sets[0])
    assert world.runtime.errors.tags() == ("runtime.poll.state", "runtime.commit.state", "runtime.inject.state")
