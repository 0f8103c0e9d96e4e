"""Object stores through ``obstore``: S3 and compatible ones, Google Cloud Storage, Azure. See ``base``.

A put is atomic and durable by itself. ``create`` is a put with ``If-None-Match: *``, ``replace`` one with ``If-Match``
and the ETag (in Google, the generation) that this object saw last: a writer that was away while another took over
cannot overwrite anything.

A request whose response was lost may have been executed, and the client library sends it again. So a refusal is
examined: if the object has exactly the bytes that were to be written, this writer's own first request succeeded.

Large files are written to a directory on this machine, then uploaded, and stay there for Spark until they are released:
a process does not download what it has captured itself.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lakefeed.errors import ConfigError, JournalError, LeaseLostError, StorageUnavailableError
from lakefeed.storage.base import Entry, NewFile, Storage
from lakefeed.storage.copies import note_copies
from lakefeed.storage.local import LocalFile

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore

_MARKER = ".folder"
"""The object that makes an empty folder exist."""
_AT_ONCE = 16
_REQUEST_SECONDS, _CONNECT_SECONDS, _RETRY_SECONDS = 20.0, 5.0, 15.0
"""Limits of one request, of connecting, and of the library's own retries of what may pass."""
_SPOOL = "lakefeed-segments-"
_NEVER: UpdateVersion = {"e_tag": '"0123456789abcdef0123456789abcdef"', "version": "1"}
"""That no object has."""


