"""Checks what a pipeline needs of this machine: Java and the jars of its table format, or a Spark Connect server; a
directory to write to; a private configuration file.

The capture checks the source.
"""

from __future__ import annotations

import re
import shlex
import socket
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import urlsplit

from lakefeed.app.config import Config
from lakefeed.app.document import read_document
from lakefeed.capture.base import Finding, Level
from lakefeed.errors import LakefeedError, SparkSetupError
from lakefeed.lake.formats import FORMATS
from lakefeed.lake.spark.jars import missing_jars
from lakefeed.lake.spark.java import find_java, wrong_java_home
from lakefeed.storage.location import storage_at

_CONNECT_PORT = 15002
_CONNECT_SECONDS = 5.0


def _unwritable(key: str, path: Path) -> list[tuple[str, str]]:
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with TemporaryFile(dir=nearest):  # try it: permissions do not show a read-only disk
            return []
    except NotADirectoryError:
        return [(f"{key} {path}: {nearest} is a file", f"Set {key} to a directory.")]
    except OSError as error:
        problem = f"{key} {path}: Lakefeed cannot write to {nearest}: {error.strerror}"
        return [(problem, f"Make {nearest} writable for this user, or set {key} to a directory that is.")]


def _unconnected(remote: str) -> list[tuple[str, str]]:
    """Why Lakefeed cannot use a Spark Connect server: the client lacks packages, or no server answers."""
    place = urlsplit(remote.partition("/;")[0])
    lacking = [name for name in ("grpc", "grpc_status", "google.rpc", "pandas") if not _is_installed(name)]
    if lacking:
        return [(f"the Spark Connect client needs {', '.join(lacking)}", 'pip install "lakefeed[connect]"')]
    try:
        with socket.create_connection((place.hostname or "", place.port or _CONNECT_PORT), timeout=_CONNECT_SECONDS):
            return []
    except OSError as error:
        problem = f"spark.remote: no server answers at {place.netloc}: {error.strerror or error}"
        return [(problem, "Start the Spark Connect server there, or correct spark.remote.")]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def machine_findings(config: Config) -> tuple[Finding, ...]:
    """The problems of this machine, each with its remedy. Leaves nothing behind, and starts no Spark."""
    found, warnings = list[tuple[str, str]](), list[tuple[str, str]]()
    if config.spark.remote is not None:
        found += _unconnected(config.spark.remote)
    else:
        try:
            java = find_java()
            if wrong := wrong_java_home():
                warnings.append((f"{wrong}; Lakefeed uses {java.home} instead", f"export JAVA_HOME={java.home}"))
        except SparkSetupError as error:
            found.append((error.message, error.remedy))
    places = {"lake.path": config.lake.path} | ({"journal.path": config.journal.path} if config.journal.path else {})
    for key, place in places.items():
        storage = storage_at(place, config.storage.to_options())
        if storage.directory is not None:
            found += _unwritable(key, storage.directory)
            continue
        try:
            storage.require_fence()  # try it: this writes and removes a probe
        except LakefeedError as error:
            found.append((f"{key}: {error.message}", error.remedy))
    coordinates = FORMATS[config.lake.format].coordinates
    if config.spark.remote is None and (missing := missing_jars(coordinates)):
        remedy = "Connect to the internet once, or set spark.jars.repositories in spark-defaults.conf."
        found.append((f"the jars of {coordinates} are not on this machine, and {missing}", remedy))
    return tuple(
        Finding(level=level, problem=problem, remedy=remedy)
        for level, listed in ((Level.ERROR, found), (Level.WARNING, warnings))
        for problem, remedy in listed
    )


_PASSWORD = re.compile(r"""password\s*=\s*(?!\s|['"]?\$\{)|://[^/@:\s]*:(?!\$\{)[^/@\s]+@""", re.IGNORECASE)
_SECRET_KEY = re.compile(r"password|secret|credential|token", re.IGNORECASE)


def secret_findings(file: Path) -> tuple[Finding, ...]:
    """A warning if the configuration file itself has a secret, and other users may read the file."""
    if not file.stat().st_mode & 0o077:
        return ()
    raw = {".".join(map(str, at)): text for at, text in read_document(file).raw.items()}
    plain = [
        key
        for key, text in raw.items()
        if (key == "source.dsn" and _PASSWORD.search(text))
        or (key.startswith("lake.catalog.") and _SECRET_KEY.search(key) and "${" not in text)
    ]
    return tuple(
        Finding(
            level=Level.WARNING,
            problem=f"{key} has a secret in {file}, which other users of this machine may read",
            remedy=f"chmod 600 {shlex.quote(str(file))}, or set the secret in the environment and write ${{NAME}}.",
        )
        for key in plain
    )
