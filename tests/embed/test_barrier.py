"""The commit barrier on its own: prefixes, order, replayed tokens, roll-back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefeed.embed.barrier import CommitBarrier, Token
from lakefeed.errors import StateError


@dataclass(frozen=True)
class Item:
    name: str
    rows: int = 1


class Saved:
    """What was saved, in order; ``broken`` makes the next save fail."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int]] = []
        self.broken = False

    def __call__(self, item: Item, committed: int) -> None:
        if self.broken:
            raise OSError("disk full")
        self.all.append((item.name, committed))


def opened(*names: str) -> tuple[CommitBarrier[Item], Token]:
    barrier: CommitBarrier[Item] = CommitBarrier()
    return barrier, barrier.open([Item(name) for name in names])


def test_a_prefix_is_counted_from_the_start_of_the_delivery() -> None:
    barrier, token = opened("a", "b", "c")
    saved = Saved()
    assert barrier.accept(token, 1, saved) == 1
    assert barrier.accept(token, 3, saved) == 2
    assert saved.all == [("a", 1), ("c", 3)]
    assert (barrier.in_flight, barrier.pending_events, barrier.committed) == (0, 0, 3)


@pytest.mark.parametrize("prefix", [0, -1, 4, 1, 2])
def test_t12_a_prefix_that_is_not_new_or_not_there_moves_nothing(prefix: int) -> None:
    barrier, token = opened("a", "b", "c")
    barrier.accept(token, 2, Saved())
    saved = Saved()
    with pytest.raises(StateError):
        barrier.accept(token, prefix, saved)
    assert (saved.all, barrier.committed, barrier.pending_events) == ([], 2, 1)


def test_t12_a_used_token_is_refused_and_moves_nothing() -> None:
    barrier, token = opened("a")
    saved = Saved()
    barrier.accept(token, None, saved)
    barrier.open([Item("b")])
    with pytest.raises(StateError, match="used before"):
        barrier.accept(token, None, saved)
    assert (saved.all, barrier.committed) == ([("a", 1)], 1)


def test_t12_a_foreign_or_made_up_token_is_refused() -> None:
    barrier, _ = opened("a")
    _, foreign = opened("x")
    for token in (foreign, Token(1)):
        with pytest.raises(StateError):
            barrier.accept(token, None, Saved())
    assert barrier.committed == 0


def test_t13_a_failed_save_leaves_the_barrier_as_it_was_and_can_be_tried_again() -> None:
    barrier, token = opened("a", "b")
    saved = Saved()
    saved.broken = True
    for _ in range(3):
        with pytest.raises(OSError, match="disk full"):
            barrier.accept(token, None, saved)
        assert (barrier.committed, barrier.in_flight, barrier.pending_events) == (0, 1, 2)
        assert [item.name for item in barrier.unaccepted()] == ["a", "b"]
    saved.broken = False
    barrier.accept(token, None, saved)
    assert saved.all == [("b", 2)]


def test_e10_an_early_acknowledgement_is_held_until_everything_before_it_is_there() -> None:
    barrier, first = opened("a", "b")
    second = barrier.open([Item("c")])
    third = barrier.open([Item("d")])
    saved = Saved()
    assert barrier.accept(third, None, saved) == 0
    assert barrier.accept(first, 1, saved) == 1
    assert barrier.accept(second, None, saved) == 0
    assert saved.all == [("a", 1)]
    assert barrier.accept(first, 2, saved) == 3
    assert saved.all == [("a", 1), ("d", 4)]
    assert barrier.in_flight == 0


def test_c06_hydrating_takes_the_count_and_is_refused_while_anything_is_pending() -> None:
    barrier: CommitBarrier[Item] = CommitBarrier()
    barrier.hydrate(41)
    token = barrier.open([Item("a")])
    with pytest.raises(StateError, match="1 pending events"):
        barrier.hydrate(0)
    saved = Saved()
    barrier.accept(token, None, saved)
    assert saved.all == [("a", 42)]


def test_an_item_without_rows_is_pending_all_the_same() -> None:
    barrier: CommitBarrier[Item] = CommitBarrier()
    barrier.open([Item("schema change", rows=0)])
    assert barrier.pending_events == 1


def test_an_empty_delivery_is_refused() -> None:
    with pytest.raises(StateError):
        CommitBarrier[Item]().open([])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_the_frontier_never_passes_an_unaccepted_item(sizes: list[int], data: st.DataObject) -> None:
    barrier: CommitBarrier[Item] = CommitBarrier()
    names = [[f"{delivery}.{place}" for place in range(size)] for delivery, size in enumerate(sizes)]
    tokens = [barrier.open([Item(name) for name in group]) for group in names]
    accepted = [0] * len(sizes)
    saved = Saved()
    while left := [index for index, size in enumerate(sizes) if accepted[index] < size]:
        index = data.draw(st.sampled_from(left))
        prefix = data.draw(st.integers(accepted[index] + 1, sizes[index]))
        saved.broken = data.draw(st.booleans())
        try:
            barrier.accept(tokens[index], prefix, saved)
            accepted[index] = prefix
        except OSError:
            continue
        contiguous = 0
        for size, done in zip(sizes, accepted, strict=True):
            contiguous += done
            if done < size:
                break
        assert barrier.committed == contiguous
    order = [name for group in names for name in group]
    assert [committed for _, committed in saved.all] == [order.index(name) + 1 for name, _ in saved.all]
    assert saved.all[-1] == (order[-1], len(order))
