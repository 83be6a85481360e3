"""`lastword bench` and `lastword warm`: measure lastword on this machine, or compile its kernels.

The rival is a file of JSON lines and a dict: append a line and flush it, parse all lines, keep the newest
value of each key in a dict, write the dict to a file. Both sides run in this process, on the same records
and the same drive.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.command import Session, command
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.logs import LogDir


BENCH_EXAMPLES = """
lastword bench
lastword bench restore --records 1000000
lastword bench append --dir /srv/d1
"""

TOPIC = "bench"
SINGLE = 20_000  # records appended one by one


def register(app: typer.Typer) -> None:
    """Add the commands `bench` and `warm`."""
    command(app, "bench", usage="[NAME]", examples=BENCH_EXAMPLES)(bench)
    command(app, "warm", usage="", examples=WARM_EXAMPLES)(warm)


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
            topic = logs.create_topic(
                TOPIC, key_serializer="str", value_serializer="str", cleanup_policy="compact"
            )
            topic.extend(self.rows)
        with self.open_lines("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)

    def logs(self, mode: Any = "r") -> LogDir:
        """Open the log."""
        import lastword

        return lastword.open(f"{self.path}/logs", mode)

    def open_lines(self, mode: str, name: str | None = None) -> Any:
        """Open the rival's file, or another one."""
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
            counted = sum(batch.num_rows for batch in logs.topic(TOPIC).read().arrow())
        assert counted == scratch.records

    ours()  # loads the kernels, which is not measured
    return BenchResult(
        "scan", scratch.records, _seconds(ours), _seconds(lambda: sum(1 for _ in scratch.parsed()))
    )


def _restore(scratch: BenchLog) -> BenchResult:
    def ours() -> None:
        with scratch.logs() as logs:
            state = logs.state(TOPIC)
            assert len(state) > 0

    ours()
    return BenchResult("restore", scratch.records, _seconds(ours), _seconds(lambda: dict(scratch.parsed())))


def _clean(scratch: BenchLog) -> BenchResult:
    def ours() -> None:
        with scratch.logs("a") as logs:
            logs.clean(TOPIC)

    def rival() -> None:
        newest = dict(scratch.parsed())
        with scratch.open_lines("w", f"{scratch.path}/cleaned.jsonl") as file:
            file.writelines(json.dumps(row) + "\n" for row in newest.items())
            file.flush()
            os.fsync(file.fileno())

    with scratch.logs() as logs:
        logs.plan(TOPIC)  # compiles and loads what cleaning needs
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
    from lastword.kernels import warming
    from lastword.kernels.cache import cache_folder

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
