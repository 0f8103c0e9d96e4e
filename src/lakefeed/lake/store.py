"""The seam between modes and formats: a mode turns a window into a Step, a TableStore commits it.

To add a table format, add a folder with a TableStore, a TableFormat and a Lake, and one line in ``formats``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lakefeed.change.batch import OP
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
"""Up to so many keys are broadcast to every task that reads the table's rows."""

_MATCHED = "_lakefeed_matched"


@dataclass(frozen=True, slots=True)
class AppendRows:
    """Add rows; leave those that are there as they are."""

    rows: DataFrame


@dataclass(frozen=True, slots=True)
class ReplaceRows:
    """These rows become the table's whole content. They may be computed from the table's own rows."""

    rows: DataFrame


@dataclass(frozen=True, slots=True)
class Replaceable:
    """Some files of a table at one version of it."""

    version: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewriteRows:
    """These rows, computed from those of the files ``old``, replace these files; the table's other files stay."""

    rows: DataFrame
    old: Replaceable


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRows:
    """A merge of ``rows``, called ``s``, into the table, called ``t``. The expressions are Spark SQL.

    A row of the table that matches (``condition``) is deleted if ``deletes`` holds, else the ``updates`` change it; it
    matches at most one row of ``rows``. A row of ``rows`` that matches none is inserted as ``inserts`` if
    ``inserts_if`` holds. ``replaces``: to delete every match and insert every row of ``rows`` for which ``inserts_if``
    holds gives the same table. ``count`` is about how many ``rows`` there are.
    """

    rows: DataFrame
    condition: str
    bounds: str | None = None
    """What every row of the table that matches meets, too: between which keys it lies. Files are skipped by it."""
    deletes: str | None = None
    updates: Mapping[str, str]
    inserts: Mapping[str, str]
    inserts_if: str | None = None
    replaces: bool
    count: int
    within: Replaceable | None = None
    """The only files that may have matching rows, where an extent found them (``Extent.replaceable``); None: all."""

    @property
    def on(self) -> str:
        """The condition with the bounds."""
        return f"{self.condition} AND {self.bounds}" if self.bounds else self.condition

    def statement(self, table: str, view: str) -> str:
        """The merge as one MERGE statement; ``view`` has the rows."""
        updates = ", ".join(f"t.{quoted(name)} = {value}" for name, value in self.updates.items())
        names, values = ", ".join(map(quoted, self.inserts)), ", ".join(self.inserts.values())
        clauses = [
            *([f"WHEN MATCHED AND {self.deletes} THEN DELETE"] if self.deletes else []),
            *([f"WHEN MATCHED THEN UPDATE SET {updates}"] if updates else []),
            f"WHEN NOT MATCHED{f' AND {self.inserts_if}' if self.inserts_if else ''}",
            f"THEN INSERT ({names}) VALUES ({values})",  # noqa: S608  # names are quoted
        ]
        return "\n".join([f"MERGE INTO {table} AS t USING {view} AS s ON {self.on}", *clauses])

    def merged(self, stored: DataFrame) -> DataFrame:
        """The rows of the table after the merge, if it has ``stored`` before. A plan: Spark runs nothing yet."""
        from pyspark.sql import functions as F  # noqa: N812

        on, is_few = F.expr(self.condition), self.count <= BROADCAST_ROWS
        rows = F.broadcast(self.rows) if is_few else self.rows
        names = [name for name in stored.columns if name in self.inserts]
        new = [F.expr(self.inserts[name]).alias(name) for name in names]
        inserted = self.rows.alias("s").where(self.inserts_if or "true")
        if self.replaces:
            # One pass over the table, and one over the changes. Spark computes what the two uses of ``rows`` have in
            # common once, if it looks the same to the last filter: hence no bounds here, and a column of the last
            # change that the first use asks for, too.
            rows = rows.where(f"{OP} IS NOT NULL") if OP in rows.columns else rows
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
    """Mark some rows of the table as deleted and add others. No file is written again.

    ``gone`` has FILE and ROW (``vector``) of the rows to mark, as ``TableStore.located`` gave them; some may be marked
    already. ``rows`` are added. ``old`` are the files of ``gone``. ``count`` is about how many rows ``gone`` has.
    ``report`` has the rows of ``gone`` as soon as ``rows`` have been written (``vector.observed``).
    """

    gone: DataFrame
    rows: DataFrame
    old: Replaceable
    count: int
    report: Observation | None = None


Step = AppendRows | ReplaceRows | RewriteRows | MergeRows | MarkRows


def is_only_added(path: Sequence[TableSchema]) -> bool:
    """Is each column of the last schema either unchanged since the first, or new and without a default?"""
    first, last = path[0], path[-1]
    return all(
        (was is None and last.column(name).default is None)
        or (was == name and first.column(was).type == last.column(name).type)
        for name, was in lineage(path).items()
    )


