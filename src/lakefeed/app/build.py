"""The composition root: from a configuration to a pipeline. The only place that knows every implementation.

Registries are plain dicts; what stands behind a name is imported when the name is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakefeed.app.config import Config, LakeConfig, SourceConfig

if TYPE_CHECKING:
    from lakefeed.capture.base import Source
    from lakefeed.flow.listener import Listener
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.lake.base import Lake


def _sqlite_trigger(config: SourceConfig) -> Source:
    from lakefeed.capture.trigger.source import Sqlite

    return Sqlite(config.path, tables=tuple(config.tables))


def _delta_mirror(config: LakeConfig) -> Lake:
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.session import spark_session

    return Delta(spark_session, config.path)


SOURCES: dict[tuple[str, str], Callable[[SourceConfig], Source]] = {("sqlite", "trigger"): _sqlite_trigger}
"""By kind and capture."""

LAKES: dict[tuple[str, str], Callable[[LakeConfig], Lake]] = {("delta", "mirror"): _delta_mirror}
"""By format and mode."""


def build_pipeline(config: Config, *, listener: Listener | None = None) -> Pipeline:
    """A pipeline, not yet opened: neither the source nor Spark has been touched."""
    from lakefeed.flow.options import PipelineOptions
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.journal.options import JournalOptions

    source = SOURCES[config.source.kind, config.source.capture](config.source)
    lake = LAKES[config.lake.format, config.lake.mode](config.lake)
    options = PipelineOptions(
        interval_seconds=config.sync.interval_seconds,
        max_backlog_bytes=config.journal.max_backlog_bytes,
        journal=JournalOptions(keep_change_sets=config.journal.keep_change_sets),
    )
    return Pipeline(source, lake, name=config.pipeline, options=options, listener=listener)
