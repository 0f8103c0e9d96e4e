"""What Spark, Delta and the JVM bridge raise, as our own errors. The one place where their texts are known."""

from __future__ import annotations

from lakefeed.change.table import TableId
from lakefeed.errors import CommitFailedError, LakefeedError, RebuildNeededError, SparkSetupError, TableStoppedError

_DEAD_JVM = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "Java gateway process exited")
_SCHEMA = ("DELTA_FAILED_TO_MERGE_FIELDS", "DELTA_MERGE_INCOMPATIBLE", "_LEGACY_ERROR_TEMP_DELTA", "DELTA_SCHEMA")


_CONFLICTS = ("DELTA_CONCURRENT", "ConcurrentDelete", "ConcurrentAppend", "ConcurrentModification",
              "ValidationException", "CommitFailedException", "Cannot fast-forward")  # fmt: skip


INCOMPLETE = "LAKEFEED_INCOMPLETE_ROW"
"""Raised by our own SQL: a change did not carry all columns of a row that the table does not have."""

INCOMPLETE_COPY = "LAKEFEED_INCOMPLETE_COPY"
"""The same, of a change that happened while the table was copied: the copied rows cannot complete it."""

NO_SUCH_ROW = "LAKEFEED_NO_SUCH_ROW"
"""Raised by our own SQL: a delete whose row the table does not have."""


class ConcurrentModification(Exception):  # noqa: N818  # named as Delta's and Iceberg's own are
    """Somebody has committed since the step was planned: what was read may not be what is there."""


def is_conflict(error: BaseException) -> bool:
    """Has another commit come first, so that the same work, planned again, may well succeed?"""
    return isinstance(error, ConcurrentModification) or any(
        mark in f"{type(error).__name__}: {error}" for mark in _CONFLICTS
    )


def explained(error: BaseException, table: TableId) -> LakefeedError:
    """Our error for one that a commit raised. The caller has found that the commit did not happen."""
    if isinstance(error, LakefeedError):
        return error
    text = f"{type(error).__name__}: {error}"
    if INCOMPLETE in text:
        return TableStoppedError(
            f"table {table}: an update did not carry all columns of a row that the lake table does not have",
            remedy=f"Remove the lake table and start the pipeline again: {table} is then copied again.",
            table=str(table),
        )
    if INCOMPLETE_COPY in text:
        return RebuildNeededError(
            f"table {table}: the key of a row changed while the table was copied, and the source did not send all of "
            "the row's values along",
            table=str(table),
        )
    if NO_SUCH_ROW in text:
        return TableStoppedError(
            f"table {table}, which has no key: a row was deleted that the lake table does not have",
            remedy=f"Remove the lake table and start the pipeline again: {table} is then copied again.",
            table=str(table),
        )
    if any(mark in text for mark in _DEAD_JVM):
        return SparkSetupError("Spark's JVM is gone", remedy="Start the process again; nothing is lost.")
    if "AnalysisException" in text or any(mark in text for mark in _SCHEMA):
        return TableStoppedError(
            f"table {table}: {first_line(error)}",
            remedy="Somebody changed the lake table; undo that, or remove it and start the pipeline again.",
            table=str(table),
        )
    return CommitFailedError(f"table {table}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The sentence in an error that may be followed by pages of Java."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("An error occurred while calling", "at ", "Traceback"))]
    return (own or lines or [type(error).__name__])[0][:300]
