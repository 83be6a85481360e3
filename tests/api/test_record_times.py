"""The time of a record is the same in every verb: its sum wraps modulo 2^64, as in Kafka."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lastword
from lastword.records.batch import write_batch
from tests.records.variations import record

NOW = 1_700_000_000_000
LOW, HIGH = -(2**63), 2**63 - 1


def _write(root: Path, batches: list[tuple[int, list[int]]]) -> list[int]:
    """Write a topic whose batches have these base times and deltas; return the times as in Kafka."""
    data, times, offset = b"", [], 0
    for base_time, deltas in batches:
        data += write_batch(
            base_offset=offset,
            leader_epoch=0,
            attributes=0,
            last_offset_delta=len(deltas) - 1,
            base_timestamp=base_time,
            max_timestamp=base_time,
            count=len(deltas),
            payload=b"".join(
                record(n, delta, b"%d" % (offset + n), b"k%d" % (offset + n))
                for n, delta in enumerate(deltas)
            ),
        )
        offset += len(deltas)
        times += [(base_time + delta + 2**63) % 2**64 - 2**63 for delta in deltas]
    (root / "t-0").mkdir(parents=True)
    (root / "t-0" / f"{0:020}.log").write_bytes(data)
    return times


def _check(root: Path, times: list[int]) -> None:
    with lastword.open(root) as logs:
        topic = logs.topic("t")
        assert [found.timestamp for found in topic.read()] == times
        found = topic.records_at(range(len(times)))
        assert [None if one is None else one.timestamp for one in found] == times
        column = topic.read().arrow().read_all()["timestamp"].cast(pa.int64())
        assert [-1 if time is None else time for time in column.to_pylist()] == times
        for form in ("parquet", "jsonl"):
            logs.restore("t", to=root / f"out.{form}")
    restored = pq.read_table(root / "out.parquet").sort_by("offset")["timestamp"].cast(pa.int64())
    assert [-1 if time is None else time for time in restored.to_pylist()] == times
    rows = [json.loads(line) for line in (root / "out.jsonl").read_text().splitlines()]
    by_offset = {row["offset"]: row["timestamp"] for row in rows if row["type"] == "record"}
    assert [by_offset[offset] for offset in range(len(times))] == times


def test_a_batch_that_the_cleaner_joined(tmp_path: Path) -> None:
    """The delta of offset 3 wraps in the joined batch; it was read as a time below -2^63."""
    times = _write(tmp_path, [(LOW, [0, 0, 0]), (NOW, [0])])
    with lastword.open(tmp_path, "a", cleanup_policy="compact", log_cleaner_enable=False) as logs:
        logs.clean()
    _check(tmp_path, times)
    command = [sys.executable, "-m", "lastword", "read", str(tmp_path), "t", "--json"]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    assert str(NOW) in lines[3] and str(LOW) in lines[0]


@pytest.mark.parametrize("seed", range(4))
def test_random_times(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    edges = (0, -1, 1, NOW, LOW, HIGH, 2**62, -(2**62), HIGH // 1000, 253_402_300_800_000)
    batches = [
        (rng.choice(edges), [0, *(rng.choice(edges) for _ in range(rng.randrange(4)))]) for _ in range(12)
    ]
    _check(tmp_path, _write(tmp_path, batches))
