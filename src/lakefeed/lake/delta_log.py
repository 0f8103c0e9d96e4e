"""One Delta table's log through the deltalake package: what is recorded, and commits of finished files. No JVM.

What a table's commits record, as Delta application transactions (appId → version):

    lakefeed/<pipeline>/<table>                         the generation that the table is of
    lakefeed/<pipeline>/<table>/<generation>            applied change set number; there once the copy is complete
    lakefeed/<pipeline>/<table>/<generation>/schema     schema version
    lakefeed/<pipeline>/<table>/<generation>/copy       chunks of the copy that are in the table

Delta keeps these through overwrites, so each life of a table has ids of its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from lakefeed.change.position import decode_position, highest
from lakefeed.errors import CommitFailedError, LakeError
from lakefeed.lake.base import Applied, Loaded
from lakefeed.lake.bounds import KeyBounds
from lakefeed.lake.delta_cleanup import remove_old_entries, remove_unused, sees_strays
from lakefeed.lake.delta_extent import count_rows, extent_of, masks_rows, stored_files
from lakefeed.lake.delta_files import ConcurrentModification, DataFile, read_files, takes_files
from lakefeed.lake.loader import ChunkFile
from lakefeed.lake.location import delta_uri, filesystem
from lakefeed.lake.step import Replaceable
from lakefeed.lake.store import Extent, Stamp

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class AppIds:
    """The application ids of one table in one pipeline: see the module."""

    owner: str
    generation: int

    @property
    def applied(self) -> str:
        return f"{self.owner}/{self.generation}"

    @property
    def schema(self) -> str:
        return f"{self.applied}/schema"

    @property
    def copy(self) -> str:
        return f"{self.applied}/copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Finished files of some chunks, and what their commit records.

    ``after`` is how many chunks the table of ``ids`` has before them; None for the first, which make the table.
    """

    ids: AppIds
    after: int | None
    files: Sequence[ChunkFile]
    schema: pa.Schema
    transactions: Mapping[str, int]
    metadata: Mapping[str, Any]
    description: str


