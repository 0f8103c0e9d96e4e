"""A log that never pauses and has nothing for the lake: changes of a blocked table."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from lakefeed.capture.builder import ChangeSetBuilder, Limits
from lakefeed.capture.log import Announced, Decoded, LogReader, Rows, SchemaFacts, Transaction
from lakefeed.capture.log_capture import _Stream
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import ChangeSet, TableBlocked
from lakefeed.change.position import SqliteSequence
from lakefeed.testing.builders import table

T = table("main.t", {"id": pa.int64()}, key=("id",))


def at(number: int) -> SqliteSequence:
    return SqliteSequence(number, number)


class Endless(LogReader[SqliteSequence, int]):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def read(self, wait_seconds: float) -> int:
        time.sleep(0.001)
        return next(self._numbers)

    def confirm(self, position: SqliteSequence) -> None: ...

    def close(self) -> None: ...


class Decoder:
    def decode(self, piece: int) -> Decoded[SqliteSequence]:
        operations = np.array([int(Operation.INSERT)], np.int8)
        rows = Rows(T, [pa.array([piece])], operations, np.zeros(1, np.int64), np.zeros(1, np.int32))
        return Decoded([Transaction(at(piece), piece)], [rows], width=1, reached=at(piece))


@pytest.mark.parametrize("wait_seconds", [0.0, 0.1])
def test_a_busy_log_of_a_blocked_table_is_answered_and_moves_on(wait_seconds: float) -> None:
    """Nothing came back as long as the log went on: no stop, no confirm, and every transaction kept in memory."""
    builder = ChangeSetBuilder(at(0), Limits(heartbeat_seconds=0.3))
    stream = _Stream(Endless(), Decoder(), builder, SchemaFacts(), lambda _low, _high: 0)
    stream.builder.announce(Announced(notices=(TableBlocked(T.table, "a reason", "a remedy"),)))
    stream.builder.cut()
    answers: list[ChangeSet | None] = []

    def follow() -> None:
        while not answers or (answers[-1] is not None and answers[-1].end == at(0)):
            answers.append(stream.next(wait_seconds))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    thread.join(10)
    stream.close()
    assert answers
    assert answers[-1] is not None
    assert answers[-1].is_heartbeat
    assert answers[-1].end > at(0)
