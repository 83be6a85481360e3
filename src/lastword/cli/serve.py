"""`lastword serve`, `console` and `users`: serve a log directory until a signal; who may log in.

`serve` speaks Kafka's protocol, `console` is a page for a browser, and `serve --console` is both.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import signals
from lastword.cli.command import Session, argument, command, metrics_option, option
from lastword.cli.remedies import remedy_of
from lastword.cli.target import LogDirectory, MoreDirs, Target
from lastword.errors import MissingError, UsageError
from lastword.objects import is_url
from lastword.units import format_time
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.logs import LogDir

CONSOLE_ADDRESS = "127.0.0.1:8642"
POLL_SECONDS = 0.2  # a signal takes effect after at most this time


@command("serve", usage="DIR", changes=True)
def serve(
    out: Session,
    directory: LogDirectory,
    listen: Annotated[
        str, option("HOST:PORT", "the address to listen on; port 0 takes a free port")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None, option("HOST:PORT", "the address that clients connect to, if it is another one")
    ] = None,
    partitions: Annotated[int, option("N", "partitions of a topic whose creator gives none", min=1)] = 1,
    auto_create_topics: Annotated[
        bool,
        typer.Option(
            "--auto-create-topics/--no-auto-create-topics",
            help="create a topic when a client that allows it requests the topic's metadata",
        ),
    ] = True,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="serve another interface than loopback without authentication"),
    ] = False,
    user_file: Annotated[
        str | None, option("FILE", "clients log in with SASL; `lastword users` writes FILE", "--users")
    ] = None,
    tls_cert: Annotated[str | None, option("FILE", "serve TLS with this certificate (PEM)")] = None,
    tls_key: Annotated[str | None, option("FILE", "the key of the certificate")] = None,
    tls_ca: Annotated[str | None, option("FILE", "clients show a certificate of these authorities")] = None,
    metrics: Annotated[str | None, metrics_option("serve Prometheus metrics")] = None,
    console: Annotated[
        bool, typer.Option("--console", help="also serve the page of `lastword console`")
    ] = False,
    console_listen: Annotated[
        str,
        option(
            "HOST:PORT",
            "with --console: its address; beyond this machine it needs TLS, and --users or --tls-ca",
        ),
    ] = CONSOLE_ADDRESS,
    more: MoreDirs = None,
) -> None:
    """Serve a log directory to Kafka's clients.

    A directory that is absent is made. The server holds its lock and runs its cleaner. A second server of a
    log in a bucket is a standby, and takes over when the first one ends or is cut off. SIGTERM and Ctrl-C
    finish the requests that were received, refuse others, sync, and end with exit code 0.

    Examples:
        lastword serve data
        lastword serve data --listen 127.0.0.1:0 --json
        lastword serve data --partitions 3 --no-auto-create-topics --metrics 9464
        lastword serve data --listen 0.0.0.0:9093 --advertise log.example:9093 --insecure
        lastword serve data --users users.toml --tls-cert cert.pem --tls-key key.pem
        lastword serve data --listen 127.0.0.1:0 --console --console-listen 127.0.0.1:0
    """
    from lastword.cli.clean import exporter, parse_address
    from lastword.server.context import Options
    from lastword.server.server import Server, bound

    if is_url(directory):  # before files of users and certificates are read
        from lastword.objects.remote import check_url

        check_url(directory)
    target = Target.of(directory, None, None, more)
    target.refuse_partition("serve")
    if tls_cert is None and (tls_key or tls_ca):
        raise UsageError("--tls-key and --tls-ca need --tls-cert", remedy="--tls-cert FILE")
    security: dict[str, Any] = {}
    if user_file is not None or tls_cert is not None:
        from lastword.server.security import Users, tls_context

        security["users"] = None if user_file is None else Users(user_file)
        security["tls"] = None if tls_cert is None else tls_context(tls_cert, tls_key, tls_ca)
    if console_listen != CONSOLE_ADDRESS and not console:
        raise UsageError("--console-listen needs --console", remedy="--console")
    page_address = parse_address(console_listen, "--console-listen")
    is_open = tls_cert is None or (user_file is None and tls_ca is None)
    if console and is_open and not _is_loopback(page_address[0]):
        raise UsageError(
            f"{page_address[0]} is not a loopback address: the page shows records to everyone who reaches it",
            remedy="--tls-cert FILE --tls-key FILE with --users FILE or --tls-ca FILE",
        )
    options = Options(
        listen=listen,
        advertise=advertise,
        insecure=insecure,
        **security,
        auto_create_topics=auto_create_topics,
        partitions=partitions,
    )
    address = None if metrics is None else parse_address(metrics)
    with ExitStack() as stack:
        listener = stack.enter_context(bound(options))
        stack.enter_context(signals.held())
        url = None if address is None else stack.enter_context(exporter(*address))
        page = stack.enter_context(_page_listener(*page_address)) if console else None
        logs = stack.enter_context(out.open(target, "a", cleans=True))
        out.show_repairs(logs)
        stack.enter_context(_logged(out))
        if url is not None:
            out.notice("metrics", {"address": url}, f"metrics on {url}")
        if page is not None:
            tls: dict[str, Any] = {"ssl_certfile": tls_cert, "ssl_keyfile": tls_key, "ssl_ca_certs": tls_ca}
            tls |= {"ssl_cert_reqs": 0 if tls_ca is None else 2}  # ssl.CERT_NONE, ssl.CERT_REQUIRED
            tls = tls if tls_cert else {}
            _show_page(out, stack, logs, target, page, page_address[0], security.get("users"), tls)
        server = stack.enter_context(Server(logs, listener, options, owns_logs=False))
        topics = server.context.topics.all()
        counts = {"topics": len(topics), "partitions": sum(len(topic.directories) for topic in topics)}
        out.row(
            "serving",
            {
                "bootstrap_servers": server.bootstrap_servers,
                "cluster_id": server.context.cluster_id,
                "log_dirs": target.paths,
                "role": server.role,
                **counts,
                "pid": os.getpid(),
            },
        )
        shown = ", ".join(plural(count, name[:-1]) for name, count in counts.items())
        role = "" if server.terms.session is None else f"{server.role} · "
        if not out.quiet:
            out.line(
                f"serving {', '.join(target.paths)} on {server.bootstrap_servers} · "
                f"cluster {server.context.cluster_id} · {shown} · {role}Ctrl-C stops"
            )
        out.stdout.flush()
        while not signals.noted():
            time.sleep(POLL_SECONDS)
    out.summary("stopped: requests that were received are answered, the log is synced")
    signals.settle(signal.SIGTERM, signal.SIGINT)


@command("console", usage="DIR")
def console(
    out: Session,
    directory: LogDirectory,
    listen: Annotated[
        str, option("HOST:PORT", "the address to listen on; port 0 takes a free port")
    ] = CONSOLE_ADDRESS,
    more: MoreDirs = None,
) -> None:
    """Show a log directory as a live page in a browser.

    The page changes nothing: it shows each change as the command to type. Takes no lock, and works beside a
    writer, a broker and a cleaner. It reads no records because it is open: counts come from the garbage
    index, ~ marks estimates, and an exact count is a button that names its cost.

    Open the printed address: it has a token, without which the page shows nothing.

    Examples:
        lastword console data
        lastword console data --listen 127.0.0.1:0 --json
    """
    from lastword.cli.clean import parse_address

    target = Target.of(directory, None, None, more)
    host, port = parse_address(listen, "--listen")
    if not _is_loopback(host):
        tunnel = port or parse_address(CONSOLE_ADDRESS)[1]
        raise UsageError(
            f"{host} is not a loopback address, and this page has no users",
            remedy=f"from another machine `ssh -L {tunnel}:127.0.0.1:{tunnel} THIS_MACHINE`, or "
            f"`{target.command('serve', '--console', '--users', 'FILE', '--tls-cert', 'FILE')}`",
        )
    with ExitStack() as stack:
        stack.enter_context(signals.held())
        page = stack.enter_context(_page_listener(host, port))
        logs = stack.enter_context(out.open(target))
        stack.enter_context(_logged(out))
        _show_page(out, stack, logs, target, page, host, None, {})
        out.stdout.flush()
        while not signals.noted():
            time.sleep(POLL_SECONDS)
    out.summary("stopped")
    signals.settle(signal.SIGTERM, signal.SIGINT)


def _page_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens for the page. MissingError: a package of the page is not installed."""
    try:
        from lastword.console.app import listening
    except ImportError as error:
        if error.name == "uvicorn":
            raise MissingError.package("the console", "uvicorn", "uvicorn>=0.30") from None
        raise MissingError.package("the console", "starlette", "starlette>=1.2") from None
    return listening(host, port)


