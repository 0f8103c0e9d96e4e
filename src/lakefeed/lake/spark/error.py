"""Turns the errors of Spark, Delta, Iceberg and the JVM bridge into ours: by class and error condition, not by text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakefeed.change.table import TableId
from lakefeed.errors import (
    CommitFailedError,
    LakefeedError,
    RebuildCause,
    RebuildNeededError,
    SparkSetupError,
    TableStoppedError,
    without_signature,
)

_CONFLICTS = frozenset(
    {
        "java.util.ConcurrentModificationException",  # the superclass of all of Delta's
        "org.apache.iceberg.exceptions.CommitFailedException",
        "org.apache.iceberg.exceptions.ValidationException",
    }
)
_ANALYSIS = "org.apache.spark.sql.AnalysisException"
_CONSTRAINT = "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException"
_VALUES = frozenset(
    f"org.apache.spark.Spark{kind}Exception" for kind in ("Arithmetic", "NumberFormat", "DateTime", "IllegalArgument")
)
"""Spark raises these if an expression cannot take a value. Only a rule's expressions can fail so."""
_REFUSALS = frozenset({_ANALYSIS, "java.lang.IllegalArgumentException", "java.lang.UnsupportedOperationException"})
"""The formats raise these if they refuse a property, or if a property forbids the operation."""
_METADATA = ("_delta_log/", "metadata/")
"""Where the formats keep the record of a table's files."""
_RAISED, _NO_JVM = "USER_RAISED_EXCEPTION", "JAVA_GATEWAY_EXITED"
_CONNECT = "pyspark.errors.exceptions.connect"
_NO_SESSION = ("INVALID_HANDLE.SESSION_", "INVALID_HANDLE.OPERATION_", "NO_ACTIVE_SESSION")

INCOMPLETE = "LAKEFEED_INCOMPLETE_ROW"
"""Our own SQL raises it: a change lacks columns of a row that the table does not have."""

INCOMPLETE_COPY = "LAKEFEED_INCOMPLETE_COPY"
"""The same for a change that happened during the table's copy: the copied rows cannot complete it."""

UNSENT = "LAKEFEED_UNSENT_VALUE"
"""Our own SQL raises it: a table's rule needs a value that the source did not send and the table does not have."""

NO_SUCH_ROW = "LAKEFEED_NO_SUCH_ROW"
"""Our own SQL raises it: a delete of a row that the table does not have."""


class ConcurrentModification(Exception):  # noqa: N818  # named as Delta's and Iceberg's own are
    """Somebody else has committed since the step was planned, so the table may differ from what was read."""


@dataclass(frozen=True, slots=True)
class Thrown:
    """One Java exception: its class and all superclasses, and the error condition if it is Spark's.

    ``raised`` is the text that our own SQL gave to ``raise_error``.
    """

    kinds: frozenset[str]
    condition: str = ""
    raised: str = ""
    message: str = ""


def thrown(error: BaseException) -> tuple[Thrown, ...]:
    """The Java exceptions behind an error, the outermost first; none if it is not the JVM's, or the JVM is gone.

    Spark Connect sends the innermost alone: its server unwraps what a job raised.
    """
    if (info := _connect_info(error)) is not None:
        parameters = json.loads(info.get("messageParameters") or "{}")
        condition = str(info.get("errorClass") or "")
        raised = str(parameters.get("errorMessage", "")) if condition == _RAISED else ""
        return (Thrown(frozenset(json.loads(info.get("classes") or "[]")), condition, raised),)
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return ()
    from py4j.protocol import Py4JError

    found: list[Thrown] = []
    with suppress(Py4JError, OSError):
        while java is not None:
            kinds, above = [], java.getClass()
            while above is not None:
                kinds.append(str(above.getName()))
                above = above.getSuperclass()
            condition, raised = "", ""
            with suppress(Py4JError):  # only Spark's exceptions have a condition
                condition = str(java.getCondition() or "")
                raised = str(java.getMessageParameters().get("errorMessage")) if condition == _RAISED else ""
            found.append(Thrown(frozenset(kinds), condition, raised, str(java.getMessage() or "")))
            java = java.getCause()
    return tuple(found)