def completed(step: Step, columns: Sequence[str]) -> Step:
    """The same step for a table with further ``columns``: new rows have NULL in them, other rows keep theirs."""
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

    ``number`` is the change set that the table has after it, ``schema_version`` its schema; None leaves the recorded
    value. ``found`` is the number that the table must record before it: the step has the changes from there to
    ``number``. ``metadata`` is for people who read the table's history.
    """

    generation: int
    number: int | None = None
    found: int | None = None
    schema_version: int | None = None
    metadata: Mapping[str, Any]


def not_where_expected(location: str, recorded: int, expected: int) -> CommitFailedError:
    """The error for a table that records another change set (``recorded``) than the changes begin after."""
    if recorded > expected:
        return CommitFailedError(f"another process has brought {location} to change set {recorded}")
    return CommitFailedError(
        f"the table at {location} was at change set {expected} and is at {recorded}: somebody has rolled it back",
        remedy="The next sync applies the changes again that the table has lost; there is nothing to do.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How large a table is, and how much of it lies in files that may have rows between some bounds: touched ones."""

    files: int
    bytes: int
    touched_files: int
    touched_bytes: int
    replaceable: Replaceable | None = None
    """The touched files, if one commit can replace them with others (``RewriteRows``)."""
    markable: Replaceable | None = None
    """The touched files, if one commit can mark single rows of them as deleted (``MarkRows``)."""


class TableStore(Protocol):
    """One table in one format. The session is the table's own: its settings never mix with another table's.

    Every write is one commit and records its stamp. A write whose stamp (or a later one) the table has recorded commits
    nothing. A write whose stamp expects another number (``found``) raises CommitFailedError: somebody else has
    committed. An error of a write does not say whether the commit happened: ask ``applied``.

    The store reads the log once for each commit: after it. It plans the next one on what it read then (``applied`` with
    ``fresh=False``, ``extent``, ``read_files``). If the table has moved since, the write raises a conflict
    (``spark.error.is_conflict``): ask ``applied`` with ``fresh=True``, and plan again.
    """

    reserved: tuple[str, ...]
    """Column names, in lower case, that the format keeps for itself."""

    layout: Layout
    """The partitions, order and properties that the table is to have."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Spark SQL expressions of a row's partition, if a copy has to write each partition's rows into files of its
        own; else none."""

    @property
    def location(self) -> str:
        """Where readers find the table."""

    def applied(self, generation: int, *, fresh: bool = True) -> Applied | None:
        """What the table's commits record of this generation; None until its copy is complete. No Spark, no JVM.

        ``fresh`` reads the log. Without it the answer is what the store last read, if it has read the log at all.
        """

    def load(
        self, copy: TableCopy, mode: Mode, session: Callable[[], SparkSession], progress: Callable[[int], None]
    ) -> Loaded:
        """Copy a table: see ``LakeTable.load``. Calls ``session`` only if the copy needs Spark."""

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:
        """The extent by the table's own statistics, without reading rows; None if these do not say. No Spark job."""

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """See ``LakeTable.states``."""

    def chunks(self, state: TableVersion, schema: TableSchema, current: CurrentRows) -> tuple[ChunkSource, ...]:
        """The files of a state as chunks: see ``LakeTable.chunks``. LakeError if a file is gone."""

    def read(self, session: SparkSession) -> DataFrame:
        """The table's rows as they are now."""

    def read_files(self, session: SparkSession, old: Replaceable) -> DataFrame:
        """The rows of files that an extent gave as replaceable."""

    def located(self, session: SparkSession, old: Replaceable, columns: Sequence[str]) -> DataFrame:
        """``columns`` of the rows of files that an extent gave as markable, with each row's address (FILE, ROW).

        Rows that are marked as deleted may be among them: ``live`` removes those.
        """

    def live(self, found: DataFrame, old: Replaceable, count: int) -> DataFrame:
        """Those of about ``count`` located rows that are not marked as deleted. Spark reads the rows now, once."""

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> Applied:
        """Do the step in one commit. Returns what the table records after it."""

    def maintain(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        """See ``LakeTable.maintain``. ``session`` makes a session for this call alone; it is called only if needed.

        Ignores names of ``key`` that the table does not have. If packing fails, it still removes what nobody needs, and
        raises the error afterwards.
        """

    def other_type(self, schema: TableSchema) -> str | None:
        """A column whose stored type is not that of ``schema``, named with both types; None if all agree, or there is
        no table. For parts of a union, which share their columns. No Spark."""

    def is_in_place(self, path: Sequence[TableSchema]) -> bool:
        """Does ``evolve`` change metadata alone? Reads nothing of the table."""

    def laid_out_otherwise(self) -> tuple[Difference, ...]:
        """Where the table differs from ``layout``; nothing if there is no table. No Spark."""

    def lay_out(self, session: SparkSession) -> None:
        """Change in place what can be. A commit of its own, harmless to repeat."""

    def can_evolve(self, path: Sequence[TableSchema]) -> bool:
        """Can ``evolve`` go this path with the session that there is? Else only another copy has the columns."""

    def lost_by(self, path: Sequence[TableSchema]) -> str | None:
        """What ``evolve`` would lose that the table's owner added (a partition field, a comment); None if nothing. No
        Spark."""

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        """Change the columns from the first schema of ``path`` to the last, in one commit.

        The schemas are the lake table's own (``Mode.schema``). The caller has refused what cannot be done.
        """
