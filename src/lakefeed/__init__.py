"""Lakefeed keeps lakehouse tables equal to operational databases.

What is named here is the public surface; everything else may change between versions. A name is imported when it is
first used: `lakefeed --help` must not wait for Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakefeed.capture.base import ChangeCapture as ChangeCapture
    from lakefeed.capture.base import Finding as Finding
    from lakefeed.capture.base import Lag as Lag
    from lakefeed.capture.dialect import DescribedTable as DescribedTable
    from lakefeed.capture.dialect import Dialect as Dialect
    from lakefeed.capture.dialect import Query as Query
    from lakefeed.capture.dialect import Session as Session
    from lakefeed.capture.mysql.source import Mysql as Mysql
    from lakefeed.capture.poll.capture import Polling as Polling
    from lakefeed.capture.poll.source import FullDiff as FullDiff
    from lakefeed.capture.poll.source import Pace as Pace
    from lakefeed.capture.poll.source import PollingSource as PollingSource
    from lakefeed.capture.poll.source import PostgresPolling as PostgresPolling
    from lakefeed.capture.poll.source import SoftDelete as SoftDelete
    from lakefeed.capture.poll.source import SqlitePolling as SqlitePolling
    from lakefeed.capture.poll.source import TableRule as TableRule
    from lakefeed.capture.poll.store import FileWatermarkStore as FileWatermarkStore
    from lakefeed.capture.poll.store import MemoryWatermarkStore as MemoryWatermarkStore
    from lakefeed.capture.postgres.source import Postgres as Postgres
    from lakefeed.capture.sqlite.source import Sqlite as Sqlite
    from lakefeed.change.batch import OP as OP
    from lakefeed.change.batch import SEQ as SEQ
    from lakefeed.change.batch import Operation as Operation
    from lakefeed.change.change_set import ChangeSet as ChangeSet
    from lakefeed.change.table import Column as Column
    from lakefeed.change.table import TableId as TableId
    from lakefeed.change.table import TableSchema as TableSchema
    from lakefeed.embed.checkpoint import Checkpoint as Checkpoint
    from lakefeed.embed.checkpoint import CheckpointStore as CheckpointStore
    from lakefeed.embed.options import Delivery as Delivery
    from lakefeed.embed.options import RuntimeOptions as RuntimeOptions
    from lakefeed.embed.runtime import Runtime as Runtime
    from lakefeed.embed.store import FileCheckpointStore as FileCheckpointStore
    from lakefeed.embed.store import MemoryCheckpointStore as MemoryCheckpointStore
    from lakefeed.errors import CheckpointDamagedError as CheckpointDamagedError
    from lakefeed.errors import CheckpointError as CheckpointError
    from lakefeed.errors import CheckpointRewindError as CheckpointRewindError
    from lakefeed.errors import CommitFailedError as CommitFailedError
    from lakefeed.errors import CommitUnknownError as CommitUnknownError
    from lakefeed.errors import ConfigError as ConfigError
    from lakefeed.errors import DecodeError as DecodeError
    from lakefeed.errors import HangError as HangError
    from lakefeed.errors import JournalDamagedError as JournalDamagedError
    from lakefeed.errors import JournalError as JournalError
    from lakefeed.errors import JournalFullError as JournalFullError
    from lakefeed.errors import LakeError as LakeError
    from lakefeed.errors import LakefeedError as LakefeedError
    from lakefeed.errors import LeaseError as LeaseError
    from lakefeed.errors import LeaseLostError as LeaseLostError
    from lakefeed.errors import PositionLostError as PositionLostError
    from lakefeed.errors import RebuildNeededError as RebuildNeededError
    from lakefeed.errors import Retry as Retry
    from lakefeed.errors import SourceChangedError as SourceChangedError
    from lakefeed.errors import SourceError as SourceError
    from lakefeed.errors import SourceSetupError as SourceSetupError
    from lakefeed.errors import SourceUnavailableError as SourceUnavailableError
    from lakefeed.errors import SparkSetupError as SparkSetupError
    from lakefeed.errors import StateError as StateError
    from lakefeed.errors import StorageUnavailableError as StorageUnavailableError
    from lakefeed.errors import TableStoppedError as TableStoppedError
    from lakefeed.flow.options import PipelineOptions as PipelineOptions
    from lakefeed.flow.pipeline import Pipeline as Pipeline
    from lakefeed.flow.plan.start import Plan as Plan
    from lakefeed.flow.report.listener import Listener as Listener
    from lakefeed.flow.result import CycleResult as CycleResult
    from lakefeed.flow.status import PipelineStatus as PipelineStatus
    from lakefeed.flow.status import TableStatus as TableStatus
    from lakefeed.journal.options import JournalOptions as JournalOptions
    from lakefeed.journal.pin import Pin as Pin
    from lakefeed.lake.delta import Delta as Delta
    from lakefeed.lake.iceberg import Iceberg as Iceberg
    from lakefeed.lake.layout import Layout as Layout
    from lakefeed.lake.maintenance import MaintenanceOptions as MaintenanceOptions
    from lakefeed.lake.mode import Append as Append
    from lakefeed.lake.mode import Mirror as Mirror
    from lakefeed.lake.mode import Temporal as Temporal
    from lakefeed.lake.route import Origin as Origin
    from lakefeed.lake.route import Rule as Rule
    from lakefeed.lake.rule.rows import RowOptions as RowOptions
    from lakefeed.lake.schema.policy import Evolution as Evolution
    from lakefeed.lake.spark.session import spark_session as spark_session
    from lakefeed.reading.at import read_at as read_at
    from lakefeed.reading.fresh import current as current
    from lakefeed.reading.fresh import pin as pin
    from lakefeed.reading.fresh import register_views as register_views
    from lakefeed.reading.fresh import snapshot as snapshot
    from lakefeed.reading.source import register_source as register_source
    from lakefeed.reading.table import register_tables as register_tables
    from lakefeed.reading.table import table as table
    from lakefeed.reading.table import to_arrow as to_arrow
    from lakefeed.reading.temporal import as_of as as_of

_HOMES = {
    "lakefeed.capture.base": "ChangeCapture Finding Lag",
    "lakefeed.capture.dialect": "DescribedTable Dialect Query Session",
    "lakefeed.capture.poll.capture": "Polling",
    "lakefeed.capture.poll.source": "FullDiff Pace PollingSource PostgresPolling SoftDelete SqlitePolling TableRule",
    "lakefeed.capture.poll.store": "FileWatermarkStore MemoryWatermarkStore",
    "lakefeed.capture.mysql.source": "Mysql",
    "lakefeed.capture.postgres.source": "Postgres",
    "lakefeed.capture.sqlite.source": "Sqlite",
    "lakefeed.change.batch": "OP SEQ Operation",
    "lakefeed.change.change_set": "ChangeSet",
    "lakefeed.change.table": "Column TableId TableSchema",
    "lakefeed.embed.checkpoint": "Checkpoint CheckpointStore",
    "lakefeed.embed.options": "Delivery RuntimeOptions",
    "lakefeed.embed.runtime": "Runtime",
    "lakefeed.embed.store": "FileCheckpointStore MemoryCheckpointStore",
    "lakefeed.errors": "CheckpointDamagedError CheckpointError CheckpointRewindError CommitFailedError "
    "CommitUnknownError ConfigError DecodeError HangError JournalDamagedError JournalError JournalFullError "
    "LakeError LakefeedError LeaseError LeaseLostError PositionLostError RebuildNeededError Retry "
    "SourceChangedError SourceError SourceSetupError SourceUnavailableError SparkSetupError StateError "
    "StorageUnavailableError TableStoppedError",
    "lakefeed.flow.report.listener": "Listener",
    "lakefeed.flow.options": "PipelineOptions",
    "lakefeed.flow.pipeline": "Pipeline",
    "lakefeed.flow.plan.start": "Plan",
    "lakefeed.flow.result": "CycleResult",
    "lakefeed.flow.status": "PipelineStatus TableStatus",
    "lakefeed.journal.options": "JournalOptions",
    "lakefeed.journal.pin": "Pin",
    "lakefeed.lake.delta": "Delta",
    "lakefeed.lake.iceberg": "Iceberg",
    "lakefeed.lake.maintenance": "MaintenanceOptions",
    "lakefeed.lake.mode": "Append Mirror Temporal",
    "lakefeed.lake.schema.policy": "Evolution",
    "lakefeed.lake.route": "Origin Rule",
    "lakefeed.lake.layout": "Layout",
    "lakefeed.lake.rule.rows": "RowOptions",
    "lakefeed.lake.spark.session": "spark_session",
    "lakefeed.reading.at": "read_at",
    "lakefeed.reading.fresh": "current pin register_views snapshot",
    "lakefeed.reading.source": "register_source",
    "lakefeed.reading.table": "register_tables table to_arrow",
    "lakefeed.reading.temporal": "as_of",
}
"""Where each public name is defined. The imports above say the same to type checkers; a test compares the two."""

_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lakefeed' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
