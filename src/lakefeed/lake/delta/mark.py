"""Marks rows of a Delta table as deleted, in commits of our own: deltalake cannot write deletion vectors.

To mark rows of a file, a commit replaces its entry in the log: the same file, with another vector. The new entry must
repeat all fields of the old one, so this module reads the log itself (``LiveFiles``). One commit writes its vectors
into one file, ``deletion_vector_<uuid>.bin``.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyarrow import fs
from pyroaring import BitMap

from lakefeed.errors import LakeError
from lakefeed.lake.delta.log import removed
from lakefeed.lake.loader import DataFile
from lakefeed.lake.location import filesystem, spark_path
from lakefeed.lake.vector import FILE, ROW, decoded, encoded, united, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Entry = dict[str, Any]
"""One file in the log: the fields of its ``add`` action."""

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_OF_ADDED = (
    "path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags", "deletionVector",
    "baseRowId", "defaultRowCommitVersion", "clusteringProvider",
)  # fmt: skip
"""The fields of an ``add`` action. In Spark's checkpoints it has more, which the log cannot have: statistics and
partition values as values of their own types."""
_TIGHT = re.compile(r'"tightBounds"\s*:\s*true')
_FORMAT_VERSION = b"\x01"
# Delta writes ids and inline vectors in Z85: Python's base 85 with other characters.
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20


class LiveFiles:
    """The log's entries of a table's files, by path as the log writes it, and the rows marked in the files.

    Keeps what it has read: for a newer version it reads the newer commits alone. One thread at a time.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._version: int | None = None
        self._entries: dict[str, Entry] = {}
        self._counts: dict[str, int | None] = {}
        self._marks: dict[str, tuple[Entry, BitMap]] = {}  # by path: a vector as the log describes it, and its rows

    def at(self, version: int) -> Mapping[str, Entry]:
        """The entries at one version of the table. LakeError if the log lacks a version before it."""
        if self._version is None or version < self._version:
            self._begin(version)
        while self._version != version:
            actions = self._commit((self._version if self._version is not None else -1) + 1)
            if actions is None:  # another process has written a checkpoint and removed the commit
                self._begin(version)
                continue
            for gone in (one["remove"] for one in actions if "remove" in one):
                self._entries.pop(gone["path"], None)
                self._counts.pop(gone["path"], None)
            for added in (one["add"] for one in actions if "add" in one):
                self._add(added)
            self._version = (self._version if self._version is not None else -1) + 1
        return self._entries

    def marks(self, paths: Iterable[str]) -> dict[str, BitMap]:
        """The rows marked as deleted, for those of the files that have any."""
        found: dict[str, BitMap] = {}
        for path in paths:
            vector = self._entries[path].get("deletionVector")
            if vector is None:
                self._marks.pop(path, None)
                continue
            known = self._marks.get(path)
            if known is None or known[0] != vector:
                known = self._marks[path] = (vector, read_vector(self._location, vector))
            found[path] = known[1]
        return found

    @property
    def rows(self) -> int | None:
        """The table's number of rows; None if a file's statistics do not say."""
        counts = self._counts.values()
        return None if None in counts else sum(count for count in counts if count is not None)

    def _add(self, entry: Entry) -> None:
        entry = {name: value for name, value in entry.items() if value is not None}
        count, vector = row_count(entry), entry.get("deletionVector")
        self._entries[entry["path"]] = entry
        self._counts[entry["path"]] = count - (vector["cardinality"] if vector else 0) if count is not None else None

    def _begin(self, version: int) -> None:
        """Read the newest checkpoint up to ``version``; without one, begin with no entries."""
        files, log = filesystem(f"{self._location}/_delta_log")
        parts: dict[int, dict[str, int]] = {}
        listed = files.get_file_info(fs.FileSelector(log))
        for info in listed:
            match = _CHECKPOINT.fullmatch(info.base_name)
            if match is not None and int(match[1]) <= version:
                parts.setdefault(int(match[1]), {})[info.path] = int(match[3] or 1)
        whole = [one for one, names in parts.items() if all(len(names) >= wanted for wanted in names.values())]
        newest = max(whole, default=None)
        commits = {int(match[1]) for info in listed if (match := _COMMIT.fullmatch(info.base_name))}
        missing = set(range((newest if newest is not None else -1) + 1, version + 1)) - commits
        if missing:
            raise LakeError(
                f"the log of {self._location} lacks version {min(missing)}, so Lakefeed cannot know the table's files"
            )
        self._version, self._entries, self._counts, self._marks = newest, {}, {}, {}
        for path in parts.get(newest, {}) if newest is not None else ():
            with pq.ParquetFile(path, filesystem=files) as checkpoint:
                read = checkpoint.read([f"add.{name}" for name in (*_OF_ADDED, "stats_parsed.numRecords")])
                rows = read.column("add").to_pylist()
            for row in rows:
                if row is not None and row.get("path") is not None:
                    entry = dict(row)
                    for name in ("partitionValues", "tags"):  # pyarrow gives maps as pairs
                        entry[name] = dict(entry[name]) if entry.get(name) is not None else None
                    parsed = entry.pop("stats_parsed", None)
                    if parsed is not None and entry.get("stats") is None:  # the owner wants no text in checkpoints
                        entry["stats"] = json.dumps(parsed)
                    vector = entry.get("deletionVector") or {}
                    known = {key: value for key, value in vector.items() if value is not None}
                    entry["deletionVector"] = known if "storageType" in known else None
                    self._add(entry)

    def _commit(self, version: int) -> list[dict[str, Any]] | None:
        files, path = filesystem(f"{self._location}/_delta_log/{version:020d}.json")
        try:
            with files.open_input_stream(path) as stream:
                return [json.loads(line) for line in stream.read().splitlines() if line.strip()]
        except FileNotFoundError:
            return None


