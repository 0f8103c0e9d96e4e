"""The whole capture contract over Custom positions without an order: a real source whose positions are made opaque."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pytest
from tests.sqlite.test_sqlite_contract import SqliteActor

from lakefeed.capture.base import ChangeCapture, Chunk, ChunkReader, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.batch import POSITION, ChangeBatch
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Custom, Position, SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject


def opaque(position: Position) -> Custom:
    return Custom(f"at {position.text()}")


def plain(position: Position | None) -> SqliteSequence | None:
    return SqliteSequence.parse(position.text().removeprefix("at ")) if position is not None else None


class Opaque(ChangeCapture):
    """Another capture, of the kind ``own``, with positions that nothing but equality is known of."""

    kind = "own"

    def __init__(self, inner: ChangeCapture) -> None:
        self._inner = inner
        self.capabilities = inner.capabilities

    def open(self) -> None:
        self._inner.open()

    def close(self) -> None:
        self._inner.close()

    def identity(self) -> str | None:
        return self._inner.identity()

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        return self._inner.continuity(plain(position), tables)

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._inner.recall(schemas)

    def discover(self) -> tuple[TableSchema, ...]:
        return self._inner.discover()

    def prepare(self, tables: Sequence[TableId]) -> Position:
        return opaque(self._inner.prepare(tables))

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        plan = self._inner.snapshot(table, chunk_rows=chunk_rows)
        return replace(plan, chunks=tuple(map(OpaqueChunk, plan.chunks)))

    def copied(self, table: TableId) -> None:
        self._inner.copied(table)

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        return OpaqueChunk(self._inner.chunk(data))

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        inner = self._inner.live(plain(after), wait_seconds=wait_seconds)
        return (self._change_set(one) for one in inner)

    def confirm(self, position: Position) -> None:
        known = plain(position)
        assert known is not None
        self._inner.confirm(known)

    def lag(self) -> Lag:
        return self._inner.lag()

    def check(self) -> tuple[Finding, ...]:
        return self._inner.check()

    def uninstall(self) -> tuple[str, ...]:
        return self._inner.uninstall()

    def _change_set(self, one: ChangeSet) -> ChangeSet:
        assert one.start is not None
        batches = [self._batch(batch) for batch in one.batches]
        return replace(one, start=opaque(one.start), end=opaque(one.end), batches=batches)

    def _batch(self, batch: ChangeBatch) -> ChangeBatch:
        index = batch.data.schema.get_field_index(POSITION)
        kind, _, text = str(batch.data.column(index)[0].as_py()).partition("=")
        assert kind == SqliteSequence.kind
        texts = pa.array([Custom(f"at {text}").encode()] * batch.rows).dictionary_encode()
        return replace(batch, data=batch.data.set_column(index, batch.data.schema.field(index), texts))


@dataclass(frozen=True)
class OpaqueChunk:
    inner: Chunk

    @property
    def table(self) -> TableId:
        return self.inner.table

    def to_json(self) -> Mapping[str, Any]:
        return self.inner.to_json()

    def open(self) -> OpaqueReader:
        return OpaqueReader(self.inner.open())


class OpaqueReader:
    def __init__(self, inner: ChunkReader) -> None:
        self._inner = inner

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._inner)

    @property
    def low(self) -> Position:
        return opaque(self._inner.low)

    @property
    def high(self) -> Position:
        return opaque(self._inner.high)


class TestOpaquePositions(CaptureContract):
    @pytest.fixture(autouse=True)
    def _close(self) -> Iterator[None]:
        yield
        self.actor.close()

    def make_subject(self, place: Path) -> Subject:
        path = place / "shop.db"
        self.actor = SqliteActor(path, "WAL")
        return Subject(capture=lambda: Opaque(Sqlite(path).bind("contract")), actor=self.actor)
