"""The paths of a lake's tables, in the form for each reader: pyarrow, deltalake and Spark.

A table is at ``<path>/<schema>/<table>``. Characters that mean something to a reader (slashes, percent signs, globs, a
leading underscore or dot) are written as ``~XX``. Percent-encoding would be usual, but deltalake decodes it once more
on its way to the log, and then reads another directory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pyarrow import fs

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.lake.cloud.base import Place
from lakefeed.lake.cloud.registry import cloud_of
from lakefeed.storage.location import options_of

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # two letters: one is a drive of Windows


def lake_root(path: str | Path) -> str:
    """An absolute local path, or an object store's URI as given. ConfigError if the readers do not agree on it."""
    text = str(path)
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    if "%" in text:
        raise ConfigError(f"the lake path '{text}' has a percent sign, which the Delta readers read differently")
    if "://" in text:
        return text.rstrip("/")
    if scheme := _SCHEME.match(text):
        raise ConfigError(
            f"the lake path '{text}' is a URI of {scheme[1]}, not a directory",
            remedy="Write a directory, on Databricks for example /dbfs/lake, or a URI with two slashes, s3://….",
        )
    return str(Path(text).absolute())


def table_path(root: str, table: TableId) -> str:
    return f"{root}/{escaped(table.schema)}/{escaped(table.name)}"


def escaped(name: str) -> str:
    """A name as one path component; different names stay different."""
    plain = "".join(char if char.isalnum() or char in "_-." else _hex(char) for char in name)
    return _hex(plain[0]) + plain[1:] if plain[0] in "_." else plain


def _hex(char: str) -> str:
    return "".join(f"~{byte:02X}" for byte in char.encode())


def spark_path(path: str, *, as_glob: bool = False) -> str:
    """A path for Spark, with its scheme: a cluster's default file system need not be the local one.

    ``as_glob`` escapes it for Spark's file readers, which take globs.
    """
    if "://" not in path:
        full = f"file://{path}"
    else:
        full = cloud.spark_uri(_place(path)) if (cloud := cloud_of(path)) else path
    return "".join(f"\\{char}" if char in "{}[]*?\\" else char for char in full) if as_glob else full


def delta_uri(path: str) -> str:
    """A URI for deltalake."""
    if cloud := cloud_of(path):
        return cloud.deltalake_uri(_place(path))
    return path if "://" in path else "file://" + quote(path)


def filesystem(path: str) -> tuple[Any, str]:
    """pyarrow's file system for a path, and the path in it."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    if cloud := cloud_of(path):
        return cloud.filesystem(_place(path))
    found: tuple[Any, str] = fs.FileSystem.from_uri(path)
    return found


def iceberg_uri(path: str) -> str:
    """A URI for Iceberg's catalogs, in Java and in Python."""
    cloud = cloud_of(path)
    return cloud.iceberg_uri(_place(path)) if cloud else spark_path(path)


def file_io(path: str) -> dict[str, str]:
    """The catalog properties with which Iceberg, in Java and in Python, reaches the store of ``path``; none for a
    directory."""
    cloud = cloud_of(path)
    return cloud.file_io(_place(path)) if cloud else {}


def stores_of(path: str) -> tuple[str, ...]:
    """The object stores whose connectors a Spark session needs to reach ``path``: names of ``cloud.registry``."""
    cloud = cloud_of(path)
    return (cloud.name,) if cloud else ()


def spark_options(path: str) -> dict[str, str]:
    """The session settings with which Hadoop's file system reaches the store of ``path``; none for a directory."""
    cloud = cloud_of(path)
    return cloud.spark_settings(_place(path)) if cloud else {}


def _place(path: str) -> Place:
    return Place(path, options_of(path))
