"""Masks: the built-in rules for values that nobody may read in the lake. This is the Arrow implementation;
``lake.rule.expression`` has the same rules in Spark SQL, and a test compares the two.

| mask | what a value becomes | may mask a key |
|---|---|---|
| hash | SHA-256 of salt and value, 64 hexadecimal digits | yes |
| tokenize | 32 hexadecimal digits of a SHA-256 over salt and hash: shorter than the hash, and different from it | yes |
| partial | its first 3 characters and ``***``; of 6 characters or fewer nothing but ``***`` | no |
| redact | ``***`` | no |
| null | NULL | no |

NULL stays NULL. Equal values have equal hashes and tokens in all tables with the same salt, so joins still work.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.errors import ConfigError

MASKS = ("hash", "tokenize", "partial", "redact", "null")
KEYED = ("hash", "tokenize")
"""Masks that need a salt and map different values to different results, so that they may mask a key."""

REDACTED = "***"
SHOWN, HIDDEN = 3, 6
"""``partial`` shows the first SHOWN characters of a value, and none of a value with at most HIDDEN characters."""

_TEXTS = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
"""Types whose values have the same text form in Arrow and in Spark."""


def masked_type(kind: pa.DataType, mask: str) -> pa.DataType:
    """The type of a column of type ``kind`` under a mask."""
    return kind if mask == "null" else pa.string()


def can_mask(kind: pa.DataType, mask: str) -> bool:
    return mask in ("null", "redact") or any(is_kind(kind) for is_kind in _TEXTS)


def masked(values: Any, mask: str, salt: str) -> Any:
    """An Arrow array under a mask. Each distinct value is hashed once."""
    if mask == "null":
        return pa.nulls(len(values), values.type)
    if mask == "redact":
        return pc.if_else(values.is_null(), pa.scalar(None, pa.string()), pa.scalar(REDACTED))
    if not can_mask(values.type, mask):
        raise ConfigError(f"mask {mask} takes texts, whole numbers, dates and booleans, not {values.type}")
    texts = values.cast(pa.string())
    if mask == "partial":
        short: Any = pc.less_equal(pc.utf8_length(texts), pa.scalar(HIDDEN))
        shown = pc.binary_join_element_wise(pc.utf8_slice_codeunits(texts, 0, SHOWN), REDACTED, "")
        return pc.if_else(short, pa.scalar(REDACTED), shown)
    encoded: Any = texts.dictionary_encode()
    hashes = [_digest(salt + value, salt, mask) for value in encoded.dictionary.to_pylist()]
    return pa.array(hashes, pa.string()).take(encoded.indices)


def _digest(salted: str, salt: str, mask: str) -> str:
    digest = hashlib.sha256(salted.encode()).hexdigest()
    return digest if mask == "hash" else hashlib.sha256((salt + digest).encode()).hexdigest()[:32]
