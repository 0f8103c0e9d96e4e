"""A value that does not fit its column: one error, one rule, for every source.

A value is never rounded, cut or replaced by NULL, unless the column's rule says so (``Column.out_of_range``, from
``lake.out_of_range`` and the rules of ``lake.tables``). A decoder that meets one it cannot hold raises MisfitError
under the rule STOP, and makes it NULL or the nearest value under NULL and CLAMP. Under TEXT no value misfits: the
column is text. A column that rows are ordered or identified by has STOP or TEXT alone: two rows might else get one key.

Where columns hold values of any type (SQLite) and no rule is given, the column becomes text for good, with the exact
text form of each value; one that rows are ordered by cannot, so there the table stops."""

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
"""The remedy for a value that a rule can be given for."""


class _Replaced(threading.local):
    values = 0


REPLACED = _Replaced()
"""How many values this thread has made NULL or clamped by a rule. What decodes values adds to it; who has a column
decoded, and knows its name, compares it before and after."""


class MisfitError(Exception):
    """Internal to captures. ``column`` is empty where a column is decoded by itself; ``of`` adds the name. ``remedy``
    may contain ``{name}``, ``{table}`` and ``{column}``, which stands for ``schema.table.column``; ``{sql_table}`` and
    ``{sql_column}`` are quoted for a statement. None: the column may become text without asking anybody."""

    def __init__(self, reason: str = "", *, column: str = "", remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.column = column
        self.remedy = remedy

    def of(self, column: str) -> MisfitError:
        """The same, of a named column."""
        return MisfitError(self.reason, column=column, remedy=self.remedy)

    def stopped(self, table: TableId) -> TableStoppedError:
        """The error that stops ``table``. Without a remedy of its own it is about a column that rows are ordered by."""
        problem = f"the column {self.column} holds values of several types, so that rows cannot be put in order"
        remedy = "Correct the values in the source, then sync again."
        if self.remedy is not None:
            problem = f"a value does not fit its column exactly: {self.column}: {self.reason}"
            schema, name, column = (one.replace('"', '""') for one in (table.schema, table.name, self.column))
            quoted = {"sql_table": f'"{schema}"."{name}"', "sql_column": f'"{column}"'}
            remedy = self.remedy.format(column=f"{table}.{self.column}", table=table, name=self.column, **quoted)
        return TableStoppedError(f"{table}: {problem}", table=str(table), remedy=remedy)

    def blocked(self, table: TableId) -> TableBlocked:
        """The same as a notice, for a stream that goes on without ``table``."""
        error = self.stopped(table)
        return TableBlocked(table, error.message.removeprefix(f"{table}: "), error.remedy)


def out_of_range(reason: str) -> MisfitError:
    """A value that the column's type cannot hold, under the rule STOP."""
    return MisfitError(reason, remedy=BY_RULE)


def became_text(table: TableId, columns: Sequence[str]) -> RecopyNeeded:
    """The notice beside the schema in which ``columns`` are text from now on."""
    reason = f"values that the declared type does not fit make it text: {', '.join(columns)}"
    return RecopyNeeded(table, reason, tuple(columns))
