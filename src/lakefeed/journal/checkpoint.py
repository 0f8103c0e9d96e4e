"""Checkpoint: a saved position and where it belongs; CheckpointStore: where an embedder keeps it.

A pipeline's own checkpoint is its journal's head. The stores here are for those who drive the runtime themselves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol, Self

from lakefeed.change.binlog import MysqlBinlog
from lakefeed.change.custom import Custom
from lakefeed.change.gtid import MariadbGtid, MysqlGtid
from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.change.watermark import Watermark
from lakefeed.errors import CheckpointError, ConfigError

SNAPSHOT_SUFFIX = "_snapshot"
"""A checkpoint taken inside a snapshot has the source type ``postgres_snapshot``, ``mysql_snapshot`` …"""


class PositionType(Enum):
    """How the text of a checkpoint's position is to be read."""

    POSTGRES_LSN = "PostgresLsn"
    MYSQL_BINLOG = "MysqlBinlog"
    GTID = "Gtid"
    SQLSERVER_LSN = "SqlServerLsn"
    SQLITE_SEQUENCE = "SqliteSequence"
    WATERMARK = "Watermark"
    CUSTOM = "Custom"


_TYPES: dict[type[Position], PositionType] = {
    PostgresLsn: PositionType.POSTGRES_LSN,
    MysqlBinlog: PositionType.MYSQL_BINLOG,
    MysqlGtid: PositionType.GTID,
    MariadbGtid: PositionType.GTID,
    SqlServerLsn: PositionType.SQLSERVER_LSN,
    SqliteSequence: PositionType.SQLITE_SEQUENCE,
    Watermark: PositionType.WATERMARK,
    Custom: PositionType.CUSTOM,
}
_SOURCES: dict[type[Position], str] = {
    PostgresLsn: "postgres",
    MysqlBinlog: "mysql",
    MysqlGtid: "mysql",
    MariadbGtid: "mariadb",
    SqlServerLsn: "sqlserver",
    SqliteSequence: "sqlite",
}
_KINDS: dict[PositionType, type[Position]] = {kind: position for position, kind in _TYPES.items()}


