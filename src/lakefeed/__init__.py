"""Lakefeed keeps lakehouse tables equal to operational databases.

What is named here is the public surface; everything else may change between versions. A name is imported when it is
first used: `lakefeed --help` must not wait for Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakefeed.capture.poll.rule import FullDiff, SoftDelete, TableRule
    from lakefeed.capture.poll.source import PostgresPolling, SqlitePolling
    from lakefeed.capture.postgres.source import Postgres
    from lakefeed.capture.sqlite.source import Sqlite
    from lakefeed.embed.checkpoint import Checkpoint, CheckpointStore
    from lakefeed.embed.options import Delivery, RuntimeOptions
    from lakefeed.embed.runtime import Runtime
    from lakefeed.embed.store import FileCheckpointStore, MemoryCheckpointStore
    from lakefeed.errors import LakefeedError, Retry
    from lakefeed.flow.listener import Listener
    from lakefeed.flow.options import PipelineOptions
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.flow.result import CycleResult
    from lakefeed.flow.status import PipelineStatus, TableStatus
    from lakefeed.journal.options import JournalOptions
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.iceberg import Iceberg
    from lakefeed.lake.mode import Append, Mirror, Temporal
    from lakefeed.lake.policy import Evolution
    from lakefeed.lake.route import Rule
    from lakefeed.lake.session import spark_session
    from lakefeed.reading.at import read_at
    from lakefeed.reading.source import register_source
    from lakefeed.reading.temporal import as_of

__all__ = [
    "Append",
    "Checkpoint",
    "CheckpointStore",
    "CycleResult",
    "Delivery",
    "Delta",
    "Evolution",
    "FileCheckpointStore",
    "FullDiff",
    "Iceberg",
    "JournalOptions",
    "LakefeedError",
    "Listener",
    "MemoryCheckpointStore",
    "Mirror",
    "Pipeline",
    "PipelineOptions",
    "PipelineStatus",
    "Postgres",
    "PostgresPolling",
    "Retry",
    "Rule",
    "Runtime",
    "RuntimeOptions",
    "SoftDelete",
    "Sqlite",
    "SqlitePolling",
    "TableRule",
    "TableStatus",
    "Temporal",
    "as_of",
    "read_at",
    "register_source",
    "spark_session",
]

_HOMES = {
    "Append": "lakefeed.lake.mode",
    "Checkpoint": "lakefeed.embed.checkpoint",
    "CheckpointStore": "lakefeed.embed.checkpoint",
    "CycleResult": "lakefeed.flow.result",
    "Delivery": "lakefeed.embed.options",
    "Delta": "lakefeed.lake.delta",
    "Evolution": "lakefeed.lake.policy",
    "FileCheckpointStore": "lakefeed.embed.store",
    "FullDiff": "lakefeed.capture.poll.rule",
    "Iceberg": "lakefeed.lake.iceberg",
    "JournalOptions": "lakefeed.journal.options",
    "LakefeedError": "lakefeed.errors",
    "Listener": "lakefeed.flow.listener",
    "MemoryCheckpointStore": "lakefeed.embed.store",
    "Mirror": "lakefeed.lake.mode",
    "Pipeline": "lakefeed.flow.pipeline",
    "PipelineOptions": "lakefeed.flow.options",
    "PipelineStatus": "lakefeed.flow.status",
    "Postgres": "lakefeed.capture.postgres.source",
    "PostgresPolling": "lakefeed.capture.poll.source",
    "Retry": "lakefeed.errors",
    "Rule": "lakefeed.lake.route",
    "Runtime": "lakefeed.embed.runtime",
    "RuntimeOptions": "lakefeed.embed.options",
    "SoftDelete": "lakefeed.capture.poll.rule",
    "Sqlite": "lakefeed.capture.sqlite.source",
    "SqlitePolling": "lakefeed.capture.poll.source",
    "TableRule": "lakefeed.capture.poll.rule",
    "TableStatus": "lakefeed.flow.status",
    "Temporal": "lakefeed.lake.mode",
    "as_of": "lakefeed.reading.temporal",
    "read_at": "lakefeed.reading.at",
    "register_source": "lakefeed.reading.source",
    "spark_session": "lakefeed.lake.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lakefeed' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
