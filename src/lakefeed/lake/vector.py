"""Deletion vectors: turns the rows that Spark's tasks find into one bitmap for each file, and into bytes.

Delta and Iceberg store one file's vector in the same bytes (docs/decisions/0012-deletion-vectors.md): a length, a magic
number, a roaring bitmap in the portable 64-bit form, and a CRC-32. Each format has its own place for these bytes.
"""

from __future__ import annotations

import struct
import threading
import zlib
from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pyroaring import BitMap

from lakefeed.errors import LakeError
from lakefeed.lake.spark.job import both

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

T = TypeVar("T")
FILE, ROW = "_lakefeed_file", "_lakefeed_row"
"""The address of a row in the table: the file as Spark names it, and the row's number in it, from 0."""

_MAGIC = 1681511377
_BUCKET_ROWS = 32_768  # of Spark's own bitmaps
_MOST_LISTED = 1_000_000
"""Up to so many rows, tasks send their numbers to the driver; of more, a bit for each row of their files."""
_LARGEST = 1 << 32
_REPORT_SECONDS = 10.0
"""How long a report may take after its job; normally milliseconds."""


def positions(gone: DataFrame, count: int) -> dict[str, BitMap]:
    """The rows of ``gone``, about ``count`` with FILE and ROW, by file. Tasks group them."""
    from pyspark.sql import functions as F  # noqa: N812

    found: dict[str, BitMap] = {}
    if count <= _MOST_LISTED:
        listed = gone.groupBy(FILE).agg(F.collect_list(ROW).alias(ROW)).toArrow()
        for file, rows in zip(listed.column(FILE).to_pylist(), listed.column(ROW), strict=True):
            found[str(file)] = bitmap_of(rows.values.to_numpy())
        return found
    number = F.col(ROW) + 1  # Spark's functions count values from 1
    bucket = F.bitmap_bucket_number(number).alias("bucket")
    bits = F.bitmap_construct_agg(F.bitmap_bit_position(number)).alias("bits")
    grouped = gone.groupBy(FILE, bucket).agg(bits).toArrow()
    for part in grouped.to_pylist():
        rows = np.flatnonzero(np.unpackbits(np.frombuffer(part["bits"], np.uint8), bitorder="little"))
        found.setdefault(part[FILE], BitMap()).update(bitmap_of(rows + (part["bucket"] - 1) * _BUCKET_ROWS))
    return found


def observed(gone: DataFrame) -> tuple[DataFrame, Observation]:
    """``gone`` for use in one job that reads all its rows, and the report of these rows when the job has ended."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    report = Observation()
    return gone.observe(report, F.expr(f"collect_list(struct({FILE}, {ROW})) AS {ROW}")), report


def located_and_written(
    gone: DataFrame, count: int, report: Observation | None, write: Callable[[], T]
) -> tuple[dict[str, BitMap], T]:
    """The rows to mark, by file, and the result of ``write``, which writes the new rows.

    With a ``report``, the job that writes also finds them. Spark reports them by an event, and drops events if it has
    too many: if none comes, another job finds the rows.
    """
    if report is None:
        return both(gone.sparkSession, lambda: positions(gone, count), write)
    written, reported = write(), list[list[tuple[str, int]]]()
    waiting = threading.Thread(target=lambda: reported.append(report.get[ROW]), daemon=True)
    waiting.start()
    waiting.join(_REPORT_SECONDS)
    if not reported:
        return positions(gone, count), written
    listed: dict[str, list[int]] = {}
    for file, row in reported[0]:
        listed.setdefault(file, []).append(row)
    return {file: bitmap_of(np.array(rows, np.int64)) for file, rows in listed.items()}, written


def bitmap_of(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> BitMap:
    if len(rows) and int(rows.max()) >= _LARGEST:
        raise LakeError("a file has more than four billion rows: Lakefeed writes no deletion vectors for such files")
    return BitMap(array("I", rows.astype(np.uint32).tobytes()))


def encoded(rows: BitMap) -> bytes:
    """One file's vector in the bytes that both formats store."""
    rows.run_optimize()
    body = struct.pack("<I", _MAGIC) + struct.pack("<QI", 1, 0) + rows.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decoded(stored: bytes, where: str) -> BitMap:
    """The rows of one file's vector. LakeError if it is damaged, or of a form that Lakefeed does not read."""
    body = stored[4:-4]
    size, checksum = struct.unpack(">I", stored[:4])[0], struct.unpack(">I", stored[-4:])[0]
    if size != len(body) or zlib.crc32(body) != checksum:
        raise LakeError(f"the deletion vector in {where} is damaged: its length or its checksum is wrong")
    return unpacked(body, where)


def unpacked(body: bytes, where: str) -> BitMap:
    """As ``decoded``, without length and checksum: Delta writes small vectors so into its log."""
    magic, parts = struct.unpack_from("<IQ", body)
    if magic != _MAGIC:
        raise LakeError(f"the deletion vector in {where} begins with {magic}, not with {_MAGIC}")
    if parts == 0:
        return BitMap()
    if parts > 1 or struct.unpack_from("<I", body, 12)[0] != 0:
        raise LakeError(f"the deletion vector in {where} is of a file with more than four billion rows")
    return BitMap.deserialize(body[16:])


def united(old: Mapping[str, BitMap], new: Mapping[str, BitMap]) -> dict[str, BitMap]:
    """All marked rows, old and new, of each file that ``new`` adds some to."""
    both = {file: old.get(file, BitMap()) | rows for file, rows in new.items()}
    return {file: rows for file, rows in both.items() if len(rows) > len(old.get(file, ()))}
