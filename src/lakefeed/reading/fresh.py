"""Tables as fresh as the journal, and all tables of a lake at one moment of the source: see ``moment``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.table import TableId
from lakefeed.journal.pin import Pin
from lakefeed.reading.moment import AnyLake, Moment, ReadLake, pipeline_place, root_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def current(spark: SparkSession, lake: AnyLake, table: str, *, journal: str | Path | None = None) -> DataFrame:
    """A lake table with everything that the journal has for it, merged or not: the source as last captured.

    ``lake`` is the lake's path or the lake itself, as in ``read_at``; ``journal`` is the configuration's
    ``journal.path``, if it has one. No row passes through Python, nothing is written. LakeError if the journal no
    longer has the changes that the table lacks, or if one of them stops the table.
    """
    place, name = ReadLake.of(spark, lake, journal), TableId.parse(table)
    pipeline = place.pipeline_of(name)
    return pipeline.at(name, pipeline.journal.head)


def snapshot(
    spark: SparkSession,
    lake: AnyLake,
    at: Moment = None,
    *,
    pipeline: str | None = None,
    journal: str | Path | None = None,
) -> dict[str, DataFrame]:
    """Every table of a pipeline at one change set, by ``schema.table``: what one transaction of the source changed in
    several tables is visible in all of them, or in none.

    ``at``: None for the newest change set, a number, a position (the last change set that ends at or before it), or a
    time (the last one that has nothing from after that time of the source's clock). ``pipeline`` is needed if the lake
    has several, ``journal`` if the configuration has a ``journal.path``. LakeError with the reason if a table cannot be
    read at that moment: it was copied later, or the version or the changes are gone.
    """
    chosen = ReadLake.of(spark, lake, journal).pipeline(pipeline)
    number = chosen.change_set(at)
    return {str(table): chosen.at(table, number) for table in chosen.tables()}


def register_views(
    spark: SparkSession,
    lake: AnyLake,
    at: Moment = None,
    *,
    pipeline: str | None = None,
    journal: str | Path | None = None,
) -> tuple[str, ...]:
    """``snapshot`` as temporary views of the session, named ``schema_table``. Returns their names.

    A view shows the moment of this call. Call it again for a later one.
    """
    names = []
    for table, rows in snapshot(spark, lake, at, pipeline=pipeline, journal=journal).items():
        name = table.replace(".", "_")
        rows.createOrReplaceTempView(f"`{name}`")
        names.append(name)
    return tuple(names)


def pin(lake: AnyLake, seconds: float, *, pipeline: str | None = None, journal: str | Path | None = None) -> Pin:
    """Keep everything that can be read from a lake now, for ``seconds`` or until the pin is released.

        with lakefeed.pin("lake", seconds=600):
            tables = lakefeed.snapshot(spark, "lake")
            …  # every moment that the journal has can be read until here

    Meanwhile the pipeline trims no change set, and its maintenance removes no version of a table. A pin that nobody
    releases expires by itself, after a week at most. ``pipeline`` is needed if the lake has several.
    """
    return Pin.make(pipeline_place(str(journal or root_of(lake)), pipeline)[1], seconds)
