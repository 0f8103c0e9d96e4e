"""One Iceberg table: what its commits record, its extent, and its commits.

The store reads what commits record from the table's metadata: no Spark, no JVM. The summary of every snapshot that
Lakefeed makes has all of it:

    lakefeed.owner           <pipeline>/<table>
    lakefeed.generation      the table's generation
    lakefeed.applied         change set number; there once the copy is complete
    lakefeed.schema-version  of the rows
    lakefeed.copy            the copy so far: chunks, rows, highest position (JSON)
    lakefeed.commit          for people who read the history (JSON)
    lakefeed.attempt         the id of one write, by which the store finds its staged snapshot

A part of a union has an owner of its own. Each snapshot of such a table records the writing part as above, and what
the snapshots before it recorded of the other parts (``lakefeed.others``). So any snapshot of ours has all parts. A
part's properties have its value in their names. The parts of one table commit one at a time.

Snapshots by others (a compaction) record nothing; then the newest ancestor that does counts. Owner, generation and
schema version are table properties, too: a schema belongs to the table and not to a snapshot.

The store commits a step exactly once, even if another process still believes that the table is its own:

  1 read what the table records; if it has the step, end
  2 Spark writes the step as a *staged* snapshot: the metadata has it, but it is not the current one
  3 read what the staged snapshot's parent records; if it has the step, leave the staged one alone; if it records
    another number than the step begins after, refuse it: somebody rolled the table back, or applied other changes
  4 publish: one commit that makes the staged snapshot the current one, if its parent still is the current one
If another process commits between 1 and 2, step 3 sees it; between 3 and 4, step 4 refuses. No reader sees a staged
snapshot that is never published. It goes when snapshots are expired.

To mark rows, Spark finds them and writes the new ones. Iceberg's library then makes a snapshot of both and makes it the
current one, in one compare-and-swap with the metadata that the step was planned on (``_mark``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from lakefeed.change.position import decode_position
from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitFailedError, LakeError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.iceberg.catalog import Metadata, MetadataReader
from lakefeed.lake.iceberg.copy import chunks_of, load_table
from lakefeed.lake.iceberg.java import DeletionVector, Marking, UnknownDeletesError
from lakefeed.lake.iceberg.library import TableLibrary, recording, staging
from lakefeed.lake.iceberg.maintenance import maintain_table
from lakefeed.lake.iceberg.record import (
    ATTEMPT,
    COMMIT,
    DESCRIBED,
    GENERATION,
    OTHERS,
    OWNER,
    SCHEMA_VERSION,
    Record,
    Staged,
    others_of,
    summary_of,
)
from lakefeed.lake.iceberg.schema import (
    Add,
    Alteration,
    Drop,
    alterations,
    current_schema,
    is_in_place,
    schema_json,
    transform_text,
    uses,
    without_ids,
)
from lakefeed.lake.layout import Difference, Layout
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.mode.base import CurrentRows, Mode
from lakefeed.lake.route import Part
from lakefeed.lake.schema.projection import lineage, projected
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import (
    AppendRows,
    Extent,
    MarkRows,
    MergeRows,
    Replaceable,
    Stamp,
    Step,
    completed,
    is_only_added,
    not_where_expected,
)
from lakefeed.lake.vector import FILE, ROW, located_and_written, united
from lakefeed.lake.window import KeyBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SLACK = 1.25
"""Expire only from so many times the wanted number of snapshots on: to expire a few takes as long as many."""

_KEPT = ("max-snapshot-age-ms", "min-snapshots-to-keep")
_VIEW = "lakefeed_changes"
_PARTITIONS = "spark.sql.shuffle.partitions"
_SMALL_BYTES, _SMALL_ROWS = 32 << 20, 50_000
"""Up to a table of so many bytes and a merge of so many rows, one task is about as fast as several."""

PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Without this Spark stages no snapshots.
    "write.wap.enabled": "true",
    # Each commit writes a metadata file. Keep fifty of them.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Each window adds a manifest of files and one of deletion vectors, and the next window reads all of them. Iceberg's
    # default is to put them together from a hundred on.
    "commit.manifest.min-count-to-merge": "20",
    # Snapshots by others (a compaction) record nothing: keep a few of ours behind them, whoever expires.
    "history.expire.min-snapshots-to-keep": "10",
}
"""Properties of new tables. Reasons and figures: docs/decisions/0008-iceberg-writes.md."""


class IcebergStore:
    """Contract: ``lake.store.TableStore``. ``name`` has the parts of the table's name in Spark SQL, the catalog first.

    Any thread may ask what the table records.
    """

    # Metadata columns and row lineage of the table specification.
    reserved: tuple[str, ...] = (
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
    )  # fmt: skip

    def __init__(
        self,
        name: Sequence[str],
        metadata: MetadataReader,
        owner: str,
        location: str,
        library: Callable[[], TableLibrary],
        layout: Layout = Layout(),  # noqa: B008  # immutable
        part: Part | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.part = part
        self.turn = turn or threading.RLock()
        """A part of a union holds it while it commits."""
        suffix = f"@{part.value}" if part is not None else ""
        self.generation_key, self.version_key = f"{GENERATION}{suffix}", f"{SCHEMA_VERSION}{suffix}"
        self.whole_owner = f"{owner.partition('/')[0]}/{part.table}" if part is not None else owner
        """The owner that the table's properties name."""
        self.layout = layout
        self.name = tuple(name)
        self.owner = owner
        self.location = location
        self._open = library
        self._sql_name = ".".join(map(quoted, name))
        self._reader = metadata
        self._lock = threading.Lock()
        self._has_other_deletes = False  # rows were deleted by other means than deletion vectors
        self._vectors: tuple[int | None, dict[str, DeletionVector]] = (None, {})  # (snapshot, its vectors by data file)
        self._marking: Marking | None = None  # the table as ``extent`` last read it

    @cached_property
    def library(self) -> TableLibrary:
        """Starts Spark, to see which one it needs."""
        return self._open()

    # What the commits record

    def applied(self, generation: int, *, fresh: bool = True) -> Applied | None:  # noqa: ARG002  # it costs little
        metadata = self.metadata()
        record = self._record(metadata, generation)
        if metadata is None or record is None or record.applied is None:
            return None
        summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
        rows = _rows(summary) if self.part is None else None
        return Applied(number=record.applied, schema_version=record.schema_version, rows=rows)

    def record(self, generation: int) -> Record | None:
        """The newest record of this generation; None if its copy has not begun."""
        return self._record(self.metadata(), generation)

    def is_foreign(self) -> bool:
        """Is there a table that this pipeline did not make?"""
        metadata = self.metadata()
        if metadata is None:
            return self._reader.is_other_format()
        return bool(metadata.get("properties", {}).get(OWNER) != self.whole_owner)

    def metadata(self) -> Metadata | None:
        """The table's metadata now; None if there is no table."""
        with self._lock:
            return self._reader.current()

    def _record(self, metadata: Metadata | None, generation: int) -> Record | None:
        """TableStoppedError if the table is of this generation, but no snapshot is left that records its changes."""
        if metadata is None:
            return None
        properties = metadata.get("properties", {})
        if properties.get(OWNER) != self.whole_owner or properties.get(self.generation_key) != str(generation):
            return None
        found = self._newest(metadata, metadata.get("current-snapshot-id"))
        if found is None or found[0].generation != generation:
            table = self.owner.partition("/")[2]
            raise TableStoppedError(
                f"table {table}: the snapshots of {self.location} that record which changes it has are gone: somebody "
                "expired them, or rolled the table back to before its copy",
                remedy=f"Remove the lake table and start the pipeline again: {table} is then copied again. Expire "
                "snapshots only while a newer one by Lakefeed is kept.",
                table=table,
            )
        return replace(found[0], schema_version=int(properties[self.version_key]))

    def _newest(self, metadata: Metadata, snapshot: int | None) -> tuple[Record, Mapping[str, Any]] | None:
        """The record of our newest snapshot, from ``snapshot`` on backwards, and its text for people."""
        for ancestor in _lineage(metadata, snapshot):
            own = summary_of(ancestor["summary"], self.owner)
            record = Record.of(own) if own is not None else None
            if own is not None and record is not None:
                return record, json.loads(own[COMMIT])
        return None

    def summary(self, record: Record, commit: Mapping[str, Any]) -> dict[str, str]:
        """The summary of a new snapshot on the current one. A part of a union holds ``turn`` until it has published."""
        found = record.summary(commit)
        if self.part is None:
            return found
        metadata = self.metadata() or {}
        for ancestor in _lineage(metadata, metadata.get("current-snapshot-id")):
            if others := others_of(ancestor["summary"], self.owner):
                return {**found, OTHERS: json.dumps(others)}
            if Record.of(ancestor["summary"]) is not None:
                break
        return found

    def staged(self, attempt: str) -> Staged | None:
        """The snapshot of that attempt; None if it made none."""
        metadata = self.metadata() or {}
        for snapshot in metadata.get("snapshots", ()):
            if snapshot["summary"].get(ATTEMPT) == attempt:
                number = snapshot["snapshot-id"]
                current = metadata.get("current-snapshot-id")
                published = any(one["snapshot-id"] == number for one in _lineage(metadata, current))
                before = self._newest(metadata, snapshot.get("parent-snapshot-id"))
                return Staged(number, before[0] if before is not None else None, published, _rows(snapshot["summary"]))
        return None

    # Extent and rows

    def size(self) -> tuple[int, int] | None:
        """Data files and their bytes, by the current snapshot's summary."""
        metadata = self.metadata()
        if metadata is None:
            return None
        summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
        found = [summary.get(name) for name in ("total-data-files", "total-files-size")]
        return (int(found[0]), int(found[1])) if None not in found else None

    @property
    def marked_share(self) -> float:
        """The share of the rows in the table's files that is marked as deleted."""
        metadata = self.metadata() or {}
        summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
        total, marked = int(summary.get("total-records", 0)), int(summary.get("total-position-deletes", 0))
        return marked / total if total else 0.0

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:  # noqa: ARG002
        """A merge marks rows and rewrites no file, so it never touches bytes.

        If any file is touched, ``touched_files`` counts all: to count the touched ones costs a JVM call for each.
        """
        size = self.size()
        if size is None:
            return None
        files, total = size
        touch = self.library.marking()
        self._marking = touch if isinstance(touch, Marking) else None
        snapshot = self._marked_on() if self._marking is not None else None
        none = not files or (bounds is not None and not touch.is_touched(bounds))
        return Extent(
            files=files,
            bytes=total,
            touched_files=0 if none else files,
            touched_bytes=0,
            markable=Replaceable(snapshot, ()) if snapshot is not None else None,
        )

    def _marked_on(self) -> int | None:
        """The snapshot whose rows our own commits can mark as deleted; None if Spark has to merge."""
        metadata = self.metadata() or {}
        properties, specs = metadata.get("properties", {}), metadata.get("partition-specs", ())
        summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
        is_plain = (
            metadata.get("format-version", 0) >= 3
            and properties.get("write.merge.mode") == "merge-on-read"
            and all(not spec["fields"] for spec in specs)
            and summary.get("total-equality-deletes", "0") == "0"
            and not self._has_other_deletes
        )
        return metadata.get("current-snapshot-id") if is_plain else None

    def read(self, session: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        rows = session.table(self._sql_name)
        return rows.where(F.col(quoted(self.part.column)) == self.part.value) if self.part is not None else rows

    def read_files(self, session: SparkSession, old: Replaceable) -> DataFrame:  # noqa: ARG002  # the seam's
        raise LakeError(f"no extent of {self.location} names files to replace: its rows are masked, not rewritten")

    def located(self, session: SparkSession, old: Replaceable, columns: Sequence[str]) -> DataFrame:  # noqa: ARG002
        """By Iceberg's own reader, which leaves out marked rows. The commit checks that it has read ``old``."""
        return self.read(session).selectExpr(*map(quoted, columns), f"_file AS {FILE}", f"_pos AS {ROW}")

    def live(self, found: DataFrame, old: Replaceable, count: int) -> DataFrame:  # noqa: ARG002  # the seam's
        return found.localCheckpoint()

    # Commits

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> Applied:
        record = self.record(stamp.generation)  # 1
        if record is None or record.applied is None or stamp.number is None:
            raise LakeError(f"there is no whole table of generation {stamp.generation} at {self.location}")
        done = Applied(number=stamp.number, schema_version=record.schema_version, rows=None)
        if record.applied < stamp.number:
            if stamp.found is not None and record.applied != stamp.found:
                raise not_where_expected(self.location, record.applied, stamp.found)
            summary = self.summary(replace(record, applied=stamp.number), stamp.metadata)
            if isinstance(step, MarkRows):
                self._mark(step, summary)
                return self.applied(stamp.generation) or done
            with staging(session, summary) as attempt:
                columns = session.table(self._sql_name).columns if self.part is not None else ()
                self.write(session, completed(step, columns) if self.part is not None else step)  # 2
            staged = self.staged(attempt)  # 3
            if staged is None:
                raise CommitFailedError(f"Spark wrote no snapshot for change set {stamp.number} into {self.location}")
            before = staged.before
            if before is None or before.generation != stamp.generation or before.applied is None:
                raise CommitFailedError(
                    f"the table at {self.location} was replaced while change set {stamp.number} was written"
                )
            if before.applied < stamp.number:
                if stamp.found is not None and before.applied != stamp.found:
                    raise not_where_expected(self.location, before.applied, stamp.found)
                if not staged.published:
                    self.library.publish(staged.snapshot)  # 4
                return replace(done, rows=staged.rows if self.part is None else None)
        return self.applied(stamp.generation) or done

    def _mark(self, step: MarkRows, summary: Mapping[str, str]) -> None:
        """Make a snapshot with the step's rows and deletion vectors, by Iceberg's library.

        1 find the rows that go  2 write those that come  3 check that the table is at the snapshot that the step was
        planned on, whose record the caller has read  4 write the deletion vectors, with the rows that were marked
        before  5 name all of it in one commit, if the table is still at that snapshot.
        """
        marking, old = self._marking, step.old.version
        if marking is None:
            raise LakeError(f"no extent of {self.location} names files whose rows can be marked")
        found, files = located_and_written(step.gone, step.count, step.report, lambda: marking.write(step.rows))  # 1, 2
        if (now := marking.snapshot(fresh=True)) != old:  # 3
            marking.discard(files)
            raise ConcurrentModification(f"the table is at snapshot {now}, not at {old}")
        try:
            known = self._vectors[1] if self._vectors[0] == old else marking.vectors()
        except UnknownDeletesError as error:  # the caller plans again, and gets a merge
            self._has_other_deletes = True
            raise ConcurrentModification(str(error)) from error
        unread = [file for file in found if file in known and known[file].rows is None]
        read = dict(zip(unread, marking.read(known[file] for file in unread), strict=True))
        marked = {file: read.get(file) or known[file].rows or BitMap() for file in found if file in known}
        added = marking.put_vectors(united(marked, found))  # 4
        hit("lake.after_marks")
        snapshot = marking.commit(files, added.values(), [known[file] for file in added if file in known], summary)  # 5
        self._vectors = (snapshot, {**known, **added})

    def write(self, session: SparkSession, step: Step) -> None:
        """Let Spark write a snapshot with the step's rows."""
        from pyspark.sql import functions as F  # noqa: N812

        if isinstance(step, AppendRows):
            step.rows.writeTo(self._sql_name).append()
            return
        if not isinstance(step, MergeRows):
            part = self.part
            own = F.col(quoted(part.column)) == part.value if part is not None else F.lit(True)
            step.rows.writeTo(self._sql_name).overwrite(own)
            return
        step.rows.createOrReplaceTempView(_VIEW)
        # One task writes a small merge into a small table. Several would leave a file each, every second.
        size = self.size()
        is_small = size is not None and size[1] <= _SMALL_BYTES and step.count <= _SMALL_ROWS
        before: Any = session.conf.get(_PARTITIONS)
        session.conf.set(_PARTITIONS, "1" if is_small else before)
        try:
            session.sql(step.statement(self._sql_name, _VIEW))
        finally:
            session.conf.set(_PARTITIONS, before)  # ``unset`` would give Spark's default and not the session's

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        """If two processes alter columns at once, the second finds its columns changed already, and fails."""
        record, version = self.record(stamp.generation), stamp.schema_version
        if record is None or version is None:
            raise LakeError(f"there is no table of generation {stamp.generation} at {self.location}")
        if record.schema_version >= version:
            return
        now = {self.generation_key: str(stamp.generation), self.version_key: str(record.schema_version)}
        if self.part is not None:  # other parts keep a column that this one drops
            there = {field["name"].lower() for field in current_schema(self.metadata() or {})["fields"]}
            added = [one for one in alterations(path) if isinstance(one, Add) and one.name.lower() not in there]
            self.library.alter(added, {self.version_key: str(version)}, now)
            return
        if is_in_place(path):
            changes = alterations(path)
            self.refuse_used(changes)
            self.library.alter(changes, {SCHEMA_VERSION: str(version)}, now)
            return
        # Rewrite the whole table under other types, in one commit that records the change set of the rows it has read.
        # The commit replaces whatever others have committed meanwhile. The record then says so, and the next sync
        # applies the lost changes again.
        with recording(session, replace(record, schema_version=version).summary(stamp.metadata)):
            rows = self.read(session).select(*projected(path))
            came_from = lineage(path)
            said = {field["name"]: field.get("doc") for field in current_schema(self.metadata() or {})["fields"]}
            told = {name: said[was] for name, was in came_from.items() if was is not None and said.get(was)}
            for name, text in told.items():
                rows = rows.withMetadata(name, {"comment": text})
            rows.writeTo(self._sql_name).using("iceberg").tableProperty(SCHEMA_VERSION, str(version)).replace()

    def refuse_used(self, changes: Sequence[Alteration]) -> None:
        """TableStoppedError if the owner's partitions, order or identifier use a column that ``changes`` drop."""
        gone = {change.name for change in changes if isinstance(change, Drop)}
        metadata = self.metadata()
        used = [one for one in uses(metadata, self._sql_name) if one.column in gone] if metadata is not None else []
        if used:
            table, statements = self.owner.partition("/")[2], dict.fromkeys(one.statement for one in used)
            raise TableStoppedError(
                f"table {table}: column '{used[0].column}' was dropped or has another type, and {used[0].what} of the "
                "lake table uses it",
                remedy=f"{'; '.join(statements)}. The pipeline then goes on by itself.",
                table=table,
            )

    def is_in_place(self, path: Sequence[TableSchema]) -> bool:
        return is_only_added(path) if self.part is not None else is_in_place(path)

    def laid_out_otherwise(self) -> tuple[Difference, ...]:
        metadata = self.metadata()
        if metadata is None:
            return ()
        names = {field["id"]: field["name"] for field in current_schema(metadata)["fields"]}
        spec = next(one for one in metadata["partition-specs"] if one["spec-id"] == metadata["default-spec-id"])
        order = next(one for one in metadata["sort-orders"] if one["order-id"] == metadata["default-sort-order-id"])
        partitions = [
            transform_text(field["transform"], names.get(field["source-id"], "?")) for field in spec["fields"]
        ]
        sorted_by = [names.get(field["source-id"], "?") for field in order["fields"]]
        return self.layout.differences(partitions, metadata.get("properties", {}), sorted_by)

    def lay_out(self, session: SparkSession) -> None:  # noqa: ARG002  # the seam's
        self.library.lay_out(self.layout)

    def other_type(self, schema: TableSchema) -> str | None:
        metadata = self.metadata()
        if metadata is None:
            return None
        there = {field["name"].lower(): field for field in current_schema(metadata)["fields"]}
        for one in schema_json(schema)["fields"]:
            found = there.get(one["name"].lower())
            if found is not None and without_ids(found["type"]) != without_ids(one["type"]):
                return f"the column {found['name']} as {without_ids(found['type'])}, not as {without_ids(one['type'])}"
        return None

    def can_evolve(self, path: Sequence[TableSchema]) -> bool:
        return self.is_in_place(path) or self.library.can_rewrite

    def lost_by(self, path: Sequence[TableSchema]) -> str | None:
        metadata = self.metadata()
        if metadata is None or is_in_place(path):
            return None
        used = uses(metadata, self._sql_name)
        if used:
            return used[0].what
        sources = json.loads(metadata.get("properties", {}).get(DESCRIBED, "[]"))  # ``evolve`` keeps those
        fields = current_schema(metadata)["fields"]
        described = [field["name"] for field in fields if field.get("doc") and field["name"] not in sources]
        return f"the comment of column '{described[0]}'" if described else None

    # Copies, earlier states, maintenance

    def load(
        self, copy: TableCopy, mode: Mode, session: Callable[[], SparkSession], progress: Callable[[int], None]
    ) -> Loaded:
        properties = {**PROPERTIES, **dict(self.layout.properties)}
        return load_table(self, copy, mode, properties, session, progress)

    @property
    def parts(self) -> tuple[str, ...]:
        """By Iceberg's own functions, so that a copy and Iceberg agree on each row's partition."""
        found: list[str] = []
        if not self.layout.partitions or not self.library.takes_files:  # Spark then knows by itself
            return ()
        for one in self.layout.partitions:
            column = quoted(one.column)
            given = f"{one.number}, {column}" if one.number is not None else column
            call = f"{quoted(self.name[0])}.system.{one.kind}({given})"
            found.append(column if one.kind == "identity" else call)
        return tuple(found)

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """The snapshots of this generation that still exist and have all rows of one moment."""
        metadata = self.metadata()
        if metadata is None or metadata.get("properties", {}).get(OWNER) != self.owner:
            return ()
        found: list[TableVersion] = []
        for snapshot in _lineage(metadata, metadata.get("current-snapshot-id")):
            record = Record.of(snapshot["summary"])
            if record is None or record.generation != generation or record.applied is None:
                continue
            text = json.loads(snapshot["summary"][COMMIT]).get("position")
            position, high = decode_position(text) if text else None, record.copied.high
            if high is None or (position is not None and position >= high):
                found.append(
                    TableVersion(
                        number=record.applied,
                        schema_version=record.schema_version,
                        position=position,
                        version=snapshot["snapshot-id"],
                    )
                )
        return tuple(reversed(found))

    def chunks(self, state: TableVersion, schema: TableSchema, current: CurrentRows) -> tuple[ChunkSource, ...]:
        self.metadata()
        return chunks_of(self._reader.place, state, schema, current)

    def maintain(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        return maintain_table(self, session, options, key)

    def having(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names that are columns of the table."""
        metadata = self.metadata()
        there = {field["name"] for field in current_schema(metadata)["fields"]} if metadata is not None else set()
        return tuple(name for name in names if name in there)

    @property
    def is_ordered(self) -> bool:
        """Has the table a sort order?"""
        return bool((self.metadata() or {}).get("default-sort-order-id", 0))

    def kept_snapshots(self) -> tuple[float, int]:
        """By the table's properties: the seconds that snapshots stay, and the number that stays in any case."""
        properties = (self.metadata() or {}).get("properties", {})
        age, least = (properties.get(f"history.expire.{name}", "0") for name in _KEPT)
        return int(age) / 1000, int(least)

    def newest_below_others(self) -> tuple[Record, Mapping[str, Any]] | None:
        """The newest record and its text for people, if the current snapshot is not ours.

        None if it is ours, or if no snapshot has a record.
        """
        metadata = self.metadata()
        current = metadata.get("current-snapshot-id") if metadata is not None else None
        newest = list(_lineage(metadata, current))[:1] if metadata is not None else []
        if metadata is None or any(Record.of(one["summary"]) for one in newest):
            return None
        return self._newest(metadata, current)

    def expirable(self, aged: float | None, most: int, *, kept: int, until: float) -> float | None:
        """The time before which snapshots expire: None if none is older, or no more than ``kept`` exist.

        It is ``aged``, or later where clearly more than ``most`` snapshots exist, so that ``most`` stay; never after
        ``until``.
        """
        times = sorted(one["timestamp-ms"] / 1000 for one in (self.metadata() or {}).get("snapshots", ()))
        surplus = times[-most] if len(times) > most * _SLACK else None
        limits = [min(one, until) for one in (aged, surplus) if one is not None]
        limit = max(limits, default=None)
        return limit if limit is not None and len(times) > kept and times[0] < limit else None


def _lineage(metadata: Metadata, snapshot: int | None) -> Iterator[Mapping[str, Any]]:
    """A snapshot and its ancestors, as far as they still exist."""
    by_id = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    while snapshot is not None and (found := by_id.get(snapshot)) is not None:
        yield found
        snapshot = found.get("parent-snapshot-id")


def _rows(summary: Mapping[str, str]) -> int | None:
    """The number of rows by a snapshot's summary; None if it does not say.

    Deletion vectors count each deleted row once. Equality deletes, which only others write, do not count rows.
    """
    records, deleted = summary.get("total-records"), summary.get("total-position-deletes", "0")
    if records is None or summary.get("total-equality-deletes", "0") != "0":
        return None
    return int(records) - int(deleted)
