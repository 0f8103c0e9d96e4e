"""Which storage an address means: a local path, a ``file:`` URL, or a URL of an object store."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lakefeed.errors import ConfigError
from lakefeed.storage.base import Storage
from lakefeed.storage.local import LocalStorage
from lakefeed.storage.profile import with_profile

# At least two letters, so that a Windows drive is not a scheme; one slash, because Path folds two of them into one.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "az")
"""Schemes of object stores, as the users of each cloud write them; ``object_store`` supports all of them."""


def is_remote(address: Path | str) -> bool:
    """Whether this is the URL of an object store."""
    match = _URL.match(str(address))
    return match is not None and match[1].lower() in SCHEMES and "://" in str(address)


_AZURE = ("abfs", "abfss", "az")
_ACCOUNT = ("account_name", "azure_storage_account_name")
_given: dict[str, dict[str, str]] = {}
"""Options by bucket. Options given for one address apply to its whole bucket, in this process."""


def give_options(address: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of an object store, for every reader and writer of this process: obstore, pyarrow, deltalake.

    Returns all that are then in force: see ``options_of``.
    """
    if not is_remote(address):
        return dict(options)
    if options:
        bucket = _bucket(address)
        account = next((options[name] for name in _ACCOUNT if name in options), None)
        account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        _given[bucket] = dict(options)
        if bucket.startswith("az:") and "@" not in bucket and account:
            _given[f"{bucket}@{account}"] = dict(options)  # as Spark and catalogs write it
    return options_of(address)


def options_of(address: str) -> dict[str, str]:
    """What was given for an address, and what a profile adds; everything else comes from the environment."""
    if not is_remote(address):
        return {}
    bucket = _bucket(address)
    given = _given.get(bucket, {})
    return with_profile(given) if bucket.startswith("s3:") else dict(given)


def _bucket(address: str) -> str:
    """Without what different names of one bucket differ in: the scheme, and the domain of Azure."""
    parts = urlsplit(address)
    scheme = parts.scheme.lower()
    if scheme in _AZURE:
        container, separator, host = parts.netloc.rpartition("@")
        return f"az://{container}@{host.partition('.')[0]}" if separator else f"az://{host}"
    return f"{'s3' if scheme == 's3a' else scheme}://{parts.netloc}"


def removal(address: str) -> str:
    """The command of a shell that removes one file of a storage."""
    parts = urlsplit(address)
    scheme, path = parts.scheme.lower(), parts.path.strip("/")
    if scheme in ("s3", "s3a"):
        return f"aws s3 rm {shlex.quote(f's3://{parts.netloc}/{path}')}"
    if scheme == "gs":
        return f"gcloud storage rm {shlex.quote(address)}"
    if scheme in _AZURE:
        container, _, host = parts.netloc.rpartition("@")
        account = f"--account-name {shlex.quote(host.partition('.')[0])} " if container else ""
        place = f"--container-name {shlex.quote(container or host)} --name {shlex.quote(path)}"
        return f"az storage blob delete {account}{place}"
    return f"rm {shlex.quote(address)}"


def local_root(root: Path | str) -> Path:
    """The absolute directory that ``root`` names: a path or a ``file:`` URL. ConfigError for any other URL."""
    text = str(root)
    match = _URL.match(text)
    if match is None:
        return Path(root).absolute()
    if match[1].lower() != "file":
        raise ConfigError(f"the journal cannot be at '{text}': only local paths and file: URLs are supported")
    return Path(unquote(urlsplit(text).path)).absolute()


def storage_at(root: Path | str | Storage, options: Mapping[str, str] | None = None) -> Storage:
    """The storage at an address; a storage is returned as it is. ConfigError for any other URL.

    ``options`` are for object stores: see ``object_store``.
    """
    if isinstance(root, Storage):
        return root
    text = str(root)
    match = _URL.match(text)
    if match is None or match[1].lower() == "file":
        return LocalStorage(local_root(root))
    if not is_remote(text):
        scheme = match[1].lower()
        raise ConfigError(
            f"the journal cannot be at '{text}': Lakefeed has no storage for {scheme}:",
            remedy=f"Use a path on this machine, or a URL of {', '.join(f'{one}://' for one in SCHEMES)}.",
        )
    from lakefeed.storage.object_store import ObjectStorage

    return ObjectStorage.open(text, give_options(text, options or {}))