def _now() -> int:
    return int(time.time())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a stream stands. Immutable; all that is given, is kept as given.

    ``identity`` names the very database (system identifier, server uuid, file id), so that progress in one is never
    taken for progress in another. ``committed`` counts the events committed since the stream began. ``timestamp`` is
    the time of the checkpoint in unix seconds, by the clock of the machine that made it.
    """

    source_type: str
    position_type: PositionType
    position: str
    timestamp: int = field(default_factory=_now)
    transaction_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    identity: str | None = None
    committed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Checkpoint.from_json, (self.to_json(),))  # the read-only view of the metadata does not pickle

    @classmethod
    def postgres_lsn(cls, lsn: int) -> Self:
        return cls("postgres", PositionType.POSTGRES_LSN, PostgresLsn(lsn).text())

    @classmethod
    def postgres_lsn_str(cls, lsn: str) -> Self:
        """Keeps the text as given, once it has proven to be an LSN."""
        PostgresLsn.parse(lsn)
        return cls("postgres", PositionType.POSTGRES_LSN, lsn)

    @classmethod
    def mysql_binlog(cls, file: str, offset: int) -> Self:
        return cls("mysql", PositionType.MYSQL_BINLOG, MysqlBinlog(file, offset).text())

    @classmethod
    def gtid(cls, source_type: str, gtid_set: str) -> Self:
        """Keeps the set as given, once it has proven to be one of ``source_type``: mysql or mariadb."""
        _gtid_kind(source_type).parse(gtid_set)
        return cls(source_type, PositionType.GTID, gtid_set)

    @classmethod
    def custom(cls, source_type: str, text: str) -> Self:
        return cls(source_type, PositionType.CUSTOM, text)

    @classmethod
    def from_position(
        cls, position: Position, *, source_type: str | None = None, identity: str | None = None, committed: int = 0
    ) -> Self:
        """``source_type`` may be left out for kinds that only one source has; binlog places are taken for MySQL's."""
        source = source_type or _SOURCES.get(type(position))
        if source is None:
            raise ConfigError(f"a {position.kind} position does not say its source; pass source_type")
        made = cls(source, _TYPES[type(position)], position.text(), identity=identity, committed=committed)
        if type(made.decoded) is not type(position):
            raise ConfigError(f"a {position.kind} position cannot come from the source {source}")
        return made

    def with_transaction_id(self, transaction_id: str) -> Self:
        return replace(self, transaction_id=transaction_id)

    def with_metadata(self, name: str, value: str) -> Self:
        """One more entry, or another value for it."""
        return replace(self, metadata={**self.metadata, name: value})

    @property
    def decoded(self) -> Position:
        """The typed position. CheckpointError if the text is not one of its type."""
        if self.position_type is PositionType.GTID:
            return _gtid_kind(self.source_type).parse(self.position)
        return _KINDS[self.position_type].parse(self.position)

    @property
    def in_snapshot(self) -> bool:
        return self.source_type.endswith(SNAPSHOT_SUFFIX)

    def parse_postgres_lsn(self) -> int | None:
        """The LSN as a number; None for another position type or a text that is not an LSN."""
        position = self._decoded_as(PositionType.POSTGRES_LSN)
        return position.value if isinstance(position, PostgresLsn) else None

    def parse_mysql_binlog(self) -> tuple[str, int] | None:
        """File and offset; None for another position type or a text that is not a binlog place."""
        position = self._decoded_as(PositionType.MYSQL_BINLOG)
        return (position.file, position.offset) if isinstance(position, MysqlBinlog) else None

    def age_seconds(self, now: float | None = None) -> int:
        """Never negative: a clock that was set back gives 0."""
        return max(0, int(time.time() if now is None else now) - self.timestamp)

    def to_json(self) -> dict[str, Any]:
        return {
            "source_type": self.source_type,
            "position_type": self.position_type.value,
            "position": self.position,
            "timestamp": self.timestamp,
            "transaction_id": self.transaction_id,
            "metadata": dict(self.metadata),
            "identity": self.identity,
            "committed": self.committed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of ``to_json``. CheckpointError, naming the field, for anything else."""
        for name, accepts in _FIELDS.items():
            if name not in data or not accepts(data[name]):
                raise CheckpointError(f"a checkpoint cannot have {data.get(name)!r} as its {name}")
        if unknown := sorted(set(data) - set(_FIELDS)):
            raise CheckpointError(f"a checkpoint has no field {unknown[0]}; a newer version may have written it")
        return cls(**{**data, "position_type": PositionType(data["position_type"])})

    def _decoded_as(self, wanted: PositionType) -> Position | None:
        try:
            return self.decoded if self.position_type is wanted else None
        except CheckpointError:
            return None


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_text(item) for pair in value.items() for item in pair)


_FIELDS = {
    "source_type": _is_text,
    "position_type": lambda value: value in [kind.value for kind in PositionType],
    "position": _is_text,
    "timestamp": _is_count,
    "transaction_id": _is_text_or_none,
    "metadata": _is_texts,
    "identity": _is_text_or_none,
    "committed": _is_count,
}


def _gtid_kind(source_type: str) -> type[MysqlGtid] | type[MariadbGtid]:
    """MySQL's and MariaDB's sets are different things; the source says which it is."""
    match source_type.removesuffix(SNAPSHOT_SUFFIX):
        case "mysql":
            return MysqlGtid
        case "mariadb":
            return MariadbGtid
    raise CheckpointError(f"a GTID set belongs to the source mysql or mariadb, not to {source_type}")


class CheckpointStore(Protocol):
    """Checkpoints by key, one stream per key, ``mydb.public.users`` for example; see ``checkpoint_rule.validate_key``.

    Durability: when ``save`` or ``delete`` returns, it is done for good (as far as the store keeps anything at all);
    when it raises, the old value is still there, or the new one, never a mixture. Never ahead: what ``load`` answers
    has been saved before.
    No way back: ``save`` refuses, with CheckpointRewindError, a checkpoint that would move the stream back or to
    another database; see ``checkpoint_rule.refuse_rewind``. Saving the same again is harmless. Who really wants to
    go back deletes first.
    Damage is never absence: ``load`` and ``save`` of a damaged key raise CheckpointDamagedError until it is deleted
    or restored; the other keys are not affected.
    Keys are validated by every method, before anything else happens.
    Threads: all methods may be called from any thread. One open writable store per place; a second is refused with
    LeaseError.
    """

    def save(self, key: str, checkpoint: Checkpoint) -> None: ...

    def load(self, key: str) -> Checkpoint | None:
        """None only if nothing was saved under ``key``."""

    def delete(self, key: str) -> None:
        """Forget ``key``. Deleting what is not there succeeds."""

    def list(self) -> tuple[str, ...]:
        """Every key that has a checkpoint, damaged ones too, sorted."""

    def all(self) -> Mapping[str, Checkpoint]:
        """Every checkpoint that can be read."""

    def damaged(self) -> Mapping[str, str]:
        """What is wrong, by key, with those that cannot be read."""

    def close(self) -> None:
        """Let another one open this place. Idempotent."""