class DeltaLog:
    """See the module. One thread at a time writes; ``applied`` may be asked by any.

    ``properties`` are what the table is made with.
    """

    def __init__(self, path: str, *, storage_options: Mapping[str, str], properties: Mapping[str, str]) -> None:
        self.path = path
        self._uri = delta_uri(path)
        self._options = dict(storage_options)
        self._properties = dict(properties)
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._rows: tuple[int, int | None] = (-1, None)

    def applied(self, ids: AppIds) -> Applied | None:
        """What the table's commits say of this generation; None before its copy is complete."""
        with self._lock:
            table = self._current()
            if table is None or table.transaction_version(ids.owner) != ids.generation:
                return None
            number = table.transaction_version(ids.applied)
            version = table.transaction_version(ids.schema)
            if number is None or version is None:
                return None
            return Applied(number=number, schema_version=version, rows=self._count(table))

    def chunks_done(self, ids: AppIds) -> int | None:
        """How many chunks of this generation's copy are in the table; None if it has not begun."""
        with self._lock:
            table = self._current()
            if table is None or table.transaction_version(ids.owner) != ids.generation:
                return None
            found: int | None = table.transaction_version(ids.copy)
            return found

    def is_foreign(self, ids: AppIds) -> bool:
        """There is a table that this pipeline did not make."""
        with self._lock:
            table = self._current()
            return table is not None and table.transaction_version(ids.owner) is None

    def loaded(self, generation: int) -> Loaded:
        """The sum of what the commits of this generation's copy say."""
        rows, high = 0, None
        for copy in self._copy_commits(generation):
            rows += copy["rows"]
            high = highest(high, decode_position(copy["high"]) if copy["high"] else None)
        return Loaded(rows=rows, high=high)

    def having(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the names that are columns of the table."""
        with self._lock:
            table = self._current()
            there = {field.name for field in table.schema().fields} if table is not None else set()
        return tuple(name for name in names if name in there)

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:
        """How many of the table's files may have rows between the bounds; all, where their statistics do not tell.

        With deletion vectors no bytes are touched: a merge marks rows and rewrites no file.
        """
        with self._lock:
            table = self._current()
            read = stored_files(table) if table is not None else None
        return extent_of(read, column, bounds) if read is not None else None

    def read_files(self, session: SparkSession, replaceable: Replaceable) -> DataFrame:
        """The rows of files that an extent named. ConcurrentModification if the table has moved since."""
        with self._lock:
            return read_files(session, self._at(replaceable.version), self.path, replaceable.files)

    def takes_files(self) -> bool:
        """Can files be added to the table without Spark's own commit?"""
        with self._lock:
            table = self._current()
            return table is not None and takes_files(table)

    def is_due(self, ids: AppIds, stamp: Stamp) -> bool:
        """Has the table not got the stamp's change set yet? CommitFailedError if it is not where the change sets begin.

        Then another process has this pipeline, too, and the changes are to be looked up again.
        """
        with self._lock:
            return self._is_due(self._at(None), ids, stamp)

    def exchange(self, added: Sequence[DataFile], removed: Replaceable | None, ids: AppIds, stamp: Stamp) -> None:
        """One commit: files in, and others out. Nothing, if the table has the stamp's change set already.

        ConcurrentModification if somebody has committed since the table was looked at, or the files out were named.
        """
        from deltalake.exceptions import CommitFailedError as Refused
        from deltalake.transaction import CommitProperties, RemoveAction, Transaction

        now = int(time.time() * 1000)
        out = [RemoveAction(path, True, now) for path in removed.files] if removed is not None else []
        properties = CommitProperties(
            custom_metadata={"userMetadata": json.dumps(stamp.metadata)},
            app_transactions=[Transaction(ids.applied, stamp.number or 0)],
            max_commit_retries=0,
        )
        with self._lock:
            table = self._at(removed.version if removed is not None else None)
            if not self._is_due(table, ids, stamp):
                return  # the files are part of nothing: maintenance removes them
            actions = [*(_add_action(file) for file in added), *out]
            try:
                table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
            except Refused as error:
                raise ConcurrentModification(str(error)) from error

    def _is_due(self, table: DeltaTable, ids: AppIds, stamp: Stamp) -> bool:
        recorded: int | None = table.transaction_version(ids.applied)
        if recorded is None or table.transaction_version(ids.owner) != ids.generation:
            raise CommitFailedError(f"the table at {self.path} is not of generation {ids.generation} any more")
        if stamp.number is None or recorded >= stamp.number:
            return False
        if recorded > stamp.metadata["change_sets"]["after"]:
            raise CommitFailedError(f"another process has brought {self.path} to change set {recorded}")
        return True

    def _at(self, version: int | None) -> DeltaTable:
        table = self._current()
        if table is None:
            raise LakeError(f"the table at {self._uri} is gone")
        if version is not None and table.version() != version:
            raise ConcurrentModification(f"the table is at version {table.version()} and was at {version}")
        return table

    def files(self, version: int) -> list[str]:
        """The files of one version. LakeError if its log or one of them has been cleaned up, or rows are masked."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(self._uri, version=version, storage_options=self._options or None)
        except DeltaError as error:
            raise LakeError(f"version {version} of the table at {self.path} cannot be read: {error}") from error
        if masks_rows(table):
            raise LakeError(f"the table at {self.path} has deletion vectors, which mask rows of its files")
        paths = [f"{self.path}/{name}" for name in pa.table(table.get_add_actions()).column("path").to_pylist()]
        for path in paths:
            system, place = filesystem(path)
            if system.get_file_info(place).type is not fs.FileType.File:
                raise LakeError(f"version {version} of the table at {self.path} has lost a file: {path}")
        return paths

    def vacuum(self, keep_hours: float) -> int:
        """Remove files that no version younger than so many hours uses. Returns how many."""
        table = self._opened()
        if table is None:
            return 0
        return remove_unused(table, keep_hours, strays=takes_files(table) and sees_strays(table, keep_hours))

    def leaves_strays(self, keep_hours: float) -> bool:
        """Does ``vacuum`` leave files that no version uses, because only Spark can tell them from those in use?"""
        table = self._opened()
        return table is not None and sees_strays(table, keep_hours) and not takes_files(table)

    def forget(self, keep_versions: int) -> int:
        """Remove log entries that only older versions than so many need. Returns how many files."""
        with self._lock:
            table = self._current()
            # A feature that is not known here may ask for checkpoints to stay.
            return remove_old_entries(self.path, table.version(), keep_versions) if table and takes_files(table) else 0

    def commit(self, group: Group) -> None:
        """Add a group's files in one commit. The first one replaces whatever table was there, in the same step."""
        from deltalake import Schema
        from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

        actions = [_add_action(file) for file in group.files if file.name is not None]
        properties = CommitProperties(
            custom_metadata={"userMetadata": json.dumps(group.metadata)},
            app_transactions=[Transaction(app, version) for app, version in group.transactions.items()],
        )
        schema = Schema.from_arrow(group.schema)
        with self._lock:
            if group.after is None:
                create_table_with_add_actions(
                    self._uri, schema, actions, mode="overwrite", description=group.description,
                    configuration=self._properties, storage_options=self._options or None,
                    commit_properties=properties,
                )  # fmt: skip
                self._table = None
                return
            table = self._current()
            if table is None:
                raise LakeError(f"the table at {self._uri} is gone in the middle of its copy")
            if table.transaction_version(group.ids.copy) != group.after:
                raise CommitFailedError(f"another process copies the same rows to {self.path}")
            table.create_write_transaction(actions, "append", schema, commit_properties=properties)

    def _current(self) -> DeltaTable | None:
        """The table at its newest version. Another process may have committed, or removed it."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._uri, self._options or None):
            self._table = None
        elif self._table is None:
            self._table = self._opened()
        else:
            self._table.update_incremental()
        return self._table

    def _opened(self) -> DeltaTable | None:
        """A handle for one caller: to list a large table's files takes longer than others should wait for the lock."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._uri, self._options or None):
            return None
        return DeltaTable(self._uri, storage_options=self._options or None)

    def _count(self, table: DeltaTable) -> int | None:
        """Rows by the files' statistics; None where they do not tell, as with deletion vectors."""
        version = table.version()
        if self._rows[0] != version:
            self._rows = (version, count_rows(table))
        return self._rows[1]

    def _copy_commits(self, generation: int) -> Iterator[Mapping[str, Any]]:
        with self._lock:
            table = self._current()
            history = table.history() if table is not None else []
        for commit in history:
            metadata = json.loads(commit.get("userMetadata") or "{}")
            if isinstance(metadata, dict) and metadata.get("generation") == generation and "copy" in metadata:
                yield metadata["copy"]


def _add_action(file: ChunkFile | DataFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(file.name or "", file.bytes, {}, file.written_ms, True, file.statistics)
