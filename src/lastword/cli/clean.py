"""`lastword clean` and `gc`: remove superseded records, and objects of a bucket that no version needs.

`clean` shows the plan, cleans, or with --every runs the background cleaner until a signal, and can serve
metrics to Prometheus.
"""

from __future__ import annotations

import queue
import signal
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import signals
from lastword.cli.command import Session, argument, command, dry_run_option, metrics_option, option
from lastword.cli.output import attempted, by_topic
from lastword.cli.remedies import no_policy_lines
from lastword.cli.target import AnyTopics, DryRunSets, Target, what_if
from lastword.cli.transactions import held_texts
from lastword.errors import LastwordError, MissingError, UsageError
from lastword.objects import is_url
from lastword.parse import parse_bytes, parse_duration_ms
from lastword.units import format_bytes, format_duration, format_freed, format_time
from lastword.values import plural, sums

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.background.scheduler import Done
    from lastword.cleaner.engine.report import CleanRound
    from lastword.cleaner.policy.plan import Plan


MOST_LINES = 20
"""More cleanings or plans than these are shown by topic."""
ROUND_SUMS = ("read_bytes", "written_bytes", "freed_bytes")
PLAN_SUMS = ("read_bytes", "write_bytes", "free_bytes")
PLAN_COLUMNS = ("TOPIC", "PARTITION", "WHY")
"""The columns of text in tables of plans."""


@command("clean", usage="DIR [TOPIC...]", changes=True)
def clean(
    out: Session,
    target: AnyTopics,
    dry_run: Annotated[bool, dry_run_option("show the plan")] = False,
    sets: DryRunSets = None,
    due: Annotated[bool, typer.Option("--due", help="clean only what its settings make due")] = False,
    strategy: Annotated[str | None, option("NAME", "how segments are chosen: kafka or generational")] = None,
    max_rate: Annotated[str | None, option("SIZE", "limit reads and writes per second on each drive")] = None,
    every: Annotated[
        str | None, option("TIME", "keep running; clean and expire what is due at this interval")
    ] = None,
    metrics: Annotated[str | None, metrics_option("with --every: serve Prometheus metrics")] = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="verify partitions in quarantine; release and clean those that are sound"
        ),
    ] = False,
) -> None:
    """Remove records that a newer record of their key superseded.

    Removes all garbage; with --due, runs only the cleanings that the settings make due. Skips topics without
    a cleanup.policy.

    Examples:
        lastword clean data --dry-run
        lastword clean data --dry-run --set cleanup.policy=compact
        lastword clean data users
        lastword clean data users cities --dry-run
        lastword clean data --due --max-rate 80MiB
        lastword clean data --every 15s --metrics 9464
        lastword clean data users -p 0 --retry
    """
    from lastword.api.cleaning import quarantined, unread_topics

    rate = None if max_rate is None else parse_bytes(max_rate)
    if rate is not None and rate < 1:
        raise UsageError(
            f"--max-rate {max_rate} is not a rate", remedy="a size such as 80MiB; omit it for no limit"
        )
    if retry and (dry_run or every is not None):
        raise UsageError(
            "--retry cannot be combined with --dry-run or --every",
            remedy=target.command("clean", *target.words, "--retry"),
        )
    assumed = what_if(sets)
    if not dry_run:
        target.refuse_set("clean", sets)
    if every is not None:
        _refuse_with_every(target, dry_run, strategy)
        keep_cleaning(out, target, interval_ms(every), metrics, rate)
        return
    if metrics is not None:
        raise UsageError(
            "--metrics needs --every",
            remedy=target.command("clean", *target.words, "--every", "15s", "--metrics", "9464"),
        )
    if dry_run:
        with out.open(target, **assumed) as logs, out.progress("plan") as progress:
            plans, unplanned = attempted(
                lambda: logs.plan(
                    target.chosen, target.partition, due=due, strategy=strategy, progress=progress
                )
            )
            compacted = {plan.topic for plan in plans if logs.dirs.config(plan.topic).compacts}
            held = held_texts(logs, target, compacted)
            plans = [plan for plan in plans if plan.action != "delete"]  # `lastword expire` shows deletions
            unread = unread_topics(logs.dirs, dict.fromkeys(plan.topic for plan in plans))
        _show_plans(out, plans, target, unread, ok=not unplanned)
        for sentence in held:
            out.say(sentence)
        out.raise_all(unplanned)
        return
    with out.change(target) as logs, out.progress("clean") as progress:
        if rate is not None:
            logs.cleaner.set_budget(rate)
        if retry:
            _retry(out, logs, target)
        set_aside = quarantined(logs.dirs, target.chosen, target.partition)  # no cleaning includes these
        results, failed = attempted(
            lambda: logs.clean(
                target.chosen,
                target.partition,
                due=due,
                strategy=strategy,
                progress=progress,
                stop=signals.noted,
            ),
            LastwordError,
        )
        named = target.topics or list(logs.dirs.topics())
        held = held_texts(logs, target, [name for name in named if logs.dirs.config(name).compacts])
        messages = [error.message for error in failed]
        failed += [new for new in set_aside if not any(text.startswith(new.message) for text in messages)]
    brief = _brief(results) if len(results) > MOST_LINES and not out.verbose else None
    for result in results:
        out.row("round", result.to_dict())
        if brief is None or not result.complete:
            out.line(str(result))
        if result.stopped_by == "lease":
            out.warning(
                f"{result.topic}-{result.partition}: a lease moved below a due tombstone; clean again"
            )
        if out.verbose and result.certificate is not None:
            out.line(f"  certificate: {result.certificate}")
    if brief is not None:
        for line in brief:
            out.line(line)
        out.say("-v shows each partition")
    out.topic_totals(results, *ROUND_SUMS)
    totals = sums(results, *ROUND_SUMS)
    text: str | None = _totals_text(totals)
    if not results:
        text = (
            None
            if failed
            else f"nothing to clean; `{target.command('clean', *target.words, '--dry-run')}` shows why"
        )
    out.summary(text, ok=not failed and not signals.noted(), rounds=len(results), **totals)
    for sentence in held:
        out.say(sentence)
    out.raise_all(failed)


