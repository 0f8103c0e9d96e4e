"""Replaces all rows of a Delta table by Spark without losing what its owner has set.

An overwrite drops clustering, and partitions that it does not name. Constraints stay, and need their columns. So
Lakefeed names the partitions. Where the table would lose the rest, it stops the table before it overwrites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.table import TableId
from lakefeed.errors import TableStoppedError
from lakefeed.lake.delta.feature import features_of
from lakefeed.lake.location import spark_path
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

_CONSTRAINT = "delta.constraints."


def refuse_loss(session: SparkSession, location: str, table: DeltaTable, columns: DataFrame, name: TableId) -> None:
    """TableStoppedError if an overwrite with these columns would lose something that the table's owner has set."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    sql_name = f"delta.{quoted(spark_path(location))}"
    partitions, lost = table.metadata().partition_columns, list[tuple[str, str]]()
    if set(partitions) - set(columns.columns):
        lost.append((f"is partitioned by {', '.join(partitions)}", f"Remove {location}"))
    if features_of(table).is_clustered:
        clustering = session.sql(f"DESCRIBE DETAIL {sql_name}").select("clusteringColumns").collect()[0][0] or []
        again = f"ALTER TABLE {sql_name} CLUSTER BY ({', '.join(map(quoted, clustering))})"
        statement = f"ALTER TABLE {sql_name} CLUSTER BY NONE; when the table is live again, {again}"
        lost += [(f"is clustered by {', '.join(clustering)}", statement)] if clustering else []
    for setting, condition in table.metadata().configuration.items():
        if not setting.startswith(_CONSTRAINT):
            continue
        try:
            _ = columns.where(F.expr(str(condition))).schema  # the schema makes Spark Connect analyze the plan now
        except AnalysisException:
            constraint = setting.removeprefix(_CONSTRAINT)
            statement = f"ALTER TABLE {sql_name} DROP CONSTRAINT {quoted(constraint)}"
            lost.append((f"has the constraint {constraint} ({condition})", statement))
    if lost:
        lacks = ", and ".join(what for what, _ in lost)
        raise TableStoppedError(
            f"table {name}: Lakefeed must rewrite all rows, and the lake table {lacks}, which it would lose",
            remedy=f"{'; '.join(statement for _, statement in lost)}. The pipeline goes on by itself after the first.",
            table=str(name),
        )


def overwriting(
    session: SparkSession,
    location: str,
    table: DeltaTable,
    rows: DataFrame,
    name: TableId,
    partitions: list[str] | None = None,
) -> DataFrameWriter:
    """A writer that replaces all rows and columns of the table by ``rows``: see the module.

    ``partitions`` are the configuration's; None keeps the table's own.
    """
    refuse_loss(session, location, table, rows, name)
    partitions = partitions if partitions is not None else table.metadata().partition_columns
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    return writer.partitionBy(*partitions) if partitions else writer
