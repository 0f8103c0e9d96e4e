"""The configuration file as typed values. The names are an interface: people's files rely on them.

    config = load_config(Path("shop.yaml"))

What the models find wrong in the file is said at once, each with its line, its key and the valid choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lakefeed.app.complaint import complaints
from lakefeed.app.document import read_document
from lakefeed.errors import ConfigError

PIPELINE_NAME = r"^[a-z0-9][a-z0-9_-]*$"

Text = Annotated[str, Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, title=None)


class FullDiffConfig(_Section):
    """Deleted rows are found by comparing all keys with the lake's, on Spark."""

    every_seconds: float = Field(default=86_400.0, gt=0, allow_inf_nan=False, description="How often `run` does it.")
    max_deleted_share: float = Field(
        default=0.1, gt=0, le=1, description="The share of the lake's rows that may be missing; more is refused."
    )
    compare_rows: bool = Field(
        default=False, description="Compare whole rows: also finds changes that left updated_at as it was."
    )


class PollRuleConfig(_Section):
    """How some tables are polled. What is not given is found from the catalog; docs/polling.md."""

    updated_at: Text | None = Field(default=None, description="The column with the time of the last change.")
    created_at: Text | None = Field(default=None, description="The column with the time of the insert.")
    key: list[Text] = Field(default_factory=list, description="Columns that are unique together; else the primary key.")
    columns: list[Text] = Field(default_factory=list, description="Columns to deliver; without: all.")
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


PollSeconds = Annotated[
    float, Field(gt=0, le=86_400, allow_inf_nan=False, description="capture: poll. Pause between two polls.")
]
PollRules = Annotated[
    dict[str, PollRuleConfig], Field(description="capture: poll. How tables are polled, by glob pattern.")
]


BeforeImages = Annotated[
    bool, Field(description="Deliver rows as they were before each update and delete, too: for append tables.")
]


class SqliteSource(_Section):
    """A SQLite database file."""

    kind: Literal["sqlite"] = Field(description="Which database.")
    path: Text = Field(description="The database file, relative to the configuration file.")
    capture: Literal["trigger", "poll"] = Field(default="trigger", description="How changes are found.")
    tables: list[Text] = Field(
        default_factory=lambda: ["*"], min_length=1, description="Glob patterns of tables, schema.table or table."
    )
    before_images: BeforeImages = False
    poll_seconds: PollSeconds = 1.0
    rules: PollRules = {}


class PostgresSource(_Section):
    """A PostgreSQL database, 15 or newer."""

    kind: Literal["postgres"] = Field(description="Which database.")
    dsn: Text = Field(repr=False, description="libpq connection string or URI; a password is better in PGPASSWORD.")
    capture: Literal["log", "poll"] = Field(default="log", description="How changes are found.")
    tables: list[Text] = Field(
        default_factory=lambda: ["public.*"],
        min_length=1,
        description="Glob patterns of tables, schema.table or table.",
    )
    text_columns: list[Text] = Field(
        default_factory=list, description="Patterns of schema.table.column that are kept as PostgreSQL prints them."
    )
    provision: bool = Field(
        default=True,
        description="capture: log. Make publication and slot; if not, check says which statements to run.",
    )
    before_images: BeforeImages = False
    poll_seconds: PollSeconds = 1.0
    rules: PollRules = {}


SourceConfig = SqliteSource | PostgresSource
"""The database to read, told apart by ``kind``."""


ModeName = Literal["mirror", "temporal", "append"]


class EvolutionConfig(_Section):
    """What a lake table does when its source table's schema changes. What is not given: the lake's, or the default."""

    add_column: Literal["evolve", "ignore", "stop"] | None = Field(
        default=None, description="evolve: add it too. ignore: leave it out. stop: wait for a person."
    )
    drop_column: Literal["evolve", "keep", "stop"] | None = Field(
        default=None, description="evolve: drop it too. keep (the default of append): it stays, NULL in later changes."
    )
    rename_column: Literal["evolve", "stop"] | None = Field(default=None, description="evolve: rename it too.")
    widen_type: Literal["evolve", "stop"] | None = Field(
        default=None, description="evolve: a type that holds every value of the old one takes its place."
    )
    change_type: Literal["stop", "new_column", "rebuild"] | None = Field(
        default=None, description="Any other type. new_column: its values go to a column <name>__2; rebuild: a copy."
    )
    change_key: Literal["rebuild", "stop"] | None = Field(
        default=None, description="rebuild: the table is copied anew."
    )


