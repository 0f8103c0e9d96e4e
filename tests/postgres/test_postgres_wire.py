"""The two ways to read a replication connection give the same; frames come whole, however the bytes are cut."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import CuttingProxy, self_signed
from tests.postgres.rows import changes, drain, opened

from lakefeed.capture.postgres import walsender
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.postgres.wire import Inbox, LibpqWire, SocketWire, Wire, error_of, open_wire
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError
from lakefeed.testing.server.postgres import PostgresServer

T = TableId("public", "t")


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_frames_come_whole_wherever_the_bytes_are_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    chance = random.Random(1)
    sent = [chance.randbytes(chance.choice([0, 1, 5, 200, 9_000])) for _ in range(300)]
    stream = b"".join(frame(b"d", body) for body in sent)
    inbox, found, at = Inbox(), [], 0
    while at < len(stream):
        size = chance.randint(1, 5_000)
        theirs.sendall(stream[at : at + size])
        at += size
        inbox.fill(ours)
        frames = inbox.take()
        found += [frames.message(index)[5:] for index in range(len(frames))]
    assert found == sent


def test_a_frame_larger_than_the_room_comes_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    body = random.Random(2).randbytes(9 << 20)
    left = memoryview(frame(b"d", body) + frame(b"d", b"next"))
    inbox = Inbox()
    found: list[bytes] = []
    while len(found) < 2:
        if left:
            left = left[theirs.send(left[: 1 << 16]) :]
        inbox.fill(ours)
        frames = inbox.take()
        found += [frames.message(index)[5:] for index in range(len(frames))]
    assert found == [body, b"next"]


def test_a_closed_connection_is_told_after_what_came_before_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(frame(b"d", b"last") + b"d\0\0")
    theirs.close()
    inbox = Inbox()
    inbox.fill(ours)
    assert inbox.take().message(0)[5:] == b"last"
    inbox.fill(ours)
    assert len(inbox.take()) == 0
    assert inbox.closed


def test_a_length_that_cannot_be_is_a_decode_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"d" + struct.pack(">i", 3))
    inbox = Inbox()
    inbox.fill(ours)
    with pytest.raises(DecodeError, match="a frame of 3 bytes"):
        inbox.take()


def test_an_error_of_the_server_is_the_drivers_own_exception() -> None:
    body = b"SERROR\0VERROR\0C55006\0Mreplication slot is active\0DIt is used.\0\0"
    error = error_of(body)
    assert isinstance(error, psycopg.errors.ObjectInUse)
    assert str(error) == "ERROR:  replication slot is active\nDETAIL:  It is used."
    assert isinstance(error_of(b"SFATAL\0CZZ999\0Mwhat\0\0"), psycopg.OperationalError)


@pytest.mark.parametrize("wire", [SocketWire, LibpqWire])
def test_both_wires_deliver_the_same_transactions(dsn: str, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walsender, "open_wire", wire)
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with opened(Postgres(dsn)) as capture:
            position = capture.prepare([T])
            writer.execute("INSERT INTO t SELECT i, repeat('x', i % 300) FROM generate_series(1, 20000) i")
            writer.execute("INSERT INTO t VALUES (0, repeat('y', 6000000))")
            writer.execute("UPDATE t SET v = 'z' WHERE id = 7")
            found = [(row["id"], row["v"]) for row in changes(drain(capture, position))]
            expected = [(i, "x" * (i % 300)) for i in range(1, 20001)]
            assert found == [*expected, (0, "y" * 6_000_000), (7, "z")]


def test_an_encrypted_connection_is_read_through_libpq(
    dsn: str, server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[type] = []

    def opened_wire(connection: Connection) -> Wire:
        found = open_wire(connection)
        taken.append(type(found))
        return found

    monkeypatch.setattr(walsender, "open_wire", opened_wire)
    with (
        CuttingProxy(server.port, tls=self_signed(tmp_path)) as proxy,
        psycopg.connect(dsn, autocommit=True) as writer,
    ):
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        secured = f"{dsn.replace(f'port={server.port}', f'port={proxy.port}')} sslmode=require"
        with opened(Postgres(secured)) as capture:
            position = capture.prepare([T])
            writer.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5000) i")
            assert [row["id"] for row in changes(drain(capture, position))] == list(range(1, 5001))
        with opened(Postgres(dsn)) as capture:
            assert [row["id"] for row in changes(drain(capture, position))] == list(range(1, 5001))
    assert taken == [LibpqWire, SocketWire]
