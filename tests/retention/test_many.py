"""reliability 19: 2,000 segments and 10,000 partitions within a few descriptors, and no leak of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.exhaustive import stride

HEAD = """
import ctypes  # a libffi of some systems opens its own file at the import, and keeps it open
import os, resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
import lastword
from lastword.logdir import LogDirectory
from lastword.clock import ManualClock
from tests.partition.logs import batch, build_batch
from lastword.testing.unsynced import UNSYNCED
from tests.support.settings import set_topic_config

root = Path({root!r})

def descriptors():
    return len(os.listdir("/dev/fd"))

def mappings():
    return len(Path("/proc/self/maps").read_text().splitlines())

before = descriptors()
"""


def run(limit: int, root: Path, code: str) -> str:
    script = HEAD.format(limit=limit, root=str(root)) + code
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


SEGMENTS = """
with LogDirectory.open(root, "a", UNSYNCED, ManualClock()) as logs:
    settings = {{"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "1KiB"}}
    logs.create_topic("users", 1, settings)
    log = logs.log("users", 0)
    while len(log.segments) < {count}:
        log.append_batches([build_batch(log.log_end + n) for n in range(14)])
    end = log.log_end
    print(descriptors() - before)
    read = sum(header.count for _, header, _ in log.batches(0))
    assert read == end, (read, end)
    held = log.view()
    assert sum(len(list(s.headers())) for s in held.segments) == end
    most = descriptors() - before
    assert most <= {limit} // 2 + 8, most
    set_topic_config(logs, "users", {{"retention.bytes": 5000}})
    from tests.retention.support import expire_partition
    assert expire_partition(logs, "users", 0).segments > {count} - 10
with lastword.open(root) as logs:
    topic = logs.topic("users")
    start = topic.bounds()[0][0]
    assert [r.offset for r in topic.read()] == list(range(start, end))
del held, log, logs, topic
import gc; gc.collect()
assert descriptors() == before, (descriptors(), before)
"""


@pytest.mark.parametrize(
    ("count", "limit"), [(150, 64), pytest.param(2000 // stride(5), 256, marks=pytest.mark.slow)]
)
def test_19_many_segments(tmp_path: Path, count: int, limit: int) -> None:
    run(limit, tmp_path / "d", SEGMENTS.format(count=count, limit=limit))


PARTITIONS = """
from lastword.segment import names
with LogDirectory.open(root, "a", UNSYNCED, ManualClock()) as logs:
    logs.create_topic("users", 1, {{"cleanup.policy": "compact"}})
for number in range(1, {count}):
    path = root / f"users-{{number}}"
    path.mkdir()
    (path / names.segment_file(0, names.LOG)).touch()

began = time.monotonic()
with LogDirectory.open(root, "a", UNSYNCED, ManualClock()) as logs:
    opened = time.monotonic() - began
    assert opened < 10, opened
    assert descriptors() - before <= 8  # nothing is opened before it is used
    for number in range({count}):
        logs.log("users", number).append_batch(build_batch(number))
    most, maps = descriptors() - before, mappings()
    assert most <= {limit} // 2 + 8, most
    assert maps < 1000, maps
    for number in range(0, {count}, 7):
        log = logs.log("users", number)
        assert log.log_end == 1
        log.append_batch(build_batch(number))
assert descriptors() == before
with lastword.open(root) as logs:
    topic = logs.topic("users")
    assert topic.partitions == {count}
    assert len(list(topic.read())) == {count} + len(range(0, {count}, 7))
print(round(opened, 3))
"""


@pytest.mark.parametrize(
    ("count", "limit"), [(100, 64), pytest.param(10_000 // stride(20), 256, marks=pytest.mark.slow)]
)
def test_19_many_partitions(tmp_path: Path, count: int, limit: int) -> None:
    run(limit, tmp_path / "d", PARTITIONS.format(count=count, limit=limit))
