"""The metrics of this process over HTTP, for Prometheus, on the loopback interface only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ADDRESS = "127.0.0.1"


@contextmanager
def exporter(port: int) -> Iterator[str]:
    """Serve `/metrics` for as long as it lasts; gives the address. Port 0 takes a free one.

    MissingError without prometheus_client; UsageError for a port that is taken.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from lastword import metrics
    from lastword.errors import MissingError, UsageError

    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    except ImportError:
        raise MissingError.extra("--metrics", "prometheus-client", "metrics") from None

    registry = CollectorRegistry()
    metrics.register(registry)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.split("?")[0] in ("/", "/metrics")
            body = generate_latest(registry) if found else b"only /metrics is here\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST if found else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: Any) -> None:
            """Nobody asked for a line for each request."""

    try:
        server = ThreadingHTTPServer((ADDRESS, port), Handler)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {ADDRESS}:{port}: {getattr(error, 'strerror', None) or error}",
            remedy="name another port, or 0 for a free one",
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="lastword-metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{ADDRESS}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
