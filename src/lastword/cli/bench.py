"""`lastword bench`: how fast this machine is, beside what one would write oneself.

The rival is a file of JSON lines and a dict: append a line and flush it, parse all lines, keep the newest
of each key in a dict, write it out again. Both sides run in this process, on the same records, on the same
drive.
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

if TYPE_CHECKING:
    from lastword.api.logs import LogDir

EXAMPLES = """
lastword bench
lastword bench restore --records 1000000
lastword bench append --dir /srv/d1
"""

TOPIC = "bench"
SINGLE = 20_000  # records that are appended one by one


def register(app: typer.Typer) -> None:
    command(app, "bench", usage="[NAME]", examples=EXAMPLES)(bench)


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload: records and seconds of ours, and of the rival."""

    name: str
    records: int
    seconds: float
    rival_seconds: float

    @property
    def ratio(self) -> float:
        return self.rival_seconds / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "workload": self.name,
            "records": self.records,
            "seconds": round(self.seconds, 4),
            "records_per_second": round(self.records / self.seconds),
            "rival_records_per_second": round(self.records / self.rival_seconds),
            "ratio": round(self.ratio, 2),
        }


class Ground:
    """A scratch log with `records` records over a fifth as many keys, and the same as JSON lines."""

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
        import lastword

        return lastword.open(f"{self.path}/logs", mode)

    def open_lines(self, mode: str, name: str | None = None) -> Any:
        # The rival is the user's own program: it writes its file directly.
        return open(name or self.lines, mode)  # noqa: PTH123

    def parsed(self) -> Iterator[tuple[str, str]]:
        with self.open_lines("r") as file:
            for line in file:
                key, value = json.loads(line)
                yield key, value


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _append(ground: Ground) -> Measured:
    rows = ground.rows[:SINGLE]

    def ours() -> None:
        with ground.logs("a") as logs:
            topic = logs.create_topic("single", key_serializer="str", value_serializer="str", exist_ok=True)
            for key, value in rows:
                topic.append(key, value)

    def rival() -> None:
        with ground.open_lines("w", f"{ground.path}/single.jsonl") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                file.flush()
            os.fsync(file.fileno())

    return Measured("append", len(rows), _seconds(ours), _seconds(rival))


def _scan(ground: Ground) -> Measured:
    def ours() -> None:
        with ground.logs() as logs:
            counted = sum(batch.num_rows for batch in logs.topic(TOPIC).read().arrow())
        assert counted == ground.records

    ours()  # once, so that loading the kernels is not what is measured
    return Measured("scan", ground.records, _seconds(ours), _seconds(lambda: sum(1 for _ in ground.parsed())))


def _restore(ground: Ground) -> Measured:
    def ours() -> None:
        with ground.logs() as logs:
            state = logs.state(TOPIC)
            assert len(state) > 0

    ours()
    return Measured("restore", ground.records, _seconds(ours), _seconds(lambda: dict(ground.parsed())))


def _clean(ground: Ground) -> Measured:
    def ours() -> None:
        with ground.logs("a") as logs:
            logs.clean(TOPIC)

    def rival() -> None:
        newest = dict(ground.parsed())
        with ground.open_lines("w", f"{ground.path}/cleaned.jsonl") as file:
            file.writelines(json.dumps(row) + "\n" for row in newest.items())
            file.flush()
            os.fsync(file.fileno())

    with ground.logs() as logs:
        logs.plan(TOPIC)  # compiles and loads what cleaning needs
    return Measured("clean", ground.records, _seconds(ours), _seconds(rival))


# Cleaning comes last: the others measure the log as it was written.
WORKLOADS: dict[str, Callable[[Ground], Measured]] = {
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
        str | None, typer.Option("--dir", metavar="D", help="where to put it: the drive to measure")
    ] = None,
) -> None:
    """Measure how fast lastword is on this machine.

    Named workloads in a scratch directory, which is removed again.
    The rival is a file of JSON lines and a dict. A ratio above 1 means that lastword is faster.
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
        raise UsageError(f"{scratch} is no directory", remedy="make it, or name another")
    with tempfile.TemporaryDirectory(prefix="lastword-bench-", dir=scratch) as path:
        out.say(f"writing {records} records")
        ground = Ground(path, records)
        measured = []
        for workload in [name] if name is not None else WORKLOADS:
            out.say(f"measuring {workload}")
            measured.append(WORKLOADS[workload](ground))
    for one in measured:
        out.row("workload", one.to_dict())
    out.table(
        ("WORKLOAD", "RECORDS", "RECORDS/S", "JSON LINES + DICT", "RATIO"),
        [
            (
                one.name,
                str(one.records),
                f"{one.records / one.seconds:,.0f}",
                f"{one.records / one.rival_seconds:,.0f}",
                f"{one.ratio:.2f}",
            )
            for one in measured
        ],
        "lrrrr",
    )
    out.summary(workloads=len(measured))
