"""The seam to what Spark SQL cannot say of an Iceberg table, or not in one commit.

A classic session has Iceberg's own Java library for that (``java``), a session of Spark Connect a REST catalog
(``rest``). What is common to both is here: how Spark is made to stage a write instead of committing it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from lakefeed.lake.iceberg.record import ATTEMPT
from lakefeed.lake.iceberg.schema import Alteration
from lakefeed.lake.layout import Layout
from lakefeed.lake.loader import DataFile
from lakefeed.lake.maintenance import MarkedFile
from lakefeed.lake.route import Part
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.window import KeyBounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTY = "spark.sql.iceberg.snapshot-property."
_STAGED = "spark.wap.id"


class TableLibrary(Protocol):
    """One table of a catalog. Every call that changes something is one commit, or says which ones it is. Nothing is
    tried again here; ``spark.error.ConcurrentModification``, or what ``is_conflict`` knows, says that somebody else was
    first.
    """

    takes_files: bool
    """Does a copy add the very files that its tasks wrote? Else Spark reads them, and writes the table's."""
    versions_per_group: int
    """How many versions of the table's metadata a group of a copy makes."""
    can_rewrite: bool
    """Can Spark replace the whole table in place, under other types? Not where a server may go on with that after its
    client is gone: it would take back what was committed meanwhile."""

    def making(self, schema: Mapping[str, Any], properties: Mapping[str, str], layout: Layout) -> Addition:
        """Make the table, whose columns are ``schema`` (Iceberg's JSON). It counts as begun with the addition's commit,
        and not before: until then the properties do not name a generation."""

    def replacing(
        self,
        columns: Sequence[Alteration],
        properties: Mapping[str, str | None],
        layout: Layout,
        part: Part | None = None,
    ) -> Addition:
        """Put other rows in the place of all that are there, or of a ``part``, under other columns.

        Everything else stays as it is: id, other properties, partition fields, sort order, snapshots, tags, and of the
        columns that stay their ids and comments. Partition fields and sort order change to those of ``layout``, if it
        has some.
        """

    def appending(self) -> Addition:
        """Add to the table as it is now."""

    def publish(self, snapshot: int) -> None:
        """Make a staged snapshot the table's content, if that still is what the staged one was made on."""

    def alter(
        self, alterations: Sequence[Alteration], properties: Mapping[str, str], expected: Mapping[str, str]
    ) -> None:
        """Change columns and properties in one commit. Each alteration sees the ones before it. ConcurrentModification
        if the table has other properties than ``expected``."""

    def lay_out(self, layout: Layout) -> None:
        """The properties and the sort order of a layout, for what is written from here on."""

    def stage_nothing(self, summary: Mapping[str, str]) -> None:
        """A staged snapshot that changes nothing and records something."""

    def marking(self) -> Touch:
        """The table as it is now. A ``java.Marking``, where rows can be marked as deleted by commits of our own."""

    def marked_files(self) -> list[MarkedFile]:
        """The data files that have a deletion vector."""


class Touch(Protocol):
    """A table as it was when it was loaded."""

    def is_touched(self, bounds: KeyBounds) -> bool:
        """May any file have a row between the bounds? By the manifests."""


class Addition(Protocol):
    """Files that are to become part of a table, in one commit with what it records."""

    @property
    def schema(self) -> dict[str, Any]:
        """The table's columns with their ids, as Iceberg's JSON."""

    @property
    def directory(self) -> str:
        """Where tasks put the files: a local path, or an address."""

    def commit(
        self,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str | None],
        is_expected: Callable[[], bool],
    ) -> None:
        """``summary`` is the snapshot's, ``properties`` are the table's from here on; one that is None goes.

        ``is_expected`` reads what the table records. If that is not what the files are to be added to, because another
        process went on with the copy, nothing is committed, and ConcurrentModification is raised.
        """


def require_properties(found: Mapping[str, str | None], expected: Mapping[str, str]) -> None:
    """ConcurrentModification if a table's properties are not what they were when its alterations were planned."""
    for name, value in expected.items():
        if found.get(name) != value:
            raise ConcurrentModification(f"the table's {name} is {found.get(name)}, not {value}")


def recording(session: SparkSession, summary: Mapping[str, str]) -> AbstractContextManager[None]:
    """What is written inside becomes a snapshot with this summary. The session is the table's own; one of Spark Connect
    must not be used again after an error inside."""
    return _having(session, {_PROPERTY + key: value for key, value in summary.items()})


@contextmanager
def staging(session: SparkSession, summary: Mapping[str, str]) -> Iterator[str]:
    """The same, and the snapshot is *staged*: it is in the table's metadata, and no reader sees it. Gives the name by
    which it is found there (``ATTEMPT``)."""
    attempt = summary.get(ATTEMPT) or uuid.uuid4().hex
    with _having(session, {_STAGED: attempt}), recording(session, {**summary, ATTEMPT: attempt}):
        yield attempt


@contextmanager
def _having(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """After an error a session of Spark Connect keeps the settings: its server may yet plan the statement, and without
    them it would commit what is to be staged."""
    for name, value in settings.items():
        session.conf.set(name, value)
    is_over = Driver(session).has_jvm
    try:
        yield
        is_over = True
    finally:
        if is_over:
            for name in settings:
                session.conf.unset(name)
