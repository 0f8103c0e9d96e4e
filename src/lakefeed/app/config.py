"""The configuration file as typed values. The names are an interface: users' files depend on them.

    config = load_config(Path("shop.yaml"))

The models find every mistake of a file at once, and report each with its line, its key and the valid choices. The
registry of sources (``capture.registry``) defines the section ``source``. ``python -m lakefeed.app.config FILE`` writes
the JSON schema; ``make schema`` calls it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, create_model

from lakefeed.app.document import complaints, read_document
from lakefeed.capture.poll.config import Section, SourceConfig, Text
from lakefeed.capture.registry import SOURCES, source_config
from lakefeed.errors import ConfigError
from lakefeed.storage.base import Storage
from lakefeed.storage.location import SCHEMES, is_remote, storage_at

PIPELINE_NAME = r"^[a-z0-9][a-z0-9_-]*$"

ModeName = Literal["mirror", "temporal", "append"]
OutOfRangeName = Literal["stop", "null", "clamp", "text"]
NamingName = Literal["as_is", "lower", "snake_case"]
MaskName = Literal["hash", "tokenize", "partial", "redact", "null"]


class EvolutionConfig(Section):
    """What a lake table does when its source table's schema changes. Without a choice: the lake's, or the default."""

    add_column: Literal["evolve", "ignore", "stop"] | None = Field(
        default=None, description="evolve: add it, too. ignore: leave it out. stop: stop the table."
    )
    drop_column: Literal["evolve", "keep", "stop"] | None = Field(
        default=None, description="evolve: drop it, too. keep (the default of append): keep it, NULL in later changes."
    )
    rename_column: Literal["evolve", "stop"] | None = Field(default=None, description="evolve: rename it, too.")
    widen_type: Literal["evolve", "stop"] | None = Field(
        default=None, description="The new type holds every value of the old one. evolve: widen the column, too."
    )
    change_type: Literal["stop", "new_column", "rebuild"] | None = Field(
        default=None,
        description="Any other type. new_column: new values go to a column <name>__2. rebuild: copy the table again.",
    )
    change_key: Literal["rebuild", "stop"] | None = Field(default=None, description="rebuild: copy the table again.")


class UnionConfig(Section):
    """The column that says from which of several source tables a row comes."""

    column: Text = Field(default="origin", description="The column's name; it is part of the key.")
    value: Text = Field(
        default="{schema}.{table}", description="The column's value; may have {table}, {schema} and {database} in it."
    )


class LakeTableConfig(Section):
    """Choices for some tables; with a name, another lake table of theirs."""

    match: Text = Field(description="Glob pattern of source tables, schema.table or table.")
    mode: ModeName | None = Field(default=None, description="What the lake table is; without it the lake's mode.")
    name: Text | None = Field(
        default=None, description="Adds a lake table of this name; may have {table}, {schema} and {database} in it."
    )
    only: bool = Field(default=False, description="The source table feeds the lake table of this name alone.")
    union: bool | UnionConfig = Field(
        default=False, description="All matching source tables feed the lake table of this name: docs/choosing.md."
    )
    namespace: Text | None = Field(
        default=None, description="The lake table's schema; may have {schema} and {database} in it."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the mode; docs/modes.md has them.")
    columns: list[Text] = Field(
        default_factory=list,
        description="Globs of the columns to capture; ! leaves columns out, and then nothing stores them.",
    )
    types: dict[Text, Text] = Field(
        default_factory=dict,
        description="By column or glob: string, list, decimal(p,s), microseconds (of a time). docs/types.md.",
    )
    out_of_range: OutOfRangeName | dict[Text, OutOfRangeName | None] | None = Field(
        default=None, description="As lake.out_of_range, for all columns of these tables, or by column or glob."
    )
    keyless: Literal["inserts"] | None = Field(
        default=None,
        description="inserts: capture inserts alone of PostgreSQL tables without a key; updates and deletes are lost.",
    )
    where: str | None = Field(
        default=None, description="Spark SQL condition: the lake table has only the rows for which it holds."
    )
    transform: dict[str, Text] = Field(
        default_factory=dict, description="Spark SQL expressions by column; a new name makes a new column."
    )
    mask: dict[str, MaskName | None] = Field(
        default_factory=dict, description="The mask of values, by column; docs/choosing.md lists the masks."
    )
    sensitive: bool = Field(
        default=False,
        description="Apply this rule's masks before the journal, so that nothing stores the clear text.",
    )
    rename: dict[str, Text] = Field(default_factory=dict, description="The lake's column names by the source's.")
    naming: NamingName | None = Field(default=None, description="How to name other columns; without it, as the lake.")
    partition_by: list[Text] | None = Field(
        default=None, description="Columns of the lake table, or days(c), months(c), bucket(16, c), truncate(4, c)."
    )
    cluster_by: list[Text] | None = Field(default=None, description="Columns of the lake table to sort files by.")
    properties: dict[str, str] = Field(
        default_factory=dict, description="Properties of the lake table, by the format's names."
    )
    file_megabytes: int | None = Field(default=None, ge=1, description="The size of packed files of the table.")
    evolution: EvolutionConfig | None = Field(
        default=None, description="Choices for schema changes; where none is made, the lake's."
    )
    _has_secrets: bool = PrivateAttr(default=False)

    @property
    def has_secrets(self) -> bool:
        """Does the condition or an expression contain a value of the environment? Then nothing may record the rule."""
        return self._has_secrets

    @property
    def out_of_range_rules(self) -> str | dict[str, str] | None:
        """The library's value. YAML's own null means the rule ``null`` here."""
        if isinstance(self.out_of_range, dict):
            return {column: rule or "null" for column, rule in self.out_of_range.items()}
        return self.out_of_range or ("null" if "out_of_range" in self.model_fields_set else None)


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
        default=EvolutionConfig(), description="What tables do when the source's schema changes; docs/evolution.md."
    )
    out_of_range: OutOfRangeName | None = Field(
        default=None,
        description="For values that the lake's types cannot hold (infinity, BC, NaN in a numeric, 0000-00-00): stop "
        "the table, write NULL, write the nearest value (clamp), or keep the column as text. Without: stop, or the "
        "source's own default.",
    )
    tables: list[LakeTableConfig] = Field(
        default_factory=list, description="Choices for some tables, and further lake tables."
    )
    naming: NamingName = Field(
        default="as_is", description="Column names: as in the source, in lower case, or snake_case."
    )
    salt: str = Field(
        default="", description="Goes into the hashes of masks: a long secret text, as ${VARIABLE}.", repr=False
    )
    deletion_vectors: bool | list[Text] = Field(
        default=False,
        description="Delta: mark rows as deleted instead of rewriting their files, in all tables (true) or in those "
        "that match a pattern of the list. Not every reader supports it: docs/modes.md.",
    )
    catalog: dict[str, str] = Field(
        default_factory=dict,
        description="Iceberg's catalog properties, with type and name: docs/iceberg.md. Without: a Hadoop catalog.",
    )
    namespace: Text = Field(
        default="{schema}", description="Iceberg's namespace of the tables; {schema} is the source table's schema."
    )

    @property
    def out_of_range_rule(self) -> str | None:
        """As ``LakeTableConfig.out_of_range_rules``."""
        return self.out_of_range or ("null" if "out_of_range" in self.model_fields_set else None)


class StorageConfig(Section):
    """The object store, if lake.path or journal.path is in one. The environment gives what is not set here."""

    endpoint: Text | None = Field(default=None, description="URL of a store that is not the cloud's own.")
    region: Text | None = Field(default=None, description="The bucket's region, for S3.")
    profile: Text | None = Field(
        default=None, description="A profile of ~/.aws with static keys; without it AWS_PROFILE."
    )
    access_key_id: Text | None = Field(default=None, repr=False, description="Better: set AWS_ACCESS_KEY_ID.")
    secret_access_key: Text | None = Field(default=None, repr=False, description="Write ${NAME}, from the environment.")
    session_token: Text | None = Field(default=None, repr=False, description="Write ${NAME}, from the environment.")
    account_name: Text | None = Field(default=None, description="Azure: the storage account, if no address names it.")
    account_key: Text | None = Field(default=None, repr=False, description="Azure: its key. Write ${NAME}.")
    sas_token: Text | None = Field(default=None, repr=False, description="Azure: a SAS token. Write ${NAME}.")
    tenant_id: Text | None = Field(default=None, description="Azure: the service principal's tenant.")
    client_id: Text | None = Field(
        default=None, description="Azure: the service principal, or the managed identity if there are several."
    )
    client_secret: Text | None = Field(
        default=None, repr=False, description="Azure: the service principal's secret. Write ${NAME}."
    )
    allow_http: bool = Field(default=False, description="Send requests without encryption.")
    options: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Other options, by the names of obstore and deltalake."
    )

    def to_options(self) -> dict[str, str]:
        """The options of obstore and deltalake."""
        given = self.model_dump(exclude_none=True, exclude={"options", "allow_http"})
        return {**given, **({"allow_http": "true"} if self.allow_http else {}), **self.options}


class SparkConfig(Section):
    """Where Spark runs. By default on this machine, in a session sized to it."""

    master: Text | None = Field(
        default=None, description="local[*], spark://host:7077, yarn, k8s://…; without it, this machine."
    )
    remote: Text | None = Field(
        default=None,
        description="A Spark Connect server, sc://host:15002; instead of master. Iceberg needs a REST catalog there.",
    )
    app_name: Text = Field(default="lakefeed", description="The name in Spark's UI.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark's settings; they override Lakefeed's own.")
    packages: bool = Field(
        default=True, description="Download the jars of the table format; false if the cluster has them."
    )


class SyncConfig(Section):
    """How often to sync."""

    interval_seconds: float = Field(
        default=1.0,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="The shortest time between two merges of `lakefeed run`.",
    )
    hang_seconds: float = Field(
        default=600.0,
        ge=60,
        allow_inf_nan=False,
        description="`lakefeed run` ends if one of its threads shows no sign of life for so long.",
    )
    warm_up: bool = Field(
        default=True, description="`lakefeed run` starts Spark at once, so the first changes do not wait for it."
    )


class JournalConfig(Section):
    """The durable change sets between source and lake."""

    path: Text | None = Field(
        default=None,
        description="Where the journal and the pipeline's state are, if not below lake.path: a directory, or "
        "an address of an object store.",
    )
    lease_seconds: float = Field(
        default=45.0, ge=3, le=3600, description="In an object store: a standby takes over after so long a silence."
    )
    keep_change_sets: int = Field(
        default=256, ge=0, description="How many change sets stay after every table has them."
    )
    keep_seconds: float = Field(
        default=120.0,
        ge=0,
        allow_inf_nan=False,
        description="How long change sets stay after capture, even if every table has them.",
    )
    max_backlog_bytes: int = Field(
        default=16 << 30,
        ge=1 << 20,
        description="Capture waits while the journal has more than this that the lake lacks.",
    )


class MaintenanceConfig(Section):
    """What keeps the lake's tables fast and small."""

    every_seconds: float = Field(
        default=1800.0, ge=0, allow_inf_nan=False, description="How often `lakefeed run` maintains tables; 0: never."
    )
    keep_hours: float = Field(
        default=168.0, ge=1, allow_inf_nan=False, description="How long files stay that only older versions use."
    )
    keep_versions: int = Field(
        default=1000, ge=10, description="How many Iceberg snapshots stay at most; ten times as many Delta versions."
    )
    file_megabytes: int = Field(default=128, ge=1, description="The size of packed files.")
    cluster: bool = Field(default=False, description="Sort packed files by the key.")


