"""A third database, for the proof that it takes nothing but a connector: somebody's Delta tables, asked in SQL.

The engine is DataFusion, which the deltalake package brings. It has no row values, so ``after`` is written out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from lakefeed.capture.dialect import DescribedTable, Dialect, Horizon, Ordering, Query, Refusal, Session
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.change.watermark import KeyValue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeltaConnector(Dialect):
    directory: str
    key: tuple[str, ...] = ("id",)

    default_schema = "lake"
    folds_case = False

    def connect(self) -> DeltaSession:
        return DeltaSession(self)

    def quoted(self, name: str) -> str:
        return f'"{name}"'

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        if pa.types.is_timestamp(column.type):
            assert isinstance(value, int)
            return f"TIMESTAMP '{(_EPOCH + timedelta(microseconds=value)).replace(tzinfo=None)}'"
        return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"

    def after(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:
        (first, *others), (value, *values) = left, right
        if not others:
            return f"{first} > {value}"
        return f"({first} > {value} OR ({first} = {value} AND {self.after(others, values, orderings[1:])}))"

    def up_to(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:
        return f"NOT {self.after(left, right, orderings)}"


class DeltaSession(Session):
    def __init__(self, connector: DeltaConnector) -> None:
        self._connector = connector

    def identity(self) -> str:
        return f"delta:{self._connector.directory}"

    def tables(self) -> Mapping[TableId, Refusal | None]:
        return {TableId("lake", path.name): None for path in Path(self._connector.directory).iterdir()}

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        found = {}
        for table in tables:
            stated: Any = self._table(table.name).schema().to_arrow()
            schema = pa.schema(stated)
            columns = tuple(Column(one.name, one.type, one.nullable) for one in schema)
            found[table] = DescribedTable(TableSchema(table, columns, self._connector.key), table.name)
        return found

    def horizon(self) -> Horizon:
        now = time.time_ns() // 1000
        return Horizon(now, now)

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        builder = QueryBuilder()
        for table in self.tables():
            builder = builder.register(table.name, self._table(table.name))
        found: Any = pa.table(builder.execute(query.sql))
        yield from found.cast(schema).to_batches()

    def consistent(self, origin: Mapping[str, Any] | None = None) -> nullcontext[None]:
        return nullcontext()

    def cancel(self) -> None:
        return

    def close(self) -> None:
        return

    def _table(self, name: str) -> DeltaTable:
        return DeltaTable(f"{self._connector.directory}/{name}")
