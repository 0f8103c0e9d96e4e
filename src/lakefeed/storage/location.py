"""Which storage an address means: a local path, a ``file:`` URL, or a URL of an object store."""

from __future__ import annotations

import re
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


_given: dict[str, dict[str, str]] = {}
"""Options by bucket. Options given for one address apply to its whole bucket, in this process."""


def give_options(address: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of an object store, for every reader and writer of this process: obstore, pyarrow, deltalake.

    Returns all that are then in force: see ``options_of``.
    """
    if not is_remote(address):
        return dict(options)
    if options:
        _given[_bucket(address)] = dict(options)
    return options_of(address)


def options_of(address: str) -> dict[str, str]:
    """What was given for an address, and what a profile adds; everything else comes from the environment."""
    if not is_remote(address):
        return {}
    bucket = _bucket(address)
    given = _given.get(bucket, {})
    return with_profile(given) if bucket.startswith("s3:") else dict(given)


def _bucket(address: str) -> str:
    parts = urlsplit(address)
    return f"{'s3' if parts.scheme.lower() == 's3a' else parts.scheme.lower()}://{parts.netloc}"


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
