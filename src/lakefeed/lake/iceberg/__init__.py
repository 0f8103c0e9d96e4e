"""Apache Iceberg tables: ``Iceberg`` is what a user writes."""

from lakefeed.lake.iceberg.format import Iceberg, IcebergFormat

__all__ = ["Iceberg", "IcebergFormat"]
