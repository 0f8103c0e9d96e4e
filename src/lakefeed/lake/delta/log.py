"""Writes entries of a Delta table's log without Spark: how one is put, and its actions.

An entry appears whole under its version, or not at all. If several writers make one version, exactly one succeeds. On a
disk this module writes the entry under another name and links it to its own; in an object store it puts it with
``If-None-Match: *`` (docs/object-stores.md). There Spark's own commits would be ordinary puts: see ``remote``.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.errors import LakeError
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.storage.location import storage_at

if TYPE_CHECKING:
    from deltalake import DeltaTable

Action = dict[str, Any]

_ENTRY = re.compile(r"[0-9]{20}\.json")
"""The name of an entry. Checkpoints, compacted entries and foreign files have others."""
_COARSE_NANOSECONDS = 2_000_000_000
_OF_REMOVED = ("path", "partitionValues", "size", "tags", "deletionVector")
_IMPLIED = {1: (), 2: ("appendOnly", "invariants")}
"""The features that older protocol versions ask of writers. Later versions imply more; version 7 lists them by name."""


def put_commit(
    location: str,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    transactions: Mapping[str, int],
    note: str,
    operation: str = "MERGE",
) -> None:
    """Commit ``version`` of the table; ConcurrentModification if somebody else has."""
    now = int(time.time() * 1000)
    information = {
        "timestamp": now,
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": False,
        "engineInfo": "lakefeed",
        "userMetadata": note,
        "txnId": str(uuid.uuid4()),  # makes each entry unique: by it a store tells a writer's own from another's
    }
    recorded = [{"txn": {"appId": app, "version": number, "lastUpdated": now}} for app, number in transactions.items()]
    lines = [{"commitInfo": information}, *recorded, *actions]
    data = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode()
    try:
        if "://" in location:
            storage_at(location).create(f"_delta_log/{version:020d}.json", data)
        else:
            _link(Path(location, "_delta_log", f"{version:020d}.json"), data)
    except FileExistsError as error:
        raise ConcurrentModification(f"somebody else has committed version {version} of {location}") from error


class NewestEntry:
    """Tells which file of the log is the newest entry of a table in a directory. Any thread.

    A log has up to ten thousand files, and a new one changes the directory's time. So the directory is read again only
    if its time has changed, or had changed less than two seconds before it was last read: clocks of file systems are
    coarse, and a change right after that reading could leave the same time.
    """

    def __init__(self, location: str) -> None:
        self._log = f"{location}/_delta_log"
        self._read: tuple[tuple[int, int], str] | None = None  # the directory's state, and its newest entry

    def ask(self) -> str | None:
        """Its name, with what tells it from an entry of the same number that another table has there later.

        None if there is none.
        """
        try:
            now, log = time.time_ns(), os.stat(self._log)  # noqa: PTH116  # of each of a thousand tables
            state = log.st_ino, log.st_mtime_ns
            read = self._read
            if read is not None and read[0] == state:
                newest = read[1]
            else:
                with os.scandir(self._log) as files:
                    newest = max((one.name for one in files if _ENTRY.fullmatch(one.name)), default="")
                self._read = (state, newest) if now - log.st_mtime_ns > _COARSE_NANOSECONDS else None
            if not newest:
                return None
            found = os.stat(f"{self._log}/{newest}")  # noqa: PTH116
        except OSError:
            return None
        return f"{newest} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _link(entry: Path, data: bytes) -> None:
    temporary = entry.with_name(f"_commit_{uuid.uuid4()}.json.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, entry)
    finally:
        temporary.unlink(missing_ok=True)


def removed(entry: Mapping[str, Any], *, changes_rows: bool = True) -> Action:
    """The action that removes the file of an entry from the table."""
    found: Action = {name: entry[name] for name in _OF_REMOVED if name in entry}
    found |= {"deletionTimestamp": int(time.time() * 1000), "dataChange": changes_rows, "extendedFileMetadata": True}
    return {"remove": found}


def described(table: DeltaTable, schema: str | None = None, properties: Mapping[str, str] | None = None) -> Action:
    """The action with the table's metadata, under another schema or with more properties."""
    metadata = table.metadata()
    return {
        "metaData": {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema if schema is not None else table.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "configuration": {**metadata.configuration, **(properties or {})},
            "createdTime": metadata.created_time,
        }
    }


def allowing(table: DeltaTable, features: Iterable[str]) -> list[Action]:
    """The action that adds reader features to the table's protocol; nothing if the table has them."""
    protocol = table.protocol()
    readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
    wanted = set(features)
    if wanted <= readers & writers:
        return []
    if protocol.min_writer_version < 7:
        if protocol.min_writer_version not in _IMPLIED or protocol.min_reader_version > 1:
            raise LakeError(
                f"the table's protocol ({protocol.min_reader_version}, {protocol.min_writer_version}) implies features "
                f"without naming them, so Lakefeed cannot add {', '.join(sorted(wanted))}"
            )
        writers |= set(_IMPLIED[protocol.min_writer_version])
    return [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted(readers | wanted),
                "writerFeatures": sorted(writers | wanted),
            }
        }
    ]
