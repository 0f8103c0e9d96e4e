"""The section ``source`` of a configuration file for ``kind: sqlite``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from lakefeed.capture.poll.config import BeforeImages, SourceConfig, Text

if TYPE_CHECKING:
    from lakefeed.capture.base import Source
    from lakefeed.capture.sqlite.dialect import SqliteDialect, SqliteVerifyReader
    from lakefeed.change.table import TableId


class SqliteConfig(SourceConfig):
    """A SQLite database file."""

    template: ClassVar[str] = """\
source:
  kind: sqlite              # another database: lakefeed init --source KIND
  path: shop.db             # the database file
  capture: trigger          # or poll, which creates nothing in the database and only reads
  tables: ["*"]             # glob patterns: "*", "order*", "main.customers"
"""
    first_key: ClassVar[str] = "path"
    only_for: ClassVar[dict[str, tuple[str, ...]]] = {**SourceConfig.only_for, "before_images": ("trigger",)}

    kind: Literal["sqlite"] = Field(description="Which database.")
    path: Text = Field(description="The database file, relative to the configuration file.")
    capture: Literal["trigger", "poll"] = Field(default="trigger", description="How changes are found.")
    before_images: BeforeImages = False

    def source(self) -> Source:
        if self.capture == "poll":
            from lakefeed.capture.poll.source import SqlitePolling

            return SqlitePolling(self.path, **self.polling())
        from lakefeed.capture.sqlite.source import Sqlite

        return Sqlite(self.path, tables=tuple(self.tables), before_images=self.before_images)

    def dialect(self) -> SqliteDialect:
        from lakefeed.capture.sqlite.dialect import SqliteDialect

        return SqliteDialect(self.path)

    def verify_reader(self, table: TableId) -> SqliteVerifyReader:
        from lakefeed.capture.sqlite.dialect import SqliteVerifyReader

        return SqliteVerifyReader(self.path, table)

    def is_internal(self, table: TableId) -> bool:
        return table.name.lower().startswith(("sqlite_", "_lakefeed"))

    def place(self) -> str:
        return self.path

    @contextmanager
    def scratch(self, directory: Path) -> Iterator[tuple[Self, Callable[[str], None]]]:
        import sqlite3

        copy = directory / Path(self.path).name

        def run(script: str) -> None:
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                connection.executescript(script)

        with closing(sqlite3.connect(f"{Path(self.path).absolute().as_uri()}?mode=ro", uri=True)) as given:
            found = given.execute(
                "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
                " AND name NOT LIKE '!_lakefeed%' ESCAPE '!' ORDER BY type <> 'table', rowid"
            ).fetchall()
        for _, sql in found:
            with suppress(sqlite3.OperationalError):  # already created by its virtual table
                run(sql)
        yield self.model_copy(update={"path": str(copy)}), run

    @property
    def database(self) -> str:
        return Path(self.path).stem

    def beside(self, directory: Path) -> Self:
        return self.model_copy(update={"path": str((directory / Path(self.path).expanduser()).resolve())})
