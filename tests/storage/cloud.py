"""An imitation of where a cloud hands out keys: an instance's metadata, a container's agent, the token service (STS).

It answers on loopback with the keys of the test's S3 server, which takes no others. What it cannot show is whether the
cloud's own services answer alike. ``asked`` has what came: way and token.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from lakefeed.testing.server.object_store import OPTIONS

_EXPIRES = "2036-01-01T00:00:00Z"
_METADATA = "/latest/meta-data/iam/security-credentials"
_STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{access_key_id}</AccessKeyId>
<SecretAccessKey>{secret_access_key}</SecretAccessKey><SessionToken></SessionToken><Expiration>{expires}</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class Cloud:
    """``place`` is for the files with tokens that the variables of ``container`` and ``service_account`` name."""

    def __init__(self, place: Path, port: int) -> None:
        self.asked: list[tuple[str, str]] = []
        self.port = port
        self.address = f"http://127.0.0.1:{port}"
        self._token = place / "token"
        self._token.write_text("a-token")

    @property
    def instance(self) -> dict[str, str]:
        """The second is what obstore and deltalake call it."""
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.address, "AWS_METADATA_ENDPOINT": self.address}

    @property
    def container(self) -> dict[str, str]:
        """As EKS Pod Identity and ECS have it."""
        address = f"{self.address}/credentials"
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": address,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(self._token),
        }

    def service_account(self, sts: str) -> dict[str, str]:
        """As IAM roles for service accounts (IRSA) have it, with the address of the token service."""
        return {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(self._token),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/lakefeed",
            "AWS_ROLE_SESSION_NAME": "lakefeed",
            "AWS_ENDPOINT_URL_STS": sts,
        }


@contextmanager
def cloud(place: Path, tls: ssl.SSLContext | None = None) -> Iterator[Cloud]:
    """``tls``: the Rust libraries speak to the token service in no other way."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002  # the library's

        def do_GET(self) -> None:
            if self.path.rstrip("/") == _METADATA:
                self._answer("lakefeed")
                return
            way = "instance" if self.path.startswith(_METADATA) else "container"
            made.asked.append((way, self.headers.get("Authorization") or ""))
            keys = {"AccessKeyId": OPTIONS["access_key_id"], "SecretAccessKey": OPTIONS["secret_access_key"]}
            about = {"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z"}
            self._answer(json.dumps({**about, **keys, "Token": "", "Expiration": _EXPIRES}))

        def do_PUT(self) -> None:
            self._answer("a-session")  # of the second version of the metadata service

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            given: Mapping[str, list[str]] = parse_qs(body or self.path.partition("?")[2])
            made.asked.append((given["Action"][0], given["WebIdentityToken"][0]))
            self._answer(_STS.format(**OPTIONS, expires=_EXPIRES), "text/xml")

        def _answer(self, text: str, kind: str = "application/json") -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        made = Cloud(place, server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
