"""The registry of position kinds, by the name under which they are stored."""

from __future__ import annotations

from lakefeed.change.binlog import MysqlBinlog
from lakefeed.change.custom import Custom
from lakefeed.change.gtid import MariadbGtid, MysqlGtid
from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.change.watermark import Watermark

_ALL: tuple[type[Position], ...] = (
    Custom,
    MariadbGtid,
    MysqlBinlog,
    MysqlGtid,
    PostgresLsn,
    SqliteSequence,
    SqlServerLsn,
    Watermark,
)
POSITION_KINDS: dict[str, type[Position]] = {kind.kind: kind for kind in _ALL}
