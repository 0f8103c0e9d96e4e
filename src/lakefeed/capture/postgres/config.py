"""The section ``source`` of a configuration file for ``kind: postgres``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from lakefeed.capture.poll.config import BeforeImages, SourceConfig, Text
from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from lakefeed.capture.base import Source
    from lakefeed.capture.postgres.dialect import PostgresDialect
    from lakefeed.capture.postgres.verify import PostgresVerifyReader
    from lakefeed.change.table import TableId


class PostgresConfig(SourceConfig):
    """A PostgreSQL database, 15 or newer."""

    template: ClassVar[str] = """\
source:
  kind: postgres            # 15 or newer, with wal_level = logical
  dsn: host=localhost dbname=shop user=lakefeed    # the password comes from PGPASSWORD, or password=${VARIABLE}
  capture: log              # logical decoding; a publication and a replication slot, both lakefeed_<pipeline>
                            # or poll, which needs SELECT alone
  tables: ["public.*"]      # glob patterns: "public.*", "sales.order*", "customers"
  # text_columns: []        # "public.bookings.until": columns that are kept as PostgreSQL prints them
  # provision: true         # false: somebody else makes publication and slot; lakefeed check prints the statements
"""
    first_key: ClassVar[str] = "dsn"
    only_for: ClassVar[dict[str, tuple[str, ...]]] = {
        **SourceConfig.only_for, "provision": ("log",), "before_images": ("log",),
    }  # fmt: skip

    kind: Literal["postgres"] = Field(description="Which database.")
    dsn: Text = Field(repr=False, description="libpq connection string or URI; a password is better in PGPASSWORD.")
    capture: Literal["log", "poll"] = Field(default="log", description="How changes are found.")
    tables: list[Text] = Field(
        default_factory=lambda: ["public.*"],
        min_length=1,
        description="Glob patterns of tables, schema.table or table.",
    )
    text_columns: list[Text] = Field(
        default_factory=list, description="Patterns of schema.table.column that are kept as PostgreSQL prints them."
    )
    provision: bool = Field(
        default=True,
        description="capture: log. Make publication and slot; if not, `lakefeed check` prints the statements to run.",
    )
    before_images: BeforeImages = False

    def source(self) -> Source:
        self._require_driver()
        if self.capture == "poll":
            from lakefeed.capture.poll.source import PostgresPolling

            return PostgresPolling(self.dsn, text_columns=tuple(self.text_columns), **self.polling())
        from lakefeed.capture.postgres.source import Postgres

        return Postgres(
            self.dsn, tables=self.tables, text_columns=self.text_columns, provision=self.provision,
            before_images=self.before_images, capture=self.capture,
        )  # fmt: skip

    def dialect(self) -> PostgresDialect:
        self._require_driver()
        from lakefeed.capture.postgres.dialect import PostgresDialect

        return PostgresDialect(self.dsn, tuple(self.text_columns))

    def verify_reader(self, table: TableId) -> PostgresVerifyReader:
        self._require_driver()
        from lakefeed.capture.postgres.verify import PostgresVerifyReader

        return PostgresVerifyReader(self.dsn, table)

    def _require_driver(self) -> None:
        """ConfigError without psycopg, and for a connection string that it cannot read."""
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise ConfigError(
                f"source.kind: postgres needs the driver psycopg, which is not installed ({error})",
                remedy="pip install 'lakefeed[postgres]'",
            ) from error
        try:
            conninfo_to_dict(self.dsn)
        except ProgrammingError:
            raise ConfigError(  # without libpq's message, which may quote the password
                f"source.dsn is not a PostgreSQL connection string: {_mistake(self.dsn)}",
                remedy="Write it as host=localhost port=5432 dbname=shop user=lakefeed, "
                "or as postgresql://lakefeed@localhost:5432/shop.",
            ) from None


def _mistake(dsn: str) -> str:
    """Which part of a connection string is wrong, in words that show no value of it."""
    from psycopg.pq import Conninfo

    if "://" in dsn:
        return "it is no valid URI"
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for number, part in enumerate(re.findall(r"(?:'(?:\\.|[^'\\])*(?:'|$)|[^\s'])+", dsn), start=1):
        name, separator, _ = part.partition("=")
        if not separator:
            return f"part {number} has no '='"
        if name not in known:
            return f"there is no option '{name}'" if name.isidentifier() else f"part {number} has no name before '='"
    return "a quote is not closed, or a value is missing"
