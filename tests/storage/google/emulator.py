"""fake-gcs-server, which emulates Google Cloud Storage, behind ``front``: for make google. Go builds it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path

from lakefeed.testing.server.base import Server, free_port

PROGRAM = Path(__file__).parents[3] / ".fakegcs/fake-gcs-server"
BUCKET = "gs://lakefeed"


class FrontServer(Server):
    """See ``front``."""

    orderly, crash = signal.SIGTERM, signal.SIGKILL
    port_is_taken = "Address already in use"

    def __init__(self, directory: Path, port: int, target: int) -> None:
        super().__init__(directory, port)
        self._target = target

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("front.py")), str(self.port), str(self._target)]

    def answers(self) -> bool:
        return _is_open(self.port)


class Emulator(Server):
    """It keeps everything in memory."""

    orderly, crash = signal.SIGTERM, signal.SIGKILL
    port_is_taken = "address already in use"

    front: FrontServer

    @classmethod
    def start(cls) -> Emulator:
        assert PROGRAM.exists(), "make google builds it"
        server = cls(Path(tempfile.mkdtemp(prefix="lakefeed-gcs-")), free_port())
        try:
            server.begin()
            server.front = FrontServer(Path(tempfile.mkdtemp(prefix="lakefeed-front-")), free_port(), server.port)
            server.front.begin()
            body = json.dumps({"name": BUCKET.removeprefix("gs://")}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{server.endpoint}/storage/v1/b?project=test", body, headers)
            with urllib.request.urlopen(request, timeout=10):
                pass
        except BaseException:
            server.close()
            raise
        return server

    def close(self) -> None:
        if hasattr(self, "front"):
            self.front.close()
        super().close()

    def command(self) -> list[str]:
        place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-backend", "memory"]
        return [str(PROGRAM), *place, "-log-level", "warn"]

    def answers(self) -> bool:
        return _is_open(self.port)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.front.port}"

    @property
    def options(self) -> dict[str, str]:
        return {"google_base_url": self.endpoint, "allow_http": "true"}

    @property
    def spark(self) -> dict[str, str]:
        """Spark's connector asks for a token; the other libraries sign one themselves."""
        return {"spark.hadoop.fs.gs.token.server.url": f"{self.endpoint}/token"}

    def account(self) -> Path:
        """The file of a service account, with a key that nobody else has."""
        made = subprocess.run(
            ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        file = self.directory / "account.json"
        mail = "lakefeed@test.iam.gserviceaccount.com"
        about = {"type": "service_account", "project_id": "test", "client_id": "1", "client_email": mail}
        key = {"private_key_id": "1", "private_key": made.stdout, "token_uri": f"{self.endpoint}/token"}
        file.write_text(json.dumps(about | key))
        return file


def _is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
