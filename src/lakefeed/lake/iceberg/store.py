"""One Iceberg table: what its commits record, how large it is, and its commits.

What commits record is read from the table's metadata: no Spark, no JVM. It is in the summary of every snapshot that
Lakefeed makes, so that any one of them has everything:

    lakefeed.owner           <pipeline>/<table>
    lakefeed.generation      the life of the table that the snapshot belongs to
    lakefeed.applied         change set number; there once the copy is complete
    lakefeed.schema-version  of the rows
    lakefeed.copy            the copy so far: chunks, rows, highest position (JSON)
    lakefeed.commit          for people who read the history (JSON)
    lakefeed.attempt         one write; how it is found again between being staged and being published

A part of a union has an owner of its own. Each snapshot of such a table records the writing part as above, and what
was recorded of the others before it (``lakefeed.others``), so that any snapshot of ours has all of them, too; the
properties of a part have its value in their name. The parts of one table commit one at a time.

Snapshots by others (a compaction) record nothing; then the newest ancestor that does counts. Owner, generation and
schema version are table properties too: a schema belongs to the table and not to a snapshot.

How a step is committed exactly once, also against a process that still believes the table to be its own:

  1 read what the table records; a step that it has is left out
  2 Spark writes the step as a *staged* snapshot: it is in the metadata, but the table's content is as before
  3 read what the snapshot that the staged one was made on records; if that has the step, leave the staged one alone;
    if it records another number than the step begins after, refuse it: the table was rolled back, or brought further
  4 publish: one commit that makes the staged snapshot the content, if the content still is what it was made on
Between 1 and 2 another process may come first, which 3 sees; between 3 and 4, which 4 refuses. A staged snapshot that
is never published is seen by no reader, and goes when snapshots are expired.

Where rows are marked, Spark finds them and writes the new ones, and Iceberg's library makes the snapshot and the
table's content of it in one compare-and-swap with the metadata that the step was planned on (``_mark``).
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from lakefeed.change.position import decode_position
from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitFailedError, LakeError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.iceberg.catalog import Metadata, MetadataReader
from lakefeed.lake.iceberg.copy import chunks_of, load_table
from lakefeed.lake.iceberg.java import DeletionVector, JavaTable, Marking, UnknownDeletesError
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
"""How many times as many snapshots as are wanted are let be: to expire a few takes as long as to expire many."""

_KEPT = ("max-snapshot-age-ms", "min-snapshots-to-keep")
_VIEW = "lakefeed_changes"
_PROPERTY = "spark.sql.iceberg.snapshot-property."
_PARTITIONS = "spark.sql.shuffle.partitions"
_SMALL_BYTES, _SMALL_ROWS = 32 << 20, 50_000
"""Of a whole table and of a merge, up to which one task is about as fast as several."""

PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Only with this does Spark stage what it is told to stage.
    "write.wap.enabled": "true",
    # A commit a second would otherwise leave a metadata file a second.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Snapshots by others (a compaction) record nothing: a few of ours stay behind them, whoever expires.
    "history.expire.min-snapshots-to-keep": "10",
}
"""What tables are made with; docs/decisions/0008-iceberg-writes.md has the reasons and figures."""


class IcebergStore:
    """See ``lake.store.TableStore`` for the contract. ``name`` is the table's parts in Spark SQL, the catalog first.

    Any thread may ask what the table records.
    """

    # The table specification's metadata columns and row lineage.
    reserved: tuple[str, ...] = (
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
    )  # fmt: skip

    def __init__(
        self,
        name: Sequence[str],
        metadata: MetadataReader,
        owner: str,
        location: str,
        table: JavaTable,
        layout: Layout = Layout(),  # noqa: B008  # immutable
        part: Part | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.part = part
        self.turn = turn or threading.RLock()
        """Held while a part of a union commits."""
        suffix = f"@{part.value}" if part is not None else ""
        self.generation_key, self.version_key = f"{GENERATION}{suffix}", f"{SCHEMA_VERSION}{suffix}"
        self.whole_owner = f"{owner.partition('/')[0]}/{part.table}" if part is not None else owner
        """Whose the table is, by its properties."""
        self.layout = layout
        self.name = tuple(name)
        self.owner = owner
        self.location = location
        self.java = table
        self._sql_name = ".".join(map(quoted, name))
        self._reader = metadata
        self._lock = threading.Lock()
        self._has_other_deletes = False  # than deletion vectors
        self._vectors: tuple[int | None, dict[str, DeletionVector]] = (None, {})  # of a snapshot, by data file
        self._marking: Marking | None = None  # the table as the last extent found it

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
        """There is a table that this pipeline did not make."""
        metadata = self.metadata()
        if metadata is None:
            return self._reader.is_other_format()
        return bool(metadata.get("properties", {}).get(OWNER) != self.whole_owner)

    def metadata(self) -> Metadata | None:
        """As it is now; None if there is no table."""
        with self._lock:
            return self._reader.current()

    def _record(self, metadata: Metadata | None, generation: int) -> Record | None:
        """TableStoppedError if the table is of this generation, but no snapshot is left that says how far it is."""
        if metadata is None:
            return None
        properties = metadata.get("properties", {})
        if properties.get(OWNER) != self.whole_owner or properties.get(self.generation_key) != str(generation):
            return None
        found = self._newest(metadata, metadata.get("current-snapshot-id"))
        if found is None or found[0].generation != generation:
            table = self.owner.partition("/")[2]
            raise TableStoppedError(
                f"table {table}: the snapshots of {self.location} that record which changes it has are gone; they have "
                "been expired, or the table was rolled back to before its copy",
                remedy=f"Remove the lake table and start the pipeline again: {table} is then copied again. Expire "
                "snapshots only while a newer one by Lakefeed is kept.",
                table=table,
            )
        return replace(found[0], schema_version=int(properties[self.version_key]))

    def _newest(self, metadata: Metadata, snapshot: int | None) -> tuple[Record, Mapping[str, Any]] | None:
        """What the newest snapshot of ours records and says to people, from one on backwards."""
        for ancestor in _lineage(metadata, snapshot):
            own = summary_of(ancestor["summary"], self.owner)
            record = Record.of(own) if own is not None else None
            if own is not None and record is not None:
                return record, json.loads(own[COMMIT])
        return None

    def summary(self, record: Record, commit: Mapping[str, Any]) -> dict[str, str]:
        """What a snapshot on the current one is to record. Of a union, ``turn`` is held until it is published."""
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
        """The write of that name; None if it made no snapshot."""
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
        """Files and bytes of the table's data, as its current snapshot sums them up."""
        metadata = self.metadata()
        if metadata is None:
            return None
        summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
        found = [summary.get(name) for name in ("total-data-files", "total-files-size")]
        return (int(found[0]), int(found[1])) if None not in found else None

    @property
    def marked_share(self) -> float:
        """Of all rows in the table's files, those that are marked as deleted."""
        metadata = self.metadata() or {}
        summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
        total, marked = int(summary.get("total-records", 0)), int(summary.get("total-position-deletes", 0))
        return marked / total if total else 0.0

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:  # noqa: ARG002
        """A merge rewrites no file (deleted rows are marked), so that no bytes are ever touched.

        Of the touched files only whether there are any is asked for: to count them takes a call into the JVM each.
        """
        size = self.size()
        if size is None:
            return None
        files, total = size
        snapshot, self._marking = self._marked_on(), self.java.marking()
        none = not files or (bounds is not None and not self._marking.is_touched(bounds))
        return Extent(
            files=files,
            bytes=total,
            touched_files=0 if none else files,
            touched_bytes=0,
            markable=Replaceable(snapshot, ()) if snapshot is not None else None,
        )

    def _marked_on(self) -> int | None:
        """The snapshot whose rows can be marked as deleted by commits of our own; None if Spark has to do it."""
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
        """By Iceberg's own reader, which leaves out what is marked. The commit sees to it that it read ``old``."""
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
            attempt = uuid.uuid4().hex
            session.conf.set("spark.wap.id", attempt)
            try:
                with _recording(session, {**summary, ATTEMPT: attempt}):
                    columns = session.table(self._sql_name).columns if self.part is not None else ()
                    self.write(session, completed(step, columns) if self.part is not None else step)  # 2
            finally:
                session.conf.unset("spark.wap.id")
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
                    self.java.publish(staged.snapshot)  # 4
                return replace(done, rows=staged.rows if self.part is None else None)
        return self.applied(stamp.generation) or done

    def _mark(self, step: MarkRows, summary: Mapping[str, str]) -> None:
        """A snapshot with the step's rows and deletion vectors, by Iceberg's library.

        1 find the rows that go  2 write those that come  3 check that the table is at the snapshot that the step was
        planned on, whose records the caller has read  4 with the rows that were marked before, write the deletion
        vectors  5 one commit that names all of it, if the table is still what 3 has found.
        """
        marking, old = self._marking or self.java.marking(), step.old.version
        found, files = located_and_written(step.gone, step.count, step.report, lambda: marking.write(step.rows))  # 1, 2
        if (now := marking.snapshot(fresh=True)) != old:  # 3
            marking.discard(files)
            raise ConcurrentModification(f"the table is at snapshot {now}, not at {old}")
        try:
            known = self._vectors[1] if self._vectors[0] == old else marking.vectors()
        except UnknownDeletesError as error:  # planned again, it is a merge
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
        """A snapshot with the step's rows, by Spark."""
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
        # A small merge into a small table is written by one task: a file for every core, every second, adds up.
        size = self.size()
        is_small = size is not None and size[1] <= _SMALL_BYTES and step.count <= _SMALL_ROWS
        before: Any = session.conf.get(_PARTITIONS)
        session.conf.set(_PARTITIONS, "1" if is_small else before)
        try:
            session.sql(step.statement(self._sql_name, _VIEW))
        finally:
            session.conf.set(_PARTITIONS, before)  # unset, it would be Spark's default and not the session's

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        """Of two processes that alter columns at once, the second finds its columns changed already and fails."""
        record, version = self.record(stamp.generation), stamp.schema_version
        if record is None or version is None:
            raise LakeError(f"there is no table of generation {stamp.generation} at {self.location}")
        if record.schema_version >= version:
            return
        if self.part is not None:  # columns that go stay for the other parts
            there = {field["name"].lower() for field in current_schema(self.metadata() or {})["fields"]}
            added = [one for one in alterations(path) if isinstance(one, Add) and one.name.lower() not in there]
            self.java.alter(added, {self.version_key: str(version)})
            return
        if is_in_place(path):
            changes = alterations(path)
            self.refuse_used(changes)
            self.java.alter(changes, {SCHEMA_VERSION: str(version)})
            return
        # The whole table under other types, in one commit, which records the number that the rows are of. It replaces
        # whatever was committed since it was begun. What it then records is true of what it then has, so that the
        # changes that it has undone are applied again.
        with _recording(session, replace(record, schema_version=version).summary(stamp.metadata)):
            rows = self.read(session).select(*projected(path))
            came_from = lineage(path)
            said = {field["name"]: field.get("doc") for field in current_schema(self.metadata() or {})["fields"]}
            told = {name: said[was] for name, was in came_from.items() if was is not None and said.get(was)}
            for name, text in told.items():
                rows = rows.withMetadata(name, {"comment": text})
            rows.writeTo(self._sql_name).using("iceberg").tableProperty(SCHEMA_VERSION, str(version)).replace()

    def refuse_used(self, changes: Sequence[Alteration]) -> None:
        """TableStoppedError if a column goes that something of the owner's rests on: Iceberg would lose that."""
        gone = {change.name for change in changes if isinstance(change, Drop)}
        metadata = self.metadata()
        used = [one for one in uses(metadata, self._sql_name) if one.column in gone] if metadata is not None else []
        if used:
            table, statements = self.owner.partition("/")[2], dict.fromkeys(one.statement for one in used)
            raise TableStoppedError(
                f"table {table}: column '{used[0].column}' was dropped or has another type, and {used[0].what} of the "
                "lake table rests on it",
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
        self.java.lay_out(self.layout)

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
        """By Iceberg's own functions, so that each file of a copy is of the partition that Iceberg takes it for."""
        found = []
        for one in self.layout.partitions:
            column = quoted(one.column)
            given = f"{one.number}, {column}" if one.number is not None else column
            call = f"{quoted(self.name[0])}.system.{one.kind}({given})"
            found.append(column if one.kind == "identity" else call)
        return tuple(found)

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """The snapshots of this generation that are still there and whose rows are all of one moment."""
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
        """Those of the names that are columns of the table."""
        metadata = self.metadata()
        there = {field["name"] for field in current_schema(metadata)["fields"]} if metadata is not None else set()
        return tuple(name for name in names if name in there)

    @property
    def is_ordered(self) -> bool:
        """The table's owner has given it a sort order."""
        return bool((self.metadata() or {}).get("default-sort-order-id", 0))

    def kept_snapshots(self) -> tuple[float, int]:
        """For how many seconds, and how many of them, snapshots are to stay by the table's properties."""
        properties = (self.metadata() or {}).get("properties", {})
        age, least = (properties.get(f"history.expire.{name}", "0") for name in _KEPT)
        return int(age) / 1000, int(least)

    def newest_below_others(self) -> tuple[Record, Mapping[str, Any]] | None:
        """What the table records and says to people, if its newest snapshot does not.

        None if it does, or if nothing is recorded.
        """
        metadata = self.metadata()
        current = metadata.get("current-snapshot-id") if metadata is not None else None
        newest = list(_lineage(metadata, current))[:1] if metadata is not None else []
        if metadata is None or any(Record.of(one["summary"]) for one in newest):
            return None
        return self._newest(metadata, current)

    def expirable(self, aged: float | None, most: int, *, kept: int, until: float) -> float | None:
        """Expire snapshots from before this time: None if there are none, or no more than ``kept``.

        Those from before ``aged``, and the oldest of clearly more than ``most``; none from after ``until``.
        """
        times = sorted(one["timestamp-ms"] / 1000 for one in (self.metadata() or {}).get("snapshots", ()))
        surplus = times[-most] if len(times) > most * _SLACK else None
        limits = [min(one, until) for one in (aged, surplus) if one is not None]
        limit = max(limits, default=None)
        return limit if limit is not None and len(times) > kept and times[0] < limit else None


def _lineage(metadata: Metadata, snapshot: int | None) -> Iterator[Mapping[str, Any]]:
    """A snapshot and its ancestors, as far as they are still there."""
    by_id = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    while snapshot is not None and (found := by_id.get(snapshot)) is not None:
        yield found
        snapshot = found.get("parent-snapshot-id")


def _rows(summary: Mapping[str, str]) -> int | None:
    """By the sums in a snapshot's summary; None where they do not say it.

    With deletion vectors each deleted row is counted once. Equality deletes, which only others write, say nothing.
    """
    records, deleted = summary.get("total-records"), summary.get("total-position-deletes", "0")
    if records is None or summary.get("total-equality-deletes", "0") != "0":
        return None
    return int(records) - int(deleted)


@contextmanager
def _recording(session: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """What is written inside becomes a snapshot with this summary. The session is the table's own."""
    settings = {_PROPERTY + key: value for key, value in summary.items()}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
