"""6C: the records that a round removes, the log after the round, and the report of the round."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from lastword.cleaner.engine.cleaning import CleanContext, clean
from lastword.cleaner.engine.liveness import FullScan
from lastword.cleaner.engine.partition import prepare
from lastword.cleaner.engine.sinks import Collector, Publisher
from lastword.cleaner.policy.plan import CleanRequest
from lastword.errors import LastwordError
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from tests.build import HOUR, SALT, LogBuilder
from tests.cleaner.transactional import Producer
from tests.properties.strategies import by_strategy

CODECS = pytest.mark.parametrize("codec", range(5))


@by_strategy
def test_6C_15_exactly_the_superseded_keys_go(tmp_path: Path, strategy: str) -> None:
    """6C.15: Cleaning removes exactly the records whose keys are mapped to a higher offset, and counts the
    bytes of all source segments as read.
    """
    log = LogBuilder(tmp_path)
    for base in range(3):
        for key in range(10):
            log.put(base * 10 + key, "v")
        log.roll()
    sizes = sum(size for _, size in log.sizes())
    for key in (1, 3, 5, 7, 9, 21):
        log.put(key, "new")
    log.roll()
    round_ = log.clean(strategy=strategy)
    assert [r.offset for r in log.records() if r.value == b"v"] == [
        n for n in range(30) if n not in (1, 3, 5, 7, 9, 21)
    ]
    assert round_.removed.superseded == 6
    assert round_.read_bytes >= sizes, "what was rewritten was read"
    log.close()


@CODECS
@by_strategy
def test_6C_16_17_18_19_whatever_the_codec(tmp_path: Path, codec: int, strategy: str) -> None:
    """6C.16: Reading the whole log gives the same newest value and offset for each key before and after
    cleaning, for every codec.
    6C.17: A log with duplicates is smaller after cleaning.
    6C.18: Retained records keep their offsets; only superseded records disappear.
    6C.19: Cleaning advances at least to the base of the active segment.
    """
    rng = random.Random(codec)
    log = LogBuilder(tmp_path, segment_bytes=3000).codec_of(codec)
    for _ in range(60):
        log.batch([(rng.randrange(25), "x" * rng.randrange(60)) for _ in range(rng.randrange(1, 9))])
        if rng.random() < 0.1:
            log.delete(rng.randrange(25))
    log.roll()
    before = {record.offset: record for record in log.records()}
    newest = {record.key: record for record in before.values()}
    size = sum(size for _, size in log.sizes())
    end = log.log.active.base_offset
    log.clean(strategy=strategy)
    after = log.records()
    assert {record.key: record for record in after} == newest
    assert all(before[record.offset] == record for record in after), "offsets are kept, and all else"
    assert sum(size for _, size in log.sizes()) < size
    assert log.first_dirty >= end
    log.close()


@CODECS
@by_strategy
def test_6C_20_a_message_as_large_as_is_allowed(tmp_path: Path, codec: int, strategy: str) -> None:
    """6C.20: A batch of exactly `max.message.bytes` is cleaned."""
    log = LogBuilder(tmp_path, max_message_bytes=100_000).codec_of(codec)
    value = random.Random(1).randbytes(99_000)
    for n in range(2):
        log.put("large", value + b"%d" % n).put("small", n)
    log.clean(strategy=strategy)
    assert log.state() == {b"large": value + b"1", b"small": b"1"} and log.offsets() == [2, 3]
    log.close()


@by_strategy
def test_6C_22_a_preallocated_log_is_cleaned_to_its_real_size(tmp_path: Path, strategy: str) -> None:
    """6C.22: The cleaned segments of a preallocated log have their real size.

    Here: No file is preallocated.
    """
    log = LogBuilder(tmp_path, preallocate=True, segment_bytes=1 << 20)
    for n in range(10):
        log.put("k", n)
    log.roll().clean(strategy=strategy)
    first = log.log.segments[0]
    assert first.size == sum(header.size for header in first.headers())
    assert Path(first.file).stat().st_size == first.size < 1 << 20
    log.close()


@by_strategy
@pytest.mark.parametrize("why", ["transaction", "lag"])
def test_6C_23_what_is_uncleanable_is_untouched_and_what_lies_before_shrinks(
    tmp_path: Path, strategy: str, why: str
) -> None:
    """6C.23: Segments from the first uncleanable offset on are untouched; those before it shrink."""
    log = LogBuilder(tmp_path, min_compaction_lag_ms=HOUR if why == "lag" else 0)
    for n in range(6):
        log.put(f"k{n % 2}", n)
    log.roll().wait(2 * HOUR)
    if why == "transaction":
        Producer(log).put(("k0", 6))
    log.put("k0", 7).put("k0", 8).roll().put("k1", 9)
    held = log.log.segments[1]
    data, inode = Path(held.file).read_bytes(), held.id
    log.clean(strategy=strategy)
    assert log.sizes()[0][1] < 6 * 70 and log.offsets()[:2] == [4, 5]
    held = next(segment for segment in log.log.segments if segment.base_offset == 6)
    assert (Path(held.file).read_bytes(), held.id) == (data, inode)
    log.close()


@by_strategy
def test_6C_24_keyless_records_go_and_are_counted(tmp_path: Path, strategy: str) -> None:
    """6C.24: Records without a key are dropped by cleaning and counted as invalid."""
    log, keyed = LogBuilder(tmp_path / "a"), LogBuilder(tmp_path / "b")
    for n in range(10):
        log.put(f"k{n}", n)
        keyed.put(f"k{n}", n)
        log.put(None, "a value without a key")
    round_ = log.roll().clean(strategy=strategy)
    assert round_.removed.keyless == 10 and all(record.key is not None for record in log.records())
    assert [(r.key, r.value) for r in log.records()] == [(r.key, r.value) for r in keyed.records()]
    assert sum(size for _, size in log.sizes()) <= sum(size for _, size in keyed.sizes())
    for builder in (log, keyed):
        builder.close()


@by_strategy
def test_6C_25_what_a_round_tells(tmp_path: Path, strategy: str) -> None:
    """6C.25: The result of a cleaning has the end offset, the records and bytes read and written, and the
    number of invalid records.
    """
    log = LogBuilder(tmp_path)
    for n in (0, 1, 0, 1, 0):
        log.put(n, "v")
    log.roll()
    size = log.sizes()[0][1]
    log.first_dirty = 2
    round_ = log.clean(strategy=strategy)
    assert (round_.start, round_.end) == (2, 5)
    assert (round_.records_read, round_.records_kept, round_.removed.keyless) == (5, 2, 0)
    assert round_.read_bytes >= size
    assert round_.written_bytes == log.sizes()[0][1] and round_.freed_bytes == size - round_.written_bytes
    assert round_.seconds >= 0
    log.close()


@by_strategy
def test_6C_28_retention_beside_a_round(tmp_path: Path, strategy: str) -> None:
    """6C.28: Retention that deletes a source segment between copy and swap does not break the log.

    Here: The cleaning is refused, and the next cleaning is right.

    A source segment is removed between the rewrite and the swap. The round is refused or ends; the log has
    the right records in both cases.
    """
    log = LogBuilder(tmp_path, segment_bytes=400)
    for n in range(30):
        log.put(f"k{n % 4}", n)
    log.roll()
    plan = prepare(log.log, log.config, CleanRequest())
    view = PartitionView.load(DirectorySegments(log.files, log.directory))
    prepared = clean(view, plan, FullScan(), Collector(plan), CleanContext(log.files, log.clock, SALT))
    removed = log.log.segments[0]
    log.log.raise_log_start(removed.next_offset)
    assert [segment.base_offset for segment in log.log.remove_prefix()] == [0]
    with suppress(LastwordError):
        Publisher(log.log, plan, lambda offset: None).publish(prepared)
    assert log.state() == {b"k0": b"28", b"k1": b"29", b"k2": b"26", b"k3": b"27"}
    log.reopen()
    assert log.state() == {b"k0": b"28", b"k1": b"29", b"k2": b"26", b"k3": b"27"}
    log.clean(strategy=strategy)
    assert log.offsets() == [26, 27, 28, 29]
    log.close()
