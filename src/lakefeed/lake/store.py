"""The seam between modes and formats: a mode makes a Step of a window, a TableStore commits it.

A new table format is a folder with a TableStore, a TableFormat and a Lake, and one line in ``formats``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitFailedError, LakeError
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.layout import Difference, Layout
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.schema.projection import lineage
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.window import KeyBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

    from lakefeed.lake.mode.base import CurrentRows, Mode

BROADCAST_ROWS = 1_000_000
"""Of keys, up to which they are sent to every task that reads the table's rows."""

_MATCHED = "_lakefeed_matched"


@dataclass(frozen=True, slots=True)
class AppendRows:
    """Add rows; touch none that are there."""

    rows: DataFrame


@dataclass(frozen=True, slots=True)
class ReplaceRows:
    """These rows are the table's whole content from now on. They may be made of the table's own rows."""

    rows: DataFrame


@dataclass(frozen=True, slots=True)
class Replaceable:
    """Some files of a table at one version of it."""

    version: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewriteRows:
    """These rows stand for those of ``old``, and are made of them; the table's other files stay."""

    rows: DataFrame
    old: Replaceable


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRows:
    """A merge of ``rows``, called ``s``, into the table, called ``t``; everything else is Spark SQL.

    A row of the table that matches (``condition``) goes if ``deletes`` holds, else it gets the ``updates``; it matches
    one row of ``rows`` at most. A row of ``rows`` that matches none is inserted as ``inserts`` if ``inserts_if`` holds.
    ``replaces``: what matches may as well go, and every row of ``rows`` be inserted if ``inserts_if`` holds. ``count``
    is about how many rows there are.
    """

    rows: DataFrame
    condition: str
    deletes: str | None = None
    updates: Mapping[str, str]
    inserts: Mapping[str, str]
    inserts_if: str | None = None
    replaces: bool
    count: int
    within: Replaceable | None = None
    """The files that may have rows that match, where an extent said so (``Extent.replaceable``); None: all."""

    def statement(self, table: str, view: str) -> str:
        """As one MERGE; ``view`` has the rows."""
        updates = ", ".join(f"t.{quoted(name)} = {value}" for name, value in self.updates.items())
        names, values = ", ".join(map(quoted, self.inserts)), ", ".join(self.inserts.values())
        clauses = [
            *([f"WHEN MATCHED AND {self.deletes} THEN DELETE"] if self.deletes else []),
            *([f"WHEN MATCHED THEN UPDATE SET {updates}"] if updates else []),
            f"WHEN NOT MATCHED{f' AND {self.inserts_if}' if self.inserts_if else ''}",
            f"THEN INSERT ({names}) VALUES ({values})",  # noqa: S608  # names are quoted
        ]
        return "\n".join([f"MERGE INTO {table} AS t USING {view} AS s ON {self.condition}", *clauses])

    def merged(self, stored: DataFrame) -> DataFrame:
        """What the table has after the merge, if it has ``stored`` before: a plan, nothing is written."""
        from pyspark.sql import functions as F  # noqa: N812

        on, is_few = F.expr(self.condition), self.count <= BROADCAST_ROWS
        rows = F.broadcast(self.rows) if is_few else self.rows
        names = [name for name in stored.columns if name in self.inserts]
        new = [F.expr(self.inserts[name]).alias(name) for name in names]
        inserted = self.rows.alias("s").where(self.inserts_if or "true")
        if self.replaces:  # one pass over the table
            kept = stored.alias("t").join(rows.alias("s"), on, "left_anti").select(*map(quoted, names))
            return kept.unionByName(inserted.select(*new))
        met = stored.alias("t").join(rows.alias("s"), on, "left_semi")
        inserted = inserted.join((F.broadcast(met) if is_few else met).alias("t"), on, "left_anti").select(*new)
        matched = F.col(f"s.{_MATCHED}").isNotNull()
        joined = stored.alias("t").join(rows.withColumn(_MATCHED, F.lit(True)).alias("s"), on, "left")
        if self.deletes:
            joined = joined.where(~(matched & F.expr(self.deletes)))
        values = [
            F.when(matched, F.expr(self.updates[name])).otherwise(F.col(f"t.{quoted(name)}"))
            if name in self.updates
            else F.col(f"t.{quoted(name)}")
            for name in names
        ]
        return joined.select(*(value.alias(name) for name, value in zip(names, values, strict=True))).unionByName(
            inserted
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRows:
    """Some rows of the table go, others come, and no file is written again: rows are marked as deleted.

    ``gone`` has FILE and ROW (``vector``) of those that go, as ``TableStore.located`` gave them; some of them may be
    marked already. ``rows`` are what comes. ``old`` are the files that ``gone`` lies in. ``count`` is about how many
    rows go. ``report`` has those of ``gone`` as soon as ``rows`` have been written (``vector.observed``).
    """

    gone: DataFrame
    rows: DataFrame
    old: Replaceable
    count: int
    report: Observation | None = None


Step = AppendRows | ReplaceRows | RewriteRows | MergeRows | MarkRows


def is_only_added(path: Sequence[TableSchema]) -> bool:
    """Are all columns of the last schema as they were in the first, or new and NULL in rows from before?"""
    first, last = path[0], path[-1]
    return all(
        (was is None and last.column(name).default is None)
        or (was == name and first.column(was).type == last.column(name).type)
        for name, was in lineage(path).items()
    )


def completed(step: Step, columns: Sequence[str]) -> Step:
    """The same step for a table that has further columns: they are NULL in rows that come, and stay in others."""
    from pyspark.sql import functions as F  # noqa: N812

    def whole(rows: DataFrame) -> DataFrame:
        lacking = [name for name in columns if name not in rows.columns]
        return rows.withColumns({name: F.lit(None) for name in lacking}).select(*map(quoted, columns))

    if isinstance(step, MergeRows):
        return replace(step, inserts={name: step.inserts.get(name, "NULL") for name in columns})
    if isinstance(step, AppendRows | ReplaceRows):
        return replace(step, rows=whole(step.rows))
    raise LakeError(f"a {type(step).__name__} is no step for a part of a table")  # pragma: no cover  # has partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a commit records in the same atomic step as its data.

    ``number`` is the change set that the table then has, ``schema_version`` the schema; None leaves what was recorded.
    ``found`` is the number that the table must record before it: changes between that and ``number`` are in the step.
    ``metadata`` is for people who read the table's history.
    """

    generation: int
    number: int | None = None
    found: int | None = None
    schema_version: int | None = None
    metadata: Mapping[str, Any]


def not_where_expected(location: str, recorded: int, expected: int) -> CommitFailedError:
    """The table records another change set than the changes at hand begin after."""
    if recorded > expected:
        return CommitFailedError(f"another process has brought {location} to change set {recorded}")
    return CommitFailedError(
        f"the table at {location} was at change set {expected} and is at {recorded}: somebody has rolled it back",
        remedy="The next sync applies the changes again that the table has lost; there is nothing to do.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much of a table lies in files that may have rows between some bounds, and how much there is in all."""

    files: int
    bytes: int
    touched_files: int
    touched_bytes: int
    replaceable: Replaceable | None = None
    """The touched files, where a commit can put others in their place (``RewriteRows``)."""
    markable: Replaceable | None = None
    """The touched files, where a commit can mark single rows of them as deleted (``MarkRows``)."""


class TableStore(Protocol):
    """One table in one format. The session is the table's own: its settings never mix with another table's.

    Every write is one commit and records its stamp. A write whose stamp (or a later one) is recorded already commits
    nothing, and one whose stamp expects another number (``found``) raises CommitFailedError: somebody has come between.
    What a write raises says nothing about its outcome: ask ``applied``.

    The log is read once for each commit: after it. The next one is planned on what was read then (``applied`` that need
    not be fresh, ``extent``, ``read_files``), and if the table has moved since, it raises a conflict
    (``spark.error.is_conflict``): then ask ``applied`` afresh, and plan again.
    """

    reserved: tuple[str, ...]
    """Column names, in lower case, that the format has for itself."""

    layout: Layout
    """How the table is to lie on disk."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Spark SQL that says which partition a row is of, where the files of a copy must be of one each; else none."""

    @property
    def location(self) -> str:
        """Where readers find the table."""

    def applied(self, generation: int, *, fresh: bool = True) -> Applied | None:
        """What the table's commits record of this generation; None before its copy is complete. No Spark, no JVM.

        ``fresh`` reads the log. Else what was last read is good enough, if anything was.
        """

    def load(
        self, copy: TableCopy, mode: Mode, session: Callable[[], SparkSession], progress: Callable[[int], None]
    ) -> Loaded:
        """The copy of a table: see ``LakeTable.load``. The session is asked for only if there is much to read."""

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:
        """By the table's own statistics, without reading rows; None where they do not tell. No Spark job."""

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """See ``LakeTable.states``."""

    def chunks(self, state: TableVersion, schema: TableSchema, current: CurrentRows) -> tuple[ChunkSource, ...]:
        """The files of a state as chunks: see ``LakeTable.chunks``. LakeError if they are gone."""

    def read(self, session: SparkSession) -> DataFrame:
        """The table's rows as they are now."""

    def read_files(self, session: SparkSession, old: Replaceable) -> DataFrame:
        """The rows of files that an extent named as replaceable."""

    def located(self, session: SparkSession, old: Replaceable, columns: Sequence[str]) -> DataFrame:
        """Columns of the rows of files that an extent named as markable, with where each row lies (FILE, ROW).

        Rows that are marked as deleted may be among them: ``live`` leaves those out.
        """

    def live(self, found: DataFrame, old: Replaceable, count: int) -> DataFrame:
        """Of located rows, about ``count``, those that are not marked as deleted. The rows are read now, once."""

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> Applied:
        """Do the step in one commit. Returns what the table then records."""

    def maintain(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        """See ``LakeTable.maintenance``. The session is one for this alone, and asked for only if it is needed.

        Names of ``key`` that the table does not have are passed over. What nobody needs is removed even if the packing
        fails, which then is raised.
        """

    def other_type(self, schema: TableSchema) -> str | None:
        """A column that the stored table has with another type than ``schema``, with both; None if there is none, or no
        such table. For parts of a union, which share their columns. No Spark."""

    def is_in_place(self, path: Sequence[TableSchema]) -> bool:
        """Does ``evolve`` change metadata alone? Nothing is asked of the table."""

    def laid_out_otherwise(self) -> tuple[Difference, ...]:
        """What the table has otherwise than ``layout`` says; nothing if there is no table. No Spark."""

    def lay_out(self, session: SparkSession) -> None:
        """Change those of the differences that can be changed in place. A commit of its own, harmless to repeat."""

    def lost_by(self, path: Sequence[TableSchema]) -> str | None:
        """What of the owner's (a partition field, a comment) ``evolve`` would lose; None if nothing. No Spark."""

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        """Bring the columns from the first schema of ``path`` to the last, in one commit.

        The schemas are the lake table's own (``Mode.schema``). What cannot be done has been refused before.
        """
