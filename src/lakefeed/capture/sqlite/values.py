"""SQLite values as Arrow: which type a column gets, and how its values are turned into it.

| declared type (SQLite's affinity rules)        | Arrow    | values that do not fit, which make the column *mixed*   |
|------------------------------------------------|----------|---------------------------------------------------------|
| contains INT                                   | int64    | real, text, blob                                        |
| contains CHAR, CLOB, TEXT                      | string   | none: see text form                                     |
| contains BLOB                                  | binary   | integer, real, text                                     |
| none, or ANY                                   | string   | none: text form                                         |
| contains REAL, FLOA, DOUB                      | float64  | text, blob                                              |
| contains BOOL                                  | int64    | real, text, blob                                        |
| contains DATE or TIME                          | string   | none: text form (as stored; an integer gives its digits)|
| DECIMAL, NUMERIC and everything else           | float64  | text, blob, integers beyond 2^53                        |

SQLite keeps DECIMAL as a double itself, so float64 is exactly what is stored.

A *mixed* column becomes a string column for good, so that nothing is rounded, cut or nulled. Text form: an integer is
its digits; a real is the shortest decimal that reads back as the same double (Python's ``repr``); text is itself; a
blob, and text that is not valid UTF-8, is ``X'…'`` with upper-case hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakefeed.capture.fit import MisfitError

EXACT = 2**53
"""The largest integer up to which every integer has a double of its own."""

_FITS: dict[pa.DataType, frozenset[type]] = {
    pa.int64(): frozenset({int, type(None)}),
    pa.float64(): frozenset({float, int, type(None)}),
    pa.string(): frozenset({str, type(None)}),
    pa.binary(): frozenset({bytes, type(None)}),
}


def arrow_type(declared: str) -> pa.DataType:
    """The Arrow type of a column declared so."""
    name = declared.upper()
    if "INT" in name:
        return pa.int64()
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    if "BLOB" in name:
        return pa.binary()
    if name in ("", "ANY"):
        return pa.string()
    if any(word in name for word in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    if "BOOL" in name:
        return pa.int64()
    return pa.string() if "DATE" in name or "TIME" in name else pa.float64()


def is_untyped(declared: str) -> bool:
    """No affinity: 1 and 1.0 are then equal as keys but are different values."""
    return declared.upper() in ("", "ANY") or ("BLOB" in declared.upper() and arrow_type(declared) == pa.binary())


def stores_numbers(declared: str) -> bool:
    """Whether a text column is one whose numbers SQLite stores as such (NUMERIC affinity: DATE and TIME)."""
    words = ("CHAR", "CLOB", "TEXT")
    is_text = arrow_type(declared) == pa.string() and not is_untyped(declared)
    return is_text and not any(word in declared.upper() for word in words)


def misfit(kind: pa.DataType, value: str) -> str | None:
    """SQL that is 1 where ``value`` (an SQL expression) does not fit ``kind``; None where everything fits."""
    if kind == pa.int64():
        return f"typeof({value}) NOT IN ('integer', 'null')"
    if kind == pa.binary():
        return f"typeof({value}) NOT IN ('blob', 'null')"
    if kind == pa.float64():
        return (
            f"CASE typeof({value}) WHEN 'real' THEN 0 WHEN 'null' THEN 0"
            f" WHEN 'integer' THEN {value} NOT BETWEEN {-EXACT} AND {EXACT} ELSE 1 END"
        )
    return None


def to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    """A column of Python values as Arrow. MisfitError if one of them does not fit exactly."""
    # The set of types is taken in C; Arrow alone would turn 1.0 into 1 and text into bytes without a word.
    if not _FITS[kind].issuperset(set(map(type, values))):
        if kind == pa.string():
            return pa.array([text_form(value) for value in values], kind)
        raise MisfitError
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([text_form(value) for value in values], kind)
    except pa.ArrowInvalid as error:
        raise MisfitError from error


def text_form(value: Any) -> str | None:
    """Any SQLite value as text, without loss; see the module's docstring."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # not UTF-8 in the database: lenient_text kept the bytes in surrogates
            return text_form(value.encode("utf-8", "surrogateescape"))
        return value
    return repr(value)


def lenient_text(data: bytes) -> str:
    """A ``text_factory`` that never fails: bytes that are not UTF-8 survive as surrogates."""
    return data.decode("utf-8", "surrogateescape")