class LakeTableConfig(_Section):
    """Another mode for some tables, or with a name a second lake table beside the first."""

    match: Text = Field(description="Glob pattern of source tables, schema.table or table.")
    mode: ModeName = Field(description="What the lake table is.")
    name: Text | None = Field(
        default=None, description="Adds a lake table of this name; {table} in it is the source table's."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the mode; docs/modes.md has them.")
    evolution: EvolutionConfig | None = Field(
        default=None, description="Choices of its own for schema changes; the lake's for the others."
    )


class LakeConfig(_Section):
    """The tables to keep equal to the source."""

    path: Text = Field(description="Tables are at <path>/<schema>/<table>; relative to the configuration file.")
    format: Literal["delta", "iceberg"] = Field(default="delta", description="Table format.")
    mode: ModeName = Field(
        default="mirror",
        description="mirror: the current rows, exactly. temporal: every version. append: every change.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the mode; docs/modes.md has them.")
    evolution: EvolutionConfig = Field(
        default=EvolutionConfig(), description="What schema changes of the source do; docs/evolution.md."
    )
    tables: list[LakeTableConfig] = Field(
        default_factory=list, description="Tables that are kept in another mode, or in a second one."
    )
    deletion_vectors: bool = Field(
        default=False,
        description="Delta: mark rows as deleted instead of writing their files anew. Not every reader knows them.",
    )
    catalog: dict[str, str] = Field(
        default_factory=dict,
        description="Iceberg's catalog properties, with type and name: docs/iceberg.md. Without: tables of the path.",
    )
    namespace: Text = Field(
        default="{schema}", description="Iceberg's namespace of the tables; {schema} is the source table's schema."
    )


class SyncConfig(_Section):
    """How often."""

    interval_seconds: float = Field(
        default=1.0, gt=0, le=86_400, allow_inf_nan=False, description="Pause between two cycles of `lakefeed run`."
    )


class JournalConfig(_Section):
    """The durable change sets between source and lake."""

    keep_change_sets: int = Field(
        default=256, ge=0, description="How many change sets stay after every table has them."
    )
    max_backlog_bytes: int = Field(
        default=16 << 30,
        ge=1 << 20,
        description="Capture waits while more than this is journaled and not yet in the lake.",
    )


class MaintenanceConfig(_Section):
    """What keeps the lake's tables fast and small."""

    every_seconds: float = Field(
        default=1800.0, ge=0, allow_inf_nan=False, description="How often `lakefeed run` does it; 0: never."
    )
    keep_hours: float = Field(
        default=168.0, ge=1, allow_inf_nan=False, description="How long files stay that only older versions need."
    )
    keep_versions: int = Field(
        default=1000, ge=10, description="How many Iceberg snapshots stay at most; ten times as many Delta versions."
    )
    file_megabytes: int = Field(default=128, ge=1, description="What small files are packed to.")
    cluster: bool = Field(default=False, description="Sort packed files by the key.")


class Config(_Section):
    """A whole configuration file."""

    pipeline: str = Field(pattern=PIPELINE_NAME, max_length=64, description="The name of the pipeline.")
    source: SourceConfig = Field(discriminator="kind", description="The database to read.")
    lake: LakeConfig
    sync: SyncConfig = SyncConfig()
    journal: JournalConfig = JournalConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()

    @property
    def state_path(self) -> Path:
        """Where the pipeline's journal and other state live."""
        return Path(self.lake.path) / "_lakefeed" / self.pipeline


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration file; relative paths in it become absolute. Raises ConfigError."""
    document = read_document(path, environment)
    try:
        config = Config.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(complaints(error, document, Config)) from None  # the cause would show replaced secrets
    return _with_absolute_paths(config, path.absolute().parent)


def _with_absolute_paths(config: Config, directory: Path) -> Config:
    source: SourceConfig = config.source
    if isinstance(source, SqliteSource):
        source = source.model_copy(update={"path": _absolute(source.path, directory)})
    return config.model_copy(
        update={
            "source": source,
            "lake": config.lake.model_copy(update={"path": _absolute(_local(config.lake.path), directory)}),
        }
    )


def _absolute(path: str, directory: Path) -> str:
    return str((directory / Path(path).expanduser()).resolve())


def _local(path: str) -> str:
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        raise ConfigError(
            f"lake.path: {scheme}:// is not there yet; a directory of this machine is",
            remedy="Write a path such as ./lake.",
        )
    return rest if separator else path


def json_schema() -> dict[str, Any]:
    """The configuration's JSON schema, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
