"""``Mysql``: what a user writes to capture a MySQL or MariaDB server by its binlog.

Guarantees and limits, beyond the contract of ChangeCapture:
- A change set ends at a commit; its position is the set of all GTIDs up to there. Without GTIDs, MySQL's positions are
  file and offset.
- Lakefeed writes nothing to the source. How long the server keeps its binlog is the server's own setting, which
  ``check`` examines.
- A copy from MariaDB is exact at its position; one from MySQL has a bracket, and the journal makes it exact.
- A promoted replica is the same source if its GTIDs include what was captured.
- Rows of a distributed transaction (XA) are delivered with its XA COMMIT.
- Blocked, with the statement that repairs it: a table changed by a statement event, or by row events that lack columns
  or parts of JSON values. An unknown event stops the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from os import PathLike, fspath

from lakefeed.capture.base import Capabilities, ChangeCapture
from lakefeed.capture.builder import Limits
from lakefeed.capture.log_capture import LogCapture
from lakefeed.capture.mysql.binlog import BinlogDecoder
from lakefeed.capture.mysql.check import check_source
from lakefeed.capture.mysql.columns import Flavour, ZeroDates
from lakefeed.capture.mysql.database import Database
from lakefeed.capture.mysql.dialect import MysqlDialect
from lakefeed.capture.mysql.facts import MysqlFacts
from lakefeed.capture.mysql.history import Gtid, StreamNotes
from lakefeed.capture.mysql.resume import MysqlResumePoint
from lakefeed.capture.mysql.xa import PreparedTransactions
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.errors import ConfigError
from lakefeed.storage.location import storage_at


@dataclass(frozen=True)
class Mysql:
    """A MySQL (8.0 or newer) or MariaDB (10.6 or newer) server.

    ``dsn`` is ``mysql://user@host:port/?ssl-mode=VERIFY_IDENTITY`` and is not shown by ``repr``; the password may come
    from MYSQL_PWD. ``tables`` are glob patterns over ``database.table``. ``zero_dates`` says what happens to impossible
    dates such as 0000-00-00: stop, null, clamp or text. ``state`` is the directory of the resume point; a pipeline
    provides its own.
    """

    dsn: str = field(repr=False)
    _: KW_ONLY
    kind: Flavour = "mysql"
    tables: Sequence[str] = ("*.*",)
    zero_dates: str = "stop"
    before_images: bool = False
    state: str | PathLike[str] | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.kind not in ("mysql", "mariadb"):
            raise ConfigError(f"source.kind: '{self.kind}' is neither mysql nor mariadb")
        Database(self.dsn, self.kind)
        if isinstance(self.tables, str) or not self.tables:
            raise ConfigError(f"source.tables: must be a list of patterns with at least one, not {self.tables!r}")
        if self.zero_dates not in {one.value for one in ZeroDates}:
            raise ConfigError(f"source.zero_dates: '{self.zero_dates}' is none of {', '.join(ZeroDates)}")
        object.__setattr__(self, "tables", tuple(self.tables))  # hashable, whatever sequence was given

    def bind(self, pipeline: str) -> ChangeCapture:
        zero_dates = ZeroDates(self.zero_dates)
        dialect, database = MysqlDialect(self.dsn, self.kind, zero_dates), Database(self.dsn, self.kind)
        prepared, notes = PreparedTransactions(), StreamNotes()
        state = None if self.state is None else storage_at(fspath(self.state))
        resume = MysqlResumePoint(database, pipeline, prepared, notes, state)
        facts = MysqlFacts(dialect, resume.tables, resume.find, notes.retyped)
        decoder = partial(
            BinlogDecoder, facts.resolve, facts.apply, facts.is_captured, prepared, notes,
            before_images=self.before_images,
        )  # fmt: skip
        kinds: tuple[type[Gtid], ...] = (MysqlGtid, MysqlBinlog) if self.kind == "mysql" else (MariadbGtid,)
        return LogCapture(
            kinds,
            Capabilities(
                before_images=self.before_images,
                schema_changes=True,
                exact_snapshot=self.kind == "mariadb",
                snapshot_resume=True,
            ),
            tables=self.tables,
            dialect=dialect,
            resume=resume,
            decoder=decoder,
            facts=facts,
            check=partial(check_source, database, resume, self.tables),
            limits=self.limits,
        )
