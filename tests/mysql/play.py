"""A database with one captured table, for tests of the binlog."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.mysql.source import Mysql
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.table import TableId, TableSchema
from lakefeed.testing.capture_subject import drain
from lakefeed.testing.server.mysql import MysqlServer


class Play:
    """A database with one captured table, and the change sets that came of statements."""

    def __init__(
        self,
        server: MysqlServer,
        database: str,
        place: Path,
        columns: str = "id int PRIMARY KEY, a text",
        *,
        dsn: str | None = None,
    ) -> None:
        self.server, self.database, self.table = server, database, TableId(database, "t")
        self.connection = server.connect(database=database)
        self.run(f"CREATE TABLE t ({columns})")
        self.source = Mysql(dsn or server.dsn, kind=server.flavour, tables=[f"{database}.*"], state=place)
        self.capture: ChangeCapture = self.source.bind("play")
        self.capture.open()
        self.at: Any = self.capture.prepare([self.table])

    def run(self, *statements: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def drain(self) -> list[ChangeSet]:
        found = drain(self.capture, self.at)
        self.at = found[-1].end if found else self.at
        return found

    def restart(self, schemas: Sequence[TableSchema]) -> None:
        """Another process, whose journal has these schemas and ends where the last drain did."""
        self.capture.close()
        self.capture = self.source.bind("play")
        self.capture.open()
        self.capture.recall(schemas)
        self.capture.continuity(self.at, [self.table])

    def close(self) -> None:
        self.capture.close()
        self.connection.close()
