"""SQLite values as Arrow: which type a column gets, how its values are turned into it, and how rows are read.

docs/sqlite.md has the table of types by declared type, and of values that do not fit them. A column with such a value
is *mixed* and becomes a string column for good, so that nothing is rounded, cut or nulled. Text form: an integer is its
digits; a real is the shortest decimal that reads back as the same double (Python's ``repr``); text is itself; a blob,
and text that is not valid UTF-8, is ``X'…'`` with upper-case hexadecimal digits."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from lakefeed.capture.fit import MisfitError

EXACT = 2**53  # up to here every integer has a double of its own
PORTION_ROWS = 65_536
PORTION_BYTES = 64 * 1024 * 1024
_RUN_ROWS = 256
_FIRST_ROWS = 16

_UNTYPED = ("", "ANY")
_TEXT = ("CHAR", "CLOB", "TEXT")
_BY_WORD = (  # the first word that a declared type contains decides
    (("INT",), pa.int64()),
    (_TEXT, pa.string()),
    (("BLOB",), pa.binary()),
    (("REAL", "FLOA", "DOUB"), pa.float64()),
    (("BOOL",), pa.int64()),
    (("DATE", "TIME"), pa.string()),
)
_MISFIT = {  # SQL that is true if a value does not fit
    pa.int64(): "typeof({0}) NOT IN ('integer', 'null')",
    pa.binary(): "typeof({0}) NOT IN ('blob', 'null')",
    pa.float64(): "CASE typeof({0}) WHEN 'real' THEN 0 WHEN 'null' THEN 0 WHEN 'integer' THEN {0} NOT BETWEEN "
    f"{-EXACT} AND {EXACT} ELSE 1 END",
}
_FITS: dict[pa.DataType, frozenset[type]] = {
    pa.int64(): frozenset({int, type(None)}),
    pa.float64(): frozenset({float, int, type(None)}),  # SQLite stores a DECIMAL as a double, too
    pa.string(): frozenset({str, type(None)}),
    pa.binary(): frozenset({bytes, type(None)}),
}


def arrow_type(declared: str) -> pa.DataType:
    name = declared.upper()
    if name in _UNTYPED:
        return pa.string()
    return next((kind for words, kind in _BY_WORD if any(word in name for word in words)), pa.float64())


def is_untyped(declared: str) -> bool:
    """Whether the column has no affinity: 1 and 1.0 are then equal as keys, but different values."""
    return declared.upper() in _UNTYPED or arrow_type(declared) == pa.binary()


def stores_numbers(declared: str) -> bool:
    """Whether SQLite stores numbers as numbers in this text column (NUMERIC affinity: DATE and TIME)."""
    is_text = arrow_type(declared) == pa.string() and not is_untyped(declared)
    return is_text and not any(word in declared.upper() for word in _TEXT)


def misfits(columns: Iterable[tuple[str, pa.DataType, str]]) -> dict[str, str]:
    """For columns with their types and values (as SQL expressions): SQL that is 1 if the value does not fit. Leaves out
    columns that every value fits."""
    return {name: _MISFIT[kind].format(value) for name, kind, value in columns if kind in _MISFIT}


def to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    """A column of Python values as Arrow. MisfitError if a value does not fit exactly."""
    # map(type) runs in C; Arrow alone would silently turn 1.0 into 1 and text into bytes.
    if _FITS[kind].issuperset(set(map(type, values))):
        try:
            return pa.array(values, kind)
        except UnicodeEncodeError:  # text that is not UTF-8
            pass
        except pa.ArrowInvalid as error:
            raise MisfitError from error
    elif kind != pa.string():
        raise MisfitError
    return pa.array([text_form(value) for value in values], kind)


def text_form(value: Any) -> str | None:
    """Any SQLite value as text, without loss; see the module's docstring."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # not UTF-8 in the database: lenient_text kept its bytes as surrogates
            return text_form(value.encode("utf-8", "surrogateescape"))
        return value
    return repr(value)


def lenient_text(data: bytes) -> str:
    """A ``text_factory`` that never fails: bytes that are not UTF-8 are kept as surrogates."""
    return data.decode("utf-8", "surrogateescape")


class Portion(NamedTuple):
    """Values by column, at least one row. ``is_last``: certainly no more follow."""

    columns: list[list[Any]]
    is_last: bool


def portions(
    connection: sqlite3.Connection, sql: str, parameters: Sequence[Any], kinds: Sequence[pa.DataType]
) -> Generator[Portion, None, None]:
    """The rows of ``sql``, whose columns become ``kinds``, in portions that fit into memory, however large a value is.

    SQLite reveals the size of a row only with the row. So rows are fetched in short runs, their texts and blobs are
    measured, and a portion ends when it has enough rows or bytes. Runs get shorter if rows are large. Text that is not
    UTF-8 makes the connection lenient, and reading goes on where it failed: so call this in a transaction, or for rows
    that never change."""
    heavy = [at for at, kind in enumerate(kinds) if pa.types.is_string(kind) or pa.types.is_binary(kind)]
    pile: list[list[Any]] = [[] for _ in kinds]
    done, piled_bytes, rows, cursor = 0, 0, _FIRST_ROWS, connection.execute(sql, parameters)
    while True:
        try:
            run = cursor.fetchmany(rows)
        except sqlite3.OperationalError as error:
            # SQLite's own errors have a code. One without a code is Python's: text that is not UTF-8.
            if hasattr(error, "sqlite_errorcode") or connection.text_factory is lenient_text:
                raise
            connection.text_factory = lenient_text
            rest = f"SELECT * FROM ({sql}) LIMIT -1 OFFSET {done}"  # noqa: S608  # the query is ours
            cursor = connection.execute(rest, parameters)
            continue
        if not run:
            break
        done += len(run)
        columns = list(zip(*run, strict=True))
        weight = sum(_bytes(columns[at]) for at in heavy)
        # A quarter, because the next run may be heavier than this one.
        rows = max(1, min(_RUN_ROWS, 2 * rows, len(run) * PORTION_BYTES // (4 * weight + 1)))
        for part in [columns] if weight < PORTION_BYTES else [[(value,) for value in row] for row in run]:
            for values, more in zip(pile, part, strict=True):
                values.extend(more)
            piled_bytes += weight if part is columns else sum(_bytes(part[at]) for at in heavy)
            if piled_bytes >= PORTION_BYTES or len(pile[0]) >= PORTION_ROWS:
                yield Portion(pile, is_last=False)
                pile, piled_bytes = [[] for _ in kinds], 0
    if pile[0]:
        yield Portion(pile, is_last=True)


def _bytes(values: Sequence[Any]) -> int:
    """Bytes of blobs, characters of texts. Text columns may also hold numbers."""
    try:
        return sum(map(len, filter(None, values)))
    except TypeError:
        return sum(len(value) for value in values if isinstance(value, str | bytes))
