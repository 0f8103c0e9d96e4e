"""An imitation of one thing that Azure does and Azurite does not: a listing that begins at a name (``startFrom``).

deltalake asks for the newest entries of a log so, and takes older ones for a damaged log. This server on loopback hands
every request to Azurite as it is, and takes from the listings what comes before that name. Run as a process with two
arguments: its own port, and Azurite's.
"""

from __future__ import annotations

import html
import http.client
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_LISTED = re.compile(rb"<(Blob|BlobPrefix)><Name>(.*?)</Name>.*?</\1>", re.DOTALL)
_OF_CONNECTION = ("connection", "content-length", "keep-alive", "transfer-encoding")


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = 65_536, True  # an answer is one packet, and goes at once
    target = 0

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        store = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)  # all of them are signed
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                store.putheader(name, value)
        store.endheaders(body or None)
        answer = store.getresponse()
        content = answer.read()
        store.close()
        first = parse_qs(urlsplit(self.path).query).get("startFrom")
        if first:
            content = _LISTED.sub(lambda one: b"" if html.unescape(one[2].decode()) < first[0] else one[0], content)
        length = answer.headers.get("content-length", "0") if self.command == "HEAD" else str(len(content))
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = forward  # noqa: N815  # the library's names

    def handle_expect_100(self) -> bool:
        goes_on = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return goes_on

    def log_message(self, *_: Any) -> None:
        pass


class Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Front.target = int(sys.argv[2])
    Listening(("127.0.0.1", int(sys.argv[1])), Front).serve_forever()
