"""Delta Lake tables: ``Delta`` is what a user writes."""

from lakefeed.lake.delta.format import Delta, DeltaFormat

__all__ = ["Delta", "DeltaFormat"]
