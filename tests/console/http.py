"""The page in a test: requests without a socket, and a running page with streams of events."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import lastword
from lastword.api.logs import LogDir
from lastword.cli.main import run
from lastword.cli.target import Target
from lastword.console import app as console_app
from lastword.console.app import Access, Console, Guard, Page, Shell, listening

PORT = 8642
ACCESS = Access(token="secret")
TOKEN = {"authorization": "Bearer secret"}
ROUTES = (
    *("/", "/t/users", "/t/users/0/records", "/groups", "/transactions", "/quarantine"),
    *("/static/console.css", "/static/console.js", "/api/overview", "/api/quarantine"),
    *("/api/groups", "/api/groups?read=1", "/api/transactions", "/api/transactions?read=1"),
    *("/api/t/users", "/api/t/users/count", "/api/t/users/plan", "/api/t/users/explain?key=user-003"),
    *("/api/t/users/get?key=user-003", "/api/t/users/0/records", "/api/t/users/0/records?view=newest"),
)


def contents(root: Path) -> dict[str, str]:
    """Return a digest of each file below a directory."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


class Viewer:
    """A viewer of a page: `get` returns the JSON of an answer. Each request polls."""

    def __init__(self, logs: LogDir, client: TestClient, page: Page) -> None:
        self.logs, self.client, self.page = logs, client, page

    def get(self, path: str, status: int = 200) -> Any:
        self.page._polled = -float("inf")
        answer = self.client.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json()


@contextlib.contextmanager
def viewing(
    path: Path | LogDir, access: Access = ACCESS, headers: dict[str, str] = TOKEN
) -> Iterator[Viewer]:
    with contextlib.ExitStack() as stack:
        logs = path if isinstance(path, LogDir) else stack.enter_context(lastword.open(path))
        page = Page(logs, Shell(Target(logs.paths, None, None).command))
        guarded = Guard(page.app, access, PORT)
        client = TestClient(
            guarded, base_url=f"http://127.0.0.1:{PORT}", headers=headers, follow_redirects=False
        )
        stack.enter_context(client)
        yield Viewer(logs, client, page)


@contextlib.contextmanager
def running(logs: LogDir, poll_seconds: float, monkeypatch: Any) -> Iterator[Console]:
    monkeypatch.setattr(console_app, "POLL_SECONDS", poll_seconds)
    with Console(
        logs, listening("127.0.0.1", 0), ACCESS, Shell(Target(logs.paths, None, None).command)
    ) as console:
        yield console


def stream(console: Console, path: str = "/api/events") -> socket.socket:
    """Return a connection that sent a request, by default for events."""
    host, port = "127.0.0.1", console._port
    connection = socket.create_connection((host, port), timeout=20)
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer secret\r\n\r\n".encode()
    )
    return connection


def rows(capsys: Any, *arguments: str, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a type that a command prints with --json."""
    capsys.readouterr()
    run([*arguments, "--json"])
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [
        {name: value for name, value in row.items() if name != "type"}
        for row in printed
        if row["type"] == kind
    ]