def _connect_info(error: BaseException) -> Mapping[str, str] | None:
    """The details that a server of Spark Connect sends with an error; None for any other error."""
    call = _call_of(error)
    if call is None:
        return None
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    info = error_details_pb2.ErrorInfo()
    status = rpc_status.from_call(call)
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            return dict(info.metadata)
    return None


def _call_of(error: BaseException) -> Any:
    """The gRPC error of a call to Spark Connect, else None. Spark's client wraps it in its own, or lets it through."""
    call = error.__context__ if type(error).__module__ == _CONNECT else error
    return call if hasattr(call, "trailing_metadata") else None


def session_lost(error: BaseException) -> bool:
    """Does a server of Spark Connect answer, but not know the session (any more)? Then a new session may do."""
    return (_connect_info(error) or {}).get("errorClass", "").startswith(_NO_SESSION)


def server_lost(error: BaseException) -> CommitFailedError | None:
    """Our error if a server of Spark Connect does not answer, or does not know the session (any more); else None."""
    call = _call_of(error)
    if call is None:
        return None
    status = call.code()
    if session_lost(error):
        return CommitFailedError(
            "the Spark Connect server does not have the session any more: the server restarted, or the session was "
            "idle for too long (spark.connect.session.manager.defaultSessionTimeout)",
            remedy="With spark.remote in the configuration, do nothing: the next try makes a new session. In Python, "
            "give a function that makes one: Delta(lambda: SparkSession.builder.remote(…).create(), path).",
        )
    if status is not None and status.name == "UNAVAILABLE":
        return CommitFailedError(
            "the Spark Connect server does not answer",
            remedy="Start it, or correct spark.remote. Lakefeed tries again by itself; nothing is lost.",
        )
    return None


def is_conflict(error: BaseException) -> bool:
    """Did another commit come first, so that the same work may succeed if it is planned again?"""
    return isinstance(error, ConcurrentModification) or any(one.kinds & _CONFLICTS for one in thrown(error))


