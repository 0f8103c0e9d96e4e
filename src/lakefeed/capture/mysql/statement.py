"""What a statement of the log does to which tables. Not a parser of SQL: it knows RENAME, DROP, TRUNCATE and the
beginning of everything else, and lists the names that follow. Pure and total."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from lakefeed.change.table import TableId

_TOKEN = re.compile(
    r"\s+|--[^\n]*|\#[^\n]*|/\*(?![!M]).*?\*/"  # white space and comments; what is in /*! … */ is executed
    r"|/\*M?!\d*|\*/|(?P<quoted>`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\")|(?P<text>'(?:[^'\\]|\\.|'')*')"
    r"|(?P<word>[\w$\x80-\U0010ffff]+)|(?P<mark>.)",
    re.DOTALL,
)
_LONGEST = 100_000
"""Characters of a statement that are looked at: names of tables stand at its beginning."""


class Effect(Enum):
    """What a statement does."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to a savepoint"
    XA_START = "xa start"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    DROP = "drop"
    DROP_DATABASE = "drop database"
    TRUNCATE = "truncate"
    RENAME = "rename"
    REPLACED = "rows replaced"
    ALTER = "alter"
    CHANGE = "change rows"
    OTHER = "other"


_OF_TABLES = {"DROP": Effect.DROP, "TRUNCATE": Effect.TRUNCATE, "RENAME": Effect.RENAME, "ALTER": Effect.ALTER}
_BEFORE_NAMES = {"TABLE", "TABLES", "IF", "EXISTS", "NOT", "OR", "REPLACE", "IGNORE", "ONLINE"}
_CHANGES = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "SELECT"}
_XA = {
    "START": Effect.XA_START, "BEGIN": Effect.XA_START, "COMMIT": Effect.XA_COMMIT, "ROLLBACK": Effect.XA_ROLLBACK,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    """``tables`` are those that it is about; of RENAME, pairs one after another: from, to, from, to. ``words`` are all
    names and words in it, in lower case: which columns an ALTER adds stands there."""

    effect: Effect
    tables: tuple[TableId, ...] = ()
    words: tuple[str, ...] = ()
    database: str = ""


def read_statement(sql: str, schema: str) -> Statement:  # noqa: C901  # one kind of statement after another
    """``schema`` is the default database of the statement."""
    tokens: list[tuple[str, bool]] = []  # and whether it is a name in quotes
    for match in _TOKEN.finditer(sql[:_LONGEST]):
        if match["quoted"]:
            mark = match["quoted"][0]
            tokens.append((match["quoted"][1:-1].replace(mark * 2, mark), True))
        elif match["word"] or match["mark"]:
            tokens.append((match["word"] or match["mark"], False))
    plain = [text.upper() if not is_quoted else "" for text, is_quoted in tokens]
    words = tuple(text.lower() for text, _ in tokens)
    start = next((index for index, text in enumerate(plain) if text != "("), 0)
    if plain[start : start + 2] == ["SET", "STATEMENT"] and "FOR" in plain:  # MariaDB: for the time of one statement
        start = plain.index("FOR") + 1
    first, second = [*plain[start : start + 2], "", ""][:2]
    if first == "BEGIN" or (first == "START" and second == "TRANSACTION"):
        return Statement(Effect.BEGIN)
    if first == "COMMIT":
        return Statement(Effect.COMMIT)
    if first == "ROLLBACK":
        return Statement(Effect.ROLLBACK_TO if "TO" in plain else Effect.ROLLBACK)
    if first == "XA":
        return Statement(_XA.get(second, Effect.OTHER))
    if first == "DROP" and second in ("DATABASE", "SCHEMA"):
        at = start + (4 if plain[start + 2 : start + 4] == ["IF", "EXISTS"] else 2)
        return Statement(Effect.DROP_DATABASE, database=tokens[at][0] if at < len(tokens) else "")
    if "TEMPORARY" in plain[start : start + 4]:
        return Statement(Effect.OTHER)
    if first in _CHANGES:
        return Statement(Effect.CHANGE, words=words)
    effect = _OF_TABLES.get(first)
    if first == "CREATE" and "REPLACE" in plain[start : start + 3] and "TABLE" in plain[start : start + 4]:
        effect = Effect.DROP
    if effect is None or (first != "TRUNCATE" and not {"TABLE", "TABLES"} & set(plain[start : start + 5])):
        return Statement(Effect.OTHER)
    at = start + 1
    while at < len(plain) and plain[at] in _BEFORE_NAMES:
        at += 1
    tables = []
    while at < len(tokens):
        name, dot = tokens[at][0], plain[at + 1 : at + 2] == ["."]
        schema_of, name = (name, tokens[at + 2][0]) if dot and at + 2 < len(tokens) else (schema, name)
        if schema_of and name and "." not in schema_of:
            tables.append(TableId(schema_of, name))
        at += 3 if dot else 1
        if at < len(plain) and plain[at] in (",", "TO") and effect in (Effect.DROP, Effect.RENAME):
            at += 1
        elif effect is Effect.RENAME and at < len(plain) and plain[at] in ("WAIT", "NOWAIT"):
            at += 1 + (plain[at] == "WAIT")  # RENAME TABLE a NOWAIT TO b
            at += at < len(plain) and plain[at] == "TO"
        else:
            break
    if effect is Effect.ALTER:
        rest = plain[at:]
        behind = rest[rest.index("RENAME") + 1 :][:1] if "RENAME" in rest else []
        partitions = "PARTITION" in rest and {"DROP", "TRUNCATE", "EXCHANGE", "IMPORT", "CONVERT"} & set(rest)
        tablespace = "TABLESPACE" in rest and {"IMPORT", "DISCARD"} & set(rest)
        if (behind and behind[0] not in ("COLUMN", "INDEX", "KEY")) or partitions or tablespace:
            effect = Effect.REPLACED  # another name for the whole table, or rows that the log does not have
    return Statement(effect, tuple(tables), words)
