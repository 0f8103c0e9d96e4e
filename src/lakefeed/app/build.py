"""The composition root: builds a pipeline from a configuration.

Registries are plain dicts; this module imports what a name stands for when it uses the name. Sources come from
``capture.registry``, table formats from LAKES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from lakefeed.app.config import Config, EvolutionConfig, LakeConfig, SparkConfig, UnionConfig
from lakefeed.errors import ConfigError
from lakefeed.lake.layout import Layout
from lakefeed.lake.mode import mode_named
from lakefeed.lake.route import Origin, Rule
from lakefeed.lake.rule.rows import RowOptions
from lakefeed.lake.schema.policy import Evolution

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lakefeed.capture.base import Source
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.flow.report.listener import Listener
    from lakefeed.lake.delta import Delta
    from lakefeed.lake.iceberg import Iceberg
    from lakefeed.verify.live import LiveOptions
    from lakefeed.verify.pipeline import PipelineVerification

    Session = SparkSession | Callable[[], SparkSession]
    Announce = Callable[[str], None]

START = "Starting Spark …"
FIRST_START = "Starting Spark … It downloads the jars of the table format first, which can take a minute."


def delta(whole: Config, spark: Session) -> Delta:
    from lakefeed.lake.delta import Delta

    config = whole.lake
    for key in ("catalog", "namespace"):
        if key in config.model_fields_set:
            raise ConfigError(f"lake.{key} is for Iceberg tables", remedy="Set lake.format: iceberg, or remove it.")
    return Delta(
        spark,
        config.path,
        mode=mode_named(config.mode, config.options),
        rules=rules(config, whole.source.database),
        evolution=evolution(config.evolution),
        out_of_range=config.out_of_range_rule,
        naming=config.naming,
        salt=config.salt,
        deletion_vectors=config.deletion_vectors,
        storage_options=whole.storage.to_options(),
    )


def iceberg(whole: Config, spark: Session) -> Iceberg:
    from lakefeed.lake.iceberg import Iceberg

    config = whole.lake
    if "deletion_vectors" in config.model_fields_set:
        raise ConfigError(
            "lake.deletion_vectors is for Delta tables", remedy="Remove it: Iceberg tables always mark deleted rows."
        )
    return Iceberg(
        spark,
        config.path,
        mode=mode_named(config.mode, config.options),
        rules=rules(config, whole.source.database),
        evolution=evolution(config.evolution),
        out_of_range=config.out_of_range_rule,
        naming=config.naming,
        salt=config.salt,
        catalog=config.catalog,
        namespace=config.namespace,
        storage_options=whole.storage.to_options(),
    )


LAKES: dict[str, Callable[[Config, Session], Delta | Iceberg]] = {
    "delta": delta,
    "iceberg": iceberg,
}
"""The functions that build a lake, by ``lake.format``."""


def session_of(config: Config, announce: Announce | None = None) -> Callable[[], SparkSession]:
    """A function that gives the Spark session of a configuration, to call at the first use. ConfigError for settings
    that cannot work.

    It calls ``announce`` before Spark starts, which takes seconds, and a minute if Spark has to download jars.
    """
    spark = config.spark
    if spark.remote is not None:
        return _connecting(spark.remote, config)

    def session() -> SparkSession:
        from pyspark import SparkContext

        from lakefeed.lake.spark.jars import coordinates_of, remembered_jars
        from lakefeed.lake.spark.session import spark_session

        formats, wanted = (config.lake.format,), stores(config)
        if announce is not None and SparkContext._active_spark_context is None:
            is_first = spark.packages and not remembered_jars(coordinates_of(formats, wanted))
            announce(FIRST_START if is_first else START)
        return spark_session(
            spark.app_name,
            master=spark.master,
            settings=spark.conf,
            formats=formats,
            stores=wanted,
            packages=spark.packages,
        )

    return session


def _connecting(remote: str, config: Config) -> Callable[[], SparkSession]:
    """A function that gives a session of a Spark Connect server. ConfigError for keys that only the server can set."""
    from lakefeed.lake.iceberg.catalog import WITHOUT_CONNECT, IcebergCatalog
    from lakefeed.lake.location import lake_root
    from lakefeed.lake.spark.session import connecting

    if config.lake.format == "iceberg":
        lake = config.lake
        catalog = IcebergCatalog.of(lake.catalog, lake_root(lake.path), lake.namespace)
        if catalog.needs_java:
            raise ConfigError(f"spark.remote: {catalog.on_connect}", remedy=WITHOUT_CONNECT)
    if others := sorted(config.spark.model_fields_set & {"master", "app_name", "packages"}):
        named = " and ".join(f"spark.{key}" for key in others)
        raise ConfigError(
            f"{named} cannot be set beside spark.remote: the server has its own",
            remedy=f"Remove {named}, or remove spark.remote.",
        )
    if not remote.startswith("sc://"):
        raise ConfigError(
            "spark.remote is not the address of a Spark Connect server",
            remedy="Write sc://host:15002, or set spark.master for a cluster's own address.",
        )
    return connecting(remote, config.spark.conf, (config.lake.format,))


def stores(config: Config) -> tuple[str, ...]:
    """The object stores that Spark must reach: the tables', and the journal's, if a cluster's workers read it."""
    from lakefeed.lake.location import stores_of

    is_cluster = config.spark.master is not None and not config.spark.master.startswith("local")
    journal = stores_of(config.journal.path or "") if is_cluster else ()
    return tuple(sorted({*stores_of(config.lake.path), *journal}))


