"""`lastword serve`: Kafka's protocol over a log directory, until a signal ends the command."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import Session, command
from lastword.cli.target import Directory, MoreDirs, Target
from lastword.errors import UsageError
from lastword.objects import is_url
from lastword.units import format_time
from lastword.values import plural

EXAMPLES = """
lastword serve data
lastword serve data --listen 127.0.0.1:0 --json
lastword serve data --partitions 3 --no-auto-create-topics --metrics 9464
lastword serve data --listen 0.0.0.0:9093 --advertise log.example:9093 --insecure
"""

POLL_SECONDS = 0.2  # a signal takes effect after at most this time


def register(app: typer.Typer) -> None:
    """Add the command `serve`."""
    command(app, "serve", usage="DIR", examples=EXAMPLES, changes=True)(serve)


def serve(
    out: Session,
    directory: Directory,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="the address to listen on; port 0 takes a free port")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="the address that clients connect to, if it is another one"),
    ] = None,
    partitions: Annotated[
        int, typer.Option(metavar="N", help="partitions of a topic whose creator gives none", min=1)
    ] = 1,
    auto_create_topics: Annotated[
        bool,
        typer.Option(
            "--auto-create-topics/--no-auto-create-topics",
            help="create a topic when a client that allows it asks for the topic's metadata",
        ),
    ] = True,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="serve another interface than loopback without authentication"),
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="serve Prometheus metrics; without HOST only to this machine",
        ),
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Serve a log directory to Kafka's clients.

    Holds the directory's lock and runs its cleaner; creates a missing directory. SIGTERM and Ctrl-C finish
    the requests that were received, refuse others, sync, and end with exit code 0.
    """
    from lastword.cli.clean import exporter, parse_address
    from lastword.server.broker import Options
    from lastword.server.server import Server, bound, bucket_refused

    if is_url(directory):
        raise bucket_refused(directory)
    target = Target.of(directory, None, None, more)
    if target.topic is not None:
        raise UsageError(
            f"{directory} is the directory of a partition, and serve takes a log directory",
            remedy=target.command("serve"),
        )
    options = Options(
        listen=listen,
        advertise=advertise,
        insecure=insecure,
        auto_create_topics=auto_create_topics,
        partitions=partitions,
    )
    address = None if metrics is None else parse_address(metrics)
    with ExitStack() as stack:
        listener = stack.enter_context(bound(options))
        stack.enter_context(signals.held())
        logs = stack.enter_context(out.open(target, "a", cleans=True))
        out.show_repairs(logs)
        stack.enter_context(_logged(out))
        if address is not None:
            url = stack.enter_context(exporter(*address))
            out.notice("metrics", {"address": url}, f"metrics on {url}")
        server = stack.enter_context(Server(logs, listener, options, owns_logs=False))
        topics = server.broker.topics.all()
        counts = {"topics": len(topics), "partitions": sum(len(topic.directories) for topic in topics)}
        out.row(
            "serving",
            {
                "bootstrap_servers": server.bootstrap_servers,
                "cluster_id": server.broker.cluster_id,
                "log_dirs": target.paths,
                **counts,
                "pid": os.getpid(),
            },
        )
        shown = ", ".join(plural(count, name[:-1]) for name, count in counts.items())
        if not out.quiet:
            out.line(
                f"serving {', '.join(target.paths)} on {server.bootstrap_servers} · "
                f"cluster {server.broker.cluster_id} · {shown} · Ctrl-C stops"
            )
        out.stdout.flush()
        while not signals.noted():
            time.sleep(POLL_SECONDS)
    out.summary("stopped: requests that were received are answered, the log is synced")
    if signals.first() in (signal.SIGTERM, signal.SIGINT):
        signals.settle()  # the normal ways to stop a server


class _Lines(logging.Handler):
    """Writes log messages to stderr: a line with its time, or an object of type `log`. Never a traceback."""

    def __init__(self, out: Session) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        message, time_ms = record.getMessage(), int(record.created * 1000)
        if record.exc_info and record.exc_info[0] is not None:
            message += f" ({record.exc_info[0].__name__}: {record.exc_info[1]})"
        fields = {"timestamp": time_ms, "level": record.levelname.lower(), "message": message}
        with suppress(OSError):
            self._out.notice("log", fields, f"{format_time(time_ms)}  {message}")
            self._out.stderr.flush()


@contextmanager
def _logged(out: Session) -> Iterator[None]:
    """Show warnings of the library, and refusals of the server; with -v also each connection."""
    library, server = logging.getLogger("lastword"), logging.getLogger("lastword.server")
    handler, level = _Lines(out), server.level
    library.addHandler(handler)
    server.setLevel(logging.DEBUG if out.verbose else logging.INFO)
    try:
        yield
    finally:
        library.removeHandler(handler)
        server.setLevel(level)
