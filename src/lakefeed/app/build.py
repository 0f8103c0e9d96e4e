"""The composition root: from a configuration to a pipeline.

Registries are plain dicts; what stands behind a name is imported when the name is used. Sources come from
``capture.registry``, table formats from LAKES.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lakefeed.app.config import Config, EvolutionConfig, LakeConfig
from lakefeed.errors import ConfigError
from lakefeed.lake.mode import mode_named
from lakefeed.lake.route import Rule
from lakefeed.lake.schema.policy import Evolution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.capture.base import Source
    from lakefeed.flow.listener import Listener
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.iceberg import Iceberg
    from lakefeed.verify.pipeline import PipelineVerification


def delta(config: LakeConfig, spark: SparkSession | None = None) -> Delta:
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.spark.session import spark_session

    for key in ("catalog", "namespace"):
        if key in config.model_fields_set:
            raise ConfigError(f"lake.{key} is for Iceberg tables", remedy="Set lake.format: iceberg, or remove it.")
    return Delta(
        spark or spark_session,
        config.path,
        mode=mode_named(config.mode, config.options),
        rules=rules(config),
        evolution=evolution(config.evolution),
        deletion_vectors=config.deletion_vectors,
    )


def iceberg(config: LakeConfig, spark: SparkSession | None = None) -> Iceberg:
    from lakefeed.lake.iceberg import Iceberg
    from lakefeed.lake.spark.session import spark_session

    if "deletion_vectors" in config.model_fields_set:
        raise ConfigError(
            "lake.deletion_vectors is for Delta tables", remedy="Remove it: Iceberg tables always mark deleted rows."
        )
    return Iceberg(
        spark or partial(spark_session, formats=("iceberg",)),
        config.path,
        mode=mode_named(config.mode, config.options),
        rules=rules(config),
        evolution=evolution(config.evolution),
        catalog=config.catalog,
        namespace=config.namespace,
    )


LAKES: dict[str, Callable[[LakeConfig, SparkSession | None], Delta | Iceberg]] = {"delta": delta, "iceberg": iceberg}
"""By ``lake.format``."""


def rules(config: LakeConfig) -> list[Rule]:
    """``lake.tables`` as the library's values. ConfigError for an option that a mode does not have."""
    lake = evolution(config.evolution)
    return [
        Rule(
            table.match,
            mode_named(table.mode or config.mode, table.options) if table.mode or table.options else None,
            table.name,
            evolution(table.evolution, lake) if table.evolution else None,
            tuple(table.columns),
        )
        for table in config.tables
    ]


def evolution(config: EvolutionConfig, otherwise: Evolution | None = None) -> Evolution:
    """The choices that are given, on top of those of ``otherwise``."""
    return (otherwise or Evolution()).with_choices(config.model_dump(exclude_none=True))


def build_source(config: Config) -> Source:
    """The source of a configuration, not connected. ConfigError for keys that its capture does not have."""
    config.source.require_fitting_keys()
    return config.source.source()


def build_lake(config: LakeConfig, spark: SparkSession | None = None) -> Delta | Iceberg:
    """The lake of a configuration. Starts no Spark; ``spark`` is a session to use instead of one of its own."""
    return LAKES[config.format](config, spark)


def build_pipeline(config: Config, *, spark: SparkSession | None = None, listener: Listener | None = None) -> Pipeline:
    """A pipeline, not yet opened: it has connected to no source and started no Spark."""
    from lakefeed.flow.options import PipelineOptions
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.journal.options import JournalOptions
    from lakefeed.lake.maintenance import MaintenanceOptions

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
    source, lake = build_source(config), build_lake(config.lake, spark)
    return Pipeline(source, lake, name=config.pipeline, options=options, listener=listener)


def build_verification(config: Config, sync: str) -> PipelineVerification:
    """What ``lakefeed verify`` runs. ``sync`` is the command that its remedies name."""
    from lakefeed.verify.pipeline import PipelineVerification

    return PipelineVerification(
        name=config.pipeline,
        state=config.state_path,
        capture=build_source(config).bind(config.pipeline),
        source=config.source,
        lake=build_lake(config.lake),
        sync=sync,
    )
