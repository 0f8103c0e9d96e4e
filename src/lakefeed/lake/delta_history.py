"""The versions of a Delta table, by its log: see ``history``.

The applied number is a transaction of the commit itself (see ``delta_log``), so it is there exactly when the rows are.
The note is the commit's ``userMetadata``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.lake.delta_log import AppIds
from lakefeed.lake.history import LogCommit, noted
from lakefeed.lake.location import delta_uri, filesystem, spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMMIT = re.compile(r"(\d{20})\.json")


class DeltaHistory:
    """See ``history.TableHistory``. ``storage`` are deltalake's options."""

    keeps_more = "a longer delta.logRetentionDuration keeps more from now on."

    def __init__(self, path: str, table: TableId, storage: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._table = table
        self._storage = dict(storage or {})

    def commits(self) -> list[LogCommit]:
        return read_log(self._path, self._table)

    def check(self, version: int) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(delta_uri(self._path), version=version, storage_options=self._storage)
            files = table.get_add_actions().column("path").to_pylist()
        except (DeltaError, OSError) as error:
            raise self._cleaned_up(version, "the log") from error
        system, place = filesystem(self._path)
        found = system.get_file_info([f"{place}/{file}" for file in files])
        missing = sum(1 for info in found if not info.is_file)
        if missing:
            raise self._cleaned_up(version, f"{missing} of {len(files)} files")

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        return spark.read.format("delta").option("versionAsOf", version).load(spark_path(self._path))

    def _cleaned_up(self, version: int, what: str) -> LakeError:
        return LakeError(
            f"table {self._table} was at that place in version {version}, but {what} of it have been cleaned up",
            remedy="Keep more: VACUUM with a longer retention, and delta.logRetentionDuration; or ask for a later "
            "place.",
        )


def read_log(path: str, table: TableId) -> list[LogCommit]:
    """The commits that the table's log still has, oldest first. LakeError if there is no Delta table."""
    system, place = filesystem(path)
    found = system.get_file_info(fs.FileSelector(f"{place}/_delta_log", allow_not_found=True))
    files = sorted((match[1], info.path) for info in found if (match := _COMMIT.fullmatch(info.base_name)))
    if not files:
        raise LakeError(
            f"there is no Delta table of {table} at {path}", remedy="Correct the lake's path or the table's name."
        )
    return [_commit(int(version), _lines(system, file), table) for version, file in files]


def _lines(system: fs.FileSystem, path: str) -> list[dict[str, Any]]:
    with system.open_input_stream(path) as stream:
        return [json.loads(line) for line in stream.read().splitlines() if line.strip()]


def _commit(version: int, actions: Sequence[Mapping[str, Any]], table: TableId) -> LogCommit:
    information: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    metadata = noted(information.get("userMetadata"))
    if metadata is None:
        return LogCommit(version=version)
    recorded = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    ids = AppIds(f"lakefeed/{metadata['pipeline']}/{table}", metadata["generation"])
    return LogCommit(version=version, metadata=metadata, applied=recorded.get(ids.applied))
