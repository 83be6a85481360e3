"""`lastword demo`, `bench` and `warm`: try lastword on this machine, and compile its kernels.

`demo` cleans one history of updates by Kafka's rule and by ours. The history has two keys with the same MD5
(a pair of texts published by Marc Stevens). Kafka's rule is the model `tools.kafka_model`, which keeps
exactly the records that Kafka's own cleaner keeps. Ours is a real log directory for each strategy. Each rule
cleans after every quarter of the updates.

`bench` compares lastword with a rival, a file of JSON lines and a dict: append a line and flush it, parse all
lines, keep the newest value of each key in a dict, write the dict to a file. Both sides run in this process,
on the same records and the same drive.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.command import Session, command
from lastword.units import format_bytes
from lastword.values import Value, plural

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.tools.kafka_model import ModelSegment


def register(app: typer.Typer) -> None:
    """Add the commands `demo`, `bench` and `warm`."""
    command(app, "demo", usage="", examples=DEMO_EXAMPLES)(demo)
    command(app, "bench", usage="[NAME]", examples=BENCH_EXAMPLES)(bench)
    command(app, "warm", usage="", examples=WARM_EXAMPLES)(warm)


COMPACTED_TEXT: Any = {"key_serializer": "str", "value_serializer": "str", "cleanup_policy": "compact"}
"""Arguments of `create_topic` for the logs of `demo` and `bench`."""

DEMO_EXAMPLES = """
lastword demo
lastword demo --keep demo-logs
"""

DEMO_TOPIC = "accounts"
DEMO_SEGMENT_BYTES = 1 << 20
UPDATES = 200_000
QUARTERS = 4
TWINS = tuple(
    f"TEXTCOLLBYfGiJUETHQ4h{letter}cKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak" for letter in "AE"
)
KAFKA = "kafka's rule"

Row = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Lost(Value):
    """A key whose newest value was lost; `twin` is the key with the same MD5."""

    key: str
    value: str
    offset: int
    md5: str
    twin: str | None


@dataclass(frozen=True, slots=True)
class Cleaned(Value):
    """Totals of one rule over all cleanings: bytes read and written, records kept, values lost."""

    rule: str
    rounds: int
    read_bytes: int
    written_bytes: int
    kept: int
    lost: int


@dataclass(slots=True)
class History:
    """The updates, in quarters, and the newest value of each key after them.

    First, each of `updates` / 5 keys is written once. The later updates change a tenth of these keys; one in
    a hundred is a delete. One twin is written in the first quarter, the other in the second.
    """

    updates: int
    quarters: list[list[Row]] = field(default_factory=list)
    newest: dict[str, str] = field(default_factory=dict)
    deleted: int = 0

    def __post_init__(self) -> None:
        rows = list(self._rows())
        size = -(-len(rows) // QUARTERS)
        self.quarters = [rows[start : start + size] for start in range(0, len(rows), size)]
        for key, value in rows:
            if value is None:
                self.newest.pop(key, None)
            else:
                self.newest[key] = value
        self.deleted = len({key for key, _ in rows}) - len(self.newest)

    def _rows(self) -> Iterator[Row]:
        keys = max(self.updates // 5, 20)
        for number in range(self.updates):
            if number in (self.updates // 10, 3 * self.updates // 10):
                twin = TWINS[number > self.updates // 5]
                yield twin, f"the only value of this key, update {number}"
                continue
            key = number if number < keys else number * 7919 % (keys // 10) * 10
            delete = number >= keys and number % 100 == 99
            yield f"account-{key:08d}", None if delete else f"update {number:08d} " + "." * 60


def demo(
    out: Session,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="DIR", help="keep the logs in this directory")
    ] = None,
) -> None:
    """Clean one history by Kafka's rule and by ours.

    Writes 200,000 updates, including two keys with the same MD5, and shows what each rule read, wrote, kept
    and lost. Takes about ten seconds; the first run on a machine takes longer, because it
    compiles the kernels.
    """
    from lastword.errors import UsageError
    from lastword.files import DEFAULT

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="lastword-demo-") as path:
            run_demo(out, path)
        return
    if DEFAULT.exists(keep) and not (DEFAULT.is_dir(keep) and not DEFAULT.listdir(keep)):
        raise UsageError(f"{keep} exists and is not an empty directory", remedy="name a new one")
    if not DEFAULT.exists(keep):
        DEFAULT.mkdir(keep)
    run_demo(out, keep)
    out.say(f"to inspect the logs: lastword ls {keep}/original; lastword verify {keep}/original --md5")


def run_demo(out: Session, path: str, updates: int = UPDATES) -> None:
    """Run the demonstration below `path`: a log directory `original` and one per strategy."""
    from lastword.config.tables import STRATEGIES

    history = History(updates)
    live, deleted = len(history.newest), history.deleted
    out.say(
        f"{updates:,} updates: {live:,} keys have a value, {deleted:,} were deleted; two have the same MD5"
    )
    ends = _write_history(f"{path}/original", history)
    out.say("cleaning by a model of Kafka's rule")
    kafka, gone = _clean_as_kafka(f"{path}/original", ends)
    rules, lost = [kafka], {KAFKA: gone}
    for strategy in STRATEGIES:
        out.say(f"cleaning with strategy {strategy}")
        ours, missing = _clean_as_lastword(f"{path}/{strategy}", history, strategy)
        rules.append(ours)
        lost[ours.rule] = missing
    for rule in rules:
        out.row("rule", rule.to_dict())
    out.table(
        ("RULE", "ROUNDS", "READ", "WRITTEN", "KEPT", "LOST"),
        [
            (
                rule.rule,
                str(rule.rounds),
                format_bytes(rule.read_bytes),
                format_bytes(rule.written_bytes),
                f"{rule.kept:,}",
                f"{rule.lost:,}",
            )
            for rule in rules
        ],
        "lrrrrr",
    )
    out.say(f"to keep: {live:,} values, and {deleted:,} tombstones until delete.retention.ms has passed")
    for name, values in lost.items():
        for value in values:
            out.row("lost", {"rule": name, **value.to_dict()})
            out.line(f"lost by {name}: {value.value!r} at offset {value.offset}")
            if value.twin is not None:
                out.line(f"  its key      {value.key}")
                out.line(f"  taken for    {value.twin}")
                out.line(f"  MD5 of both  {value.md5}")
    out.summary(rules=len(rules), updates=updates, keys=len(history.newest))


def _write_history(path: str, history: History) -> list[int]:
    """Write the history without cleaning; return the log end after each quarter."""
    import lastword

    ends = []
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(DEMO_TOPIC, segment_bytes=DEMO_SEGMENT_BYTES, **COMPACTED_TEXT)
        for quarter in history.quarters:
            topic.extend(quarter)
            logs.dirs.log(DEMO_TOPIC, 0).roll()
            ends.append(topic.bounds()[0][1])
    return ends


def _clean_as_kafka(path: str, ends: Sequence[int]) -> tuple[Cleaned, list[Lost]]:
    import lastword
    from lastword.clock import SystemClock
    from lastword.tools.kafka_model import KafkaCleaner, lost, read_model

    with lastword.open(path) as logs:
        original = read_model(logs.dirs.view(DEMO_TOPIC, 0))
        retention_ms = logs.topic(DEMO_TOPIC).config.delete_retention_ms
    cleaner = KafkaCleaner()
    log: tuple[ModelSegment, ...] = ()
    results = []
    begin = 0
    for end in ends:
        log += tuple(segment for segment in original if begin <= segment.base_offset < end)
        log, done = cleaner.clean(
            log,
            end,
            first_dirty=begin,
            now_ms=SystemClock().now_ms(),
            delete_retention_ms=retention_ms,
        )
        results += done
        begin = end
    gone = [
        _lost((record.key or b"").decode(), (record.value or b"").decode(), record.offset)
        for record in lost(original, log)
    ]
    read = sum(result.read_bytes for result in results)
    written = sum(result.written_bytes for result in results)
    return Cleaned(KAFKA, len(results), read, written, results[-1].kept, len(gone)), gone


def _clean_as_lastword(path: str, history: History, strategy: str) -> tuple[Cleaned, list[Lost]]:
    import lastword

    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            DEMO_TOPIC, segment_bytes=DEMO_SEGMENT_BYTES, lastword_strategy=strategy, **COMPACTED_TEXT
        )
        results = []
        for quarter in history.quarters:
            topic.extend(quarter)
            results += logs.clean(DEMO_TOPIC, strategy=strategy)
        kept = sum(1 for _ in topic.read())
        state = dict(logs.state(DEMO_TOPIC))
    gone = [_lost(key, value, -1) for key, value in history.newest.items() if state.get(key) != value]
    read = sum(result.read_bytes for result in results)
    written = sum(result.written_bytes for result in results)
    return Cleaned(f"lastword, {strategy}", len(results), read, written, kept, len(gone)), gone


def _lost(key: str, value: str, offset: int) -> Lost:
    from lastword.tools.kafka_model import md5

    twin = next((twin for twin in TWINS if key in TWINS and twin != key), None)
    return Lost(key, value, offset, md5(key.encode()).hex(), twin)


BENCH_EXAMPLES = """
lastword bench
lastword bench restore --records 1000000
lastword bench append --dir /srv/d1
"""

BENCH_TOPIC = "bench"
SINGLE = 20_000  # records appended one by one


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result of one workload: records, our seconds, and the rival's seconds."""

    name: str
    records: int
    seconds: float
    rival_seconds: float

    @property
    def ratio(self) -> float:
        """Our speed divided by the rival's."""
        return self.rival_seconds / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of `--json`."""
        return {
            "workload": self.name,
            "records": self.records,
            "seconds": round(self.seconds, 4),
            "records_per_second": round(self.records / self.seconds),
            "rival_records_per_second": round(self.records / self.rival_seconds),
            "ratio": round(self.ratio, 2),
        }


class BenchLog:
    """A scratch log with `records` records and a fifth as many keys, and the same records as JSON lines."""

    def __init__(self, path: str, records: int) -> None:
        import lastword

        self.path = path
        self.records = records
        self.lines = f"{path}/rival.jsonl"
        self.rows = [
            (f"key-{number * 7919 % max(1, records // 5):08d}", f"{number:064d}") for number in range(records)
        ]
        with lastword.open(f"{path}/logs", "a") as logs:
            topic = logs.create_topic(BENCH_TOPIC, **COMPACTED_TEXT)
            topic.extend(self.rows)
        with self.open_lines("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)

    def logs(self, mode: Any = "r") -> LogDir:
        """Open the log."""
        import lastword

        return lastword.open(f"{self.path}/logs", mode)

    def open_lines(self, mode: str, name: str | None = None) -> Any:
        """Open the rival's file, or the file `name`."""
        # The rival stands for a user's program, so it writes its file directly.
        return open(name or self.lines, mode)  # noqa: PTH123

    def parsed(self) -> Iterator[tuple[str, str]]:
        """Yield the rows of the rival's file."""
        with self.open_lines("r") as file:
            for line in file:
                key, value = json.loads(line)
                yield key, value


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _append(scratch: BenchLog) -> BenchResult:
    rows = scratch.rows[:SINGLE]

    def ours() -> None:
        with scratch.logs("a") as logs:
            topic = logs.create_topic("single", key_serializer="str", value_serializer="str", exist_ok=True)
            for key, value in rows:
                topic.append(key, value)

    def rival() -> None:
        with scratch.open_lines("w", f"{scratch.path}/single.jsonl") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                file.flush()
            os.fsync(file.fileno())

    return BenchResult("append", len(rows), _seconds(ours), _seconds(rival))


