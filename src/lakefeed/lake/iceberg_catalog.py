"""Which catalog an Iceberg lake's tables are in, in the words of each reader: Spark, Iceberg itself, pyiceberg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.lake.iceberg_metadata import CatalogMetadata, HadoopMetadata, MetadataReader
from lakefeed.lake.location import escaped, spark_path

CATALOGS = ("glue", "hadoop", "hive", "jdbc", "rest")
_NAME = "lakefeed"
_OWN_WAREHOUSE = ("hadoop", "jdbc")
"""Catalogs whose tables are below the lake's path unless told otherwise."""


@dataclass(frozen=True, slots=True)
class IcebergCatalog:
    """``properties`` are Iceberg's, ``type`` among them. ``namespace`` may have ``{schema}`` in it, and dots."""

    name: str
    properties: Mapping[str, str]
    namespace: str
    root: str

    @classmethod
    def of(cls, given: Mapping[str, str], root: str, namespace: str) -> Self:
        """From what a user writes. ConfigError for a type that this version does not know."""
        properties = {key: str(value) for key, value in given.items() if key != "name"}
        kind = properties.setdefault("type", "hadoop")
        if kind not in CATALOGS:
            raise ConfigError(
                f"'{kind}' is not a type of Iceberg catalog that this version knows",
                remedy=f"Choose one of: {', '.join(CATALOGS)}.",
            )
        if kind != "hadoop" and "uri" not in properties and kind != "glue":
            raise ConfigError(f"an Iceberg catalog of type {kind} needs its address", remedy="Add lake.catalog.uri.")
        if kind in _OWN_WAREHOUSE:
            properties.setdefault("warehouse", spark_path(root))
        if kind == "jdbc":
            properties.setdefault("jdbc.schema-version", "V1")  # what pyiceberg makes, and expects
        if kind == "hadoop" and properties["warehouse"] != spark_path(root):
            raise ConfigError("the warehouse of a Hadoop catalog is the lake's path", remedy="Set lake.path instead.")
        if not namespace or any(not level for level in namespace.split(".")):
            raise ConfigError(f"'{namespace}' is not a namespace", remedy="Write {schema}, or names with dots between.")
        return cls(str(given.get("name", _NAME)), properties, namespace, root)

    @property
    def kind(self) -> str:
        return self.properties["type"]

    def settings(self) -> dict[str, str]:
        """For a session. Tables are not cached: another process, or the Java library here, may have committed."""
        prefix = f"spark.sql.catalog.{self.name}"
        given = {f"{prefix}.{key}": value for key, value in self.properties.items()}
        return {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.cache-enabled": "false", **given}

    def place(self, table: TableId) -> tuple[tuple[str, ...], str]:
        """Namespace and name. Both are path components in some catalogs, so they are written like those."""
        levels = self.namespace.split(".")
        return tuple(escaped(level.replace("{schema}", table.schema)) for level in levels), escaped(table.name)

    def location(self, table: TableId) -> str:
        """A path for a Hadoop catalog, else the table's full name."""
        namespace, name = self.place(table)
        if self.kind == "hadoop":
            return "/".join([self.root, *namespace, name])
        return ".".join([self.name, *namespace, name])

    def reader(self, table: TableId) -> MetadataReader:
        if self.kind == "hadoop":
            return HadoopMetadata(self.location(table))
        namespace, name = self.place(table)
        own = self.properties["warehouse"].removeprefix("file://") if self.kind == "jdbc" else None
        directory = "/".join([own, *namespace, name]) if own is not None else None
        return CatalogMetadata(self.name, self._for_pyiceberg(), (*namespace, name), directory)

    def _for_pyiceberg(self) -> dict[str, str]:
        if self.kind != "jdbc":
            return dict(self.properties)
        address = _sqlalchemy(
            self.properties["uri"], self.properties.get("jdbc.user"), self.properties.get("jdbc.password")
        )
        return {"type": "sql", "uri": address, "warehouse": self.properties["warehouse"]}


def _sqlalchemy(uri: str, user: str | None, password: str | None) -> str:
    """The address of a database as SQLAlchemy has it, from JDBC's."""
    kind, _, rest = uri.removeprefix("jdbc:").partition(":")
    if kind == "sqlite":
        return f"sqlite:///{rest.removeprefix('file:')}"
    if kind == "postgresql":
        login = f"{quote(user, safe='')}:{quote(password or '', safe='')}@" if user else ""
        return f"postgresql+psycopg://{login}{rest.removeprefix('//')}"
    raise ConfigError(
        f"a JDBC catalog in {kind} is not there yet", remedy="Use jdbc:postgresql:…, jdbc:sqlite:… or a REST catalog."
    )
