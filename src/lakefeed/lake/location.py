"""The paths of a lake's tables, in the form for each reader: pyarrow, deltalake and Spark.

A table is at ``<path>/<schema>/<table>``. Characters that mean something to a reader (slashes, percent signs, globs, a
leading underscore or dot) are written as ``~XX``. Percent-encoding would be usual, but deltalake decodes it once more
on its way to the log, and then reads another directory.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pyarrow import fs

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
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
    full = path if "://" in path else f"file://{path}"
    if full.startswith("s3://"):
        full = "s3a://" + full.removeprefix("s3://")  # Hadoop's name for it
    return "".join(f"\\{char}" if char in "{}[]*?\\" else char for char in full) if as_glob else full


def delta_uri(path: str) -> str:
    """A URI for deltalake, which knows S3 by the scheme ``s3`` alone."""
    if path.startswith("s3a://"):
        return "s3://" + path.removeprefix("s3a://")
    return path if "://" in path else "file://" + quote(path)


def filesystem(path: str) -> tuple[Any, str]:
    """pyarrow's file system for a path, and the path in it."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    uri, options = delta_uri(path), options_of(path)
    if uri.startswith("s3://") and options:
        return _s3(tuple(sorted(options.items()))), uri.removeprefix("s3://")
    found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
    return found


@cache
def _s3(options: tuple[tuple[str, str], ...]) -> Any:
    given = {name.removeprefix("aws_"): value for name, value in options}
    endpoint = given.get("endpoint") or given.get("endpoint_url")
    parts = urlsplit(endpoint) if endpoint else None
    kind: Any = fs.S3FileSystem  # the stubs lack the last option, with which a small file takes one request, not three
    return kind(
        access_key=given.get("access_key_id"),
        secret_key=given.get("secret_access_key"),
        session_token=given.get("session_token"),
        region=given.get("region"),
        endpoint_override=parts.netloc if parts else None,
        scheme="http" if parts and parts.scheme == "http" else "https",
        request_timeout=20,
        connect_timeout=5,
        allow_delayed_open=True,
    )


def file_io(path: str) -> dict[str, str]:
    """The catalog properties with which Iceberg, in Java and in Python, reaches the store of ``path``; none for a
    directory. Iceberg takes what is missing from the environment, as Lakefeed does.
    """
    if not delta_uri(path).startswith("s3://"):
        return {}
    options = {name.removeprefix("aws_"): one for name, one in options_of(path).items()}
    endpoint = options.get("endpoint") or options.get("endpoint_url")
    values = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "http-client.type": "urlconnection",  # of its three, the one that Hadoop's connector does not use
        "client.region": options.get("region") or ("us-east-1" if endpoint else None),  # it does not start without any
        "s3.endpoint": endpoint,
        "s3.path-style-access": "true" if endpoint else None,
        "s3.access-key-id": options.get("access_key_id"),
        "s3.secret-access-key": options.get("secret_access_key"),
        "s3.session-token": options.get("session_token"),
    }
    return {name: value for name, value in values.items() if value is not None}


def stores_of(path: str) -> tuple[str, ...]:
    """The object stores whose connectors a Spark session needs to reach ``path``: see ``spark.jars``."""
    return ("s3",) if delta_uri(path).startswith("s3://") else ()


_BY_SERVICE_ACCOUNT = "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"


def spark_options(path: str) -> dict[str, str]:
    """The session settings with which Hadoop's file system reaches the store of ``path``; none for a directory."""
    parts, options = (
        urlsplit(delta_uri(path)),
        {name.removeprefix("aws_"): one for name, one in options_of(path).items()},
    )
    if parts.scheme != "s3":
        return {}
    endpoint = options.get("endpoint") or options.get("endpoint_url")
    # Does this process get its keys by the token of a Kubernetes service account, and by nothing that comes first?
    has_keys = "access_key_id" in options or os.environ.get("AWS_ACCESS_KEY_ID")
    by_account = not has_keys and os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and os.environ.get("AWS_ROLE_ARN")
    values = {
        "access.key": options.get("access_key_id"),
        "secret.key": options.get("secret_access_key"),
        "session.token": options.get("session_token"),
        "endpoint": endpoint,
        "endpoint.region": options.get("region"),
        "path.style.access": "true" if endpoint else None,
        "connection.ssl.enabled": "false" if endpoint and endpoint.startswith("http:") else None,
        # Of the ways without a key, the only one that Hadoop's connector does not try by itself.
        "aws.credentials.provider": _BY_SERVICE_ACCOUNT if by_account else None,
    }
    return {f"fs.s3a.bucket.{parts.netloc}.{name}": value for name, value in values.items() if value is not None}