def row_count(entry: Entry) -> int | None:
    """A file's rows, including those marked as deleted; None if its statistics do not say."""
    statistics = json.loads(entry["stats"]) if entry.get("stats") else {}
    count = statistics.get("numRecords")
    return int(count) if count is not None else None


def read_vector(location: str, vector: Mapping[str, Any]) -> BitMap:
    """The rows of the vector that an entry of the log describes."""
    kind, text = vector["storageType"], vector["pathOrInlineDv"]
    if kind == "i":
        body = base64.b85decode(text.encode().translate(bytes.maketrans(_Z85, _B85)))
        return unpacked(body[: vector["sizeInBytes"]], f"the log of {location}")
    if kind == "u":
        prefix, encoded_id = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
        number = uuid.UUID(bytes=base64.b85decode(encoded_id.encode().translate(bytes.maketrans(_Z85, _B85))))
        path = "/".join([location, *([prefix] if prefix else []), f"deletion_vector_{number}.bin"])
    else:
        path = unquote(text.removeprefix("file://")) if text.startswith("file:") else text
    files, place = filesystem(path)
    with files.open_input_file(place) as stream:
        stream.seek(vector["offset"])
        return decoded(stream.read(vector["sizeInBytes"] + 8), path)


def write_vectors(location: str, marks: Mapping[str, BitMap]) -> dict[str, Entry]:
    """Write the vectors into one file. Returns each vector's description for the log."""
    if not marks:
        return {}
    number = uuid.uuid4()
    name = base64.b85encode(number.bytes).translate(bytes.maketrans(_B85, _Z85)).decode()
    content, described = bytearray(_FORMAT_VERSION), dict[str, Entry]()
    for path, rows in marks.items():
        vector = encoded(rows)
        described[path] = {
            "storageType": "u",
            "pathOrInlineDv": name,
            "offset": len(content),
            "sizeInBytes": len(vector) - 8,
            "cardinality": len(rows),
        }
        content += vector
    files, place = filesystem(f"{location}/deletion_vector_{number}.bin")
    with files.open_output_stream(place) as stream:
        stream.write(bytes(content))
    return described


def located_files(
    session: SparkSession, schema: Any, location: str, files: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """``columns`` of the rows of some files, with FILE and ROW. Includes rows that are marked as deleted."""
    from pyspark.sql import functions as F  # noqa: N812

    from lakefeed.lake.spark.type import quoted

    rows = session.read.schema(schema).parquet(*(spark_path(f"{location}/{path}", as_glob=True) for path in files))
    where = (F.col("_metadata.file_path").alias(FILE), F.col("_metadata.row_index").alias(ROW))
    return rows.select(*map(quoted, columns), *where)


def paths_of(addresses: Iterable[str], location: str, paths: Iterable[str]) -> dict[str, str]:
    """For each file address that Spark gives, the path in the log."""

    def plain(address: str) -> str:
        return unquote(address.removeprefix("file:")).lstrip("/")

    known = {plain(spark_path(f"{location}/{path}")): path for path in paths}
    return {address: known[plain(address)] for address in addresses}


def marking(
    location: str, entries: Mapping[str, Entry], old: Mapping[str, BitMap], new: Mapping[str, BitMap]
) -> list[dict[str, Entry]]:
    """Write the vectors of ``old`` and ``new`` marks together. Returns the actions for a commit to name them.

    A file with no row left is removed.
    """
    marks = united(old, new)
    empty = {path for path, rows in marks.items() if len(rows) == row_count(entries[path])}
    vectors = write_vectors(location, {path: rows for path, rows in marks.items() if path not in empty})
    actions: list[dict[str, Entry]] = []
    for path in marks:
        entry = entries[path]
        actions.append(removed(entry))
        if path in vectors:
            # Bounds and counts stay those of all rows; the entry says so: they are not "tight".
            text = str(entry["stats"]).rstrip()
            loose = _TIGHT.sub('"tightBounds":false', text)
            if loose == text and '"tightBounds"' not in text:
                loose = f'{text.removesuffix("}")},"tightBounds":false}}'
            added: Entry = {**entry, "dataChange": True, "stats": loose, "deletionVector": vectors[path]}
            actions.append({"add": added})
    return actions


def adding(files: Iterable[DataFile]) -> list[dict[str, Entry]]:
    return [
        {
            "add": {
                "path": one.name,
                "partitionValues": {},
                "size": one.bytes,
                "modificationTime": one.written_ms,
                "dataChange": True,
                "stats": one.statistics,
            }
        }
        for one in files
    ]