def explained(
    error: BaseException,
    table: TableId,
    source: TableId | None = None,
    properties: Sequence[tuple[str, str]] = (),
    location: str = "",
) -> LakefeedError:
    """Our error for one that a commit raised. The caller has found that the commit did not happen.

    ``source`` is the source table, if its name may differ from the lake table's. ``properties`` are the table's by its
    rule: the format may refuse one. ``location`` is the table's: the remedy names the file that the error is about.
    """
    if isinstance(error, LakefeedError):
        return error
    if (lost := server_lost(error)) is not None:
        return CommitFailedError(f"table {table}: {lost.message}", remedy=lost.remedy)
    if _is_of_dead_jvm(error):
        return SparkSetupError("Spark's JVM is gone", remedy="Start the process again; nothing is lost.")
    found = thrown(error)
    raised = {one.raised for one in found}
    if INCOMPLETE in raised:
        return TableStoppedError(
            f"table {table}: an update lacks columns of a row that the lake table does not have",
            remedy=f"Remove the lake table and start the pipeline again: {table} is then copied again.",
            table=str(table),
        )
    if INCOMPLETE_COPY in raised:
        return RebuildNeededError(
            f"table {table}: the key of a row changed during the table's copy, and the source did not send all of the "
            "row's values",
            table=str(table),
            cause=RebuildCause.COPY,
        )
    if UNSENT in raised:
        return TableStoppedError(
            f"table {table}: its rule needs a large value that an update did not send, and that the lake table does "
            "not have: the rule left the row out, or keeps only another form of the value",
            remedy=f"Have PostgreSQL send whole rows: ALTER TABLE {source or table} REPLICA IDENTITY FULL. Then copy "
            f"the table again: lakefeed rebuild FILE {table} --from-source.",
            table=str(table),
        )
    if NO_SUCH_ROW in raised:
        return TableStoppedError(
            f"table {table}, which has no key: the source deleted a row that the lake table does not have",
            remedy=f"Remove the lake table and start the pipeline again: {table} is then copied again.",
            table=str(table),
        )
    if location and not is_conflict(error) and (file := _file_of(location, found, str(error))) is not None:
        again = f"copy the table again: lakefeed rebuild FILE {table} --from-source."
        return CommitFailedError(
            f"table {table}: {first_line(error)}",
            remedy=f"{CommitFailedError.default_remedy} If the file {file} of the lake table is missing or damaged, "
            "restore it from a backup, and the table goes on by itself; or "
            + (copy_elsewhere(table, location) if file.startswith(_METADATA) else again),
        )
    if properties and any(one.kinds & _REFUSALS for one in found) and not any(one.kinds & _VALUES for one in found):
        listed = ", ".join(f"{name}: {value}" for name, value in properties)
        return TableStoppedError(
            f"table {table}: with the properties of its rule ({listed}) the table format says: {first_line(error)}",
            remedy=f"Correct or remove {' or '.join(name for name, _ in properties)} under properties in the rule for "
            f"{source or table} in lake.tables, then sync again. If none of them is the cause, somebody changed the "
            "lake table: undo that.",
            table=str(table),
        )
    if any(_ANALYSIS in one.kinds for one in found):
        return TableStoppedError(
            f"table {table}: {first_line(error)}",
            remedy="Somebody changed the lake table; undo that, or remove it and start the pipeline again.",
            table=str(table),
        )
    if any(one.kinds & _VALUES for one in found):
        return TableStoppedError(
            f"table {table}: an expression of its rule fails on a row: {first_line(error)}",
            remedy="Write it so that it takes every value, for example with try_cast or try_divide; then copy the "
            f"table again: lakefeed rebuild FILE {table} --from-source.",
            table=str(table),
        )
    if any(_CONSTRAINT in one.kinds for one in found):
        return TableStoppedError(
            f"table {table}: {first_line(error)}",
            remedy="The lake table has a constraint that rows of the source break. Drop the constraint, or correct the "
            "rows in the source; the table then goes on by itself.",
            table=str(table),
        )
    return CommitFailedError(f"table {table}: {first_line(error)}")


def copy_elsewhere(table: TableId, location: str) -> str:
    """The remedy for a table whose own record of its files is damaged: no copy can replace a table it cannot read."""
    how = f"mv {shlex.quote(location)} {shlex.quote(location + '.damaged')}"
    if not Path(location).is_dir():
        how = f"drop it in its catalog, or remove what is below {location}"
    return f"move the lake table away and start the pipeline again, which copies {table} again: {how}"


def _file_of(location: str, found: Sequence[Thrown], text: str) -> str | None:
    """The first file of the table at ``location`` that an error names, as a path below it."""
    below = re.compile(re.escape(location.rstrip("/")) + r"/([^\s'\"`,;:)\]]*\.[a-z]+)")
    return next((hit[1] for one in (*(one.message for one in found), text) if (hit := below.search(one))), None)


def _is_of_dead_jvm(error: BaseException) -> bool:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, (Py4JNetworkError, ConnectionRefusedError, ConnectionResetError)):
        return True
    condition = getattr(error, "getCondition", None)  # pyspark's own errors have one; the JVM's would call the JVM
    return condition is not None and not hasattr(error, "_origin") and condition() == _NO_JVM


def first_line(error: BaseException) -> str:
    """An error's first sentence, without the pages of Java that may follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("An error occurred while calling", "at ", "Traceback"))]
    return without_signature((own or lines or [type(error).__name__])[0])[:300]
