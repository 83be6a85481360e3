"""Serve the metrics of this process to Prometheus over HTTP; by default on the loopback interface."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lastword.errors import MissingError, UsageError

LOOPBACK = "127.0.0.1"


def parse_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `PORT`, `HOST:PORT` or `[IPv6]:PORT`; without a host, the loopback interface.

    Raises:
        UsageError: The text is not an address.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bad = bool(colon) and (not bare or (":" in bare and bare == host))
    if bad or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"--metrics {text} is not an address",
            remedy="a port (9464: this machine only) or HOST:PORT (0.0.0.0:9464: every interface)",
        )
    return bare or LOOPBACK, int(port)


@contextmanager
def exporter(host: str, port: int) -> Iterator[str]:
    """Serve `/metrics` while the context is open, and yield its URL. Port 0 takes a free port.

    Raises:
        MissingError: prometheus_client is not installed.
        UsageError: The process cannot listen on the address.
    """
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from lastword import metrics

    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    except ImportError:
        raise MissingError.package("--metrics", "prometheus-client", "prometheus-client>=0.20") from None

    registry = CollectorRegistry()
    metrics.register(registry)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.split("?")[0] in ("/", "/metrics")
            body = generate_latest(registry) if known else b"only /metrics exists\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST if known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: Any) -> None:
            """Write no line per request."""

    shown = f"[{host}]" if ":" in host else host

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def server_bind(self) -> None:
            """Bind without the reverse look-up of the host's name, which may take seconds."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = host, self.server_address[1]

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {shown}:{port}: {error.strerror or error}",
            remedy="give an address of this machine and a free port; port 0 takes a free one",
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="lastword-metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
