"""Lakefeed keeps lakehouse tables equal to operational databases.

What is named here is the public surface; everything else may change between versions. A name is imported when it is
first used: `lakefeed --help` must not wait for Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakefeed.capture.trigger.source import Sqlite
    from lakefeed.errors import LakefeedError, Retry
    from lakefeed.flow.listener import Listener
    from lakefeed.flow.options import PipelineOptions
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.flow.result import CycleResult
    from lakefeed.flow.runtime import Runtime
    from lakefeed.flow.runtime_options import Delivery, RuntimeOptions
    from lakefeed.flow.status import PipelineStatus, TableStatus
    from lakefeed.journal.checkpoint import Checkpoint, CheckpointStore
    from lakefeed.journal.checkpoint_file import FileCheckpointStore
    from lakefeed.journal.checkpoint_memory import MemoryCheckpointStore
    from lakefeed.journal.options import JournalOptions
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.mode import Mirror
    from lakefeed.lake.session import spark_session

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "CycleResult",
    "Delivery",
    "Delta",
    "FileCheckpointStore",
    "JournalOptions",
    "LakefeedError",
    "Listener",
    "MemoryCheckpointStore",
    "Mirror",
    "Pipeline",
    "PipelineOptions",
    "PipelineStatus",
    "Retry",
    "Runtime",
    "RuntimeOptions",
    "Sqlite",
    "TableStatus",
    "spark_session",
]

_HOMES = {
    "Checkpoint": "lakefeed.journal.checkpoint",
    "CheckpointStore": "lakefeed.journal.checkpoint",
    "CycleResult": "lakefeed.flow.result",
    "Delivery": "lakefeed.flow.runtime_options",
    "Delta": "lakefeed.lake.delta",
    "FileCheckpointStore": "lakefeed.journal.checkpoint_file",
    "JournalOptions": "lakefeed.journal.options",
    "LakefeedError": "lakefeed.errors",
    "Listener": "lakefeed.flow.listener",
    "MemoryCheckpointStore": "lakefeed.journal.checkpoint_memory",
    "Mirror": "lakefeed.lake.mode",
    "Pipeline": "lakefeed.flow.pipeline",
    "PipelineOptions": "lakefeed.flow.options",
    "PipelineStatus": "lakefeed.flow.status",
    "Retry": "lakefeed.errors",
    "Runtime": "lakefeed.flow.runtime",
    "RuntimeOptions": "lakefeed.flow.runtime_options",
    "Sqlite": "lakefeed.capture.trigger.source",
    "TableStatus": "lakefeed.flow.status",
    "spark_session": "lakefeed.lake.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lakefeed' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
