"""Lakefeed keeps lakehouse tables equal to operational databases.

What is named here is the public surface; everything else may change between versions.
"""

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
