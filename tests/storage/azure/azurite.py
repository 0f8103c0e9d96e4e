"""Azurite, Microsoft's emulator of Azure Blob Storage, for the tests of make azure. It comes from npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import signal
import socket
import sys
import tempfile
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

from lakefeed.testing.server.base import Server, free_port

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # every Azurite's
PROGRAM = Path(__file__).parents[3] / ".azurite/node_modules/.bin/azurite-blob"
ADDRESSES = ("az://lakefeed", f"abfs://lakefeed@{ACCOUNT}.dfs.core.windows.net")


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


class Azurite(Server):
    orderly, crash = signal.SIGTERM, signal.SIGKILL
    port_is_taken = "EADDRINUSE"

    front: FrontServer

    @classmethod
    def start(cls) -> Azurite:
        assert PROGRAM.exists(), "make azure installs it"
        server = cls(Path(tempfile.mkdtemp(prefix="lakefeed-azurite-")), free_port())
        try:
            server.begin()
            server.front = FrontServer(Path(tempfile.mkdtemp(prefix="lakefeed-front-")), free_port(), server.port)
            server.front.begin()
            server.container("lakefeed")
        except BaseException:
            server.close()
            raise
        return server

    def close(self) -> None:
        if hasattr(self, "front"):
            self.front.close()
        super().close()

    def command(self) -> list[str]:
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.directory / "data")]
        return [str(PROGRAM), *place, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]

    def answers(self) -> bool:
        return _is_open(self.port)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.front.port}/{ACCOUNT}"

    @property
    def options(self) -> dict[str, str]:
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.endpoint, "allow_http": "true"}

    def sas(self) -> str:
        """A token for all containers, with the rights that the documentation asks for."""
        until = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        given = {
            "sp": "rwdlac",
            "ss": "b",
            "srt": "co",
            "st": "",
            "se": until,
            "sip": "",
            "spr": "",
            "sv": "2020-08-04",
        }
        text = "".join(f"{value}\n" for value in (ACCOUNT, *given.values()))
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        return urlencode(
            {**{name: one for name, one in given.items() if one}, "sig": base64.b64encode(digest).decode()}
        )

    def container(self, name: str) -> None:
        """Make one, by a request that is signed with the account's key: obstore makes none."""
        headers = {"x-ms-date": f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} GMT", "x-ms-version": "2021-08-06"}
        lines = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
        text = f"PUT{chr(10) * 12}{lines}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        request = urllib.request.Request(f"{self.endpoint}/{name}?restype=container", method="PUT", headers=headers)
        with urllib.request.urlopen(request, timeout=10):
            pass


def _is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
