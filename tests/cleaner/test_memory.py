"""The memory of a cleaning: its map, its buffers and a little, whatever the size of the log.

Each measurement is a separate process. It first cleans another log, so that code, compiled kernels and
allocators are loaded; then it cleans the log while a thread measures the anonymous memory.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lastword
from lastword.records.batch import BatchBuilder
from lastword.resolve import running
from lastword.resolve.running import MapFull, RunningResolution
from tests.resolve.support import segments
from tests.support.exhaustive import stride

MIB = 1 << 20
BUFFER_BYTES = 8 * MIB  # chunks that are read, written and compared
SLACK_BYTES = 50_000_000
SIZES = (200_000 // stride(2), 2_000_000 // stride(2))
DELETED = 1_500_000 // stride(2)
SEGMENT_BYTES = 8 * MIB


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


class Peak:
    """The most anonymous memory used inside the context, above the memory used before."""

    def __enter__(self) -> Peak:
        gc.collect()
        self._before = self._most = anonymous_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._ended.wait(0.002):
            self._most = max(self._most, anonymous_bytes())

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def above_bytes(self) -> int:
        return self._most - self._before


def clean(root: str, strategy: str, map_bytes: int, threads: int) -> dict[str, int]:
    """Run a round; return its records read, its records kept and its passes."""
    settings = {
        "log_cleaner_enable": False,
        "log_cleaner_threads": threads,
        "log_cleaner_dedupe_buffer_size": threads * map_bytes,  # the threads share it
    }
    with lastword.open(root, "a", **settings) as logs:
        done = logs.clean(strategy=strategy)[0]
    return {"read": done.records_read, "kept": done.records_kept, "passes": done.map_passes}


def main(strategy: str, map_bytes: int, threads: int, warm: str, *roots: str) -> None:
    """Clean each log in two openings, and print the memory; the second opening already has accounts."""
    clean(warm, strategy, map_bytes, threads)
    for root in roots:
        with Peak() as peak:
            facts = clean(root, strategy, map_bytes, threads)
        with Peak() as again:
            clean(root, strategy, map_bytes, threads)
        print(json.dumps(facts | {"peak": peak.above_bytes, "again": again.above_bytes}), flush=True)


# ---------------------------------------------------------------- logs


def fill(root: Path, records: int, keys: int, *, deleted: bool) -> Path:
    """Write `records` records over the keys in turn; `deleted`: nine of ten keys end with a tombstone."""
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=SEGMENT_BYTES)
        for start in range(0, records, 100_000):
            number = pa.array(range(start, min(start + 100_000, records)), pa.int64())
            key = pc.subtract(number, pc.multiply(pc.divide(number, keys), keys))
            value = pc.utf8_lpad(number.cast(pa.string()), 20, "v").cast(pa.binary())
            if deleted:
                tenth = pc.equal(pc.multiply(pc.divide(number, 10), 10), number)
                value = pc.if_else(tenth, value, pa.scalar(None, pa.binary()))
            text = pc.utf8_lpad(key.cast(pa.string()), 24, "k").cast(pa.binary())
            topic.extend(pa.table({"key": text, "value": value}))
    return root


@dataclass(frozen=True)
class Logs:
    """One log of each size, with half of the records superseded; and one log mostly of deleted keys."""

    warm: Path
    halves: tuple[Path, ...]
    deleted: Path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    root = tmp_path_factory.mktemp("memory")
    return Logs(
        fill(root / "warm", 30_000, 5_000, deleted=False),
        tuple(fill(root / f"half{size}", size, size // 2, deleted=False) for size in SIZES),
        fill(root / "deleted", DELETED, DELETED, deleted=True),
    )


def measured(
    strategy: str,
    map_bytes: int,
    tmp_path: Path,
    warm: Path,
    *logs: Path,
    scratch: Path | None = None,
    threads: int = 1,
) -> list[dict[str, int]]:
    copies = [shutil.copytree(log, tmp_path / log.name) for log in (warm, *logs)]
    arguments = (strategy, map_bytes, threads, *copies)
    command = [sys.executable, "-m", "tests.cleaner.test_memory", *map(str, arguments)]
    more = {} if scratch is None else {"LASTWORD_MAP_SCRATCH": str(scratch)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **more})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def at_64_mib(logs: Logs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, int]]]:
    """Return a function that cleans both logs with a map of 64 MiB, once for each strategy."""
    return cache(
        lambda strategy: measured(
            strategy, 64 * MIB, tmp_path_factory.mktemp(strategy), logs.warm, *logs.halves
        )
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_partitions(tmp_path: Path, logs: Logs) -> None:
    """Between two cleanings a partition keeps its keys, not the room that its map began with."""
    roots = []
    for count in (20 // stride(2), 120 // stride(2)):
        roots.append(tmp_path / f"of{count}")
        with lastword.open(roots[-1], "a", log_cleaner_enable=False) as log_dir:
            topic = log_dir.create_topic("t", count, cleanup_policy="compact")
            topic.extend((b"%d" % (n % (5 * count)), b"value") for n in range(20 * count))
    few, many = measured("generational", 64 * MIB, tmp_path / "copies", logs.warm, *roots)
    assert many["peak"] - few["peak"] < 100 // stride(2) * 100_000, (few, many)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["generational", "kafka"][:: stride(2)])
def test_bounded_by_the_map_at_two_sizes(
    strategy: str, tmp_path: Path, logs: Logs, at_64_mib: Callable[[str], list[dict[str, int]]]
) -> None:
    """64 MiB hold all keys of the larger log, 8 MiB do not: then there are more passes, or a sample."""
    at_8_mib = measured(strategy, 8 * MIB, tmp_path, logs.warm, *logs.halves)
    for map_bytes, (small, large) in ((64 * MIB, at_64_mib(strategy)), (8 * MIB, at_8_mib)):
        for facts, records in zip((small, large), SIZES, strict=True):
            assert facts["kept"] == records // 2
            most = map_bytes + BUFFER_BYTES + SLACK_BYTES
            assert facts["peak"] <= most and facts["again"] <= most, (strategy, map_bytes, facts)
        if map_bytes == 8 * MIB:
            assert large["passes"] > small["passes"]
            grown = large["peak"] - small["peak"]
            assert grown <= 16 * MIB, "ten times the log is no more memory, but for a bit a record"


@pytest.mark.slow
def test_bounded_with_two_threads(tmp_path: Path, logs: Logs) -> None:
    """Chunks wait between the threads, and an output is synced while the next one is written."""
    facts = measured("generational", 64 * MIB, tmp_path, logs.warm, logs.halves[1], threads=2)[0]
    assert facts["kept"] == SIZES[1] // 2
    most = 64 * MIB + BUFFER_BYTES + SLACK_BYTES
    assert facts["peak"] <= most and facts["again"] <= most, facts


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["generational", "kafka"][:: stride(2)])
def test_keys_in_a_scratch_file_are_no_anonymous_memory(
    strategy: str, tmp_path: Path, logs: Logs, at_64_mib: Callable[[str], list[dict[str, int]]]
) -> None:
    """The larger log has a key of 24 bytes for two records: 39 bytes each in the arena, 10 in the slots."""
    inside = at_64_mib(strategy)[1]
    (outside,) = measured(strategy, 64 * MIB, tmp_path, logs.warm, logs.halves[1], scratch=tmp_path)
    assert (outside["kept"], outside["passes"]) == (inside["kept"], inside["passes"])
    spared = 39 * SIZES[1] // 2
    assert inside["peak"] - outside["peak"] > 0.8 * spared, (inside, outside)


@pytest.mark.slow
def test_bounded_where_most_keys_are_deleted(tmp_path: Path, logs: Logs) -> None:
    """The list and the clocks of tombstones take memory from the same budget, which could otherwise hold the
    keys.
    """
    facts = measured("generational", 80 * MIB // stride(2), tmp_path, logs.warm, logs.deleted)[0]
    assert facts["kept"] == DELETED
    most = 80 * MIB // stride(2) + BUFFER_BYTES + SLACK_BYTES
    assert facts["peak"] <= most and facts["again"] <= most, facts


def test_more_tombstones_than_can_be_listed_fill_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = BatchBuilder()
    for number in range(900):
        builder.append(0, b"k%d" % number, None)
    log = segments([builder.build(0)], [])
    resolution = RunningResolution(map_bytes=1 << 20, salt=b"s" * 16)
    resolution.add_segments(log)
    assert resolution.tombstones().offset.size == 900
    monkeypatch.setattr(running, "_LISTED_FREE_BYTES", -(1 << 20) + 80_000)
    with pytest.raises(MapFull):
        RunningResolution(map_bytes=1 << 20, salt=b"s" * 16).add_segments(log)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
