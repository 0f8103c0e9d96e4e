"""Writes the tables of docs/types.md: what each type of each source becomes in the lake, by the code that decides it.

`make types` writes them; a test fails if the page is out of date, and others make tables with these types in real
servers and compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from lakefeed.capture.mysql.columns import TEMPORAL, kind_of
from lakefeed.capture.postgres.values import SourceType, arrow_type, may_misfit
from lakefeed.capture.sqlite.values import arrow_type as sqlite_type
from lakefeed.change.table import OutOfRange
from lakefeed.lake.spark.type import spark_type

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "types.md"
BEGIN, END = "<!-- types: {} -->", "<!-- end -->"
_NUMERIC_HEAD = 4


class Row(NamedTuple):
    """``declared`` is the type as CREATE TABLE takes it, ``shown`` as the page has it. ``also`` are types that a rule
    can choose; ``misfits`` are values that go by out_of_range."""

    declared: str
    lake: pa.DataType
    also: str = ""
    misfits: str = ""
    shown: str = ""


def _numeric(precision: int, scale: int) -> SourceType:
    return SourceType(1700, (precision << 16 | scale) + _NUMERIC_HEAD)


_POSTGRES: Sequence[tuple[str, SourceType]] = (
    ("boolean", SourceType(16)), ("smallint", SourceType(21)), ("integer", SourceType(23)), ("bigint", SourceType(20)),
    ("oid", SourceType(26)), ("real", SourceType(700)), ("double precision", SourceType(701)),
    ("numeric(12,2)", _numeric(12, 2)), ("numeric(50,3)", _numeric(50, 3)), ("numeric", SourceType(1700)),
    ("text", SourceType(25)), ("varchar(20)", SourceType(1043)), ("char(6)", SourceType(1042)),
    ("name", SourceType(19)), ("json", SourceType(114)), ("jsonb", SourceType(3802)), ("uuid", SourceType(2950)),
    ("bytea", SourceType(17)), ("date", SourceType(1082)), ("timestamp", SourceType(1114)),
    ("timestamptz", SourceType(1184)), ("time", SourceType(1083)), ("timetz", SourceType(1266)),
    ("interval", SourceType(1186)), ("money", SourceType(790)), ("inet", SourceType(869)), ("point", SourceType(600)),
    ("int4range", SourceType(3904)), ("tsvector", SourceType(3614)), ("xml", SourceType(142)),
)  # fmt: skip
"""Types with their oid, which the catalog has. All others, enums and composites too, are as xml is."""

_MYSQL: Sequence[tuple[str, str, tuple[int | None, int | None, int | None]]] = (
    *((name, "", (None, None, None)) for name in ("tinyint", "smallint", "mediumint", "int", "bigint")),
    *((f"{name} unsigned", "", (None, None, None)) for name in ("tinyint", "smallint", "mediumint", "int", "bigint")),
    ("decimal(12,2)", "", (12, 2, None)), ("decimal(65,30)", "", (65, 30, None)), ("float", "", (None, None, None)),
    ("double", "", (None, None, None)), ("bit(1)", "", (None, None, None)), ("bit(8)", "", (None, None, None)),
    ("bit(64)", "", (None, None, None)), ("year", "", (None, None, None)), ("date", "", (None, None, None)),
    ("datetime(6)", "", (None, None, None)), ("timestamp(6)", "", (None, None, None)),
    ("time(6)", "", (None, None, None)), ("char(10)", "utf8mb4", (None, None, 40)),
    ("varchar(10)", "utf8mb4", (None, None, 40)), ("text", "utf8mb4", (None, None, 65535)),
    ("enum('a','b')", "utf8mb4", (None, None, 4)), ("set('a','b')", "utf8mb4", (None, None, 12)),
    ("json", "", (None, None, None)), ("binary(4)", "", (None, None, 4)), ("varbinary(4)", "", (None, None, 4)),
    ("blob", "", (None, None, 65535)), ("point", "", (None, None, None)),
)  # fmt: skip

_SQLITE = (
    "INTEGER", "BIGINT", "BOOLEAN", "REAL", "DOUBLE", "NUMERIC", "DECIMAL(10,2)", "TEXT", "VARCHAR(20)", "DATE",
    "DATETIME", "BLOB", "",
)  # fmt: skip


def postgres() -> Iterator[Row]:
    for name, source in _POSTGRES:
        kind = arrow_type(source)
        also = {"numeric": "decimal(p,s)", "numeric(50,3)": "decimal(p,s)", "time": "microseconds"}.get(name, "")
        also = ", ".join(one for one in (also, "" if pa.types.is_string(kind) else "string") if one)
        misfits = "NaN" if pa.types.is_decimal(kind) else "infinity, BC, years after 9999" if may_misfit(kind) else ""
        yield Row(name, kind, also, misfits)
    for name, source in _POSTGRES:
        if name in ("integer", "text", "numeric(12,2)", "timestamptz", "xml"):
            kind = arrow_type(source._replace(is_list=True))
            yield Row(f"{name}[]", kind, "string", "more dimensions, other lower bounds; elements as above")
    yield Row("integer[][]", pa.string(), "list", "", "integer[][] (declared so)")


def mysql() -> Iterator[Row]:
    for name, charset, sizes in _MYSQL:
        kind = kind_of(name, charset or None, *sizes)
        assert kind is not None  # noqa: S101  # every one of the list is understood
        lake = kind.arrow(OutOfRange.STOP)
        dates = "dates that no calendar has: 0000-00-00, 2026-02-31" if kind.name in TEMPORAL else ""
        also = "microseconds" if kind.name == "time" else ""
        if kind.name in TEMPORAL or pa.types.is_integer(lake) or pa.types.is_decimal(lake):
            also = "string"
        yield Row(name, lake, also, dates)


def sqlite() -> Iterator[Row]:
    for name in _SQLITE:
        lake = sqlite_type(name)
        misfit = "any value of another type: the column becomes text" if not pa.types.is_string(lake) else ""
        yield Row(name, lake, "" if pa.types.is_string(lake) else "string", misfit, name or "(none)")


TABLES = {"postgres": postgres, "mysql": mysql, "sqlite": sqlite}


def table(source: str) -> str:
    head = "| source type | in the lake | `types:` can make it | values that go by `out_of_range` |\n|---|---|---|---|"
    lines = [
        f"| {one.shown or one.declared} | {spark_type(one.lake)} | {one.also or '–'} | {one.misfits or '–'} |"
        for one in TABLES[source]()
    ]
    return "\n".join([head, *lines])


def page(text: str) -> str:
    """The page with its tables written again."""
    for source in TABLES:
        begin = BEGIN.format(source)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(END)
        text = f"{before}{begin}\n\n{table(source)}\n\n{END}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
