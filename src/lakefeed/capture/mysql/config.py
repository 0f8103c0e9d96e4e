"""The section ``source`` of a configuration file for ``kind: mysql`` and ``kind: mariadb``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from lakefeed.capture.poll.config import BeforeImages, SourceConfig, Text
from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from lakefeed.capture.base import Source
    from lakefeed.capture.mysql.dialect import MysqlDialect, MysqlVerifyReader
    from lakefeed.change.table import TableId

_TEMPLATE = """\
source:
  kind: {kind}
  dsn: {kind}://lakefeed@localhost:3306/    # ?ssl-mode=VERIFY_IDENTITY&ssl-ca=ca.pem; the password comes from MYSQL_PWD
  capture: log              # the binlog, by GTID; or poll, which needs only SELECT
  tables: ["shop.*"]        # glob patterns of database.table
  # zero_dates: stop        # dates such as 0000-00-00: stop the table, null, clamp, or text for all dates and times
"""


class MysqlConfig(SourceConfig):
    """A MySQL server, 8.0 or newer."""

    template: ClassVar[str] = _TEMPLATE.format(kind="mysql")
    first_key: ClassVar[str] = "dsn"
    only_for: ClassVar[dict[str, tuple[str, ...]]] = {**SourceConfig.only_for, "before_images": ("log",)}

    kind: Literal["mysql"] = Field(description="Which database.")
    dsn: Text = Field(repr=False, description="mysql://user@host:port/?ssl-mode=…; a password is better in MYSQL_PWD.")
    capture: Literal["log", "poll"] = Field(default="log", description="How changes are found.")
    tables: list[Text] = Field(min_length=1, description="Glob patterns of tables, database.table.")
    zero_dates: Literal["stop", "null", "clamp", "text"] | None = Field(
        default="stop", description="Impossible dates such as 0000-00-00, where lake.out_of_range says nothing."
    )
    before_images: BeforeImages = False

    def source(self) -> Source:
        dialect = self.dialect()
        if self.capture == "poll":
            from lakefeed.capture.poll.source import PollingSource

            given = self.polling()
            return PollingSource(dialect, tables=given["tables"], rules=given["rules"], pace=given["pace"])
        from lakefeed.capture.mysql.source import Mysql

        return Mysql(
            self.dsn, kind=dialect.flavour, tables=self.tables, zero_dates=self.zero_dates or "null",
            before_images=self.before_images,
        )  # fmt: skip

    def dialect(self) -> MysqlDialect:
        try:
            from lakefeed.capture.mysql.columns import ZeroDates
            from lakefeed.capture.mysql.database import Database
            from lakefeed.capture.mysql.dialect import MysqlDialect
        except ImportError as error:
            raise ConfigError(
                f"source.kind: {self.kind} needs the driver PyMySQL, which is not installed ({error})",
                remedy="pip install 'lakefeed[mysql]'",
            ) from error
        Database(self.dsn, self.kind)
        return MysqlDialect(self.dsn, self.kind, ZeroDates(self.zero_dates or "null"))

    def place(self) -> str:
        self.dialect()
        from lakefeed.capture.mysql.database import Database

        return str(Database(self.dsn, self.kind))

    @property
    def database(self) -> str:
        return "{schema}"  # which is what this server calls a database

    def verify_reader(self, table: TableId) -> MysqlVerifyReader:
        dialect = self.dialect()
        from lakefeed.capture.mysql.dialect import MysqlVerifyReader

        return MysqlVerifyReader(dialect, table)


class MariadbConfig(MysqlConfig):
    """A MariaDB server, 10.6 or newer."""

    template: ClassVar[str] = _TEMPLATE.format(kind="mariadb")
    kind: Literal["mariadb"] = Field(description="Which database.")  # type: ignore[assignment]  # the same, another name
