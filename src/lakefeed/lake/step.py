"""Step: what one commit does to a lake table. A mode makes it of a window, a store commits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class AppendRows:
    """Add rows; touch none that are there."""

    rows: DataFrame


@dataclass(frozen=True, slots=True)
class ReplaceRows:
    """These rows are the table's whole content from now on. They may be made of the table's own rows."""

    rows: DataFrame


@dataclass(frozen=True, slots=True)
class Replaceable:
    """Some files of a table at one version of it."""

    version: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewriteRows:
    """These rows stand for those of ``old``, and are made of them; the table's other files stay."""

    rows: DataFrame
    old: Replaceable


@dataclass(frozen=True, slots=True)
class MergeRows:
    """``MERGE INTO <table> AS t USING <view of rows> AS s ON <condition> <clauses>``, in Spark SQL.

    ``count`` is about how many rows there are.
    """

    rows: DataFrame
    condition: str
    clauses: tuple[str, ...]
    count: int

    def statement(self, table: str, view: str) -> str:
        return "\n".join([f"MERGE INTO {table} AS t USING {view} AS s ON {self.condition}", *self.clauses])


Step = AppendRows | ReplaceRows | RewriteRows | MergeRows