def shared_session(configs: Mapping[Path, Config]) -> Callable[[], SparkSession]:
    """A function that gives the one session of several configurations. ConfigError if they want different ones."""
    from lakefeed.lake.spark.session import spark_session

    spark = next((config.spark for config in configs.values()), SparkConfig())
    for file, config in configs.items():
        if config.spark != spark:
            raise ConfigError(
                f"{file.name} has another section spark than {next(iter(configs)).name}, but all pipelines of one "
                "process share one session",
                remedy="Write the same section into all of them, or run each in a process of its own.",
            )
        session_of(config)  # raises ConfigError for settings that cannot work
    if spark.remote is not None:
        return session_of(next(iter(configs.values())))
    return partial(
        spark_session,
        spark.app_name,
        master=spark.master,
        settings={"spark.scheduler.mode": "FAIR", **spark.conf},
        formats=tuple(sorted({config.lake.format for config in configs.values()})) or ("delta",),
        stores=tuple(sorted({one for config in configs.values() for one in stores(config)})),
        packages=spark.packages,
    )


def rules(config: LakeConfig, database: str | None = None) -> list[Rule]:
    """``lake.tables`` as the library's values. ConfigError for an option that a mode does not have.

    ``database`` replaces ``{database}`` in names.
    """
    lake = evolution(config.evolution)
    return [
        Rule(
            table.match,
            mode_named(table.mode or config.mode, table.options) if table.mode or table.options else None,
            _filled(table.name, database),
            evolution(table.evolution, lake) if table.evolution else None,
            tuple(table.columns),
            types=table.types,
            out_of_range=table.out_of_range_rules,
            keyless=table.keyless,
            namespace=_filled(table.namespace, database),
            only=table.only,
            union=_origin(table.union, database),
            rows=RowOptions(
                where=table.where,
                transform=table.transform or None,
                # YAML's own null means the mask ``null``.
                mask={column: kind or "null" for column, kind in table.mask.items()} or None,
                rename=table.rename or None,
                naming=table.naming,
                sensitive=table.sensitive,
                has_secrets=table.has_secrets,
            ),
            layout=Layout(
                partition_by=None if table.partition_by is None else tuple(table.partition_by),
                cluster_by=None if table.cluster_by is None else tuple(table.cluster_by),
                properties=tuple(table.properties.items()),
                file_bytes=table.file_megabytes << 20 if table.file_megabytes else None,
            ),
        )
        for table in config.tables
    ]


