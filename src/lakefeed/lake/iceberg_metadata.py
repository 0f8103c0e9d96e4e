"""Where the newest metadata of an Iceberg table is read from, without a JVM: JSON, whoever keeps the pointer to it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from lakefeed.errors import ConfigError, LakeError
from lakefeed.lake.location import filesystem

Metadata = Mapping[str, Any]
_NAME = re.compile(r"v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_ATTEMPTS = 5


class MetadataReader(Protocol):
    """The current metadata of one table, as the table specification writes it; None if there is no such table."""

    def current(self) -> Metadata | None: ...

    @property
    def place(self) -> str | None:
        """The file that ``current`` last gave."""

    def is_delta(self) -> bool:
        """Is there a Delta table where this one would be? Each format would clean up the other's files."""

    def table(self) -> Any:
        """The table as pyiceberg reads it; None if there is none. ConfigError if pyiceberg is not installed."""


class HadoopMetadata:
    """A table of a Hadoop catalog: files ``metadata/v<N>.metadata.json``, of which the highest counts.

    ``version-hint.text`` says where to begin; it is written after the commit, so that there may be newer ones.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._known: tuple[str, Metadata] | None = None

    def current(self) -> Metadata | None:
        """Read again only if the table has moved. A file may be cleaned up between the look and the reading."""
        for _ in range(_ATTEMPTS):
            files, root = filesystem(f"{self._location}/metadata")
            name = self._newest(files, root)
            if name is None:
                return None
            if self._known is not None and self._known[0] == name:
                return self._known[1]
            try:
                self._known = (name, _parsed(_bytes(files, f"{root}/{name}"), f"{self._location}/metadata/{name}"))
            except FileNotFoundError:
                continue
            return self._known[1]
        raise LakeError(f"the table at {self._location} changes faster than its metadata can be read")

    @property
    def place(self) -> str | None:
        return f"{self._location}/metadata/{self._known[0]}" if self._known is not None else None

    def is_delta(self) -> bool:
        return is_delta(self._location)

    def table(self) -> Any:
        if self.current() is None:
            return None
        try:
            from pyiceberg.table import StaticTable
        except ImportError as error:
            raise _lacking("an Iceberg table that is read without Spark", error) from error
        return StaticTable.from_metadata(str(self.place))

    def _newest(self, files: Any, root: str) -> str | None:
        number = self._hint(files, root)
        name = _version(files, root, number) if number is not None else None
        if number is None or name is None:
            return _listed(files, root)
        while (following := _version(files, root, number + 1)) is not None:
            number, name = number + 1, following
        return name

    def _hint(self, files: Any, root: str) -> int | None:
        try:
            return int(_bytes(files, f"{root}/version-hint.text"))
        except (OSError, ValueError):
            return None


class CatalogMetadata:
    """A table of any other catalog, asked through pyiceberg. ``properties`` are pyiceberg's.

    ``directory`` is where the catalog will put the table's files, if that is known beforehand.
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
                self._known = (table.metadata_location, _parsed(stream.read(), table.metadata_location))
        return self._known[1]

    @property
    def place(self) -> str | None:
        return self._known[0] if self._known is not None else None

    def is_delta(self) -> bool:
        return self._directory is not None and is_delta(self._directory)

    def table(self) -> Any:
        """As pyiceberg has it, fresh from the catalog; None if there is no such table."""
        if self._catalog is None:
            self._catalog = self._connected()
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog.load_table(self._table)
        except (NoSuchNamespaceError, NoSuchTableError):
            return None

    def _connected(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise _lacking(f"a catalog of type {self._properties.get('type')}", error) from error
        return load_catalog(self._name, **self._properties)


def is_delta(location: str) -> bool:
    """Is there a Delta table at a path?"""
    from pyarrow.fs import FileType

    files, root = filesystem(f"{location}/_delta_log")
    return bool(files.get_file_info(root).type == FileType.Directory)


def is_iceberg(location: str) -> bool:
    """Is there an Iceberg table at a path, of whichever catalog?"""
    from pyarrow.fs import FileSelector

    files, root = filesystem(f"{location}/metadata")
    found = files.get_file_info(FileSelector(root, allow_not_found=True))
    return any(info.base_name.endswith((".metadata.json", ".metadata.json.gz")) for info in found)


def _lacking(what: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f"{what} needs pyiceberg, which is not installed ({error})", remedy="pip install 'lakefeed[iceberg]'"
    )


def _version(files: Any, root: str, number: int) -> str | None:
    from pyarrow.fs import FileType

    names = [f"v{number}{form}" for form in (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")]
    found = files.get_file_info([f"{root}/{name}" for name in names])
    return next((name for name, info in zip(names, found, strict=True) if info.type == FileType.File), None)


def _listed(files: Any, root: str) -> str | None:
    from pyarrow.fs import FileSelector

    found = files.get_file_info(FileSelector(root, allow_not_found=True))
    versions = {int(match[1]): info.base_name for info in found if (match := _NAME.fullmatch(info.base_name))}
    return versions[max(versions)] if versions else None


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
