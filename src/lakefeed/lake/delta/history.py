"""The versions of a Delta table, by its log: see ``lake.history``.

The applied number is a transaction of the commit (see ``store``), so it is there exactly when the rows are. The note is
the commit's ``userMetadata``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.lake.base import TableVersion
from lakefeed.lake.delta.feature import features_of
from lakefeed.lake.history import LogCommit, exact_states, noted
from lakefeed.lake.location import delta_uri, filesystem, spark_options, spark_path
from lakefeed.lake.spark.error import first_line

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

_FEW_FILES = 32
"""Spark lists up to so many files without a job."""
_COMMIT = re.compile(r"(\d{20})\.json")


class AppIds(NamedTuple):
    """The transaction ids of one generation: see ``store``. All generations of a table have the same ``owner``."""

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


class DeltaHistory:
    """See ``history.TableHistory``. ``storage`` are deltalake's options."""

    keeps_more = "a longer delta.logRetentionDuration keeps more from now on."  # ends a sentence of ``history``

    def __init__(self, path: str, table: TableId, storage: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._table = table
        self._storage = dict(storage or {})
        self._checked: tuple[int, DeltaTable, list[str]] | None = None

    def commits(self) -> list[LogCommit]:
        return read_log(self._path, self._table)

    def check(self, version: int) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(delta_uri(self._path), version=version, storage_options=self._storage)
            files = [str(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()]
            self._checked = (version, table, files)
        except (DeltaError, OSError) as error:
            raise self._cleaned_up(version, "the log") from error
        system, place = filesystem(self._path)
        found = system.get_file_info([f"{place}/{file}" for file in files])
        missing = sum(1 for info in found if not info.is_file)
        if missing:
            raise self._cleaned_up(version, f"{missing} of {len(files)} files")

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Reads few plain files as Parquet: Delta's own reader first reads the log, in Spark jobs."""
        from pyspark.sql.pandas.types import from_arrow_schema

        for name, value in spark_options(self._path).items():
            spark.conf.set(name, value)
        if self._checked is not None and self._checked[0] == version:
            _, table, files = self._checked
            if features_of(table).takes_files and 0 < len(files) <= _FEW_FILES:
                described: Any = table.schema().to_arrow()  # another library's schema, by the Arrow C interface
                schema = from_arrow_schema(pa.schema(described), prefer_timestamp_ntz=True)
                return spark.read.schema(schema).parquet(
                    *(spark_path(f"{self._path}/{file}", as_glob=True) for file in files)
                )
        return spark.read.format("delta").option("versionAsOf", version).load(spark_path(self._path))

    def _cleaned_up(self, version: int, what: str) -> LakeError:
        return LakeError(
            f"table {self._table} was at that position in version {version}, but {what} of that version are gone",
            remedy="Ask for a later position. To keep more from now on, VACUUM with a longer retention, and set a "
            "longer delta.logRetentionDuration.",
        )


def read_log(path: str, table: TableId) -> list[LogCommit]:
    """The commits that the table's log still has, oldest first. LakeError if there is no Delta table."""
    system, place = filesystem(path)
    found = system.get_file_info(fs.FileSelector(f"{place}/_delta_log", allow_not_found=True))
    files = sorted(
        (int(match[1]), info.path, (info.mtime_ns, info.size))
        for info in found
        if (match := _COMMIT.fullmatch(info.base_name))
    )
    if not files:
        raise LakeError(
            f"there is no Delta table of {table} at {path}", remedy="Correct the lake's path or the table's name."
        )
    return [_commit(path, file, version, table, state) for version, file, state in files]


@lru_cache(maxsize=50_000)
def _commit(path: str, file: str, version: int, table: TableId, state: tuple[int, int]) -> LogCommit:  # noqa: ARG001
    """One entry of the log. A process reads it once, as long as its time and size (``state``) stay the same."""
    system, _ = filesystem(path)
    with system.open_input_stream(file) as stream:
        actions = [json.loads(line) for line in stream.read().splitlines() if line.strip()]
    information: Mapping[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
    metadata = noted(information.get("userMetadata"))
    if metadata is None:
        return LogCommit(version=version)
    recorded = {one["txn"]["appId"]: one["txn"]["version"] for one in actions if "txn" in one}
    ids = AppIds(f"lakefeed/{metadata['pipeline']}/{table}", metadata["generation"])
    return LogCommit(version=version, metadata=metadata, applied=recorded.get(ids.applied))


def newest_restore(path: str, newest: int) -> tuple[int, int | None] | None:
    """The newest RESTORE after Lakefeed's newest commit, and the version whose rows it brought back; None if there is
    none.

    Reads from version ``newest`` backwards, as far as the log has entries: mostly one.
    """
    system, place = filesystem(path)
    for version in range(newest, -1, -1):
        try:
            with system.open_input_stream(f"{place}/_delta_log/{version:020d}.json") as stream:
                actions = [json.loads(line) for line in stream.read().splitlines() if line.strip()]
        except FileNotFoundError:
            return None
        information: Mapping[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
        if noted(information.get("userMetadata")) is not None:
            return None
        if information.get("operation") == "RESTORE":
            source = (information.get("operationParameters") or {}).get("version")
            return version, int(source) if source is not None else None
    return None


def exact_versions(path: str, table: TableId, generation: int) -> tuple[TableVersion, ...]:
    """See ``LakeTable.states``."""
    return tuple(
        TableVersion(
            number=commit.applied or 0,
            schema_version=int((commit.metadata or {})["schema_version"]),
            position=commit.position,
            version=commit.version,
        )
        for commit in exact_states(read_log(path, table), generation)
    )


class DeltaRows:
    """Contract: ``reader.StoredRows``. Reads with deltalake's query engine, which applies deletion vectors."""

    def __init__(self, path: str, storage: Mapping[str, str] | None = None) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        self._path = path
        try:
            self._table = DeltaTable(delta_uri(path), storage_options=dict(storage or {}))
        except DeltaError as error:
            raise self._damaged(error) from error
        described: Any = self._table.schema().to_arrow()  # another library's schema, by the Arrow C interface
        self.schema: pa.Schema = pa.schema(described)

    @property
    def estimate(self) -> int | None:
        counts = self._table.get_add_actions(flatten=True).column("num_records").to_pylist()
        return sum(counts) if None not in counts else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        from deltalake import QueryBuilder
        from deltalake.exceptions import DeltaError

        try:
            found: Any = QueryBuilder().register("t", self._table).execute("SELECT * FROM t")
            for batch in pa.RecordBatchReader.from_stream(found):
                yield batch.select(self.schema.names).cast(self.schema)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> LakeError:
        return LakeError(f"the table at {self._path} cannot be read: {first_line(error)}")