def _origin(union: bool | UnionConfig, database: str | None) -> Origin | None:
    if isinstance(union, UnionConfig):
        return Origin(union.column, _filled(union.value, database) or union.value)
    return Origin() if union else None


def _filled(text: str | None, database: str | None) -> str | None:
    if text is None or "{database}" not in text:
        return text
    if database is None:
        raise ConfigError(
            f"lake.tables: '{text}' has {{database}} in it, but this source does not name its database",
            remedy="Write the name itself instead of {database}.",
        )
    return text.replace("{database}", database)


def evolution(config: EvolutionConfig, otherwise: Evolution | None = None) -> Evolution:
    """The configuration's choices, on top of those of ``otherwise``."""
    return (otherwise or Evolution()).with_choices(config.model_dump(exclude_none=True))


def build_source(config: Config) -> Source:
    """The source of a configuration, not connected yet. ConfigError for keys that its capture does not have."""
    config.source.require_fitting_keys()
    return config.source.source()


def build_lake(config: Config, spark: Session | None = None, announce: Announce | None = None) -> Delta | Iceberg:
    """The lake of a configuration. Starts no Spark; ``spark`` is a session to use instead of a new one."""
    return LAKES[config.lake.format](config, spark or session_of(config, announce))


def build_pipeline(
    config: Config,
    *,
    spark: Session | None = None,
    listener: Listener | None = None,
    announce: Announce | None = None,
) -> Pipeline:
    """A pipeline that has not connected to its source nor started Spark yet. ``announce``: see ``session_of``."""
    from lakefeed.flow.options import PipelineOptions
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.journal.options import JournalOptions
    from lakefeed.lake.maintenance import MaintenanceOptions

    options = PipelineOptions(
        interval_seconds=config.sync.interval_seconds,
        warm_up=config.sync.warm_up,
        hang_seconds=config.sync.hang_seconds,
        max_backlog_bytes=config.journal.max_backlog_bytes,
        journal=JournalOptions(
            keep_change_sets=config.journal.keep_change_sets,
            keep_seconds=config.journal.keep_seconds,
            lease_seconds=config.journal.lease_seconds,
        ),
        maintenance_seconds=config.maintenance.every_seconds,
        maintenance=MaintenanceOptions(
            file_bytes=config.maintenance.file_megabytes << 20,
            keep_hours=config.maintenance.keep_hours,
            keep_versions=config.maintenance.keep_versions,
            cluster=config.maintenance.cluster,
        ),
    )
    pipeline = Pipeline(
        build_source(config),
        build_lake(config, spark, announce),
        name=config.pipeline,
        options=options,
        listener=listener,
        journal=config.journal.path,
        storage_options=config.storage.to_options(),
    )
    pipeline.file = None  # the commands put the file's name into whatever they print
    return pipeline


def build_verification(
    config: Config, sync: str, *, spark: SparkSession | None = None, options: LiveOptions | None = None
) -> PipelineVerification:
    """The verification that ``lakefeed verify`` runs. ``sync`` is the command that its remedies name."""
    from lakefeed.verify.live import LiveOptions
    from lakefeed.verify.pipeline import PipelineVerification

    return PipelineVerification(
        name=config.pipeline,
        state=config.state(),
        storage_options=config.storage.to_options(),
        capture=build_source(config).bind(config.pipeline),
        source=config.source,
        lake=build_lake(config, spark),
        sync=sync,
        session=(lambda: spark) if spark is not None else session_of(config),
        options=options or LiveOptions(),
    )


@contextmanager
def verified_meanwhile(config: Config, sync: str) -> Iterator[None]:
    """While the block lasts, compare the tables of a pipeline of this process, as the section ``verify`` says."""
    from lakefeed.verify.background import BackgroundVerification
    from lakefeed.verify.live import LiveOptions

    if not config.verify.every_seconds:
        yield
        return
    options = LiveOptions(max_rate=config.verify.max_rate)
    with BackgroundVerification(build_verification(config, sync, options=options), config.verify.every_seconds):
        yield
