"""The one registry of sources. A new source adds a line to SOURCES, and no file of ``app/`` changes.

An entry names a ``SourceConfig`` (``capture.poll.config``): the section ``source`` of a configuration file, with the
template of ``lakefeed init``, the Source that a pipeline binds, the Dialect, further checks and the verify reader of
that kind of database. What it imports beyond pydantic it imports when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import pyarrow as pa

    from lakefeed.capture.poll.config import SourceConfig

SOURCES: dict[str, tuple[str, str]] = {
    "sqlite": ("lakefeed.capture.sqlite.config", "SqliteConfig"),
    "postgres": ("lakefeed.capture.postgres.config", "PostgresConfig"),
    "mysql": ("lakefeed.capture.mysql.config", "MysqlConfig"),
    "mariadb": ("lakefeed.capture.mysql.config", "MariadbConfig"),
}
"""By ``source.kind``: module and class. The first one is what ``lakefeed init`` writes by default."""

PLANNED = ("sqlserver",)
"""Kinds that the documentation announces: "not there yet" is a better answer than "unknown"."""


def source_config(kind: str) -> type[SourceConfig]:
    """The configuration section of one kind of source. KeyError for a kind that is not registered."""
    module, name = SOURCES[kind]
    return cast("type[SourceConfig]", getattr(import_module(module), name))


class VerifyReader(Protocol):
    """One table of a source, for ``lakefeed verify``: values as the driver gives them, by plain SQL. The decoder of the
    capture would make the same mistake on both sides; only names and keys come from the kit's Session."""

    def columns(self) -> Sequence[str]:
        """Its columns, as the source's schema has them. SourceSetupError if there is no such table."""

    def count(self) -> int:
        """Its rows."""

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:
        """All rows of one moment, in runs: the values of ``names``, each for the lake's column at the same index. What
        the column's rule (``change.choice.rule_of``) makes of a value is made here by means of the database."""
