"""CommitBarrier: what was delivered and does not have a durable checkpoint yet.

The rules:
- Deliveries are kept in delivery order. The durable frontier moves over them without gaps: a delivery that is accepted
  early waits until everything before it is accepted, too.
- A token accepts each prefix once. One that was used, cleared, or belongs to another barrier is refused: otherwise a
  repeated acknowledgement could move the frontier over events that nobody has seen.
- ``accept`` saves and moves in one step: if saving raises, the barrier is exactly as it was before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from lakefeed.errors import StateError


class Weighted(Protocol):
    @property
    def rows(self) -> int:
        """The number of events."""


T = TypeVar("T", bound=Weighted)
Save = Callable[[T, int], None]
"""``save(last, committed)``: make durable that everything up to ``last`` is done, with ``committed`` events in
total."""


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """Acknowledges one delivery. Compared by identity: a token cannot be forged or copied."""

    number: int


@dataclass(slots=True)
class _Delivered(Generic[T]):
    token: Token
    items: Sequence[T]
    accepted: int = 0
    durable: int = 0


@dataclass(slots=True)
class CommitBarrier(Generic[T]):
    """See the module. ``committed`` counts events over all runs; ``hydrate`` sets it at the start of a run."""

    committed: int = 0
    _delivered: deque[_Delivered[T]] = field(default_factory=deque)
    _tokens: int = 0

    def hydrate(self, committed: int) -> None:
        """Take over the count of an earlier run. StateError while anything is pending: it would be counted twice."""
        if self._delivered:
            raise StateError(f"the commit barrier has {self.pending_events} pending events; it cannot be hydrated")
        self.committed = committed

    @property
    def in_flight(self) -> int:
        """The number of deliveries that are not completely durable."""
        return len(self._delivered)

    @property
    def pending_events(self) -> int:
        """The number of events that are delivered but not durable."""
        return sum(events(item) for delivered in self._delivered for item in delivered.items[delivered.durable :])

    def open(self, items: Sequence[T]) -> Token:
        """Add a delivery. Returns the token that accepts it."""
        if not items:
            raise StateError("an empty delivery has nothing to commit")
        self._tokens += 1
        token = Token(self._tokens)
        self._delivered.append(_Delivered(token, tuple(items)))
        return token

    def accept(self, token: Token, prefix: int | None, save: Save[T]) -> int:
        """Accept the first ``prefix`` items of a delivery (None: all). Returns how many events became durable.

        ``save`` is called at most once, and only if the frontier moves.
        """
        delivered = next((one for one in self._delivered if one.token is token), None)
        if delivered is None:
            raise StateError(f"the token of delivery {token.number} was used before or belongs to another run")
        wanted = len(delivered.items) if prefix is None else prefix
        if not delivered.accepted < wanted <= len(delivered.items):
            raise StateError(
                f"delivery {token.number} has {len(delivered.items)} change sets, {delivered.accepted} of them "
                f"acknowledged; a prefix of {wanted} is not new"
            )
        frontier: list[tuple[_Delivered[T], int]] = []  # how far each is durable, up to the first incomplete one
        for one in self._delivered:
            upto = wanted if one is delivered else one.accepted
            frontier.append((one, upto))
            if upto < len(one.items):
                break
        items = [item for one, upto in frontier for item in one.items[one.durable : upto]]
        rows = sum(item.rows for item in items)
        if items:
            save(items[-1], self.committed + rows)
        delivered.accepted = wanted  # from here on nothing can fail
        for one, upto in frontier:
            one.durable = upto
            if upto == len(one.items):
                self._delivered.popleft()
        self.committed += rows
        return rows

    def unaccepted(self) -> list[T]:
        """What was delivered and not acknowledged, in delivery order."""
        return [item for delivered in self._delivered for item in delivered.items[delivered.accepted :]]

    def clear(self) -> None:
        """Drop everything pending. Its tokens are refused from here on."""
        self._delivered.clear()


def events(item: Weighted) -> int:
    """The number of events that count as uncommitted: a change set without rows still has a schema or a notice."""
    return max(1, item.rows)