def _totals_text(totals: Mapping[str, int]) -> str:
    read, written = format_bytes(totals["read_bytes"]), format_bytes(totals["written_bytes"])
    return f"read {read}, wrote {written}, {format_freed('freed', totals['freed_bytes'])}"


def _brief(results: list[CleanRound]) -> list[str]:
    """Return a line for each topic with the sums of its complete cleanings."""
    return [
        f"{topic}: {plural(len(rounds), 'partition')}, "
        f"{sum(result.records_read for result in rounds)} records -> "
        f"{sum(result.records_kept for result in rounds)}, "
        f"{format_freed('freed', sum(result.freed_bytes for result in rounds))}"
        for topic, rounds in by_topic(result for result in results if result.complete).items()
    ]


def _retry(out: Session, logs: LogDir, target: Target) -> None:
    """Verify partitions in quarantine and release those that are sound.

    Raises:
        QuarantinedError: A partition is still damaged.
    """
    for topic in map(logs.topic, target.topics) if target.topics else logs.topics():
        for number in topic.bounds() if target.partition is None else [target.partition]:
            if logs.cleaner.retry(topic.name, number) is not None:
                out.say(f"{topic.name}-{number} is sound and left quarantine")


def interval_ms(text: str) -> int:
    """Return the interval of --every in milliseconds; UsageError if it is none."""
    every_ms = parse_duration_ms(text)
    if every_ms < 1:
        raise UsageError(f"--every {text} is not an interval", remedy="a time such as 15s or 5m")
    return every_ms


def _refuse_with_every(target: Target, dry_run: bool, strategy: str | None) -> None:
    if dry_run:
        raise UsageError("--dry-run cannot be combined with --every", remedy="give one of them")
    if strategy is not None:
        raise UsageError(
            "--every uses the strategy of each topic's settings",
            remedy=target.command(
                "config", *(target.topics or ["TOPIC"]), "--set", f"lastword.strategy={strategy}"
            ),
        )


def _show_plans(out: Session, plans: list[Plan], target: Target, unread: list[str], *, ok: bool) -> None:
    from lastword.cleaner.policy.plan import KEYS_DO_NOT_FIT, Plan

    for plan in plans:
        out.row("plan", plan.to_dict())
    out.topic_totals(plans, "total_bytes", *PLAN_SUMS)
    if len(plans) > MOST_LINES and not out.verbose:
        out.rows(_by_topic(plans), PLAN_COLUMNS)
        out.say("-v shows each partition")
    else:
        out.rows([plan.cells() for plan in plans], PLAN_COLUMNS, spare=("READ", "WRITE"))
    for line in no_policy_lines(target.paths, unread, (plan.topic for plan in plans if plan.lacks_policy)):
        out.say(line)
    chosen = [plan for plan in plans if plan.action == "clean"]
    for plan in chosen:
        for reason in plan.reasons:
            if reason.code in KEYS_DO_NOT_FIT:
                out.say(f"{plan.topic}-{plan.partition}: {reason}")
    out.summary(
        f"{Plan.totals(plans)}; nothing was changed", ok=ok, plans=len(plans), **sums(chosen, *PLAN_SUMS)
    )


def _by_topic(plans: list[Plan]) -> list[dict[str, str]]:
    """Return a row for each topic with the sums over its plans, and how many partitions are kept and why."""
    rows = []
    for topic, inside in by_topic(plans).items():
        cleaned = [plan for plan in inside if plan.action == "clean"]
        about = "" if all(plan.exact for plan in cleaned) else "~ "
        sizes = [about + format_bytes(size_bytes) for size_bytes in sums(cleaned, *PLAN_SUMS).values()]
        kept = Counter(plan.reasons[0].code for plan in inside if plan.action == "keep" and plan.reasons)
        why = [f"{count} kept: {code}" for code, count in kept.most_common()]
        rows.append(
            {
                "TOPIC": topic,
                "PARTITIONS": str(len(inside)),
                "SIZE": format_bytes(sum(plan.total_bytes for plan in inside)),
                **dict(zip(("READ", "WRITE", "FREES"), sizes, strict=True)),
                "WHY": "; ".join(([f"{len(cleaned)} cleaned"] if cleaned else []) + why),
            }
        )
    return rows


