"""Checkpoint: a saved position and what it belongs to. CheckpointStore: where an embedder keeps it, and its rules.

A pipeline's own checkpoint is the head of its journal. This is for programs that drive the runtime themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol, Self

from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import Custom, Position, SqliteSequence
from lakefeed.change.watermark import Watermark
from lakefeed.errors import CheckpointError, CheckpointRewindError, ConfigError

SNAPSHOT_SUFFIX = "_snapshot"
"""A checkpoint taken inside a snapshot has the source type ``postgres_snapshot``, ``mysql_snapshot`` …"""

# A key becomes part of a file name (255 bytes on every common file system), and its temporary form adds 51.
MAX_KEY_BYTES = 200


class PositionType(Enum):
    """How to read the text of a checkpoint's position."""

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


def source_type(kind: str) -> str:
    """The source type of a capture's checkpoints. GTID sets have the database's: its binlog is the same source."""
    return {MysqlGtid.kind: "mysql", MariadbGtid.kind: "mariadb"}.get(kind, kind)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a stream has come. Immutable; everything is kept as given.

    ``identity`` identifies the very database (system identifier, server uuid, file id), so that progress in one is
    never taken for progress in another. ``committed`` counts the events committed since the stream began. ``timestamp``
    is the time of the checkpoint in Unix seconds, by the clock of the machine that made it.
    """

    source_type: str
    position_type: PositionType
    position: str
    timestamp: int = field(default_factory=lambda: int(time.time()))
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
        """Keeps the text as given, after checking that it is an LSN."""
        PostgresLsn.parse(lsn)
        return cls("postgres", PositionType.POSTGRES_LSN, lsn)

    @classmethod
    def mysql_binlog(cls, file: str, offset: int) -> Self:
        return cls("mysql", PositionType.MYSQL_BINLOG, MysqlBinlog(file, offset).text())

    @classmethod
    def gtid(cls, source_type: str, gtid_set: str) -> Self:
        """Keeps the set as given, after checking that it is one of ``source_type``: mysql or mariadb."""
        _gtid_kind(source_type).parse(gtid_set)
        return cls(source_type, PositionType.GTID, gtid_set)

    @classmethod
    def custom(cls, source_type: str, text: str) -> Self:
        return cls(source_type, PositionType.CUSTOM, text)

    @classmethod
    def from_position(
        cls, position: Position, *, source_type: str | None = None, identity: str | None = None, committed: int = 0
    ) -> Self:
        """``source_type`` may be left out for kinds that only one source has; a binlog position is then MySQL's."""
        source = source_type or _SOURCES.get(type(position))
        if source is None:
            raise ConfigError(f"a {position.kind} position does not name its source; pass source_type")
        made = cls(source, _TYPES[type(position)], position.text(), identity=identity, committed=committed)
        if type(made.decoded) is not type(position):
            raise ConfigError(f"a {position.kind} position cannot come from the source {source}")
        return made

    def with_transaction_id(self, transaction_id: str) -> Self:
        return replace(self, transaction_id=transaction_id)

    def with_metadata(self, name: str, value: str) -> Self:
        """With one entry added or replaced."""
        return replace(self, metadata={**self.metadata, name: value})

    @property
    def decoded(self) -> Position:
        """The typed position. CheckpointError if the text is not one of its type."""
        if self.position_type is PositionType.GTID:
            return _gtid_kind(self.source_type).parse(self.position)
        return _KINDS[self.position_type].parse(self.position)

    def parse_postgres_lsn(self) -> int | None:
        """The LSN as a number; None for another position type or a text that is not an LSN."""
        position = self._decoded_as(PositionType.POSTGRES_LSN)
        return position.value if isinstance(position, PostgresLsn) else None

    def parse_mysql_binlog(self) -> tuple[str, int] | None:
        """File and offset; None for another position type or a text that is not a binlog position."""
        position = self._decoded_as(PositionType.MYSQL_BINLOG)
        return (position.file, position.offset) if isinstance(position, MysqlBinlog) else None

    def age_seconds(self, now: float | None = None) -> int:
        """Never negative: 0 if the clock was set back."""
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
        """The inverse of ``to_json``. CheckpointError, naming the field, for anything else."""
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


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "source_type": _is_text,
    "position_type": lambda value: value in [kind.value for kind in PositionType],
    "position": _is_text,
    "timestamp": _is_count,
    "transaction_id": lambda value: value is None or _is_text(value),
    "metadata": lambda value: isinstance(value, Mapping) and all(map(_is_text, (*value, *value.values()))),
    "identity": lambda value: value is None or _is_text(value),
    "committed": _is_count,
}


