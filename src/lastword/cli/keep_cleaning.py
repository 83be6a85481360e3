"""`lastword clean --every`: run the background cleaner until a signal; serve metrics to Prometheus."""

from __future__ import annotations

import queue
import signal
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from lastword.cli import signals
from lastword.cli.command import Session
from lastword.cli.target import Target
from lastword.errors import MissingError, UsageError
from lastword.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from lastword.background.scheduler import Done


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


POLL_SECONDS = 0.2  # a signal takes effect after at most this time


def keep_cleaning(
    out: Session, target: Target, every_ms: int, metrics: str | None, bytes_per_second: int | None
) -> None:
    """Clean and expire what is due at an interval, and show each cleaning when it ends.

    A signal ends the command at the next safe point: SIGTERM with exit code 0, SIGINT and SIGHUP with 130
    and 129.
    """
    from lastword.api.cleaning import quarantined

    address = None
    if metrics is not None:
        from lastword.cli.keep_cleaning import parse_address

        address = parse_address(metrics)
    # Not a SimpleQueue: in CPython 3.11 its `get(timeout=)` hangs if a signal handler runs past the timeout.
    ended: queue.Queue[Done] = queue.Queue()
    totals = {"rounds": 0, "deletions": 0, "failed": 0, "read_bytes": 0, "written_bytes": 0, "freed_bytes": 0}
    with ExitStack() as stack:
        logs = stack.enter_context(out.change(target))
        if address is not None:
            from lastword.cli.keep_cleaning import exporter

            url = stack.enter_context(exporter(*address))
            out.tell("metrics", {"address": url}, f"metrics on {url}")
        if bytes_per_second is not None:
            logs.cleaner.set_budget(bytes_per_second)
        only = None if target.topic is None else (target.topic, target.partition)
        for aside in quarantined(logs.dirs, target.topic, target.partition):
            out.warning(f"{aside.message}; to have it cleaned again, {aside.remedy}")
        logs.background.run_for(only, every_ms, ended.put)
        out.say(f"cleaning what is due every {format_duration(every_ms)}; Ctrl-C ends it")
        while not signals.noted():
            try:
                _show(out, ended.get(timeout=POLL_SECONDS), totals)
            except queue.Empty:
                continue
        logs.cleaner.stop()
        while not ended.empty():
            _show(out, ended.get(), totals)
    read, written, freed = (format_bytes(totals[f"{what}_bytes"]) for what in ("read", "written", "freed"))
    out.summary(f"read {read}, wrote {written}, freed {freed}", ok=not totals["failed"], **totals)
    if signals.first() == signal.SIGTERM:
        signals.settle()  # the normal way to stop a service


def _show(out: Session, done: Done, totals: dict[str, int]) -> None:
    if done.round is not None:
        totals["rounds"] += 1
        totals["read_bytes"] += done.round.read_bytes
        totals["written_bytes"] += done.round.written_bytes
        totals["freed_bytes"] += done.round.freed_bytes
        out.row("round", done.round.to_dict())
        out.line(f"{format_time(done.time_ms)}  {done.round}")
        if done.round.stopped_by == "lease":
            out.warning(f"{done.topic}-{done.partition}: a lease moved below a due tombstone")
    elif done.deletion is not None:
        totals["deletions"] += 1
        totals["freed_bytes"] += done.deletion.freed_bytes
        out.row("deletion", done.deletion.to_dict())
        out.line(f"{format_time(done.time_ms)}  {done.deletion}")
    if done.error is not None:
        totals["failed"] += 1
        out.warning(f"{format_time(done.time_ms)}  {done.topic}-{done.partition}: {done.error}")
    out.stdout.flush()
