"""CommitBarrier: what was delivered and is not yet behind a durable checkpoint.

The rules:
- Deliveries are held in delivery order. The durable frontier moves over them without gaps: a delivery that is accepted
  early waits until everything before it is accepted too.
- A token is worth each prefix once. One that was used, belongs to another barrier or was cleared is refused, because a
  replayed acknowledgement could otherwise move the frontier over events that nobody has seen.
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
        """How many events it stands for."""


T = TypeVar("T", bound=Weighted)
Save = Callable[[T, int], None]
"""``save(last, committed)``: make durable that everything up to ``last`` is done, ``committed`` events in all."""


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """Acknowledges one delivery. Compared by identity: a token cannot be made up or copied."""

    number: int


@dataclass(slots=True)
class _Delivered(Generic[T]):
    token: Token
    items: Sequence[T]
    accepted: int = 0
    durable: int = 0


@dataclass(slots=True)
class CommitBarrier(Generic[T]):
    """See the module. ``committed`` counts events over all runs; ``hydrate`` sets it at a start."""

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
        """Deliveries that are not durable to their end."""
        return len(self._delivered)

    @property
    def pending_events(self) -> int:
        """Events that are delivered and not durable."""
        return sum(events(item) for delivered in self._delivered for item in delivered.items[delivered.durable :])

    def open(self, items: Sequence[T]) -> Token:
        """Hold a delivery; its token accepts it."""
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
        delivered = self._find(token)
        wanted = len(delivered.items) if prefix is None else prefix
        if not delivered.accepted < wanted <= len(delivered.items):
            raise StateError(
                f"delivery {token.number} has {len(delivered.items)} change sets, {delivered.accepted} of them "
                f"acknowledged; a prefix of {wanted} is not new"
            )
        frontier = self._frontier({id(token): wanted})
        items = [item for held, upto in frontier for item in held.items[held.durable : upto]]
        rows = sum(item.rows for item in items)
        if items:
            save(items[-1], self.committed + rows)
        delivered.accepted = wanted  # nothing below can fail: this is the move
        self._move(frontier)
        self.committed += rows
        return rows

    def unaccepted(self) -> list[T]:
        """What was delivered and not acknowledged, in delivery order."""
        return [item for delivered in self._delivered for item in delivered.items[delivered.accepted :]]

    def clear(self) -> None:
        """Forget everything pending. Its tokens are refused from here on."""
        self._delivered.clear()

    def _find(self, token: Token) -> _Delivered[T]:
        for delivered in self._delivered:
            if delivered.token is token:
                return delivered
        raise StateError(f"the token of delivery {token.number} was used before or belongs to another run")

    def _frontier(self, accepted: dict[int, int]) -> list[tuple[_Delivered[T], int]]:
        """How far each delivery would be durable, up to the first that is not accepted to its end."""
        reached = []
        for delivered in self._delivered:
            upto = accepted.get(id(delivered.token), delivered.accepted)
            reached.append((delivered, upto))
            if upto < len(delivered.items):
                break
        return reached

    def _move(self, frontier: list[tuple[_Delivered[T], int]]) -> None:
        for delivered, upto in frontier:
            delivered.durable = upto
            if upto == len(delivered.items):
                self._delivered.popleft()


def events(item: Weighted) -> int:
    """How many events to count as uncommitted: a change set without rows still carries a schema or a notice."""
    return max(1, item.rows)
