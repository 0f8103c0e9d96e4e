"""Programs that tests need and no Python package has: from Maven's repository and from Debian's archive.

Spark's own resolver fetches jars, ``mvn`` other files from Maven's repository. Debian's archive is the one that apt is
configured with, or LAKEFEED_DEBIAN.

    place = installation("mariadb-11.8", debian=("trixie", ("mariadb-server-core",)))

An installation is a directory in Lakefeed's cache, made once per machine. Nothing is installed into the system, and
nothing of the system is used: packages come with all libraries that they depend on, including their own libc, and every
program is started through the loader of that libc. So the programs of any Debian release run on any Linux (x86-64).
FetchError says what could not be fetched.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import lzma
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from lakefeed.lake.spark.jars import fetch_jars
from lakefeed.lake.spark.java import cache_directory

_WAIT_SECONDS, _FETCH_SECONDS = 60.0, 600.0
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64")
_LOADER = "ld-linux-x86-64.so.2"
_NO_LIBRARIES = re.compile(
    r"perl.*|.*-perl|debconf.*|.*-common|passwd|adduser|psmisc|procps|rsync|socat|lsof|gawk|iproute2|galera.*"
    r"|mariadb-client.*"
)
"""Dependencies of packages that a server in a temporary directory does not need."""


class FetchError(AssertionError):
    """A program that a test needs cannot be fetched."""


def installation(
    name: str,
    *,
    debian: tuple[str, tuple[str, ...]],
    maven: str | None = None,
    unpack: Callable[[zipfile.ZipFile, Path], None] | None = None,
) -> Path:
    """The directory of the installation ``name``: packages of a Debian suite with their libraries, and on top of them
    what ``unpack`` extracts from a file in Maven's repository (``group:artifact:version``, with
    ``:type:classifier``)."""
    place = cache_directory() / "servers" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{name}.lock").open("w") as turn:  # one process fetches, the others wait for it
        fcntl.flock(turn, fcntl.LOCK_EX)
        if place.is_dir():
            return place
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            raise FetchError(f"{name} can be fetched only for Linux on x86-64; this is {platform.platform()}.")
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place.parent))
        try:
            _unpack_packages(*debian, fresh)
            if maven is not None and unpack is not None:
                with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(_of_maven(maven, directory)) as found:
                    unpack(found, fresh)
            _start_by_own_loader(fresh)
            fresh.rename(place)
        except (OSError, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError) as error:
            raise FetchError(
                f"{name} could not be fetched: {error}. Remedy: check the network connection, or set LAKEFEED_DEBIAN "
                "to an archive of Debian, then run make setup"
            ) from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return place


def _of_maven(coordinates: str, directory: str) -> Path:
    """Fetch one file from Maven's repository."""
    if coordinates.count(":") == 2:
        return fetch_jars(coordinates, Path(directory))[0]
    group, artifact, version, kind, classifier = coordinates.split(":")
    if shutil.which("mvn") is None:
        raise OSError(f"{coordinates} is not a jar, so mvn is needed to fetch it")
    command = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={coordinates}", "-Dtransitive=false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    if done.returncode != 0:
        raise OSError(f"mvn did not fetch {coordinates}: {done.stdout.strip()[-500:]}")
    folder = Path.home() / ".m2" / "repository" / Path(*group.split(".")) / artifact / version
    return folder / f"{artifact}-{version}-{classifier}.{kind}"


def _debian() -> str:
    """The address of Debian's archive."""
    if named := os.environ.get("LAKEFEED_DEBIAN"):
        return named.rstrip("/")
    if shutil.which("apt-get") is not None:
        command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_SECONDS, check=False)
        for address in done.stdout.split():
            if address.rstrip("/").endswith("/debian"):
                return address.rstrip("/")
    raise OSError("apt is not configured with an archive of Debian")


def _download(url: str, file: io.IOBase | tempfile._TemporaryFileWrapper[bytes]) -> str:
    """Download into ``file``. Returns the SHA-256."""
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_WAIT_SECONDS) as answer:  # noqa: S310  # the archive's
            while chunk := answer.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
    except OSError as error:
        raise OSError(f"{url}: {error}") from error
    return digest.hexdigest()


def _unpack_packages(suite: str, names: tuple[str, ...], place: Path) -> None:
    """Unpack packages with everything they need to run, each checked against the suite's index; installs nothing."""
    index, archive = io.BytesIO(), _debian()
    _download(f"{archive}/dists/{suite}/main/binary-amd64/Packages.xz", index)
    known: dict[str, dict[str, str]] = {}
    for stanza in lzma.decompress(index.getvalue()).decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if fields:
            known.setdefault(fields["Package"], fields)
            for provided in fields.get("Provides", "").split(","):
                known.setdefault(provided.split("(")[0].strip(), fields)
    waiting, seen = [*names, "libc6"], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in known:
            raise OSError(f"the Debian suite {suite} has no package {name}")
        fields = known[name]
        if fields["Package"] in seen or (_NO_LIBRARIES.fullmatch(name) and name not in names):
            continue
        seen.add(fields["Package"])
        needed = [*fields.get("Depends", "").split(","), *fields.get("Pre-Depends", "").split(",")]
        choices = ([re.split(r"[\s(:]", one.strip())[0] for one in every.split("|")] for every in needed if every)
        waiting += [next((one for one in each if one in known), each[0]) for each in choices if each[0]]
        package = io.BytesIO()
        if _download(f"{archive}/{fields['Filename']}", package) != fields["SHA256"]:
            raise OSError(f"{fields['Filename']} fails the checksum in Debian's index of {suite}")
        _unpack_package(package.getvalue(), place)


def _unpack_package(package: bytes, place: Path) -> None:
    """Unpack an ``ar`` archive whose member data.tar.* has the files."""
    at = 8
    while at < len(package):
        name, size = package[at : at + 16].decode().strip(" /"), int(package[at + 48 : at + 58])
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(package[at + 60 : at + 60 + size])) as tar:
                # If two packages have the same link, the later one counts; absolute links would lead nowhere.
                for member in tar.getmembers():
                    if member.issym() and member.linkname.startswith("/"):
                        continue
                    target = place / member.name
                    if not member.isdir() and target.is_symlink():
                        target.unlink()
                    tar.extract(member, place, filter="tar")
        at += 60 + size + size % 2


def _start_by_own_loader(place: Path) -> None:
    """Replace every program by a script that starts it with only the libraries of this installation."""
    loader = next(found for one in _LIBRARIES if (found := place / one / _LOADER).exists())
    private = [place / "lib" / "private", place / "lib"]
    paths = [one for one in (*private, *(place / one for one in _LIBRARIES)) if one.is_dir()]
    for folder in ("bin", "sbin", "usr/bin", "usr/sbin"):
        for program in (place / folder).glob("*") if (place / folder).is_dir() else ():
            if program.is_symlink() or not program.is_file() or program.read_bytes()[:4] != b"\x7fELF":
                continue
            program.rename(program.with_name(f"{program.name}.elf"))
            here = '"$(dirname "$(readlink -f "$0")")"/' + "/".join([".."] * len(Path(folder).parts))
            wanted = ":".join(f"$root/{one.relative_to(place)}" for one in paths)
            program.write_text(
                f'#!/bin/sh\nroot={here}\nexec "$root/{loader.relative_to(place)}" --library-path "{wanted}" '
                f'"$root/{folder}/{program.name}.elf" "$@"\n'
            )
            program.chmod(0o755)
