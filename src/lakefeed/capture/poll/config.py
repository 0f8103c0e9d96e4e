"""The section ``source`` of a configuration file: what all kinds of source have, and polling in particular. A source's
own section derives from SourceConfig in ``capture/<source>/config.py`` and is listed in ``capture.registry``. These
modules import pydantic and nothing of their database: `lakefeed init` and the JSON schema need no driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from lakefeed.capture.poll.source import FullDiff, NullPolicy, Pace, SoftDelete, TableRule
from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from lakefeed.capture.base import Finding, Source
    from lakefeed.capture.dialect import Dialect
    from lakefeed.capture.registry import VerifyReader
    from lakefeed.change.table import TableId

Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A section of a configuration file. Unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, title=None)


class FullDiffConfig(Section):
    """Lakefeed finds deleted rows by comparing all keys of the source with the lake's, on Spark."""

    every_seconds: float = Field(
        default=86_400.0, gt=0, allow_inf_nan=False, description="How often `lakefeed run` compares."
    )
    max_deleted_share: float = Field(
        default=0.1, gt=0, le=1, description="The share of the lake's rows that may be missing; more is refused."
    )
    compare_rows: bool = Field(
        default=False, description="Compare whole rows: also finds changes that left updated_at alone."
    )


class PollRuleConfig(Section):
    """How Lakefeed polls some tables. It finds in the catalog what is not given here; see docs/polling.md."""

    updated_at: Text | None = Field(default=None, description="The column with the time of the last change.")
    created_at: Text | None = Field(default=None, description="The column with the time of the insert.")
    key: list[Text] = Field(default=[], description="Columns that are unique together; else the primary key.")
    columns: list[Text] = Field(default=[], description="Columns to deliver; without: all.")
    soft_delete: Text | None = Field(default=None, description="The column that marks a row as deleted.")
    full_diff: FullDiffConfig | None = Field(default=None, description="Find deleted rows by comparing all keys.")
    where: Text | None = Field(default=None, description="An SQL condition on every read of the table.")
    batch_rows: int = Field(default=50_000, ge=1, description="Rows of one query.")
    safety_lag_seconds: float = Field(
        default=5.0, ge=0, allow_inf_nan=False, description="How late a row may become visible after its time."
    )
    null_updated_at: Literal["stop", "created_at", "ignore"] = Field(
        default="stop", description="Rows without a time: stop the table, take created_at, or ignore them."
    )


class SourceConfig(Section, ABC):
    """The database to read. ``kind`` and ``capture`` are Literals in a source's own section. ``template`` is the
    section as ``lakefeed init`` writes it, ``first_key`` the key in it that everybody must set. ``only_for`` lists, for
    keys that some ways to capture do not have, those that do: elsewhere the key would have no effect, and mislead."""

    template: ClassVar[str]
    first_key: ClassVar[str]
    only_for: ClassVar[dict[str, tuple[str, ...]]] = {"rules": ("poll",), "poll_seconds": ("poll",)}

    kind: str = Field(description="Which database.")
    capture: str = Field(description="How changes are found.")
    tables: list[Text] = Field(
        default=["*"], min_length=1, description="Glob patterns of tables, schema.table or table."
    )
    poll_seconds: float = Field(
        default=1.0, gt=0, le=86_400, allow_inf_nan=False, description="capture: poll. Pause between two polls."
    )
    rules: dict[str, PollRuleConfig] = Field(
        default={}, description="capture: poll. How tables are polled, by glob pattern."
    )

    @abstractmethod
    def source(self) -> Source:
        """The Source that a pipeline binds, for the chosen ``capture``. Does not connect; ConfigError if it cannot
        work."""

    def dialect(self) -> Dialect:
        """The dialect of the database: for polling, and for `lakefeed verify`."""
        raise ConfigError("this kind of source cannot be polled", remedy="Choose another source.capture.")

    def verify_reader(self, table: TableId) -> VerifyReader:
        """The reader of the source's rows for ``lakefeed verify``."""
        raise ConfigError(f"{table} cannot be verified: this kind of source has no reader for lakefeed verify")

    @property
    def database(self) -> str | None:
        """What ``{database}`` in the name of a lake table stands for; it may contain ``{schema}``."""
        return None

    def is_internal(self, table: TableId) -> bool:  # noqa: ARG002  # most catalogs do not list such tables
        """Whether it is a table of the database system or of Lakefeed, which nobody expects in the lake."""
        return False

    def scratch(self, directory: Path) -> AbstractContextManager[tuple[Self, Callable[[str], None]]]:  # noqa: ARG002
        """The same section for a scratch database, in ``directory`` or on a server of its own, with the source's tables
        but no rows; and a function that runs a script there. ConfigError if this kind of source has none."""
        raise ConfigError(
            f"a migration of {self.kind} cannot be tried: Lakefeed has scratch databases only of SQLite and PostgreSQL",
            remedy="Restore the schema into a test database (pg_dump --schema-only, mysqldump --no-data), capture that "
            "with a configuration of its own, run the migration there, and then lakefeed sync.",
        )

    def findings(self) -> tuple[Finding, ...]:
        """Findings of `lakefeed check` beyond ``ChangeCapture.check``. Changes nothing."""
        return ()

    def place(self) -> str:
        """Which database it is, for people and for lineage: host and name, or a file. Never a user or a secret."""
        return ""

    def beside(self, directory: Path) -> Self:  # noqa: ARG002  # a section without paths has nothing to change
        """The section with relative paths made absolute, from the ``directory`` of the configuration file."""
        return self

    def require_fitting_keys(self) -> None:
        """ConfigError for a key that the chosen ``capture`` does not have."""
        for key, captures in self.only_for.items():
            if key in self.model_fields_set and self.capture not in captures:
                problem = f"source.{key} is for capture: {captures[0]}, but capture is {self.capture}"
                raise ConfigError(problem, remedy=f"Set source.capture: {captures[0]}, or remove {key}.")

    def polling(self) -> dict[str, Any]:
        """The arguments ``tables``, ``rules`` and ``pace`` of a polling Source. ConfigError for a rule with two ways to
        find deletes."""
        rules = {}
        for pattern, rule in self.rules.items():
            if rule.soft_delete is not None and rule.full_diff is not None:
                problem = f"source.rules.{pattern} has soft_delete and full_diff, which are two ways to find deletes"
                remedy = "Remove one of them; `lakefeed diff` also compares tables with soft_delete."
                raise ConfigError(problem, remedy=remedy)
            soft = SoftDelete(rule.soft_delete) if rule.soft_delete is not None else None
            deletes = FullDiff(**rule.full_diff.model_dump()) if rule.full_diff is not None else soft
            given = rule.model_dump(exclude={"soft_delete", "full_diff", "null_updated_at"})
            rules[pattern] = TableRule(**given, deletes=deletes, null_updated_at=NullPolicy(rule.null_updated_at))
        return {"tables": tuple(self.tables), "rules": rules, "pace": Pace(poll_seconds=self.poll_seconds)}


BeforeImages = Annotated[
    bool, Field(description="Also deliver each row as it was before an update or delete: for append tables.")
]
