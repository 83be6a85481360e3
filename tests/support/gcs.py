"""A server of the XML requests that obstore sends to Google Cloud Storage, with exact conditions."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Object(NamedTuple):
    data: bytes
    generation: int
    modified: datetime

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


@dataclass
class _State:
    objects: dict[str, _Object]
    uploads: dict[str, dict[int, bytes]]
    lock: threading.Lock
    generation: int = 1_700_000_000_000_000
    refused_part: str = ""  # the number of a part that is answered with 403


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client may close its connection before a reply."""


class GcsServer:
    """The server, with any bucket; a context manager."""

    def __enter__(self) -> GcsServer:
        self.state = _State({}, {}, threading.Lock())
        handler = type("Handler", (_Handler,), {"state": self.state})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a reply in two packets waits 40 ms
    state: _State

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.state.lock:
            if not key:
                self._list(query)
            elif self.command == "POST" or "uploadId" in query:
                self._upload(key, query, body)
            elif self.command == "PUT":
                self._put(key, body)
            elif self.command == "DELETE":
                self._reply(204 if self.state.objects.pop(key, None) else 404)
            else:
                self._get(key)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _put(self, key: str, body: bytes) -> None:
        stored = self.state.objects.get(key)
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (stored.generation if stored else 0):
            self._reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        stored = self._write(key, body)
        self._reply(200, b"", {"ETag": stored.etag, "x-goog-generation": str(stored.generation)})

    def _write(self, key: str, body: bytes) -> _Object:
        self.state.generation += 1
        stored = _Object(body, self.state.generation, datetime.now(UTC))
        self.state.objects[key] = stored
        return stored

    def _get(self, key: str) -> None:
        stored = self.state.objects.get(key)
        if stored is None:
            self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {
            "ETag": stored.etag,
            "x-goog-generation": str(stored.generation),
            "Last-Modified": format_datetime(stored.modified, usegmt=True),
        }
        if self.headers.get("If-None-Match") == stored.etag:
            self._reply(304, b"", headers)
            return
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if span is None:
            self._reply(200, stored.data, headers)
            return
        start, end, size = int(span[1]), min(int(span[2]) + 1, len(stored.data)), len(stored.data)
        if start >= size:
            self._reply(416, b"<Error><Code>InvalidRange</Code></Error>")
            return
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._reply(206, stored.data[start:end], headers)

    def _list(self, query: dict[str, str]) -> None:
        prefix, token = query.get("prefix", ""), query.get("continuation-token", "")
        keys = sorted(key for key in self.state.objects if key.startswith(prefix) and key > token)
        page = keys[:1000]
        rows = []
        for key in page:
            stored = self.state.objects[key]
            date = stored.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size>"
                f"<LastModified>{date}</LastModified><ETag>{escape(stored.etag)}</ETag></Contents>"
            )
        more = (
            f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(keys) > 1000 else ""
        )
        truncated = "true" if more else "false"
        text = f"<IsTruncated>{truncated}</IsTruncated>{more}{''.join(rows)}"
        self._reply_xml("ListBucketResult", text)

    def _upload(self, key: str, query: dict[str, str], body: bytes) -> None:
        uploads = self.state.uploads
        if "uploads" in query:
            upload = f"upload{len(uploads)}"
            uploads[upload] = {}
            self._reply_xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        elif self.command == "PUT" and query["partNumber"] == self.state.refused_part:
            self._reply(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif query["uploadId"] not in uploads:
            self._reply(404, b"<Error><Code>NoSuchUpload</Code></Error>")
        elif self.command == "PUT":
            uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._reply(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        elif self.command == "DELETE":
            uploads.pop(query["uploadId"], None)
            self._reply(204)
        else:
            parts = uploads.pop(query["uploadId"])
            stored = self._write(key, b"".join(parts[number] for number in sorted(parts)))
            generation = {"x-goog-generation": str(stored.generation)}
            self._reply_xml(
                "CompleteMultipartUploadResult", f"<ETag>{escape(stored.etag)}</ETag>", generation
            )

    def _reply_xml(self, kind: str, text: str, headers: dict[str, str] | None = None) -> None:
        self._reply(200, f"<{kind}>{text}</{kind}>".encode(), headers)

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)
