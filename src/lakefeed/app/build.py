"""The composition root: from a configuration to a pipeline. The only place that knows every implementation.

Registries are plain dicts; what stands behind a name is imported when the name is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lakefeed.app.config import Config, EvolutionConfig, LakeConfig, PostgresSource, SourceConfig, SqliteSource
from lakefeed.errors import ConfigError
from lakefeed.lake.mode import mode_named
from lakefeed.lake.route import Rule
from lakefeed.lake.schema.policy import Evolution

if TYPE_CHECKING:
    from lakefeed.capture.base import Source
    from lakefeed.capture.poll.rule import TableRule
    from lakefeed.flow.listener import Listener
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.iceberg import Iceberg


def _sqlite_trigger(config: SqliteSource) -> Source:
    from lakefeed.capture.sqlite.source import Sqlite

    return Sqlite(config.path, tables=tuple(config.tables), before_images=config.before_images)


def _sqlite_poll(config: SqliteSource) -> Source:
    from lakefeed.capture.poll.source import SqlitePolling
    from lakefeed.capture.poll.stream import Pace

    return SqlitePolling(
        config.path, tables=tuple(config.tables), rules=poll_rules(config), pace=Pace(poll_seconds=config.poll_seconds)
    )


def _postgres_poll(config: PostgresSource) -> Source:
    _need_psycopg()
    from lakefeed.capture.poll.source import PostgresPolling
    from lakefeed.capture.poll.stream import Pace

    return PostgresPolling(
        config.dsn,
        tables=tuple(config.tables),
        rules=poll_rules(config),
        pace=Pace(poll_seconds=config.poll_seconds),
        text_columns=tuple(config.text_columns),
    )


def poll_rules(config: SqliteSource | PostgresSource) -> dict[str, TableRule]:
    """What ``source.rules`` says. ConfigError for two ways to find deletes at once."""
    from lakefeed.capture.poll.rule import FullDiff, NullPolicy, SoftDelete, TableRule

    found = {}
    for pattern, rule in config.rules.items():
        if rule.soft_delete is not None and rule.full_diff is not None:
            raise ConfigError(
                f"source.rules.{pattern} has soft_delete and full_diff, which are two ways to find deletes",
                remedy="Choose one; `lakefeed diff` compares tables with soft_delete, too, when it is run by hand.",
            )
        soft = SoftDelete(rule.soft_delete) if rule.soft_delete is not None else None
        deletes = FullDiff(**rule.full_diff.model_dump()) if rule.full_diff is not None else soft
        given = rule.model_dump(exclude={"soft_delete", "full_diff", "null_updated_at"})
        found[pattern] = TableRule(**given, deletes=deletes, null_updated_at=NullPolicy(rule.null_updated_at))
    return found


def _postgres_log(config: PostgresSource) -> Source:
    _need_psycopg()
    from lakefeed.capture.postgres.source import Postgres

    return Postgres(
        config.dsn, tables=config.tables, text_columns=config.text_columns, provision=config.provision,
        before_images=config.before_images, capture=config.capture,
    )  # fmt: skip


def _need_psycopg() -> None:
    try:
        import psycopg  # noqa: F401  # whether it is there
    except ImportError as error:
        raise ConfigError(
            f"source.kind: postgres needs the driver psycopg, which is not installed ({error})",
            remedy="pip install 'lakefeed[postgres]'",
        ) from error


def _delta(config: LakeConfig) -> Delta:
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.spark.session import spark_session

    for key in ("catalog", "namespace"):
        if key in config.model_fields_set:
            raise ConfigError(f"lake.{key} is for Iceberg tables", remedy="Set lake.format: iceberg, or remove it.")
    return Delta(
        spark_session,
        config.path,
        mode=mode_named(config.mode, config.options),
        rules=rules(config),
        evolution=evolution(config.evolution),
        deletion_vectors=config.deletion_vectors,
    )


def _iceberg(config: LakeConfig) -> Iceberg:
    from lakefeed.lake.iceberg import Iceberg
    from lakefeed.lake.spark.session import spark_session

    if "deletion_vectors" in config.model_fields_set:
        raise ConfigError(
            "lake.deletion_vectors is for Delta tables", remedy="Remove it: Iceberg tables always mark deleted rows."
        )
    return Iceberg(
        partial(spark_session, formats=("iceberg",)),
        config.path,
        mode=mode_named(config.mode, config.options),
        rules=rules(config),
        evolution=evolution(config.evolution),
        catalog=config.catalog,
        namespace=config.namespace,
    )


def rules(config: LakeConfig) -> list[Rule]:
    """What ``lake.tables`` says. ConfigError for an option that a mode does not have."""
    lake = evolution(config.evolution)
    return [
        Rule(
            table.match,
            mode_named(table.mode, table.options),
            table.name,
            evolution(table.evolution, lake) if table.evolution else None,
        )
        for table in config.tables
    ]


def evolution(config: EvolutionConfig, otherwise: Evolution | None = None) -> Evolution:
    """The choices that are given, on top of those ``otherwise``."""
    return (otherwise or Evolution()).with_choices(config.model_dump(exclude_none=True))


SOURCES: dict[tuple[str, str], Callable[..., Source]] = {
    ("sqlite", "trigger"): _sqlite_trigger,
    ("sqlite", "poll"): _sqlite_poll,
    ("postgres", "log"): _postgres_log,
    ("postgres", "poll"): _postgres_poll,
}
"""By kind and capture."""

LAKES: dict[str, Callable[[LakeConfig], Delta | Iceberg]] = {"delta": _delta, "iceberg": _iceberg}
"""By format."""


_ONLY_FOR = {"rules": ("poll",), "poll_seconds": ("poll",), "provision": ("log",), "before_images": ("trigger", "log")}
"""Keys of a source that some ways to capture have and the others do not."""


def _refuse_misplaced(config: SourceConfig) -> None:
    """A key that would have no effect is a mistake: its reader thinks that it has one."""
    for key, captures in _ONLY_FOR.items():
        if key in config.model_fields_set and config.capture not in captures:
            capture = next(one for one in captures if (config.kind, one) in SOURCES)
            raise ConfigError(
                f"source.{key} is for capture: {capture}, and capture is {config.capture}",
                remedy=f"Set source.capture: {capture}, or remove {key}.",
            )


def build_lake(config: LakeConfig) -> Delta | Iceberg:
    """The lake of a configuration. Spark has not been touched."""
    return LAKES[config.format](config)


def build_pipeline(config: Config, *, listener: Listener | None = None) -> Pipeline:
    """A pipeline, not yet opened: neither the source nor Spark has been touched."""
    from lakefeed.flow.options import PipelineOptions
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.journal.options import JournalOptions
    from lakefeed.lake.maintenance import MaintenanceOptions

    _refuse_misplaced(config.source)
    source = SOURCES[config.source.kind, config.source.capture](config.source)
    lake = build_lake(config.lake)
    options = PipelineOptions(
        interval_seconds=config.sync.interval_seconds,
        max_backlog_bytes=config.journal.max_backlog_bytes,
        journal=JournalOptions(keep_change_sets=config.journal.keep_change_sets),
        maintenance_seconds=config.maintenance.every_seconds,
        maintenance=MaintenanceOptions(
            file_bytes=config.maintenance.file_megabytes << 20,
            keep_hours=config.maintenance.keep_hours,
            keep_versions=config.maintenance.keep_versions,
            cluster=config.maintenance.cluster,
        ),
    )
    return Pipeline(source, lake, name=config.pipeline, options=options, listener=listener)
