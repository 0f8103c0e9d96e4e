"""``Postgres``: what a user writes to capture a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.builder import Limits
from lakefeed.capture.postgres.capture import PostgresLog
from lakefeed.capture.postgres.database import Database
from lakefeed.errors import ConfigError

_MECHANISMS = ("log",)


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL database, 15 or newer.

    ``dsn`` is a libpq connection string or URI; the password may come from PGPASSWORD or a password file instead, and
    is not shown by ``repr``. ``tables`` are glob patterns (see ``capture.patterns``) over ``schema.table``.
    ``text_columns`` are patterns over ``schema.table.column``: those columns are kept as PostgreSQL prints them.
    With ``before_images`` rows are delivered as they were before each update and delete, too, of tables with REPLICA
    IDENTITY FULL; the others have none.
    Without ``provision``, publication and slot must be there already: ``check`` prints the statements.
    """

    dsn: str = field(repr=False)
    _: KW_ONLY
    tables: Sequence[str] = ("public.*",)
    capture: str = "log"
    provision: bool = True
    text_columns: Sequence[str] = ()
    before_images: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        Database(self.dsn)
        if self.capture not in _MECHANISMS:
            choices = ", ".join(_MECHANISMS)
            raise ConfigError(
                f"source.capture: '{self.capture}' is not a way to capture PostgreSQL; there is {choices}"
            )
        for name in ("tables", "text_columns"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"source.{name}: must be a list of patterns, not {value!r}")
            object.__setattr__(self, name, tuple(value))  # frozen and hashable, whatever the user gave
        if not self.tables:
            raise ConfigError("source.tables: must be a list of patterns with at least one")

    def bind(self, pipeline: str) -> ChangeCapture:
        return PostgresLog(
            Database(self.dsn),
            pipeline,
            tables=self.tables,
            text_columns=self.text_columns,
            provision=self.provision,
            before_images=self.before_images,
            limits=self.limits,
        )
