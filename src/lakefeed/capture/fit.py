"""A value that does not fit its column: one error, one rule, for every source.

A value is never rounded, cut or replaced by NULL, unless the column's rule says so (``Column.out_of_range``, from
``lake.out_of_range`` and the rules of ``lake.tables``). Under the rule STOP a decoder raises MisfitError for a value
that the column cannot hold; under NULL and CLAMP it replaces the value by NULL or by the nearest one. Under TEXT every
value fits: the column is text. A column that orders or identifies rows can only have STOP or TEXT: otherwise two rows
might get the same key.

SQLite stores values of any type in any column. Without a rule, such a column becomes text for good, with the exact text
form of each value; a column that orders rows cannot become text, so the table stops."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.table import TableId
from lakefeed.errors import TableStoppedError

BY_RULE = (
    "Say what such a value becomes, in lake.tables: {{match: {table}, out_of_range: {{{name}: text}}}}, which keeps "
    "the column as the source prints it; or null, or clamp."
)
"""The remedy for a value that a rule can handle."""


class _Replaced(threading.local):
    values = 0


REPLACED = _Replaced()
"""How many values this thread has replaced by NULL or clamped under a rule. Decoders add to it; their caller, which
knows the name of the column, compares it before and after."""


class MisfitError(Exception):
    """Internal to captures. ``column`` is empty if a column is decoded on its own; ``of`` adds the name. ``remedy`` may
    contain ``{name}``, ``{table}`` and ``{column}`` (``schema.table.column``), and ``{sql_table}`` and
    ``{sql_column}``, which are quoted for a statement. None: the column may become text without anybody's consent."""

    def __init__(self, reason: str = "", *, column: str = "", remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.column = column
        self.remedy = remedy

    def of(self, column: str) -> MisfitError:
        """The same error, for a named column."""
        return MisfitError(self.reason, column=column, remedy=self.remedy)

    def stopped(self, table: TableId) -> TableStoppedError:
        """The error that stops ``table``. An error without a remedy concerns a column that orders rows."""
        problem = f"the column {self.column} holds values of several types, so that rows cannot be put in order"
        remedy = "Correct the values in the source, then sync again."
        if self.remedy is not None:
            problem = f"a value does not fit its column exactly: {self.column}: {self.reason}"
            schema, name, column = (one.replace('"', '""') for one in (table.schema, table.name, self.column))
            quoted = {"sql_table": f'"{schema}"."{name}"', "sql_column": f'"{column}"'}
            remedy = self.remedy.format(column=f"{table}.{self.column}", table=table, name=self.column, **quoted)
        return TableStoppedError(f"{table}: {problem}", table=str(table), remedy=remedy)

    def blocked(self, table: TableId) -> TableBlocked:
        """The same as a notice, for a stream that continues without ``table``."""
        error = self.stopped(table)
        return TableBlocked(table, error.message.removeprefix(f"{table}: "), error.remedy)


def out_of_range(reason: str) -> MisfitError:
    """The error for a value that the column's type cannot hold, under the rule STOP."""
    return MisfitError(reason, remedy=BY_RULE)


def became_text(table: TableId, columns: Sequence[str]) -> RecopyNeeded:
    """The notice that accompanies the schema in which ``columns`` become text."""
    reason = f"values that the declared type does not fit make it text: {', '.join(columns)}"
    return RecopyNeeded(table, reason, tuple(columns))