class ObjectStorage(Storage):
    """``prefix`` is the path within the store, without leading and trailing slashes."""

    is_remote = True

    def __init__(self, store: ObjectStore, address: str, prefix: str, spool: Spool) -> None:
        self.address = address
        self._store = store
        self._prefix = prefix
        self._spool = spool
        self._seen: dict[str, UpdateVersion | None] = {}  # by name; None: it did not exist
        self._lock = threading.Lock()

    @classmethod
    def open(cls, url: str, options: Mapping[str, str]) -> ObjectStorage:
        """ConfigError for an unknown option, or if the ``obstore`` package is missing. Sends no request."""
        try:
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            raise ConfigError(
                f"{url} is in an object store, which needs a package that is missing: {error}",
                remedy='pip install "lakefeed[object-store]"',
            ) from error
        address = url.rstrip("/").replace("s3a://", "s3://", 1)
        parts = urlsplit(address)
        prefix = parts.path.strip("/")
        bucket = address.removesuffix(parts.path.rstrip("/")) if prefix else address
        client: Any = {
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        }
        if str(options.get("allow_http", "")).lower() == "true":
            client["allow_http"] = True
        retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
        config: Any = {name: value for name, value in options.items() if name != "allow_http"}
        try:
            store: Any = from_url(bucket, config=config, client_options=client, retry_config=retry)
        except (BaseError, ValueError, TypeError) as error:
            text = _without(_said(error), options.values())
            remedy = "Correct the section storage, or the environment variables of the store."
            raise ConfigError(f"{address} cannot be opened: {text}", remedy=remedy) from None
        return cls(store, address, prefix, Spool(bucket))

    def below(self, name: str = "") -> ObjectStorage:
        inner = f"{self._prefix}/{name}".strip("/")
        return ObjectStorage(self._store, f"{self.address}/{name}".rstrip("/"), inner, self._spool)

    def read(self, name: str) -> bytes:
        import obstore

        with self._errors(name):
            found = obstore.get(self._store, self._key(name))
            data = bytes(found.bytes())
        self._remember(name, _version(found.meta))
        return data

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        if len(names) < 2:
            return [self.read(name) for name in names]
        with ThreadPoolExecutor(min(_AT_ONCE, len(names)), "lakefeed-read") as pool:
            return list(pool.map(self.read, names))

    def size(self, name: str) -> int | None:
        meta = self._head(name)
        return None if meta is None else int(meta["size"])

    def state(self, name: str) -> tuple[object, ...] | None:
        """By its ETag, which comes from the content, and the time: equal content may come again in another life."""
        meta = self._head(name)
        return None if meta is None else (meta["e_tag"], meta["last_modified"], int(meta["size"]))

    def age_seconds(self, name: str, *, exact: bool = True) -> float | None:
        """If ``exact``, compares with a second object, written now: both times come from the same clock."""
        import obstore

        meta = self._head(name)
        if meta is None:
            return None
        now = datetime.now(UTC)
        if exact:
            probe = f"{name}.clock-{uuid.uuid4().hex}"
            with self._errors(probe):
                obstore.put(self._store, self._key(probe), b"")
            try:
                written = self._head(probe)
                now = written["last_modified"] if written is not None else now
            finally:
                self.remove([probe])
        return float((now - meta["last_modified"]).total_seconds())

    def entries(self, folder: str = "") -> list[Entry]:
        found = [Entry(name, meta["size"], meta["size"]) for name, meta in self._listed(folder)]
        return sorted((one for one in found if one.name.rpartition("/")[2] != _MARKER), key=lambda entry: entry.name)

    def folders(self, folder: str = "") -> list[str]:
        import obstore

        key = self._key(folder)
        with self._errors(folder):
            found = obstore.list_with_delimiter(self._store, f"{key}/" if key else None)
        return sorted(str(prefix).rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])

    def has_folder(self, folder: str = "") -> bool:
        return next(self._listed(folder, chunk_size=1), None) is not None

    def make_folder(self, folder: str = "") -> None:
        import obstore

        name = f"{folder}/{_MARKER}".strip("/")
        with self._errors(name):
            obstore.put(self._store, self._key(name), b"")

    def replace(self, name: str, data: bytes) -> None:
        """Asks for the version first if this object does not know the name."""
        with self._lock:
            is_known, seen = name in self._seen, self._seen.get(name)
        if not is_known:
            meta = self._head(name)
            seen = _version(meta) if meta is not None else None
        try:
            self._put(name, data, "create" if seen is None else seen)
        except FileExistsError as error:
            raise LeaseLostError(f"another writer has changed {self.place(name)} meanwhile") from error

    def create(self, name: str, data: bytes, *, before: Callable[[], None] | None = None) -> None:
        if before is not None:
            before()
        self._put(name, data, "create")

    def report(self, name: str, data: bytes) -> None:
        with suppress(JournalError):  # the next report follows within seconds
            self._put(name, data, "overwrite")

    def remove(self, names: Iterable[str]) -> None:
        import obstore

        gone = list(names)
        keys = [self._key(name) for name in gone]
        self._spool.release(keys)
        # As many as one request takes. Google has requests for one, and a series ends where an object is missing.
        at_once = {"s3": 1000, "gs": 1}.get(urlsplit(self.address).scheme, 256)

        def delete(start: int) -> None:
            with self._errors(gone[start]), suppress(FileNotFoundError):
                obstore.delete(self._store, keys[start : start + at_once])

        with ThreadPoolExecutor(_AT_ONCE, "lakefeed-remove") as pool:
            list(pool.map(delete, range(0, len(keys), at_once)))
        with self._lock:
            self._seen.update(dict.fromkeys(gone))

    def remove_folder(self, folder: str = "") -> None:
        self.remove([name for name, _ in self._listed(folder)])

    def move(self, other: Storage) -> None:
        """Copies, then removes: a store has no directories to rename."""
        import obstore

        if not isinstance(other, ObjectStorage):
            raise JournalError(f"{self.address} cannot be moved to {other.address}: that is another kind of storage")
        names = [name for name, _ in self._listed("")]
        for name in names:
            with self._errors(name):
                obstore.copy(self._store, self._key(name), other._key(name))
        self.remove(names)

    def new_file(self, name: str) -> ObjectFile:
        return ObjectFile(self, name, self._spool.path(self._key(name)))

    def finish(self, files: Sequence[NewFile]) -> None:
        for file in files:
            file.close()
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(files))), "lakefeed-upload") as pool:
            list(pool.map(self._upload, [file.name for file in files]))

    def path(self, name: str) -> str:
        return str(self._spool.path(self._key(name)))

    def name_of(self, path: str) -> str:
        return self._spool.key(path).removeprefix(f"{self._prefix}/")

    def fetch(self, name: str) -> None:
        import obstore

        target = self._spool.path(self._key(name))
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with self._errors(name), hidden.open("wb") as file:
                for block in obstore.get(self._store, self._key(name)).stream():
                    file.write(block)
            hidden.replace(target)
        finally:
            hidden.unlink(missing_ok=True)

    def release(self, names: Iterable[str]) -> None:
        self._spool.release([self._key(name) for name in names])

    def require_fence(self) -> None:
        """Old releases of some stores accept the headers and ignore them: three requests find out."""
        name = f".fence-{uuid.uuid4().hex}"
        try:
            self.create(name, b"first")
            for mode, data in (("create", b"second"), (_NEVER, b"third")):
                try:
                    self._put(name, data, mode)
                except FileExistsError:
                    continue
                raise ConfigError(
                    f"the store of {self.address} ignores conditions of a put: two writers would not notice each other",
                    remedy="Use a store, or a release of it, that supports If-None-Match and If-Match on PUT.",
                )
        finally:
            self.remove([name])

    def _upload(self, name: str) -> None:
        import obstore

        with self._errors(name):
            obstore.put(self._store, self._key(name), self._spool.path(self._key(name)))

    def _put(self, name: str, data: bytes, mode: Any) -> None:
        """FileExistsError unless the object is as ``mode`` expects, or already has exactly these bytes."""
        import obstore

        try:
            with self._errors(name):
                result = obstore.put(self._store, self._key(name), data, mode=mode, use_multipart=False)
        except FileExistsError:
            try:
                is_own = self.read(name) == data
            except FileNotFoundError:
                is_own = False
            if not is_own:
                with self._lock:
                    self._seen.pop(name, None)
                raise
        else:
            self._remember(name, _version(result))

    def _head(self, name: str) -> Any:
        import obstore

        try:
            with self._errors(name):
                return obstore.head(self._store, self._key(name))
        except FileNotFoundError:
            return None

    def _listed(self, folder: str, *, chunk_size: int = 1000) -> Iterator[tuple[str, Any]]:
        import obstore

        key = self._key(folder)
        with self._errors(folder):
            for chunk in obstore.list(self._store, f"{key}/" if key else None, chunk_size=chunk_size):
                for meta in chunk:
                    yield str(meta["path"])[len(self._prefix) :].lstrip("/"), meta

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".strip("/")

    def _remember(self, name: str, version: UpdateVersion) -> None:
        with self._lock:
            self._seen[name] = version

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Maps the store's errors, once. Keeps their text, but not the headers, which may contain credentials."""
        from obstore import exceptions as store

        place = self.place(name)
        try:
            yield
        except (store.NotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(2, "no such object", place) from error
        except (store.AlreadyExistsError, store.PreconditionError) as error:
            raise FileExistsError(17, "the object is not as expected", place) from error
        except (store.PermissionDeniedError, store.UnauthenticatedError) as error:
            raise StorageUnavailableError(
                f"the store does not allow access to {place}: {_said(error)}",
                remedy="Give this user the rights to list, read, write and delete there, or correct the credentials.",
            ) from None
        except store.BaseError as error:
            raise StorageUnavailableError(f"a request to the store for {place} failed: {_said(error)}") from None
        except OSError as error:
            raise StorageUnavailableError(f"{place} cannot be read or written: {error}") from error


class ObjectFile(LocalFile):
    """A local file until it is uploaded; after that, the copy that readers on this machine use."""

    def __init__(self, storage: ObjectStorage, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(name, path, fsync=False)
        self._storage = storage

    def discard(self) -> None:
        super().discard()
        with suppress(JournalError):
            self._storage.remove([self.name])


class Spool:
    """Local files of one bucket, in a temporary directory of this process, which is removed when the process ends.

    What a killed process left is removed when the next one starts: the directory's name has the process id.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._directory: Path | None = None
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        return self._root() / key

    def key(self, path: str) -> str:
        return path.removeprefix(f"{self._root()}/")

    def release(self, keys: Iterable[str]) -> None:
        if self._directory is not None:
            for key in keys:
                with suppress(OSError):
                    self.path(key).unlink(missing_ok=True)

    def _root(self) -> Path:
        with self._lock:
            if self._directory is None:
                for old in Path(tempfile.gettempdir()).glob(f"{_SPOOL}*"):
                    owner = old.name.removeprefix(_SPOOL).partition("-")[0]
                    if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
                        shutil.rmtree(old, ignore_errors=True)
                directory = tempfile.mkdtemp(prefix=f"{_SPOOL}{os.getpid()}-")
                weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
                self._directory = Path(directory)
                note_copies(directory, self._address)
            return self._directory


def _version(found: Any) -> UpdateVersion:
    """By which a put is conditional: S3 and Azure compare the ETag, Google its own number for a generation."""
    known: Any = {name: found[name] for name in ("e_tag", "version") if found.get(name) is not None}
    version: UpdateVersion = known
    return version


def _said(error: BaseException) -> str:
    """The first line of the store's message, without the library's dump of the request."""
    text = re.sub(r"\s+", " ", str(error).partition("Debug source")[0]).strip()
    return text[:300]


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if len(secret) > 3:
            text = text.replace(secret, "…")
    return text