def _show_page(
    out: Session,
    stack: ExitStack,
    logs: LogDir,
    target: Target,
    listener: socket.socket,
    host: str,
    known: Any,
    tls: dict[str, Any],
) -> None:
    """Serve the page until `stack` ends, and print its address. `known`: the users of the server, or None."""
    from lastword.console.app import Access, Console, Shell

    login = None if known is None else partial(_may_log_in, known)
    access = Access(host, login=login, tls=tls)
    page = stack.enter_context(Console(logs, listener, access, Shell(target.command, remedy_of)))
    out.row("console", {"url": page.url, "log_dirs": target.paths, "pid": os.getpid()})
    if not out.quiet:
        out.line(f"console of {', '.join(target.paths)}: {page.url} · it changes nothing · Ctrl-C stops")


def _may_log_in(known: Any, name: str, password: str) -> bool:
    from lastword.server.security import Denied, check_plain

    try:
        return bool(check_plain(f"\0{name}\0{password}".encode(), known))
    except Denied:
        return False


def _is_loopback(host: str) -> bool:
    """Return whether a host is an address of this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@command("users", usage="FILE")
def users(
    out: Session,
    file: Annotated[str, argument("FILE", "the file of users; --add makes it if absent")],
    add: Annotated[
        str | None, option("NAME", "add a user, or change the password, which is asked for")
    ] = None,
    remove: Annotated[str | None, option("NAME", "remove a user")] = None,
) -> None:
    """List the users who may log in to a server, or change them.

    The password is asked for on a terminal, else it is the first line of stdin. The file has salted keys and
    no password; only its owner can read it. A running server uses changes immediately.

    Examples:
        lastword users users.toml --add ada
        lastword users users.toml
        lastword users users.toml --remove ada
    """
    from lastword.server.security import credentials, read_users, write_users

    known = read_users(file, missing_ok=add is not None)
    if remove is not None:
        if remove not in known:
            raise UsageError(f"no user {remove!r} in {file}", remedy=f"lastword users {file}")
        del known[remove]
    if add is not None:
        if not add.isprintable() or not add.strip():
            raise UsageError(f"{add!r} is no name of a user", remedy="give a name of printable characters")
        known[add] = credentials(_password(add))
    if add is not None or remove is not None:
        write_users(file, known)
    for name, mechanisms in sorted(known.items()):
        out.row("user", {"name": name, "mechanisms": list(mechanisms)})
        if add is None and remove is None:
            out.line(name)
    changed = [f"added {add}"] * (add is not None) + [f"removed {remove}"] * (remove is not None)
    out.summary(
        f"{', '.join(changed)}; {plural(len(known), 'user')} in {file}" if changed else None, users=len(known)
    )


def _password(user: str) -> str:
    """Return a password from the terminal, asked for twice, or from the first line of stdin."""
    if sys.stdin.isatty():
        from getpass import getpass

        password = getpass(f"password of {user}: ")
        if getpass("again: ") != password:
            raise UsageError("the passwords differ", remedy="give the same password twice")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError(
            "the password is empty", remedy="give it on a terminal, or as the first line of stdin"
        )
    return password


class _LogLines(logging.Handler):
    """Writes log messages to stderr: a line with its time, or an object of type `log`. Never a traceback."""

    def __init__(self, out: Session) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        message, time_ms = record.getMessage(), int(record.created * 1000)
        if record.exc_info and record.exc_info[0] is not None:
            message += f" ({record.exc_info[0].__name__}: {record.exc_info[1]})"
        fields = {"timestamp": time_ms, "level": record.levelname.lower(), "message": message}
        fields |= getattr(record, "fields", {})  # of a connection: peer, client_id, api, api_key
        with suppress(OSError):
            self._out.notice("log", fields, f"{format_time(time_ms)}  {message}")
            self._out.stderr.flush()


@contextmanager
def _logged(out: Session) -> Iterator[None]:
    """Show warnings of the library, and refusals of the server; with -v also each connection."""
    library, server = logging.getLogger("lastword"), logging.getLogger("lastword.server")
    handler, level = _LogLines(out), server.level
    library.addHandler(handler)
    server.setLevel(logging.DEBUG if out.verbose else logging.INFO)
    try:
        yield
    finally:
        library.removeHandler(handler)
        server.setLevel(level)