def _scan(scratch: BenchLog) -> BenchResult:
    def ours() -> None:
        with scratch.logs() as logs:
            counted = sum(batch.num_rows for batch in logs.topic(BENCH_TOPIC).read().arrow())
        assert counted == scratch.records

    ours()  # loads the kernels, which is not measured
    return BenchResult(
        "scan", scratch.records, _seconds(ours), _seconds(lambda: sum(1 for _ in scratch.parsed()))
    )


def _restore(scratch: BenchLog) -> BenchResult:
    def ours() -> None:
        with scratch.logs() as logs:
            state = logs.state(BENCH_TOPIC)
            assert len(state) > 0

    ours()
    return BenchResult("restore", scratch.records, _seconds(ours), _seconds(lambda: dict(scratch.parsed())))


def _clean(scratch: BenchLog) -> BenchResult:
    def ours() -> None:
        with scratch.logs("a") as logs:
            logs.clean(BENCH_TOPIC)

    def rival() -> None:
        newest = dict(scratch.parsed())
        with scratch.open_lines("w", f"{scratch.path}/cleaned.jsonl") as file:
            file.writelines(json.dumps(row) + "\n" for row in newest.items())
            file.flush()
            os.fsync(file.fileno())

    with scratch.logs() as logs:
        logs.plan(BENCH_TOPIC)  # compiles and loads what cleaning needs
    return BenchResult("clean", scratch.records, _seconds(ours), _seconds(rival))


