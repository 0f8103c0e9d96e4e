"""Real S3 servers for tests: SeaweedFS, and moto as a second implementation. On loopback, stopped by process id.

with Seaweed.start() as server:
    storage_at(server.bucket("shop"), server.options)
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import urllib.request
from pathlib import Path

from lakefeed.testing.server.base import Server, free_port

_TRIES = 3
_SETTLE_SECONDS = 20.0
OPTIONS = {"access_key_id": "lakefeed", "secret_access_key": "lakefeed-secret", "region": "us-east-1"}


class S3Server(Server):
    """``options`` are those of ``storage_at``, deltalake and Delta."""

    orderly, crash = signal.SIGTERM, signal.SIGKILL

    def begun(self) -> None:
        """Start it; leave nothing behind if it does not start."""
        try:
            self.begin()
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        return {**OPTIONS, "endpoint": self.endpoint, "allow_http": "true"}

    def bucket(self, name: str) -> str:
        """Create a bucket, and return its address."""
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")  # noqa: S310  # loopback
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            return f"s3://{name}"

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500  # it may be up before the services behind it
        except OSError:
            return False
        finally:
            connection.close()


class Moto(S3Server):
    """In memory: its content ends with its process."""

    port_is_taken = "Address already in use"

    @classmethod
    def start(cls) -> Moto:
        server = cls(Path(tempfile.mkdtemp(prefix="lakefeed-moto-")), free_port())
        server.begun()
        return server

    def command(self) -> list[str]:
        return [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]


class Seaweed(S3Server):
    """Master, volume, filer and S3 in one process. Accepts only the credentials in OPTIONS."""

    port_is_taken = "address already in use"

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(directory, port)
        self._others = {name: free_port() for name in ("master", "volume", "filer")}

    @classmethod
    def start(cls) -> Seaweed:
        """If a port has been taken, tries again with other ports and new data: the master would wait for itself under
        the ports that are recorded in its data."""
        tries = 1
        while True:
            server = cls(Path(tempfile.mkdtemp(prefix="lakefeed-s3-")), free_port())
            try:
                server.made()
                return server
            except AssertionError as error:
                if tries == _TRIES or cls.port_is_taken not in str(error):
                    raise
                tries += 1

    def begin(self) -> None:
        self.resume()

    def made(self) -> None:
        (self.directory / "data").mkdir()
        keys = {"accessKey": OPTIONS["access_key_id"], "secretKey": OPTIONS["secret_access_key"]}
        user = {"name": "lakefeed", "credentials": [keys], "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
        (self.directory / "s3.json").write_text(json.dumps({"identities": [user]}))
        self.begun()

    def command(self) -> list[str]:
        program = Path(sysconfig.get_path("scripts")) / "weed"
        found = str(program) if program.exists() else shutil.which("weed") or "weed"
        command = [found, "server", f"-dir={self.directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
        command += [f"-s3.config={self.directory / 's3.json'}", f"-s3.port={self.port}", f"-s3.port.grpc={free_port()}"]
        for name, port in self._others.items():
            command += [f"-{name}.port={port}", f"-{name}.port.grpc={free_port()}"]
        # Unused services would use the same port for all servers on the machine.
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        return [*command, "-master.volumeSizeLimitMB=64", "-volume.max=100"]  # a bucket takes seven volumes

    def bucket(self, name: str) -> str:
        """Creates a file in the filer, which needs no signature. Retries if the connection is dropped: its parts take
        some seconds to find each other."""
        until = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                self._write(f"buckets/{name}/.made")
                return f"s3://{name}"
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def answers(self) -> bool:
        try:  # writing a file needs a volume, which is the last part to start
            self._write("ready")
        except OSError:
            return False
        return super().answers()

    def _write(self, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self._others['filer']}/{path}", b"x", method="PUT")
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            pass
