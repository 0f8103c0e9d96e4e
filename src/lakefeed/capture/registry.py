"""The one registry of sources. A new source adds a line to SOURCES, and no file of ``app/`` changes.

An entry names a ``SourceConfig`` (``capture.poll.config``): the section ``source`` of a configuration file, with the
template of ``lakefeed init``, the Source that a pipeline binds, the Dialect, additional checks and the verify reader
for that kind of database. A SourceConfig imports everything except pydantic only when it is used."""

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
"""Module and class by ``source.kind``. ``lakefeed init`` writes the first one by default."""

PLANNED = ("sqlserver",)
"""Kinds that the documentation announces, so that the error says "not there yet" rather than "unknown"."""


def source_config(kind: str) -> type[SourceConfig]:
    """The configuration section for one kind of source. KeyError for a kind that is not registered."""
    module, name = SOURCES[kind]
    return cast("type[SourceConfig]", getattr(import_module(module), name))


class VerifyReader(Protocol):
    """Reads one table of a source for ``lakefeed verify``: values as the driver returns them, by plain SQL. The decoder
    of the capture would make the same mistake on both sides; only names and keys come from the kit's Session."""

    def columns(self) -> Sequence[str]:
        """The columns, in the order of the source. SourceSetupError if the table does not exist."""

    def count(self) -> int:
        """The number of rows."""

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:
        """All rows at one moment, in runs: the values of ``names``, each for the lake's column at the same index. The
        column's rule (``change.choice.rule_of``) is applied here by the database itself."""
