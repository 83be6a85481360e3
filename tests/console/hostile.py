"""Hostile clients of the page in a process of its own, beside a viewer that must be answered meanwhile.

    python -m tests.console.hostile --frames 10000 --seed 7

Mutated and random requests, several on a connection; idle connections and parts of requests, up to the most
connections; viewers that read nothing. Judged: the memory of the page, the longest answer to the viewer, no
error in the log, and that the directory is unchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from lastword.console.app import MOST_CONNECTIONS
from tests.console import samples
from tests.console.http import ROUTES, contents

MIB = 1 << 20
MOST_GROWTH = 100 * MIB
MOST_SECONDS = 5.0
"""The longest answer to the viewer, on a loaded machine."""
WORDS = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b":",
    b" ",
    b"%00",
    b"%ff",
    b"..%2f",
    b"\0",
    b"HTTP/1.1",
    b"Host: a\r\n",
)
WORDS += (b"Transfer-Encoding: chunked\r\n", b"Content-Length: 9999999999\r\n", b"Upgrade: websocket\r\n")
WORDS += (b"Connection: upgrade\r\n", b"Expect: 100-continue\r\n", b"X: " + b"y" * 20_000, b"9" * 30)


class Viewer:
    """A viewer of a page that asks all the time, on one connection after the other."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = str(parts.hostname), int(parts.port or 0)
        self.head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {parts.query.partition('=')[2]}\r\n"
        self.answers, self.slowest = 0, 0.0
        self.failed: BaseException | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look)

    def request(self, route: str, more: str = "") -> bytes:
        return f"GET {route} HTTP/1.1\r\n{self.head}{more}\r\n".encode()

    def connected(self) -> socket.socket:
        return socket.create_connection(self.address, 30)

    def _look(self) -> None:
        try:
            while not self.ended.wait(0.02):
                began = time.monotonic()
                with self.connected() as connection:
                    connection.sendall(self.request("/api/overview", "Connection: close\r\n"))
                    answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
                assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.answers += 1
        except BaseException as error:
            self.failed = error


def frame(viewer: Viewer, draw: random.Random) -> bytes:
    """Return a request with up to four changes, or random bytes."""
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(1, 300))
    data = bytearray(viewer.request(draw.choice(ROUTES), draw.choice(("", "Origin: null\r\n", "A: b\r\n"))))
    for _ in range(draw.randrange(5)):
        at = draw.randrange(len(data) + 1)
        change = draw.randrange(4)
        if change == 0:
            data[at:at] = draw.choice(WORDS)
        elif change == 1:
            data[at : at + 1] = draw.randbytes(1)
        elif change == 2:
            del data[at : at + draw.randrange(40)]
        else:
            data[at:at] = data[at : at + draw.randrange(200)]
    return bytes(data)


def attack(viewer: Viewer, frames: int, draw: random.Random) -> None:
    """Send frames, several on a connection, of which some are closed in the middle."""
    while frames > 0:
        with viewer.connected() as connection, contextlib.suppress(OSError):
            connection.settimeout(2)
            for _ in range(min(frames, draw.randint(1, 8))):
                frames -= 1
                connection.sendall(frame(viewer, draw))
            if draw.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1 << 16)


def run(frames: int, seed: int) -> str:
    """Attack a page; return a line with the figures."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+") as log:
        path = Path(directory, "data")
        samples.make(path, large=False)
        before = contents(path)
        process = subprocess.Popen(
            [sys.executable, "-m", "lastword", "console", str(path), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

        def rss(name: str) -> int:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(name))

        try:
            assert process.stdout is not None
            viewer = Viewer(next(word for word in process.stdout.readline().split() if "http" in word))
            for route in ROUTES:
                with viewer.connected() as connection:
                    connection.sendall(viewer.request(route, "Connection: close\r\n"))
                    assert connection.recv(100).startswith(b"HTTP/1.1 200"), route
            began = rss("VmRSS")
            viewer.thread.start()
            with contextlib.ExitStack() as stack:
                for number in range(MOST_CONNECTIONS // 2):  # a viewer may still come
                    connection = stack.enter_context(viewer.connected())
                    connection.sendall(
                        (b"", b"GET / HTTP/1.1\r\nHost: ", viewer.request("/api/events"))[number % 3]
                    )
                attack(viewer, frames, draw)
            viewer.ended.set()
            viewer.thread.join(60)
            grown = rss("VmHWM") - began
        finally:
            process.terminate()
            process.wait(60)
        log.seek(0)
        wrong = [line for line in log if "Traceback" in line or "a bug" in line]
        assert not wrong, "".join(wrong[:10])
        assert contents(path) == before
    assert viewer.failed is None, viewer.failed
    assert viewer.answers > 10 and viewer.slowest < MOST_SECONDS, (viewer.answers, viewer.slowest)
    assert grown < MOST_GROWTH, f"{grown / MIB:.0f} MiB"
    return (
        f"{frames} requests to the page: memory grew by {grown / MIB:.0f} MiB; a viewer got {viewer.answers} "
        f"answers, the slowest after {viewer.slowest * 1000:.0f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(run(arguments.frames, arguments.seed))
