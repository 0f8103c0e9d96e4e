"""Spark SQL of masks, and Spark's analysis of a rule's expressions.

Lakefeed refuses an expression that does not parse, names a missing column, or could give another value when it is
evaluated again: after a restart Lakefeed may apply the same changes a second time, and must get the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakefeed.change.mask import HIDDEN, REDACTED, SHOWN
from lakefeed.change.table import TableSchema
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.error import first_line
from lakefeed.lake.spark.type import arrow_type, quoted, spark_type, text_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHANGING = ("Current", "Now", "LocalTimestamp", "Uuid", "PythonUD")
"""The prefixes of Spark's expression classes that depend on more than the row."""
_OUTSIDE = (r"current_\w+", "now", "localtimestamp", "curdate", "uuid", "user", "session_user")
"""Patterns of the same functions in the text of a plan."""
_ANALYZED, _OPTIMIZED = "== Analyzed Logical Plan ==", "== Optimized Logical Plan =="
_NESTED = ("ScalarSubquery", "Exists", "ListQuery", "InSubquery", "LateralSubquery")


@dataclass(frozen=True, slots=True)
class Analyzed:
    """Spark's analysis of an expression: its type, and the columns that it reads, by their names in the schema."""

    type: pa.DataType
    inputs: tuple[str, ...]


def mask_sql(name: str, kind: pa.DataType, mask: str, salt: str) -> str:
    """The SQL of a column under a mask. It gives the same values as ``change.mask.masked``."""
    column, secret = quoted(name), text_literal(salt)
    text = f"CAST({column} AS STRING)"
    hashed = f"sha2(concat({secret}, {text}), 256)"
    if mask == "hash":
        return hashed
    if mask == "tokenize":
        return f"left(sha2(concat({secret}, {hashed}), 256), 32)"
    if mask == "partial":
        shown = f"WHEN length({text}) > {HIDDEN} THEN concat(left({text}, {SHOWN}), '{REDACTED}')"
        return f"CASE {shown} WHEN {column} IS NOT NULL THEN '{REDACTED}' END"
    if mask == "redact":
        return f"CASE WHEN {column} IS NOT NULL THEN '{REDACTED}' END"
    return f"CAST(NULL AS {spark_type(kind)})"


def analyzed(session: SparkSession, schema: TableSchema, sql: str) -> Analyzed | str:
    """The analysis of an expression over a schema's columns; the end of a sentence if no rule can have it."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    own = pa.schema([pa.field(column.name, column.type) for column in schema.columns])
    empty = session.createDataFrame([], from_arrow_schema(own, prefer_timestamp_ntz=True))
    try:
        frame = empty.select(F.expr(sql).alias("value"))
        found = frame.schema.fields[0].dataType.simpleString()
    except ParseException as error:
        return f"does not parse: {first_line(error)}"
    except AnalysisException as error:
        listed = ", ".join(schema.names)
        return f"does not fit the table's columns ({listed}): {first_line(error)}"
    kind = arrow_type(found)
    if kind is None:
        return f"has the type {found}, which lake tables cannot store: CAST it"
    if not Driver(session).has_jvm:
        return _analyzed_by_trial(session, empty, kind, sql)
    plan: Any = frame._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() != "Project":
        return "is not about one row: it aggregates, or makes several rows"
    expression = plan.projectList().apply(0)
    if not expression.deterministic():
        return "gives another value each time it is evaluated"
    inputs: set[str] = set()
    lower = {name.lower(): name for name in schema.names}
    for node in _nodes(expression):
        kind_name = str(node.getClass().getSimpleName())
        if kind_name.startswith(_CHANGING) or kind_name in _NESTED:
            return f"depends on more than the row: {node.prettyName()}"
        if kind_name == "AttributeReference":
            inputs.add(lower[str(node.name()).lower()])
    return Analyzed(kind, tuple(name for name in schema.names if name in inputs))


def _analyzed_by_trial(session: SparkSession, empty: DataFrame, kind: pa.DataType, sql: str) -> Analyzed | str:
    """The same without a plan to inspect (Spark Connect): by what Spark refuses.

    Spark allows no aggregates, windows and generators in a condition, and nothing nondeterministic in an aggregate. An
    expression reads a column if Spark cannot resolve it without that column. Functions of the time or the user show in
    the text of the plan; so a literal with such a text is refused, too.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    def is_refused(frame: Callable[[], DataFrame]) -> bool:
        try:
            _ = frame().schema
        except AnalysisException:
            return True
        return False

    value = F.expr(sql)
    if is_refused(lambda: empty.where(value.isNotNull())):
        return "is not about one row: it aggregates, or makes several rows"
    if is_refused(lambda: empty.agg(F.count(value))):
        return "gives another value each time it is evaluated"
    session.conf.set("spark.sql.debug.maxToStringFields", str(2**31 - 1))  # for the whole text
    frame: Any = empty.select(value.alias("value"))
    text = frame._explain_string(mode="extended").partition(_ANALYZED)[2].partition(_OPTIMIZED)[0]
    functions = [row["function"] for row in session.sql("SHOW USER FUNCTIONS").collect()]
    own = [re.escape(name.rpartition(".")[2]) for name in functions]
    found = re.search(rf"(?i)\b(?:{'|'.join([*_OUTSIDE, *own])})\(|-subquery#|\b(?:exists|list)#", text)
    if found or not text:
        return f"depends on more than the row: {found[0].rstrip('(#') if found else 'Spark does not show its plan'}"
    names = [name for name in empty.columns if name.lower() in sql.lower()]
    inputs = [one for one in names if is_refused(lambda one=one: empty.drop(one).select(value))]  # type: ignore[misc]
    return Analyzed(kind, tuple(inputs))


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    children = expression.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
