"""Mirror: the changes of a window onto the table, so that it equals the source at the window's end. One commit.

A window with a truncate replaces the table's content by what came after it; any other is one MERGE. Both are
idempotent by the application transaction that the session carries (see ``stamp``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.bounds import bounded, key_bounds
from lakefeed.lake.collapse import FRESH, collapsed_window
from lakefeed.lake.location import spark_path
from lakefeed.lake.projection import CARRIED, incomplete_columns
from lakefeed.lake.sparktype import quoted, spark_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INCOMPLETE = "LAKEFEED_INCOMPLETE_ROW"
"""In the error of a change that did not carry all columns, for a row that the table does not have."""

_VIEW = "lakefeed_changes"


def apply_mirror(session: SparkSession, window: Window, path: str) -> None:
    """Bring the table at ``path``, which has the window's target schema, to the window's end."""
    changes = collapsed_window(session, window)
    changes.createOrReplaceTempView(_VIEW)
    if window.truncated_at is not None:
        session.sql(replace_statement(window)).write.format("delta").mode("overwrite").save(spark_path(path))
    else:
        session.sql(merge_statement(window, path))


def replace_statement(window: Window) -> str:
    """The whole content of a table after a truncate: what the changes since then amount to."""
    flags = _flags(window)
    values = ", ".join(f"{_whole(window, name, flags)} AS {quoted(name)}" for name in window.target.names)
    return f"SELECT {values} FROM {_VIEW} AS s WHERE s.{OP} <> {int(Operation.DELETE)}"  # noqa: S608  # names are quoted


def merge_statement(window: Window, path: str) -> str:
    flags = _flags(window)
    names = window.target.names
    key = window.target.key
    updates = ", ".join(f"t.{quoted(name)} = {_onto(window, name, flags)}" for name in names if name not in key)
    values = ", ".join(_whole(window, name, flags) for name in names)
    clauses = [
        f"MERGE INTO delta.{quoted(spark_path(path))} AS t USING {_VIEW} AS s ON {_condition(window)}",
        f"WHEN MATCHED AND s.{OP} = {int(Operation.DELETE)} THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {updates}" if updates else "",
        f"WHEN NOT MATCHED AND s.{OP} <> {int(Operation.DELETE)}",
        f"THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({values})",  # noqa: S608  # names are quoted
    ]
    return "\n".join(clause for clause in clauses if clause)


def _condition(window: Window) -> str:
    key = window.target.key
    # A key column that may be NULL (SQLite allows it) is compared so that NULL equals NULL.
    parts = [
        f"t.{quoted(name)} {'<=>' if window.target.column(name).nullable else '='} s.{quoted(name)}" for name in key
    ]
    bounds = key_bounds(window)
    if bounds is not None:
        parts.append(bounded("t", key[0], bounds))
    return " AND ".join(parts)


def _flags(window: Window) -> dict[str, str]:
    return {name: CARRIED + str(index) for index, name in enumerate(incomplete_columns(window))}


def _whole(window: Window, name: str, flags: dict[str, str]) -> str:
    """A column of a row that the table does not have: every column must have been carried."""
    value = f"s.{quoted(name)}"
    if name not in flags:
        return value
    return f"CASE WHEN s.{flags[name]} THEN {value} ELSE {_refusal(window, name)} END"


def _onto(window: Window, name: str, flags: dict[str, str]) -> str:
    """A column of a row that the table has: what was not carried keeps the table's value."""
    value = f"s.{quoted(name)}"
    if name not in flags:
        return value
    kept = f"CASE WHEN s.{FRESH} THEN {_refusal(window, name)} ELSE t.{quoted(name)} END"
    return f"CASE WHEN s.{flags[name]} THEN {value} ELSE {kept} END"


def _refusal(window: Window, name: str) -> str:
    kind = spark_type(window.target.column(name).type)
    return f"CAST(raise_error('{INCOMPLETE}') AS {kind})"
