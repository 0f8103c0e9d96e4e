"""Reading a history table at one time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lakefeed.errors import ConfigError
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def as_of(
    df: DataFrame, timestamp: datetime | str | Column, valid_from: str = "valid_from", valid_to: str = "valid_to"
) -> DataFrame:
    """The rows of a temporal table that were valid at ``timestamp``, one for each key that existed then.

    A row is valid in [valid_from, valid_to): at the instant of a change, the new row is valid and the old one is not. A
    ``valid_to`` of NULL means for ever. A text is read in the session's time zone; a datetime must have a zone, because
    without one it would mean another instant on another machine. All columns are kept, no job is started.
    """
    from pyspark.sql import functions as F  # noqa: N812

    for name, value in (("valid_from", valid_from), ("valid_to", valid_to)):
        if value not in df.columns:
            raise ConfigError(
                f"the table has no column '{value}'; it has {', '.join(df.columns)}",
                remedy=f"Name the column with {name}=…; only tables of mode temporal have one.",
            )
    if isinstance(timestamp, datetime) and timestamp.tzinfo is None:
        raise ConfigError(
            f"the time {timestamp} has no zone", remedy="Give it one: datetime(…, tzinfo=UTC), or pass a text."
        )
    at = F.lit(timestamp).cast("timestamp")
    begins, ends = df[quoted(valid_from)], df[quoted(valid_to)]
    return df.where((begins <= at) & (ends.isNull() | (at < ends)))
