"""The configuration file as typed values. The names are an interface: people's files rely on them.

    config = load_config(Path("shop.yaml"))

The models find every mistake of a file at once; each is reported with its line, its key and the valid choices. What
stands under ``source`` comes from the registry of sources (``capture.registry``). ``python -m lakefeed.app.config
FILE`` writes the JSON schema; ``make schema`` calls it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, create_model

from lakefeed.app.document import complaints, read_document
from lakefeed.capture.poll.config import Section, SourceConfig, Text
from lakefeed.capture.registry import SOURCES, source_config
from lakefeed.errors import ConfigError

PIPELINE_NAME = r"^[a-z0-9][a-z0-9_-]*$"

ModeName = Literal["mirror", "temporal", "append"]


class EvolutionConfig(Section):
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
    change_key: Literal["rebuild", "stop"] | None = Field(default=None, description="rebuild: copy the table again.")


class LakeTableConfig(Section):
    """What is different for some tables, or with a name a second lake table beside the first."""

    match: Text = Field(description="Glob pattern of source tables, schema.table or table.")
    mode: ModeName | None = Field(default=None, description="What the lake table is; without it the lake's mode.")
    name: Text | None = Field(
        default=None, description="Adds a lake table of this name; {table} in it is the source table's."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the mode; docs/modes.md has them.")
    columns: list[Text] = Field(
        default_factory=list,
        description="Globs of the columns that are taken; ! leaves out. What is left out is stored nowhere.",
    )
    evolution: EvolutionConfig | None = Field(
        default=None, description="Choices of its own for schema changes; the lake's for the others."
    )


class LakeConfig(Section):
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
        description="Delta: mark rows as deleted instead of rewriting their files. Not every reader supports it.",
    )
    catalog: dict[str, str] = Field(
        default_factory=dict,
        description="Iceberg's catalog properties, with type and name: docs/iceberg.md. Without: tables of the path.",
    )
    namespace: Text = Field(
        default="{schema}", description="Iceberg's namespace of the tables; {schema} is the source table's schema."
    )


class SyncConfig(Section):
    """How often."""

    interval_seconds: float = Field(
        default=1.0, gt=0, le=86_400, allow_inf_nan=False, description="Pause between two cycles of `lakefeed run`."
    )


class JournalConfig(Section):
    """The durable change sets between source and lake."""

    keep_change_sets: int = Field(
        default=256, ge=0, description="How many change sets stay after every table has them."
    )
    max_backlog_bytes: int = Field(
        default=16 << 30,
        ge=1 << 20,
        description="Capture waits while more than this is journaled and not yet in the lake.",
    )


class MaintenanceConfig(Section):
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


class Config(Section):
    """A whole configuration file."""

    pipeline: str = Field(pattern=PIPELINE_NAME, max_length=64, description="The name of the pipeline.")
    source: SourceConfig
    lake: LakeConfig
    sync: SyncConfig = SyncConfig()
    journal: JournalConfig = JournalConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()

    @property
    def state_path(self) -> Path:
        """The directory of the pipeline's journal and other state."""
        return Path(self.lake.path) / "_lakefeed" / self.pipeline


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration file; relative paths in it become absolute. Raises ConfigError."""
    document, model = read_document(path, environment), config_model()
    try:
        config = model.model_validate(document.data)
    except ValidationError as error:
        text, keys = complaints(error, document, model)
        remedy = f"Correct {' and '.join(keys)} in {path}; `lakefeed init` writes a commented example."
        raise ConfigError(text, remedy=remedy) from None  # the cause would show replaced secrets
    directory = path.absolute().parent
    scheme, separator, rest = config.lake.path.partition("://")
    if separator and scheme != "file":
        raise ConfigError(
            f"lake.path: {scheme}:// is not there yet; a directory of this machine is",
            remedy="Write a path such as ./lake.",
        )
    lake_path = (directory / Path(rest if separator else config.lake.path).expanduser()).resolve()
    return config.model_copy(
        update={
            "source": config.source.beside(directory),
            "lake": config.lake.model_copy(update={"path": str(lake_path)}),
        }
    )


def config_model() -> type[Config]:
    """The model of a file, with every registered kind of source; ``kind`` tells them apart."""
    return _model_with(tuple(source_config(kind) for kind in SOURCES))


@cache
def _model_with(sections: tuple[type[SourceConfig], ...]) -> type[Config]:
    kinds: Any = reduce(or_, sections)
    source = (kinds, Field(discriminator="kind", description="The database to read."))
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, source=source)


def schema_text() -> str:
    """The configuration's JSON schema, for editors: the exact content of docs/lakefeed.schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **config_model().model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