@command("gc", usage="URL")
def gc(
    out: Session,
    directory: Annotated[str, argument("URL", "the URL of a log in a bucket")],
    dry_run: Annotated[bool, dry_run_option("show what would be removed")] = False,
    retention: Annotated[
        str | None,
        option(
            "TIME",
            "keep objects this long for readers of older versions; without it the setting "
            "lastword.objects.retention.ms",
        ),
    ] = None,
) -> None:
    """Remove objects of a bucket that the log does not need any more.

    A cleaning, retention or a writer that died leaves objects behind. The first gc notes them with the time
    of the store's clock; a later one removes those that were noted long enough ago.

    Examples:
        lastword gc s3://bucket/log --dry-run
        lastword gc s3://bucket/log --retention 1h
    """
    target = Target.of(directory, None, None)
    if not is_url(directory):
        raise UsageError(
            f"{directory} is no log in a bucket",
            remedy="give a URL: s3://BUCKET/PREFIX; the garbage of a directory is removed by clean",
        )
    with out.open(target) if dry_run else out.change(target) as logs:
        result = logs.collect(retention=retention, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    if result.removed_objects or not result.waiting_objects:
        out.line(f"{verb} {_objects(result.removed_objects, result.removed_bytes)}")
    if result.waiting_objects:
        pinned = f", {result.pinned_objects} of them for pinned readers" if result.pinned_objects else ""
        waiting = _objects(result.waiting_objects, result.waiting_bytes)
        until = f"the first until {format_time(result.next_due_ms)}, then a gc removes it"
        out.line(f"not needed any more, kept for readers: {waiting}{pinned}, {until}")
    used = f"in use: {_objects(result.named_objects, result.named_bytes)}"
    out.summary(used + ("; nothing was changed" if dry_run else ""), **result.to_dict())


def _objects(count: int, size_bytes: int) -> str:
    return f"{plural(count, 'object')}, {format_bytes(size_bytes)}"


LOOPBACK = "127.0.0.1"
METRICS_IDLE_SECONDS = 30.0
"""A connection that sends no request for this long is closed: each one has a thread."""


def parse_address(text: str, option: str = "--metrics") -> tuple[str, int]:
    """Return (host, port) of `PORT`, `HOST:PORT` or `[IPv6]:PORT`; without a host, the loopback interface.

    Raises:
        UsageError: The text is not an address.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bad = bool(colon) and (not bare or (":" in bare and bare == host))
    if bad or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"{option} {text} is not an address",
            remedy="give PORT (this machine only), HOST:PORT or [IPv6]:PORT; PORT is at most 65535",
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
        timeout = METRICS_IDLE_SECONDS

        def do_GET(self) -> None:
            known = self.path.split("?")[0] in ("/", "/metrics")
            body = generate_latest(registry) if known else b"only /metrics exists\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST if known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *given: Any) -> None:
            """Write no line per request."""

    shown = f"[{host}]" if ":" in host else host

    class MetricsServer(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def server_bind(self) -> None:
            """Bind without the reverse look-up of the host's name, which may take seconds."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = host, self.server_address[1]

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Write nothing about a client that closed its connection early."""
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    try:
        server = MetricsServer((host, port), Handler)
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

    address = None if metrics is None else parse_address(metrics)
    # Not a SimpleQueue: in CPython 3.11 its `get(timeout=)` hangs if a signal handler runs past the timeout.
    ended: queue.Queue[Done] = queue.Queue()
    totals = dict.fromkeys(("rounds", "deletions", "failed", *ROUND_SUMS), 0)
    with ExitStack() as stack:
        logs = stack.enter_context(out.change(target))
        if address is not None:
            url = stack.enter_context(exporter(*address))
            out.notice("metrics", {"address": url}, f"metrics on {url}")
        if bytes_per_second is not None:
            logs.cleaner.set_budget(bytes_per_second)
        only = [(topic, target.partition) for topic in target.topics] or None
        for error in quarantined(logs.dirs, target.chosen, target.partition):
            out.warning(f"{error.message}; to have it cleaned again, {error.remedy}")
        logs.cleaner.background.run_for(only, every_ms, ended.put)
        out.say(f"cleaning what is due every {format_duration(every_ms)}; Ctrl-C ends it")
        while not signals.noted():
            try:
                _show_done(out, ended.get(timeout=POLL_SECONDS), totals)
            except queue.Empty:
                continue
        logs.cleaner.stop()
        while not ended.empty():
            _show_done(out, ended.get(), totals)
    out.summary(_totals_text(totals), ok=not totals["failed"], **totals)
    signals.settle(signal.SIGTERM)


def _show_done(out: Session, done: Done, totals: dict[str, int]) -> None:
    if done.round is not None:
        totals["rounds"] += 1
        for name in ROUND_SUMS:
            totals[name] += getattr(done.round, name)
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
