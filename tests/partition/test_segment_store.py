"""A directory and a store in memory, side by side: equal calls leave equal bytes in every segment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.errors import FileVanishedError
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder
from tests.build import HOUR, LogBuilder
from tests.fakes.hasty import HastyFiles
from tests.fakes.memory_segments import MemoryLogBuilder, MemorySegments
from tests.support.exhaustive import stride
from tests.support.partitions import data_records
from tests.transactions import end_transaction

CONFIG = {
    "segment_bytes": 500,
    "index_interval_bytes": 100,
    "max_message_bytes": 1 << 20,
    "delete_retention_ms": HOUR,
}
EXTENSIONS = (".log", ".index", ".timeindex", ".txnindex")


def segments_of(log: LogBuilder) -> dict[str, bytes]:
    """Return every file of a segment that has bytes."""
    return {name: data for name, data in log.tree().items() if name.endswith(EXTENSIONS) and data}


def _step(log: LogBuilder, rng: random.Random) -> None:
    action = rng.choice(
        ("append", "append", "append", "abort", "roll", "clean", "cut", "trim", "wait", "reopen")
    )
    opened = log.log
    if action == "append":
        pairs = [(b"k%d" % rng.randrange(5), rng.choice((None, b"v" * rng.randrange(30)))) for _ in range(4)]
        log.batch(pairs)
    elif action == "abort":
        builder = BatchBuilder(
            producer_id=opened.log_end, producer_epoch=0, base_sequence=0, transactional=True
        )
        builder.append(log.clock.now_ms(), b"k1", b"gone")
        producer_id = opened.log_end
        opened.append_batch(builder.build())
        end_transaction(opened, producer_id, 0, commit=False)
    elif action == "roll":
        log.roll()
    elif action == "clean":
        log.strategy = rng.choice(("kafka", "generational"))
        log.clean()
    elif action == "cut":
        opened.truncate_to(rng.randrange(opened.segments[0].base_offset, opened.log_end + 1))
        log.first_dirty = min(log.first_dirty or 0, opened.log_end)
    elif action == "trim":
        opened.raise_log_start(rng.randrange(opened.log_start, opened.stable_offset + 1))
        opened.remove_prefix()
    elif action == "wait":
        log.wait(rng.choice((1, HOUR)))
    else:
        log.reopen()


@pytest.mark.parametrize("seed", range(0, 12, stride(2)))
def test_the_same_calls_leave_the_same_bytes(seed: int, tmp_path: Path) -> None:
    clocks = ManualClock(), ManualClock()
    store = MemorySegments(clock=clocks[1])
    logs = (
        LogBuilder(tmp_path, files=HastyFiles(), clock=clocks[0], **CONFIG),
        MemoryLogBuilder(store, clocks[1], **CONFIG),
    )
    rngs = random.Random(seed), random.Random(seed)
    for _ in range(60):
        for log, rng in zip(logs, rngs, strict=True):
            _step(log, rng)
        first, second = logs
        assert segments_of(first) == segments_of(second)
        assert (first.log.log_start, first.log.stable_offset, first.log.log_end) == (
            second.log.log_start,
            second.log.stable_offset,
            second.log.log_end,
        )
        assert store.outputs == []
    views = [PartitionView.load(log.store) for log in logs]
    assert data_records(views[0]) == data_records(views[1])


def test_a_segment_that_was_replaced_is_readable_only_while_it_is_held() -> None:
    clock = ManualClock()
    log = MemoryLogBuilder(MemorySegments(clock=clock), clock, **CONFIG)
    for number in range(40):
        log.put("a", number)
    log.roll()
    held = PartitionView.load(log.store).held(0)
    listed = PartitionView.load(log.store)
    before = data_records(held)
    assert log.clean().records_kept == 1
    assert data_records(held) == before
    with pytest.raises(FileVanishedError):
        data_records(listed)
    listed.refresh()
    assert [record.offset for record in data_records(listed)] == [39]
