"""The catalog of an Iceberg lake, in the terms of each reader: Spark, Iceberg itself, pyiceberg.

Lakefeed reads a table's newest metadata without a JVM: it is JSON, whoever keeps the pointer to it.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError
from lakefeed.lake.formats import other_format_at
from lakefeed.lake.location import escaped, file_io, filesystem, iceberg_uri, spark_path
from lakefeed.storage.location import is_remote

CATALOGS = ("glue", "hadoop", "hive", "jdbc", "rest")
HANDED_OVER = "lakefeed_handed_over"
"""The session's catalog for files that Spark writes and does not commit."""
_NAME = "lakefeed"
_OWN_WAREHOUSE = ("hadoop", "jdbc")
"""Catalogs whose tables are by default below the lake's path."""
WITHOUT_CONNECT = (
    "Set lake.catalog with type: rest and its uri, which Spark Connect can write; or spark.master instead of "
    "spark.remote (in Python, give a classic session); or lake.format: delta."
)
_SECONDS = (10.0, 60.0)
"""To connect to a REST catalog, and between two bytes of its answer."""
_OF_STORES = ("s3.", "client.", "adls.", "gcs.", "py-io-impl")
"""The prefixes of properties that Iceberg in Java and pyiceberg share."""


@dataclass(frozen=True, slots=True)
class IcebergCatalog:
    """``properties`` are Iceberg's, with ``type``. ``namespace`` may have ``{schema}`` and dots in it.

    If the lake's path is in an object store, the properties may have its credentials.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    namespace: str
    root: str

    @classmethod
    def of(cls, given: Mapping[str, str], root: str, namespace: str) -> Self:
        """The catalog that a user configures. ConfigError for a type that this version does not know."""
        properties = {key: str(value) for key, value in given.items() if key != "name"}
        kind = properties.setdefault("type", "hadoop")
        if kind not in CATALOGS:
            raise ConfigError(
                f"'{kind}' is not a type of Iceberg catalog that this version knows",
                remedy=f"Choose one of: {', '.join(CATALOGS)}.",
            )
        if kind == "hadoop" and is_remote(root):
            raise ConfigError(
                f"a Hadoop catalog at {root} would lose commits: it commits by a rename, which is not atomic in an "
                "object store",
                remedy="Set lake.catalog with type: rest or type: jdbc, and its uri.",
            )
        if kind != "hadoop" and "uri" not in properties and kind != "glue":
            raise ConfigError(f"an Iceberg catalog of type {kind} needs its address", remedy="Add lake.catalog.uri.")
        if kind in _OWN_WAREHOUSE:
            properties.setdefault("warehouse", iceberg_uri(root))
        properties = {**file_io(root), **properties}
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

    @property
    def needs_java(self) -> bool:
        """Are its tables committed through Iceberg's Java library alone?"""
        return self.kind != "rest"

    @property
    def on_connect(self) -> str:
        """Why a session of Spark Connect cannot write its tables, if it ``needs_java``."""
        return (
            f"tables of an Iceberg catalog of type {self.kind} are committed through the JVM of a classic Spark "
            "session; Spark Connect gives none"
        )

    def settings(self) -> dict[str, str]:
        """The settings of a session. It caches no tables: another process, or ``java``, may have committed.

        The second catalog takes files that Spark writes and hands over instead of committing (``java.Marking``).
        """
        prefix = f"spark.sql.catalog.{self.name}"
        given = {f"{prefix}.{key}": value for key, value in self.properties.items()}
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.cache-enabled": "false",
            f"spark.sql.catalog.{HANDED_OVER}": "org.apache.iceberg.spark.SparkRewriteTableCatalog",
            **given,
        }

    def identifier(self, table: TableId) -> tuple[tuple[str, ...], str]:
        """Namespace and name. Some catalogs use both as path components, so they are escaped like those."""
        levels = self.namespace.split(".")
        return tuple(escaped(level.replace("{schema}", table.schema)) for level in levels), escaped(table.name)

    def location(self, table: TableId) -> str:
        """A path for a Hadoop catalog, else the table's full name."""
        namespace, name = self.identifier(table)
        if self.kind == "hadoop":
            return "/".join([self.root, *namespace, name])
        return ".".join([self.name, *namespace, name])

    def reader(self, table: TableId) -> MetadataReader:
        if self.kind == "hadoop":
            return HadoopMetadata(self.location(table))
        namespace, name = self.identifier(table)
        own = self.properties["warehouse"].removeprefix("file://") if self.kind == "jdbc" else None
        directory = "/".join([own, *namespace, name]) if own is not None else None
        properties = dict(self.properties)
        if self.kind == "jdbc":
            address = _sqlalchemy(properties["uri"], properties.get("jdbc.user"), properties.get("jdbc.password"))
            shared = {key: value for key, value in properties.items() if key.startswith(_OF_STORES)}
            properties = {**shared, "type": "sql", "uri": address, "warehouse": properties["warehouse"]}
        return CatalogMetadata(self.name, properties, (*namespace, name), directory)


