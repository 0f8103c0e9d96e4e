"""The format ``lakefeed`` for ``spark.read`` and ``spark.readStream``: changes of one table, from the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lakefeed.change.table import TableSchema
from lakefeed.errors import ConfigError
from lakefeed.reading.batch import ChangeReader, last_wanted
from lakefeed.reading.feed import TableFeed
from lakefeed.reading.options import ReadOptions, remedy_in_text
from lakefeed.reading.shape import spark_shape
from lakefeed.reading.stream import ChangeStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_source(spark: SparkSession) -> None:
    """Make the format ``lakefeed`` known to a Spark session, for ``spark.read`` and ``spark.readStream``.

    Call it once per session; calling it again does no harm. The workers' Python must have lakefeed installed.
    """
    spark.dataSource.register(LakefeedSource)


@dataclass(frozen=True, slots=True)
class Pin:
    """What was found when the DataFrame was made: it shows the same rows however often it is read."""

    target: TableSchema
    upto: int


class LakefeedSource(DataSource):
    """Spark calls ``schema`` once, pickles this object, and calls the rest in other processes, together with the
    pin."""

    _pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        return "lakefeed"

    def schema(self) -> StructType:
        with remedy_in_text():
            return spark_shape(self._pinned(ReadOptions.parse(self.options)).target)

    def reader(self, schema: StructType) -> ChangeReader:
        with remedy_in_text():
            options = ReadOptions.parse(self.options).for_batch()
            pin = self._pinned(options)
            _refuse_other(schema, pin.target)
            return ChangeReader(options, pin.target, pin.upto)

    def streamReader(self, schema: StructType) -> ChangeStream:  # noqa: N802
        with remedy_in_text():
            options = ReadOptions.parse(self.options).for_stream()
            pin = self._pinned(options)
            _refuse_other(schema, pin.target)
            return ChangeStream(options, pin.target)

    def _pinned(self, options: ReadOptions) -> Pin:
        if self._pin is None:
            feed = TableFeed.open(options)
            upto = last_wanted(options, feed)
            self._pin = Pin(feed.schema_at(upto), upto)
        return self._pin


def _refuse_other(schema: StructType, target: TableSchema) -> None:
    """A schema given by hand must be the table's own: any other meaning would be a guess."""
    own = spark_shape(target)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in own]:
        raise ConfigError(
            f"table {target.table} is not read with the schema {schema.simpleString()}",
            remedy=f"Leave .schema(…) out and select columns; the table's is {own.simpleString()}.",
        )