# Cleaning is last: the other workloads measure the log as it was written.
WORKLOADS: dict[str, Callable[[BenchLog], BenchResult]] = {
    "append": _append,
    "scan": _scan,
    "restore": _restore,
    "clean": _clean,
}


def bench(
    out: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="append, scan, restore or clean")] = None,
    records: Annotated[int, typer.Option(metavar="N", help="records in the scratch log", min=1000)] = 300_000,
    scratch: Annotated[
        str | None,
        typer.Option("--dir", metavar="D", help="directory for the scratch log, on the drive to measure"),
    ] = None,
) -> None:
    """Measure how fast lastword is on this machine.

    Runs the workloads in a scratch directory, which is removed afterwards. The rival is a file of JSON lines
    and a dict; a ratio above 1 means that lastword is faster.
    """
    from lastword.errors import UsageError, nearest
    from lastword.files import DEFAULT

    if name is not None and name not in WORKLOADS:
        near = nearest(name, WORKLOADS)
        raise UsageError(
            f"unknown workload {name!r}" + (f"; nearest: {near}" if near else ""),
            remedy=f"one of {', '.join(WORKLOADS)}",
        )
    if scratch is not None and not DEFAULT.is_dir(scratch):
        raise UsageError(f"{scratch} is not a directory", remedy="create it, or name another")
    with tempfile.TemporaryDirectory(prefix="lastword-bench-", dir=scratch) as path:
        out.say(f"writing {records} records")
        log = BenchLog(path, records)
        measured = []
        for workload in [name] if name is not None else WORKLOADS:
            out.say(f"measuring {workload}")
            measured.append(WORKLOADS[workload](log))
    for result in measured:
        out.row("workload", result.to_dict())
    out.table(
        ("WORKLOAD", "RECORDS", "RECORDS/S", "JSON LINES + DICT", "RATIO"),
        [
            (
                result.name,
                str(result.records),
                f"{result.records / result.seconds:,.0f}",
                f"{result.records / result.rival_seconds:,.0f}",
                f"{result.ratio:.2f}",
            )
            for result in measured
        ],
        "lrrrr",
    )
    out.summary(workloads=len(measured))


WARM_EXAMPLES = """
lastword warm
LASTWORD_CACHE_DIR=/opt/lastword-cache lastword warm
"""


def warm(out: Session) -> None:
    """Compile all kernels into the cache folder, once.

    Use it in the RUN step of a container image, or before the first use. Commands that count, clean or
    restore otherwise compile missing kernels themselves. The folder is LASTWORD_CACHE_DIR, else lastword in
    the user's cache directory; it is valid for one version of lastword, Numba and Python, and for one type
    of processor.
    """
    began = time.monotonic()
    from lastword.kernels import cache_folder, warming

    warming.warm()
    folder = cache_folder()
    sizes = [path.stat().st_size for path in folder.rglob("*.nb?")]
    out.summary(
        f"{plural(len(sizes), 'file')} of compiled kernels, {format_bytes(sum(sizes))}, in {folder}",
        folder=str(folder),
        files=len(sizes),
        size_bytes=sum(sizes),
        seconds=round(time.monotonic() - began, 3),
    )
