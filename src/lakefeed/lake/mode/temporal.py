"""Temporal: the changes of a window as versions of rows (SCD type 2). One commit.

    changes of the window ─┐
                           ├─ by key, in order of seq ─ which of them open or close a version ─ rows of the merge
    last versions of the  ─┘
    keys that it touches

- An insert opens a version, and so does an update that changes a tracked column; NULL equals NULL, and NaN equals NaN.
  Other updates change the open version. A delete closes it.
- The effective time is the source's commit time, but never before the key's last opening or closing: clocks step back,
  intervals do not. Changes of one commit time make versions of no length, in order of seq. The table keeps them, so it
  does not depend on how change sets were grouped.
- A change without a commit time takes that of the key's change before it; a key's first change, ``UNKNOWN_TIME``.
- Changes that the copied rows may already show (a window that is not exact) make no history: they change the current
  versions, as in a mirror.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from lakefeed.change.batch import SEQ, TIME
from lakefeed.change.segment import Window
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import ConfigError, TableStoppedError
from lakefeed.lake.mode.base import INSTANT, UNKNOWN_TIME, CurrentRows, Mode, check_name, checked_names
from lakefeed.lake.mode.changes import window_changes
from lakefeed.lake.mode.collapse import truncates_as_deletes
from lakefeed.lake.mode.upsert import ModeColumns, matches, packed, rewritten_files, upsert_step
from lakefeed.lake.mode.versions import STORED, Versions
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.lake.schema.projection import lineage
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import BROADCAST_ROWS, AppendRows, MarkRows, MergeRows, RewriteRows, Step, TableStore
from lakefeed.lake.vector import FILE, ROW
from lakefeed.lake.window import key_bounds, lowest_time, narrowed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.lake.base import TableCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporal(Mode):
    """Full history (SCD type 2): a row per version, valid in [valid_from, valid_to).

    A change to a tracked column opens a version. ``track`` names these columns (None: all), without those of
    ``track_except``. Changes to other columns go into the current version.
    """

    name: ClassVar[str] = "temporal"
    one_schema_per_window: ClassVar[bool] = True
    """So a change to a column that the source drops later opens its version first, as if each had come alone."""

    valid_from: str = "valid_from"
    valid_to: str = "valid_to"
    is_current: str = "is_current"
    track: tuple[str, ...] | None = None
    track_except: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = (self.valid_from, self.valid_to, self.is_current)
        for option, name in zip(("valid_from", "valid_to", "is_current"), names, strict=True):
            check_name("temporal", option, name, such_as=option)
        if self.track is not None:
            object.__setattr__(self, "track", checked_names("temporal", "track", self.track))
        object.__setattr__(self, "track_except", checked_names("temporal", "track_except", self.track_except))
        if len({name.lower() for name in names}) < len(names):
            raise ConfigError(f"mode temporal: its columns need different names, not {', '.join(names)}")
        if self.track is not None and self.track_except:
            raise ConfigError("mode temporal: give track or track_except, not both")

    def added_columns(self) -> tuple[Column, ...]:
        return (
            Column(self.valid_from, INSTANT),
            Column(self.valid_to, INSTANT),
            Column(self.is_current, pa.bool_()),
            Column(SEQ, pa.int64()),
        )

    def copied_values(self, copy: TableCopy, planned: datetime) -> dict[str, Any]:  # noqa: ARG002  # the seam's
        return {self.valid_from: planned, self.valid_to: None, self.is_current: True, SEQ: 0}

    def current_rows(self) -> CurrentRows:
        return CurrentRows(self.is_current)

    def interval(self) -> Temporal:
        return self

    def tracked_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns whose changes open a version. The key is not among them: another key is another row."""
        self.check_columns(schema)
        wanted = schema.names if self.track is None else self.track
        return tuple(name for name in schema.names if name in wanted and name not in (*self.track_except, *schema.key))

    def check_columns(self, schema: TableSchema) -> None:
        """TableStoppedError for a name in ``track`` that the table does not have: its history would be missing.

        A name in ``track_except`` may be missing, so that a rule can cover many tables, but must not differ only in
        case.
        """
        lower = {name.lower() for name in schema.names}
        missing = [name for name in self.track or () if name not in schema.names]
        missing += [name for name in self.track_except if name not in schema.names and name.lower() in lower]
        if missing:
            option = "track" if self.track is not None else "track_except"
            raise TableStoppedError(
                f"table {schema.table} lacks columns that its {option} names: {', '.join(missing)}",
                remedy=f"Correct {option}, or give {schema.table} a rule of its own; its columns are "
                f"{', '.join(schema.names)}.",
                table=str(schema.table),
            )

    def check_evolution(
        self, table: TableId, before: ColumnMapping, after: ColumnMapping, path: Sequence[TableSchema]
    ) -> None:
        """TableStoppedError for a named column that is renamed or dropped: it would lose its history in silence."""
        rebuild = f"lakefeed rebuild FILE {table} --from-source"
        became = {was: name for name, was in lineage(path).items() if was is not None}
        stays = {mapped.column.id for mapped in after.columns}
        for mapped in before.live.values():
            name = mapped.column.name
            if name not in (*(self.track or ()), *self.track_except):
                continue
            now = after.live.get(became.get(mapped.source, ""))
            if now is not None and now.column.name != name:
                option = "track" if self.track is not None else "track_except"
                raise TableStoppedError(
                    f"table {table}: column '{name}', which its {option} names, is now called '{now.column.name}'",
                    remedy=f"Write '{now.column.name}' instead in {option}, and copy the table again: {rebuild}.",
                    table=str(table),
                )
            if now is None and mapped.column.id not in stays and self.track is not None:
                raise TableStoppedError(
                    f"table {table}: the source dropped column '{name}', and the table's track names it",
                    remedy="Set evolution.drop_column to keep and start again: the table then goes on, and keeps the "
                    f"column. Or remove '{name}' from track and copy the table again: {rebuild}.",
                    table=str(table),
                )

    def step(self, session: SparkSession, window: Window, store: TableStore) -> Step:
        from pyspark.sql import functions as F  # noqa: N812

        target = window.target
        if not target.key:
            raise TableStoppedError(
                f"table {window.table} has no key, so nothing says which versions are of one row",
                remedy=f"Give {window.table} a primary key, or mode mirror or append by a rule of its own.",
                table=str(window.table),
            )
        versions = Versions(window, self, self.tracked_columns(target))
        current = f"t.{quoted(self.is_current)}"
        if not window.exact:
            new = {
                self.valid_from: f"coalesce(s.{TIME}, {UNKNOWN_TIME})",
                self.valid_to: "CAST(NULL AS TIMESTAMP)",
                self.is_current: "true",
                SEQ: "0L",
            }
            return upsert_step(session, window, store, ModeColumns(new=new, only=current, metadata=(TIME,)))

        bounds = key_bounds(window)
        changes = window_changes(session, window, lambda: store.read(session).alias("t").where(current), (TIME,))
        keys = changes.select(*map(quoted, target.key)).alias("s")
        keys = F.broadcast(keys) if window.counts.total <= BROADCAST_ROWS else keys
        # Current versions, and closed ones that end after the first change: these exist only if a clock stepped back.
        lowest = lowest_time(window)
        concerned = f"({current} OR t.{quoted(self.valid_to)} > {lowest})" if lowest is not None else "true"
        if window.truncated_at is None:
            extent = store.extent(target.key[0], bounds)
            if extent is not None and extent.touched_files == 0:
                return AppendRows(packed(versions.rows(versions.of_changes(changes)).drop(STORED), window))
            if extent is not None and extent.markable is not None:
                # The versions that the window may change: mark all of them, and write them again as they are after it.
                marked, within = extent.markable, bounds.condition("t") if bounds is not None else None
                names = [*target.names, *(column.name for column in self.added_columns())]
                found = store.located(session, marked, names).alias("t").where(concerned).where(within or "true")
                found = found.join(keys, F.expr(matches(window)), "left_semi")
                found = store.live(found, marked, window.counts.total)
                events = versions.of_changes(changes).unionByName(versions.of_table(found))
                made = versions.rows(events, unchanged=True).drop(STORED)
                gone = found.where(quoted(self.is_current)).select(FILE, ROW)
                return MarkRows(gone=gone, rows=packed(made, window), old=marked, count=window.counts.total)
            count = rewritten_files(session, window, extent) if extent is not None else 0
            if extent is not None and extent.replaceable is not None and count:
                # Write the touched files again: the new versions of the window's keys, and all other rows.
                old = store.read_files(session, extent.replaceable).alias("t")
                stored = old.where(concerned).join(keys, F.expr(matches(window)), "left_semi")
                events = versions.of_changes(changes).unionByName(versions.of_table(stored))
                made = versions.rows(events, unchanged=True).drop(STORED)
                others = old.join(keys, F.expr(f"{matches(window)} AND {current}"), "left_anti")
                rows = others.select(*map(quoted, made.columns)).unionByName(made)
                return RewriteRows(rows.coalesce(count), extent.replaceable)
            bounds = narrowed(bounds, window, extent.bytes if extent is not None else 0)

        within = bounds.condition("t") if bounds is not None else None
        stored = store.read(session).alias("t").where(concerned).where(within or "true")
        if window.truncated_at is None:
            stored = stored.join(keys, F.expr(matches(window)), "left_semi")
        else:
            changes = truncates_as_deletes(changes, stored.where(quoted(self.is_current)), target.key)
        rows = versions.rows(versions.of_changes(changes).unionByName(versions.of_table(stored)))
        # Versions that the table has match its current ones; the others match nothing and are inserted. Two conditions
        # say "current": by their count of NULLs the table skips files without such a version; booleans have no bounds.
        parts = (matches(window), f"s.{STORED}", f"{current} AND t.{quoted(self.valid_to)} IS NULL", within)
        changing = [*(name for name in target.names if name not in target.key), self.valid_to, self.is_current]
        names = [*target.names, *(column.name for column in self.added_columns())]
        return MergeRows(
            rows=rows,
            condition=" AND ".join(part for part in parts if part),
            updates={name: f"s.{quoted(name)}" for name in changing},
            inserts={name: f"s.{quoted(name)}" for name in names},
            replaces=True,
            count=window.counts.total,
        )