class VerifyConfig(Section):
    """Comparisons of the lake with the source that `lakefeed run` makes by itself; docs/verify.md."""

    every_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="How often to compare each lake table; 0: never."
    )
    max_rate: float = Field(
        default=20_000.0, gt=0, allow_inf_nan=False, description="Read at most so many rows of the source in a second."
    )


class MonitorConfig(Section):
    """How you watch the pipeline."""

    http: Text | None = Field(
        default=None,
        description="Where `lakefeed run` serves dashboard and metrics, such as 127.0.0.1:8765; docs/observability.md.",
    )
    token_file: Text | None = Field(
        default=None,
        description="A file with the token that every address but 127.0.0.1 needs; LAKEFEED_HTTP_TOKEN overrides it.",
    )
    traces: bool = Field(
        default=False, description="Send OpenTelemetry spans, by the OTEL_ variables. Needs lakefeed[otel]."
    )
    lineage: bool = Field(
        default=False,
        description="Send OpenLineage events, by the OPENLINEAGE_ variables. Needs lakefeed[openlineage].",
    )


class Config(Section):
    """A whole configuration file."""

    pipeline: str = Field(pattern=PIPELINE_NAME, max_length=64, description="The name of the pipeline.")
    source: SourceConfig
    lake: LakeConfig
    sync: SyncConfig = SyncConfig()
    journal: JournalConfig = JournalConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()
    verify: VerifyConfig = VerifyConfig()
    storage: StorageConfig = StorageConfig()
    spark: SparkConfig = SparkConfig()
    monitor: MonitorConfig = MonitorConfig()

    def state(self) -> Storage:
        """The storage of the pipeline's journal and other state. Sends no request."""
        root = storage_at(self.journal.path or self.lake.path, self.storage.to_options())
        return root.below(f"_lakefeed/{self.pipeline}")


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration file; relative paths in it become absolute. Raises ConfigError."""
    document, model = read_document(path, environment), config_model()
    try:
        config = model.model_validate(document.data)
    except ValidationError as error:
        text, keys = complaints(error, document, model)
        remedy = f"Correct {' and '.join(keys)} in {path}; `lakefeed init` writes a commented example."
        raise ConfigError(text, remedy=remedy) from None  # the cause would show secrets from the environment
    for at, text in document.raw.items():
        if at[:2] == ("lake", "tables") and "${" in text and {"where", "transform"} & set(at):
            config.lake.tables[int(at[2])]._has_secrets = True
    directory = path.absolute().parent
    journal, token_file = config.journal.path, config.monitor.token_file
    if token_file is not None:
        token_file = str(directory / Path(token_file).expanduser())
    return config.model_copy(
        update={
            "source": config.source.beside(directory),
            "lake": config.lake.model_copy(update={"path": _place("lake.path", config.lake.path, directory)}),
            "journal": config.journal.model_copy(
                update={"path": _place("journal.path", journal, directory) if journal is not None else None}
            ),
            "monitor": config.monitor.model_copy(update={"token_file": token_file}),
        }
    )


def _place(key: str, text: str, directory: Path) -> str:
    """An object store's URI as it is; a path, or a file: URL, as an absolute path."""
    if is_remote(text):
        return text.rstrip("/")
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise ConfigError(
            f"{key}: Lakefeed knows no storage for {scheme}://",
            remedy=f"Write a path such as ./lake, or a URI of {known}.",
        )
    return str((directory / Path(rest if separator else text).expanduser()).resolve())


def config_model() -> type[Config]:
    """The model of a file, with every registered kind of source; ``kind`` selects one."""
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
