"""A schema registry over HTTP, in a thread: the calls that a reader and a writer need, in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class FakeRegistry:
    """Schemas by id, versions by subject, and the requests so far; `user` is wanted if it is set.

    A schema of Protobuf has the text that the server shows, and `serialized`, its descriptor in base64. The
    descriptor is also a schema that clients register.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.authorization: str | None = None

    def add(self, subject: str, schema: Any, **more: Any) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, **more}
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        path, _, query = path.partition("?")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) <= len(self.schemas):
            entry = dict(self.schemas[int(parts[2]) - 1])
            serialized = entry.pop("serialized", entry["schema"])
            return 200, entry | {"schema": serialized} if query == "format=serialized" else entry
        if parts[0] == "subjects" and method == "POST":
            if "incompatible" in body["schema"]:
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
            text, more = body["schema"], {name: body[name] for name in body if name != "schema"}
            if body.get("schemaType") == "PROTOBUF":
                known = [entry["serialized"] for entry in self.schemas if "serialized" in entry]
                number = known.index(text) if text in known else len(known)
                more, text = more | {"serialized": text}, f"the text of file {number}"
            number = self.add(parts[1], text, **more)
            return 200, {"id": number, "version": self.subjects[parts[1]].index(number) + 1}
        if parts[0] == "subjects" and parts[1] in self.subjects:
            versions = self.subjects[parts[1]]
            version = len(versions) if parts[3] == "latest" else int(parts[3])
            number = versions[version - 1]
            return 200, {"subject": parts[1], "version": version, "id": number, **self.schemas[number - 1]}
        return 404, {"error_code": 40401, "message": "not found"}


@contextmanager
def serving() -> Iterator[FakeRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            registry.requests.append(f"{self.command} {self.path}")
            if registry.authorization not in (None, self.headers.get("Authorization")):
                status, answer = 401, {"error_code": 401}
            else:
                status, answer = registry.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = FakeRegistry(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
