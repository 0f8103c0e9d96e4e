"""An imitation of Google's XML interface, as far as obstore and deltalake use it; the emulator has the JSON one.

This server on loopback translates: puts with conditions, copies, reads, deletes, listings, uploads in parts; it hands
out a token, which nobody checks. It hands
requests of the JSON interface to the emulator as they are, so all libraries see one store. The emulator decides about
conditions, in a lock. What this cannot show is whether Google's own service answers alike. Run as a process with two
arguments: its own port, and the emulator's.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import sys
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

_JSON = ("/storage/v1/", "/upload/", "/download/", "/resumable/", "/batch", "/_internal/")
_OF_CONNECTION = ("connection", "content-length", "expect", "keep-alive", "transfer-encoding")
_PAGE = 1000
_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")
_LISTED = "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>"

Answer = tuple[int, dict[str, str], bytes]


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = 65_536, True  # an answer is one packet, and goes at once
    target = 0
    numbers = itertools.count(1)
    parts: dict[str, dict[int, bytes]] = {}  # noqa: RUF012  # of the whole process: uploads that are not complete

    def serve(self) -> None:
        body, at = self._body(), urlsplit(self.path)
        bucket, _, key = at.path.strip("/").partition("/")
        query = {name: one[0] for name, one in parse_qs(at.query, keep_blank_values=True).items()}
        if at.path == "/token":
            answer = self._token()
        elif at.path.startswith(_JSON):
            answer = self._ask(self.command, self.path, body, self.headers)
        elif not key:
            answer = self._listing(bucket, query)
        elif self.command in ("GET", "HEAD"):
            answer = self._ask(self.command, f"/download{_json(bucket, key)}", b"", self.headers)
        elif "uploads" in query or "uploadId" in query:
            answer = self._in_parts(bucket, key, query, body)
        elif self.command == "DELETE":
            answer = self._ask("DELETE", _json(bucket, key))
            answer = (204, {}, b"") if answer[0] == 200 else answer
        else:
            answer = self._put(bucket, key, body)
        self._answer(*answer)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_PATCH = serve  # noqa: N815  # the library's names

    def _token(self) -> Answer:
        text = json.dumps({"access_token": "a-token", "token_type": "Bearer", "expires_in": 3600})
        return 200, {"Content-Type": "application/json"}, text.encode()

    def _put(self, bucket: str, key: str, body: bytes) -> Answer:
        wanted = {"ifGenerationMatch": self.headers.get("x-goog-if-generation-match")}
        query = urlencode({name: one for name, one in wanted.items() if one is not None})
        if source := self.headers.get("x-goog-copy-source"):
            from_bucket, _, from_key = source.strip("/").partition("/")
            answer = self._ask("POST", f"{_json(from_bucket, from_key)}/copyTo{_below(bucket, key)}?{query}")
        else:
            name = quote(unquote(key), safe="")
            answer = self._ask(
                "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}&{query}", body
            )  # fmt: skip
        if answer[0] != 200:
            return answer
        made = json.loads(answer[2])
        headers = {"ETag": _quoted(made["etag"]), "x-goog-generation": made["generation"]}
        text = f"<CopyObjectResult><ETag>{escape(headers['ETag'])}</ETag></CopyObjectResult>" if source else ""
        return 200, headers, text.encode()

    def _in_parts(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> Answer:
        if "uploads" in query:
            number = str(next(self.numbers))
            self.parts[number] = {}
            made = f"<UploadId>{number}</UploadId>"
            return 200, {}, f"<InitiateMultipartUploadResult>{made}</InitiateMultipartUploadResult>".encode()
        upload = query["uploadId"]
        if self.command == "PUT":
            self.parts[upload][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{upload}-{query["partNumber"]}"'}, b""
        parts = self.parts.pop(upload, {})
        if self.command == "DELETE":
            return 204, {}, b""
        wanted = [int(number) for number in _PART.findall(body.decode())]
        status, headers, text = self._put(bucket, key, b"".join(parts[number] for number in wanted))
        if status == 200:
            tag = f"<ETag>{escape(headers['ETag'])}</ETag>"
            text = f"<CompleteMultipartUploadResult>{tag}</CompleteMultipartUploadResult>".encode()
        return status, headers, text

    def _listing(self, bucket: str, query: dict[str, str]) -> Answer:
        after = query.get("continuation-token") or query.get("start-after") or ""
        asked = {name: one for name, one in query.items() if name in ("prefix", "delimiter")}
        status, headers, content = self._ask("GET", f"/storage/v1/b/{bucket}/o?{urlencode(asked)}")
        if status != 200:
            return status, headers, content
        all_of_it = json.loads(content)
        found = {
            one["name"]: _LISTED.format(escape(one["name"]), one["updated"], escape(_quoted(one["etag"])), one["size"])
            for one in all_of_it.get("items", [])
        }
        for name in all_of_it.get("prefixes", []):
            found[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        names = sorted(name for name in found if name > after)
        page, is_more = names[:_PAGE], len(names) > _PAGE
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_more else ""
        text = f"<IsTruncated>{str(is_more).lower()}</IsTruncated>{more}" + "".join(found[name] for name in page)
        return 200, {"Content-Type": "application/xml"}, f"<ListBucketResult>{text}</ListBucketResult>".encode()

    def _ask(self, method: str, path: str, body: bytes = b"", headers: Message | None = None) -> Answer:
        store = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        given = {name: value for name, value in (headers or {}).items() if name.lower() not in _OF_CONNECTION}
        store.request(method, path, body if body or method in ("POST", "PUT") else None, given)
        answer = store.getresponse()
        content = answer.read()
        store.close()
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_CONNECTION}
        if method == "HEAD":
            kept["Content-Length"] = answer.headers.get("content-length", "0")
        return answer.status, kept, content

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        found = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(found)

    def handle_expect_100(self) -> bool:
        goes_on = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return goes_on

    def log_message(self, *_: Any) -> None:
        pass


def _json(bucket: str, key: str) -> str:
    return f"/storage/v1{_below(bucket, key)}"


def _below(bucket: str, key: str) -> str:
    return f"/b/{bucket}/o/{quote(unquote(key), safe='')}"


def _quoted(tag: str) -> str:
    return f'"{tag.strip(chr(34))}"'


class Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Front.target = int(sys.argv[2])
    Listening(("127.0.0.1", int(sys.argv[1])), Front).serve_forever()
