"""The section ``source`` of a configuration file for ``kind: postgres``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from lakefeed.capture.poll.config import BeforeImages, SourceConfig, Text
from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from lakefeed.capture.base import Source
    from lakefeed.capture.postgres.dialect import PostgresDialect, PostgresVerifyReader
    from lakefeed.change.table import TableId


class PostgresConfig(SourceConfig):
    """A PostgreSQL database, 15 or newer."""

    template: ClassVar[str] = """\
source:
  kind: postgres            # 15 or newer, with wal_level = logical
  dsn: host=localhost dbname=shop user=lakefeed    # the password comes from PGPASSWORD, or password=${VARIABLE}
  capture: log              # logical decoding; a publication and a replication slot, both lakefeed_<pipeline>
                            # or poll, which needs only SELECT
  tables: ["public.*"]      # glob patterns: "public.*", "sales.order*", "customers"
  # text_columns: []        # "public.bookings.until": columns to keep as PostgreSQL prints them
  # column_lists: false     # true: columns that lake.tables leaves out never leave the server
  # provision: true         # false: you create publication and slot; lakefeed check prints the statements
"""
    first_key: ClassVar[str] = "dsn"
    only_for: ClassVar[dict[str, tuple[str, ...]]] = {
        **SourceConfig.only_for, "provision": ("log",), "before_images": ("log",), "column_lists": ("log",),
        "upgraded_from": ("log",),
    }  # fmt: skip

    kind: Literal["postgres"] = Field(description="Which database.")
    dsn: Text = Field(repr=False, description="libpq connection string or URI; a password is better in PGPASSWORD.")
    capture: Literal["log", "poll"] = Field(default="log", description="How changes are found.")
    tables: list[Text] = Field(
        default=["public.*"], min_length=1, description="Glob patterns of tables, schema.table or table."
    )
    text_columns: list[Text] = Field(
        default_factory=list, description="Patterns of schema.table.column that are kept as PostgreSQL prints them."
    )
    provision: bool = Field(
        default=True,
        description="capture: log. Make publication and slot; if not, `lakefeed check` prints the statements to run.",
    )
    column_lists: bool = Field(
        default=False,
        description="capture: log. Publish only the columns that are taken, so that others never leave the server. "
        "PostgreSQL then refuses to drop one of them without CASCADE.",
    )
    upgraded_from: Text | None = Field(
        default=None,
        description="capture: log. System identifier of the server that pg_upgrade turned into this one, with its "
        "replication slots. An error asks for it.",
    )
    before_images: BeforeImages = False

    def source(self) -> Source:
        dialect = self.dialect()
        if self.capture == "poll":
            from lakefeed.capture.poll.source import PostgresPolling

            return PostgresPolling(self.dsn, text_columns=dialect.text_columns, **self.polling())
        from lakefeed.capture.postgres.source import Postgres

        return Postgres(
            self.dsn, tables=self.tables, text_columns=self.text_columns, provision=self.provision,
            before_images=self.before_images, capture=self.capture, column_lists=self.column_lists,
            upgraded_from=self.upgraded_from,
        )  # fmt: skip

    def dialect(self) -> PostgresDialect:
        """ConfigError if psycopg is missing or the connection string is invalid."""
        try:
            from lakefeed.capture.postgres.dialect import PostgresDialect
        except ImportError as error:
            problem = f"source.kind: postgres needs the driver psycopg, which is not installed ({error})"
            raise ConfigError(problem, remedy="pip install 'lakefeed[postgres]'") from error
        return PostgresDialect(self.dsn, tuple(self.text_columns))

    def place(self) -> str:
        self.dialect()
        from lakefeed.capture.postgres.database import Database

        return str(Database(self.dsn))

    @property
    def database(self) -> str | None:
        return self.dialect().database_name

    @contextmanager
    def scratch(self, directory: Path) -> Iterator[tuple[Self, Callable[[str], None]]]:  # noqa: ARG002  # the seam's
        self.dialect()
        from lakefeed.testing.server.scratch import scratch_server

        with scratch_server(self.dsn) as (dsn, run):
            yield self.model_copy(update={"dsn": dsn, "provision": True}), run

    def verify_reader(self, table: TableId) -> PostgresVerifyReader:
        self.dialect()
        from lakefeed.capture.postgres.dialect import PostgresVerifyReader

        return PostgresVerifyReader(self.dsn, table)
