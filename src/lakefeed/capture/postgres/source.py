"""``Postgres``: what a user writes to capture a PostgreSQL database by logical decoding (pgoutput).

Beyond the contract of ChangeCapture: positions are the ends of commit records. Lakefeed writes nothing to the source
but the pipeline's own slot and publication. Tables whose changes the log does not have (no key and no full replica
identity, unlogged) are never published: PostgreSQL would refuse the application's updates. Generated columns are not
captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from psycopg.conninfo import make_conninfo

from lakefeed.capture.base import Capabilities, ChangeCapture
from lakefeed.capture.builder import Limits
from lakefeed.capture.log_capture import LogCapture
from lakefeed.capture.postgres.database import Connections, Database, Names
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.capture.postgres.facts import TableFacts
from lakefeed.capture.postgres.pgoutput import PgoutputDecoder
from lakefeed.capture.postgres.preflight import check_source
from lakefeed.capture.postgres.resume import PostgresResumePoint
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import ConfigError


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL database, 15 or newer.

    ``dsn`` is a libpq connection string or URI, which ``repr`` does not show; the password may come from PGPASSWORD or
    a password file instead. ``tables`` are glob patterns (see ``capture.select``) over ``schema.table``.
    ``text_columns`` are patterns over ``schema.table.column``: these columns are kept as PostgreSQL prints them. With
    ``before_images``, tables with REPLICA IDENTITY FULL also deliver rows as they were before each update and delete.
    With ``column_lists`` the publication has only the columns that the lake takes, so that the others never leave the
    server; PostgreSQL then refuses to drop one of them without CASCADE. Without ``provision``, publication and slot
    must already exist: ``check`` prints the statements. ``upgraded_from`` is the system identifier of the server that
    pg_upgrade turned into this one, with its slots: an error asks for it.
    """

    dsn: str = field(repr=False)
    _: KW_ONLY
    tables: Sequence[str] = ("public.*",)
    capture: str = "log"
    provision: bool = True
    text_columns: Sequence[str] = ()
    before_images: bool = False
    column_lists: bool = False
    upgraded_from: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        Database(self.dsn)
        if self.capture != "log":
            raise ConfigError(f"source.capture: '{self.capture}' is not a way to capture PostgreSQL; there is log")
        for name in ("tables", "text_columns"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"source.{name}: must be a list of patterns, not {value!r}")
            object.__setattr__(self, name, tuple(value))  # hashable, whatever sequence was given
        if not self.tables:
            raise ConfigError("source.tables: must be a list of patterns with at least one")

    def bind(self, pipeline: str) -> ChangeCapture:
        dsn = _primary_of(self.dsn)
        database, names = Database(dsn, is_primary=True), Names(pipeline)
        connections, text_columns = Connections(database, names.slot), tuple(self.text_columns)
        facts = TableFacts(connections, names, text_columns, provision=self.provision, column_lists=self.column_lists)
        resume = PostgresResumePoint(
            connections, names, provision=self.provision, wanted=facts.wanted, upgraded_from=self.upgraded_from
        )
        facts.is_short = resume.is_short
        return LogCapture(
            PostgresLsn,
            Capabilities(
                before_images=self.before_images, schema_changes=True, exact_snapshot=True, snapshot_resume=True
            ),
            tables=self.tables,
            dialect=PostgresDialect(dsn, text_columns, application_name=names.readers),
            resume=resume,
            decoder=partial(PgoutputDecoder, facts.resolve, before_images=self.before_images),
            facts=facts,
            check=partial(
                check_source, Database(dsn), facts.wanted, provision=self.provision, before_images=self.before_images
            ),
            limits=self.limits,
        )


def _primary_of(dsn: str) -> str:
    """Several servers: connect to the primary, unless the connection string says something else."""
    parameters = Database(dsn).parameters
    if "," not in str(parameters.get("host", parameters.get("hostaddr", ""))) or "target_session_attrs" in parameters:
        return dsn
    return make_conninfo(dsn, target_session_attrs="primary")