def _gtid_kind(source_type: str) -> type[MysqlGtid] | type[MariadbGtid]:
    """MySQL's and MariaDB's sets differ; the source says which one it is."""
    match source_type.removesuffix(SNAPSHOT_SUFFIX):
        case "mysql":
            return MysqlGtid
        case "mariadb":
            return MariadbGtid
    raise CheckpointError(f"a GTID set belongs to the source mysql or mariadb, not to {source_type}")


class Checkpoints(Protocol):
    """The part of a CheckpointStore that a runtime needs; see there."""

    def save(self, key: str, checkpoint: Checkpoint) -> None: ...

    def load(self, key: str) -> Checkpoint | None: ...


class CheckpointStore(Protocol):
    """Checkpoints by key, one stream per key, ``mydb.public.users`` for example; see ``validate_key``.

    Durability: once ``save`` or ``delete`` returns, it is permanent (as far as the store keeps anything at all); if it
    raises, either the old value or the new one is there, never a mixture. ``load`` only returns what was saved.
    No way back: ``save`` refuses, with CheckpointRewindError, a checkpoint that would move the stream back or to
    another database; see ``refuse_rewind``. Saving the same again is harmless. To really go back, delete first.
    Damage is not absence: ``load`` and ``save`` of a damaged key raise CheckpointDamagedError until it is deleted or
    restored; other keys are not affected.
    Keys: every method validates the key before anything else.
    Threads: any method may be called from any thread. One open writable store per directory or database; a second one
    is refused with LeaseError.
    """

    def save(self, key: str, checkpoint: Checkpoint) -> None: ...

    def load(self, key: str) -> Checkpoint | None:
        """None only if nothing was saved under ``key``."""

    def delete(self, key: str) -> None:
        """Forget ``key``. Deleting a key that does not exist succeeds."""

    def list(self) -> tuple[str, ...]:
        """Every key that has a checkpoint, including damaged ones, sorted."""

    def all(self) -> Mapping[str, Checkpoint]:
        """Every checkpoint that can be read."""

    def damaged(self) -> Mapping[str, str]:
        """What is wrong with those that cannot be read, by key."""

    def close(self) -> None:
        """Let another one open the same directory or database. Idempotent."""


def validate_key(key: str) -> None:
    """ConfigError unless ``key`` can safely be part of a file name, with the same rules for every store."""
    problems = {
        "is empty": not key,
        "contains a slash": "/" in key or "\\" in key,
        "contains two dots in a row": ".." in key,
        "starts with a dot": key.startswith("."),
        "contains a character that cannot be printed": not key.isprintable(),
    }
    problem = next((text for text, wrong in problems.items() if wrong), None)
    if problem is None and len(key.encode()) > MAX_KEY_BYTES:  # printable text can always be encoded
        problem = f"is longer than {MAX_KEY_BYTES} bytes"
    if problem is not None:
        raise ConfigError(
            f"Invalid checkpoint key {key[:80]!r}: it {problem}",
            remedy="Use a name like mydb.public.users.",
        )


def refuse_rewind(key: str, stored: Checkpoint | None, new: Checkpoint) -> None:
    """Raise CheckpointRewindError if ``new`` must not replace ``stored``. The rules, in this order:

    1. The position of ``new`` must be readable (CheckpointError): what cannot be read now cannot be resumed from.
    2. The identity stays. It may become known, but not change or disappear.
    3. The source type stays, except for the step from ``x_snapshot`` to ``x`` when a snapshot is done.
    4. The number of committed events does not fall.
    5. The position stays or grows. Positions that are not ordered are refused like older ones. Only for two Custom
       positions without an order, and in the step of rule 3, the count of rule 4 is the whole test.
    """
    new_position = new.decoded  # 1
    if stored is None:
        return
    reason = None
    snapshot_done = stored.source_type == new.source_type + SNAPSHOT_SUFFIX
    if stored.identity is not None and new.identity != stored.identity:  # 2
        reason = f"it belongs to the database {stored.identity}, not {new.identity}"
    elif new.source_type != stored.source_type and not snapshot_done:  # 3
        reason = f"it belongs to the source {stored.source_type}, not {new.source_type}"
    elif new.committed < stored.committed:  # 4
        reason = f"{stored.committed} events are committed, not {new.committed}"
    elif snapshot_done:  # 5
        return
    elif new.position_type is not stored.position_type:
        reason = "the two positions are of different kinds"
    else:
        order = new_position.compare(stored.decoded)
        if order is None and new.position_type is not PositionType.CUSTOM:
            reason = "the two are not ordered: each has something that the other lacks"
        elif order == -1:
            reason = "that would move it back"
    if reason is not None:
        was, would_be = (f"{one.position_type.value} {one.position}" for one in (stored, new))
        raise CheckpointRewindError(f"checkpoint '{key}' stays at {was} and does not move to {would_be}: {reason}")
