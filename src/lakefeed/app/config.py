"""The configuration file as typed values. The names are an interface: people's files rely on them.

    config = load_config(Path("shop.yaml"))

Everything that is wrong in the file is said at once, each with its line, its key and the valid choices.
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


class SourceConfig(_Section):
    """The database to read."""

    kind: Literal["sqlite"] = Field(description="Which database.")
    path: Text = Field(description="The database file, relative to the configuration file.")
    capture: Literal["trigger"] = Field(default="trigger", description="How changes are found.")
    tables: list[Text] = Field(
        default_factory=lambda: ["*"], min_length=1, description="Glob patterns of tables, schema.table or table."
    )


class LakeConfig(_Section):
    """The tables to keep equal to the source."""

    path: Text = Field(description="Tables are at <path>/<schema>/<table>; relative to the configuration file.")
    format: Literal["delta"] = Field(default="delta", description="Table format.")
    mode: Literal["mirror"] = Field(default="mirror", description="mirror: the current rows, exactly.")


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


class Config(_Section):
    """A whole configuration file."""

    pipeline: str = Field(pattern=PIPELINE_NAME, max_length=64, description="The name of the pipeline.")
    source: SourceConfig
    lake: LakeConfig
    sync: SyncConfig = SyncConfig()
    journal: JournalConfig = JournalConfig()

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
    return config.model_copy(
        update={
            "source": config.source.model_copy(update={"path": _absolute(config.source.path, directory)}),
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
