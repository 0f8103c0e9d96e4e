"""Pins: a reader keeps what the journal has, for a time that it chooses.

A pin is a file below ``pins/``: up to where the journal was trimmed when the pin was made, and when it expires. No trim
goes beyond the mark of a pin that has not expired, so that everything a reader could read when it made its pin stays
until then. If a reader dies, its pin expires by itself: a forgotten pin does not fill the disk for ever.

    a pin   1 write it, with the current trim mark    2 read what a trim has announced, and write it again with that
    a trim  1 announce how far it wants to go         2 read the pins, and go no further than the lowest

Both write first and read second, so that at least one of the two always sees the other: nobody waits, and there is no
lock that somebody could keep. A trim that dies after its announcement makes later pins start a little higher, nothing
else. Times are wall-clock times; readers on other machines need a clock that agrees with the pipeline's.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lakefeed.durable import pack, unpack
from lakefeed.errors import ConfigError, JournalDamagedError
from lakefeed.journal.layout import Layout
from lakefeed.journal.recovery import load_origin
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

log = logging.getLogger(__name__)

LONGEST_SECONDS = 7 * 86_400.0
_ANNOUNCED = "trimming"


@dataclass(frozen=True, slots=True)
class PinMark:
    """One pin, as in its file: change sets above ``after`` are kept until ``expires_at``."""

    after: int
    made_at: datetime
    expires_at: datetime
    owner: str


class Pin:
    """What a reader has pinned, from ``make`` until ``release`` (a ``with`` block does both) or ``expires_at``.

    ``after``: until then the journal has every change set above it.
    """

    def __init__(self, pins: Storage, name: str, mark: PinMark) -> None:
        self._pins = pins
        self._name = name
        self.after = mark.after
        self.expires_at = mark.expires_at

    @classmethod
    def make(cls, root: Path | str | Storage, seconds: float) -> Pin:
        """Keep everything that the journal at ``root`` has now, for ``seconds``."""
        if not 0 < seconds <= LONGEST_SECONDS:
            raise ConfigError(
                f"a pin cannot last {seconds} seconds", remedy=f"Give it 1 to {LONGEST_SECONDS:.0f} seconds."
            )
        layout, now = Layout(storage_at(root)), time.time()
        pins, name = layout.root.below(layout.pins), f"{uuid.uuid4().hex}.json"
        body: dict[str, Any] = {
            "after": load_origin(layout).trimmed,
            "made_at": now,
            "expires_at": now + seconds,
            "owner": f"process {os.getpid()} on {socket.gethostname()}",
        }
        pins.replace(name, pack(body))  # 1
        announced = _announced(pins)  # 2
        if announced > body["after"]:
            body["after"] = announced
            pins.replace(name, pack(body))
        return cls(pins, name, _mark(body))

    def release(self) -> None:
        """End the pin early. Idempotent."""
        self._pins.remove([self._name])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def open_pins(pins: Storage) -> list[PinMark]:
    """The pins that have not expired, whoever made them. Removes the files of those that have."""
    found, now = [], datetime.now(UTC)
    for name, mark in _marks(pins):
        if mark.expires_at > now:
            found.append(mark)
        else:
            pins.remove([name])
    return found


def pinned_below(pins: Storage, mark: int) -> int:
    """How far a trim to ``mark`` may go now: both of its steps. Only for the writer of the journal."""
    pins.without_fsync().replace(_ANNOUNCED, pack({"upto": mark}))  # 1
    return min([mark, *(pin.after for pin in open_pins(pins))])  # 2


def _announced(pins: Storage) -> int:
    try:
        return int(unpack(pins.read(_ANNOUNCED), pins.place(_ANNOUNCED))["upto"])
    except FileNotFoundError:
        return 0


def _marks(pins: Storage) -> Iterator[tuple[str, PinMark]]:
    for name in pins.names():
        if not name.endswith(".json"):
            continue
        try:
            yield name, _mark(unpack(pins.read(name), pins.place(name)))
        except FileNotFoundError:
            continue  # released meanwhile
        except (JournalDamagedError, KeyError, TypeError, ValueError) as error:
            log.warning("the pin %s is damaged, so it keeps nothing, and is removed: %s", pins.place(name), error)
            pins.remove([name])


def _mark(body: dict[str, Any]) -> PinMark:
    made, expires = (datetime.fromtimestamp(float(body[name]), UTC) for name in ("made_at", "expires_at"))
    return PinMark(int(body["after"]), made, expires, str(body["owner"]))