def _sqlalchemy(uri: str, user: str | None, password: str | None) -> str:
    """SQLAlchemy's URL of a database, from JDBC's."""
    kind, _, rest = uri.removeprefix("jdbc:").partition(":")
    if kind == "sqlite":
        return f"sqlite:///{rest.removeprefix('file:')}"
    if kind == "postgresql":
        login = f"{quote(user, safe='')}:{quote(password or '', safe='')}@" if user else ""
        return f"postgresql+psycopg://{login}{rest.removeprefix('//')}"
    raise ConfigError(
        f"this version has no JDBC catalog in {kind}", remedy="Use jdbc:postgresql:…, jdbc:sqlite:… or a REST catalog."
    )


Metadata = Mapping[str, Any]
_VERSION_NAME = re.compile(r"v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_ATTEMPTS = 5


class MetadataReader(Protocol):
    """The current metadata of one table, in the form of the table specification; None if there is no such table."""

    def current(self) -> Metadata | None: ...

    @property
    def place(self) -> str | None:
        """The metadata file that ``current`` last read."""

    def is_other_format(self) -> bool:
        """Is there a table of another format where this one would be? Each removes files that it does not know."""

    def table(self) -> Any:
        """pyiceberg's table; None if there is none. ConfigError if pyiceberg is not installed."""


class HadoopMetadata:
    """A table of a Hadoop catalog: its current metadata is the file ``metadata/v<N>.metadata.json`` with the highest N.

    ``version-hint.text`` says where to begin. A writer updates it after the commit, so there may be newer files.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._known: tuple[str, Metadata] | None = None

    def current(self) -> Metadata | None:
        """Reads only new metadata. If somebody removes a file between the listing and the reading, it tries again."""
        for _ in range(_ATTEMPTS):
            files, root = filesystem(f"{self._location}/metadata")
            name = self._newest(files, root)
            if name is None:
                return None
            if self._known is not None and self._known[0] == name:
                return self._known[1]
            try:
                found = _parsed(_bytes(files, f"{root}/{name}"), f"{self._location}/metadata/{name}")
            except FileNotFoundError:
                continue
            refuse_moved(found, self._location)
            self._known = (name, found)
            return self._known[1]
        raise LakeError(f"the table at {self._location} changes faster than Lakefeed can read its metadata")

    @property
    def place(self) -> str | None:
        return f"{self._location}/metadata/{self._known[0]}" if self._known is not None else None

    def is_other_format(self) -> bool:
        return other_format_at(self._location, "iceberg") is not None

    def table(self) -> Any:
        if self.current() is None:
            return None
        try:
            from pyiceberg.table import StaticTable
        except ImportError as error:
            raise _lacking("reading an Iceberg table without Spark", error) from error
        return StaticTable.from_metadata(str(self.place))

    def _newest(self, files: Any, root: str) -> str | None:
        from pyarrow.fs import FileSelector

        try:
            number = int(_bytes(files, f"{root}/version-hint.text"))
            name = _version(files, root, number)
        except (OSError, ValueError):
            name = None
        if name is None:  # no hint, or a wrong one
            found = files.get_file_info(FileSelector(root, allow_not_found=True))
            versions = {
                int(match[1]): info.base_name for info in found if (match := _VERSION_NAME.fullmatch(info.base_name))
            }
            return versions[max(versions)] if versions else None
        while (following := _version(files, root, number + 1)) is not None:
            number, name = number + 1, following
        return name


class CatalogMetadata:
    """A table of any other catalog, read through pyiceberg. ``properties`` are pyiceberg's.

    ``directory`` is where the catalog puts the table's files, if that is known beforehand.
    """

    def __init__(
        self, catalog: str, properties: Mapping[str, str], table: tuple[str, ...], directory: str | None = None
    ) -> None:
        self._name = catalog
        self._properties = dict(properties)
        self._table = table
        self._directory = directory
        self._catalog: Any = None
        self._known: tuple[str, Metadata] | None = None

    def current(self) -> Metadata | None:
        table = self.table()
        if table is None:
            return None
        if self._known is None or self._known[0] != table.metadata_location:
            with table.io.new_input(table.metadata_location).open() as stream:
                found = _parsed(stream.read(), table.metadata_location)
            if self._directory is not None:
                refuse_moved(found, self._directory)
            self._known = (table.metadata_location, found)
        return self._known[1]

    @property
    def place(self) -> str | None:
        return self._known[0] if self._known is not None else None

    def is_other_format(self) -> bool:
        return self._directory is not None and other_format_at(self._directory, "iceberg") is not None

    def table(self) -> Any:
        """pyiceberg's table, fresh from the catalog; None if there is none."""
        catalog = self.catalog()
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return catalog.load_table(self._table)
        except (NoSuchNamespaceError, NoSuchTableError):
            return None

    def catalog(self) -> Any:
        """pyiceberg's, opened when it is first needed. ConfigError if pyiceberg is not installed."""
        if self._catalog is None:
            try:
                from pyiceberg.catalog import load_catalog
            except ImportError as error:
                raise _lacking(f"a catalog of type {self._properties.get('type')}", error) from error
            is_rest = self._properties.get("type") == "rest"
            self._catalog = (_rest_catalog if is_rest else load_catalog)(self._name, **self._properties)
        return self._catalog


def _rest_catalog(name: str, **properties: str) -> Any:
    """pyiceberg's REST catalog, which by itself waits for its server for ever. Users may give it settings in the
    configuration of pyiceberg, as in ``load_catalog``."""
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.utils.config import Config, merge_config
    from requests import Session
    from requests.adapters import HTTPAdapter

    class Impatient(HTTPAdapter):
        def send(self, *given: Any, **named: Any) -> Any:
            return super().send(*given, **{**named, "timeout": named.get("timeout") or _SECONDS})

    class Rest(RestCatalog):
        def _config_headers(self, session: Session) -> None:
            """The first thing that is done to a session; with credentials the next one is its first request."""
            for scheme in ("http://", "https://"):
                session.mount(scheme, Impatient())
            super()._config_headers(session)

    own: dict[str, Any] = {**properties}
    return Rest(name, **merge_config(Config().get_catalog_config(name) or {}, own))  # type: ignore[arg-type]


def refuse_moved(metadata: Metadata, directory: str) -> None:
    """LakeError if somebody has moved the table's directory: Iceberg's metadata has full paths.

    Readers would follow them to the old directory, or find nothing there. Writers would write there, too.
    """
    was, now = (_plain_path(text) for text in (str(metadata.get("location", directory)), directory))
    if was == now or ("://" not in was + now and Path(was).resolve() == Path(now).resolve()):
        return
    # People move a lake as a whole: its schemas and tables keep their paths below it.
    moved = [Path(was), Path(now)]
    if moved[0].parts[-2:] == moved[1].parts[-2:]:
        moved = [one.parent.parent for one in moved]
    old, new = (shlex.quote(str(one)) for one in moved)
    above = shlex.quote(str(moved[0].parent))
    raise LakeError(
        f"somebody moved the Iceberg table at {directory}: its metadata says that it and all its files are at {was}",
        remedy=f"Link the old path to the new one: mkdir -p {above} && ln -s {new} {old}. Or move it back. Or remove "
        "the table's directory, and the pipeline copies the table again to the new path.",
    )


def _plain_path(address: str) -> str:
    """A path without ``file:``, a URI as catalogs have it."""
    text = address.rstrip("/").replace("s3n://", "s3://", 1)
    if text.startswith("file:"):
        return "/" + text.removeprefix("file:").lstrip("/")
    return iceberg_uri(text) if is_remote(text) else text


def _lacking(what: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f"{what} needs pyiceberg, which is not installed ({error})", remedy="pip install 'lakefeed[iceberg]'"
    )


def _version(files: Any, root: str, number: int) -> str | None:
    from pyarrow.fs import FileType

    names = [f"v{number}{form}" for form in (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")]
    found = files.get_file_info([f"{root}/{name}" for name in names])
    return next((name for name, info in zip(names, found, strict=True) if info.type == FileType.File), None)


def _bytes(files: Any, path: str) -> bytes:
    with files.open_input_file(path) as stream:
        content: bytes = stream.read()
        return content


def _parsed(content: bytes, place: str) -> Metadata:
    try:
        data = json.loads(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
    except (OSError, ValueError) as error:
        raise LakeError(f"the table's metadata in {place} does not parse: {error}") from error
    if not isinstance(data, dict):
        raise LakeError(f"the table's metadata in {place} is not an object")
    return data
