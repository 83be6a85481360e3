"""Cleaning messages of magic 0 and 1: in their own magic and codec, and without empty batches. A number in a
name, as `6I_76`, is that of a property (`tests/properties`).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastword.accounts.ledger import Ledger
from lastword.cleaner.engine import output
from lastword.cleaner.policy import quarantine
from lastword.clock import ManualClock
from lastword.errors import CertificateError, DataError
from lastword.files import DEFAULT, Files
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchHeader
from lastword.records.formats import build_message
from lastword.records.record import CREATE_TIME, RawRecord
from lastword.segment import names
from lastword.segment.recover import inspect
from tests.build import HOUR, LogBuilder, state_of
from tests.cleaner.support import NOW, batch
from tests.fakes.forgetful import ForgetfulFiles
from tests.fakes.hasty import HastyFiles
from tests.support import partitions
from tests.support.exhaustive import few, stride
from tests.support.legacy import build_wrapper

DAY = 24 * HOUR
T = 1_700_000_000_000
GZIP_V1 = bytes.fromhex(
    "000000000000003400000063591834bc01010000018bcfe56802ffffffff0000004d1f8b08000000000000ff636080038902d6ea"
    "34462083b1fbfcd30c90086322883084ca83a424d689b56f82ab013392408411540d13484df77aa606b81a900863328830060007"
    "fb34e36c000000"
)


def entry(
    magic: int, offset: int, key: bytes | None, value: bytes | None, timestamp: int | None = None
) -> bytes:
    stamp = -1 if magic == 0 else T + offset if timestamp is None else timestamp
    return build_message(magic, offset, key, value, stamp)


def wrapper(magic: int, codec: int, rows: Sequence[tuple[int, bytes | None, bytes | None]]) -> bytes:
    stamp = -1 if magic == 0 else T
    records = [RawRecord(o, stamp + o if magic else -1, CREATE_TIME, k, v) for o, k, v in rows]
    return build_wrapper(magic, codec, records)


def old_log(
    root: Path, *segments: tuple[int, Sequence[bytes]], files: Files | None = None, **config: object
) -> LogBuilder:
    """Write a log of segments (base offset, batches), closed years ago, a day apart, the last at `T`."""
    log = LogBuilder(root, files=files, clock=ManualClock(NOW), **config).topic("users")
    directory = Path(log.directory)
    directory.mkdir(parents=True)
    for number, (base, batches) in enumerate(segments):
        path = directory / names.segment_file(base, names.LOG)
        path.write_bytes(b"".join(batches))
        stamp_s = (T - (len(segments) - 1 - number) * DAY) / 1000
        os.utime(path, (stamp_s, stamp_s))
    return log


def data(log: LogBuilder) -> list[RawRecord]:
    return partitions.records_of(Path(log.directory), log.files)


def kept(log: LogBuilder) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in data(log)]


def headers(log: LogBuilder) -> list[BatchHeader]:
    view = PartitionView.load(DirectorySegments(log.files, log.directory))
    return [header for segment in view.segments for header in segment.headers()]


def file(log: LogBuilder, base: int) -> bytes:
    return Path(log.directory, names.segment_file(base, names.LOG)).read_bytes()


@pytest.mark.parametrize("magic", [0, 1])
def test_uncompressed_messages_are_copied_or_dropped(tmp_path: Path, magic: int) -> None:
    rows = [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", b""), (5, b"b", b"2")]
    log = old_log(tmp_path / "data", (0, [entry(magic, *row) for row in rows]))
    round_ = log.clean()
    assert kept(log) == rows[2:]
    assert file(log, 0) == b"".join(entry(magic, *row) for row in rows[2:])
    assert (round_.removed.superseded, round_.records_kept, round_.end) == (2, 3, 6)


def test_a_wrapper_is_cut_as_in_kafka(tmp_path: Path) -> None:
    """Kafka's own bytes: offsets 50 to 52 in a wrapper of magic 1; 50 is removed."""
    log = old_log(tmp_path / "data", (50, [GZIP_V1, entry(1, 53, b"a", b"new")]))
    log.clean()
    assert file(log, 50)[:12] == bytes.fromhex("0000000000000034" + "00000051"), "wrapper offset 52"
    inner = zlib.decompress(file(log, 50)[34:93], 31)
    assert [struct.unpack_from(">q", inner, at)[0] for at in (0, 36)] == [0, 1], "relative offsets"
    assert [(o, k) for o, k, _ in kept(log)] == [(51, b"b"), (52, b"c"), (53, b"a")]
    assert [record.timestamp for record in data(log)][:2] == [T + 1, T + 2]


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_6I_77_duplicates_inside_wrappers(tmp_path: Path, magic: int, codec: int) -> None:
    """6I.77: Duplicates inside compressed wrappers of magic 0 and 1 are removed."""
    first = [(i, b"k%d" % (i % 4), b"v%d" % i * 9) for i in range(10)]
    second = [(i, b"k%d" % (i % 3), b"w%d" % i * 9) for i in range(10, 20)]
    dead = [(20, b"x", b"1"), (22, b"x", b"2")]
    last = [(23, b"x", b"3"), (24, b"y", b"1")]
    batches = [wrapper(magic, codec, rows) for rows in (first, second, dead, last)]
    log = old_log(tmp_path / "data", (0, batches))
    log.clean()
    newest = {key: (offset, key, value) for offset, key, value in [*first, *second, *dead, *last]}
    assert kept(log) == sorted(newest.values())
    assert [(h.magic, h.codec) for h in headers(log)] == [(magic, codec)] * 3
    assert file(log, 0).endswith(batches[-1]), "a whole one is copied byte for byte"


def test_6I_78_a_wrapper_of_magic_1_with_messages_of_magic_0(tmp_path: Path) -> None:
    """6I.78: A wrapper of magic 1 with inner messages of magic 0 is rewritten with inner messages of magic 1
    and right offsets.

    The wrapper is as librdkafka wrote it: relative offsets and messages without timestamps.
    """
    import gzip

    inner = b"".join(build_message(0, i, b"k%d" % i, b"v") for i in range(3))
    odd = build_message(1, 12, None, gzip.compress(inner), T, codec=1)
    log = old_log(tmp_path / "data", (10, [odd]))
    assert [(o, k) for o, k, _ in kept(log)] == [(10, b"k0"), (11, b"k1"), (12, b"k2")]
    assert log.clean().written_bytes == 0, "without duplicates it stays"
    log.put("k0", "new").roll().clean()
    assert [(o, k) for o, k, _ in kept(log)] == [(11, b"k1"), (12, b"k2"), (13, b"k0")]
    inner = zlib.decompress(file(log, 10)[34 : 12 + struct.unpack(">i", file(log, 10)[8:12])[0]], 31)
    assert inner[16] == 1, "a rewritten message has the wrapper's magic"


def test_6I_76_a_log_that_changed_its_format_on_the_way(tmp_path: Path) -> None:
    """6I.76: A log with magic 0, then 1, then 2 is cleaned: the newest values are preserved, and the log
    shrinks.
    """
    batches, offset, expected = [], 0, {}
    for magic in (0, 1):
        for codec in (0, 1, 2, 3):
            rows = [(offset + i, b"k%d" % i, b"%d %d %d" % (magic, codec, i)) for i in range(5)]
            expected |= {key: value for _, key, value in rows}
            if codec:
                batches.append(wrapper(magic, codec, rows))
            else:
                batches += [entry(magic, *row) for row in rows]
            offset += 5
    rows = [(offset + i, b"k%d" % i, b"newest") for i in (0, 2)]
    batches.append(batch(offset, rows, codec=4))
    expected |= {key: value for _, key, value in rows}
    log = old_log(tmp_path / "data", (0, batches))
    before = sum(size for _, size in log.sizes())
    log.clean()
    assert state_of(data(log)) == expected
    assert {key: offset for offset, key, _ in kept(log)} == {
        b"k0": 40,
        b"k1": 36,
        b"k2": 42,
        b"k3": 38,
        b"k4": 39,
    }
    assert [h.magic for h in headers(log)] == [1, 2]
    assert sum(size for _, size in log.sizes()) < before / 4


def test_no_empty_batch_holds_the_end_of_a_range(tmp_path: Path) -> None:
    """The output ends with its last survivor; the next segment's base offset covers the rest."""
    log = old_log(
        tmp_path / "data",
        (0, [entry(1, 0, b"a", b"1"), entry(1, 1, b"b", b"1")]),
        (2, [entry(1, 2, b"b", b"2"), wrapper(1, 1, [(3, b"c", b"1"), (4, b"c", b"2")])]),
        (5, [entry(1, 5, b"b", b"3"), entry(1, 6, b"c", b"3")]),
        segment_bytes=60,
    )
    log.clean()
    assert kept(log) == [(0, b"a", b"1"), (5, b"b", b"3"), (6, b"c", b"3")]
    assert all(h.magic == 1 and h.count != 0 for h in headers(log))
    assert log.log.log_end == 7
    again = log.tree()
    log.clean()
    assert {n: d for n, d in log.tree().items() if n.endswith(".log")} == {
        n: d for n, d in again.items() if n.endswith(".log")
    }
    log.reopen()
    assert log.log.log_end == 7


def test_a_segment_of_which_nothing_is_left_is_merged_away(tmp_path: Path) -> None:
    log = old_log(
        tmp_path / "data",
        (0, [entry(0, 0, b"a", b"1")]),
        (1, [entry(0, 1, b"a", b"2" * 200)]),
        (2, [entry(0, 2, b"b", b"1" * 200)]),
        segment_bytes=100,
    )
    log.clean()
    assert [size for base, size in log.sizes() if base == 0] == [0], "an empty file holds the log's start"
    log.put("b", "2").roll().clean()
    assert [offset for offset, _, _ in kept(log)] == [1, 3]
    log.put("a", "3").roll().clean()
    assert [base for base, size in log.sizes()[:-1] if not size] == [0], "one for all three"
    assert len(log.sizes()) == 4
    assert [offset for offset, _, _ in kept(log)] == [3, 4]


def test_tombstones_go_by_the_times_of_files(tmp_path: Path) -> None:
    """The segments are a day apart. A tombstone stays until `delete.retention.ms` has passed between the time
    of its segment and the time of the last segment that an earlier round cleaned.
    """
    log = old_log(
        tmp_path / "data",
        (0, [entry(1, 0, b"a", b"1"), entry(1, 1, b"a", None)]),
        (2, [entry(1, 2, b"b", b"1"), entry(1, 3, b"b", None)]),
        (4, [entry(1, 4, b"c", b"1")]),
        delete_retention_ms=DAY + HOUR,
        segment_bytes=50,
    )
    round_ = log.clean()
    assert [o for o, _, v in kept(log) if v is None] == [1, 3], "no round has seen them before"
    assert round_.removed.superseded == 2
    assert "2 tombstones wait" in str(round_)
    assert log.clean().removed.tombstone == 1
    assert [o for o, _, v in kept(log) if v is None] == [3]
    log.wait(100 * DAY)
    assert log.clean().removed.tombstone == 0, "the clock is the files', not ours"


def test_no_tombstone_goes_before_a_round_has_seen_it(tmp_path: Path) -> None:
    """Files whose times were set back, for example by a copy, start no delete horizon."""
    log = old_log(
        tmp_path / "data",
        (0, [entry(0, 0, b"z", b"1")]),
        (1, [entry(0, 1, b"a", b"1"), entry(0, 2, b"a", None)]),
    )
    log.first_dirty = 1
    os.utime(Path(log.directory, names.segment_file(1, names.LOG)), (1, 1))
    log.clean()
    assert [o for o, _, v in kept(log) if v is None] == [2]


def test_one_waiting_tombstone(tmp_path: Path) -> None:
    log = old_log(tmp_path / "data", (0, [entry(0, 0, b"a", None)]))
    assert str(log.plan()).endswith("1 tombstone waits; every other record is its key's newest")
    assert log.clean().written_bytes == 0, "it is not rewritten for a clock that its format does not have"


def check_indexes(log: LogBuilder) -> None:
    for segment in PartitionView.load(DirectorySegments(DEFAULT, log.directory)).segments[:-1]:
        inspection = inspect(DEFAULT, log.directory, segment.base_offset, index_interval_bytes=100)
        assert inspection.damage is None
        assert Path(segment.stored.path(names.INDEX)).read_bytes() == inspection.offset_entries
        assert Path(segment.stored.path(names.TIME_INDEX)).read_bytes() == inspection.time_entries


rows_of_keys = st.lists(
    st.tuples(
        st.sampled_from([b"", b"a", b"b", b"c", b"d"]),
        st.sampled_from([None, b"", b"v", b"w" * 90]),
        st.integers(0, 2),  # a gap before it
    ),
    min_size=1,
    max_size=5,
)
parts = st.lists(
    st.tuples(
        rows_of_keys,
        st.sampled_from([(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 2), (2, 0), (2, 3)]),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.slow
@settings(max_examples=few(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts, st.sampled_from([100, 300, 1 << 20]))
def test_what_is_left_is_the_newest_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, items: list, segment_bytes: int
) -> None:
    offset = 0
    segments: list[tuple[int, list[bytes]]] = []
    every: dict[int, tuple[bytes, bytes | None]] = {}
    for rows, (magic, codec), new_segment in items:
        batch_rows = []
        for key, value, gap in rows:
            offset += gap
            batch_rows.append((offset, key, value))
            every[offset] = key, value
            offset += 1
        if magic == 2:
            entries = [batch(batch_rows[0][0], batch_rows, codec=codec)]
        elif codec:
            entries = [wrapper(magic, codec, batch_rows)]
        else:
            entries = [entry(magic, *row) for row in batch_rows]
        if new_segment or not segments:
            segments.append((batch_rows[0][0], []))
        segments[-1][1].extend(entries)
    log = old_log(
        tmp_path_factory.mktemp("legacy") / "data",
        *segments,
        segment_bytes=segment_bytes,
        index_interval_bytes=100,
        delete_retention_ms=100 * DAY,
    )
    newest = {key: offset for offset, (key, _) in sorted(every.items())}
    for number in range(3):
        stamps = {record.offset: record.timestamp for record in data(log)}
        plan = log.plan()
        round_ = log.clean()
        if number == 0 and plan.action == "clean":
            assert (plan.write_bytes, plan.free_bytes) == (round_.written_bytes, round_.freed_bytes)
        assert kept(log) == [(o, *every[o]) for o in sorted(newest.values())]
        assert all(stamps[record.offset] == record.timestamp for record in data(log))
        check_indexes(log)
        assert log.log.log_end == offset
        log.wait(HOUR)
    before = {n: d for n, d in log.tree().items() if n.endswith(".log")}
    log.clean()
    assert before == {n: d for n, d in log.tree().items() if n.endswith(".log")}, "a fixed point"
    log.abandon()


def test_the_last_segment_keeps_its_tombstones(tmp_path: Path) -> None:
    """Otherwise no consumer would reach the end of the log."""
    log = old_log(
        tmp_path / "data",
        (0, [entry(1, 0, b"a", None), entry(1, 1, b"z", b"1")]),
        (2, [entry(1, 2, b"a", b"1"), entry(1, 3, b"a", None)]),
        delete_retention_ms=0,
    )
    log.clean()
    log.clean()
    assert kept(log)[-1] == (3, b"a", None)
    log.put("b", "1").roll().clean()
    log.clean()
    assert [offset for offset, _, _ in kept(log)] == [1, 4]


@pytest.mark.parametrize("at", [30, 60, 110, 150])
def test_a_flipped_bit_is_never_put_under_a_new_checksum(tmp_path: Path, at: int) -> None:
    """In a wrapper and in a message: the partition is quarantined, the sources stay."""
    rows = [(0, b"a", b"1" * 30), (1, b"b", b"1"), (2, b"a", b"2")]
    batches = [wrapper(1, 1, rows), *(entry(0, o, b"c", b"v" * 20) for o in (3, 4)), entry(1, 5, b"a", b"3")]
    log = old_log(tmp_path / "data", (0, batches))
    assert log.log
    log.roll()
    path = Path(log.directory, names.segment_file(0, names.LOG))
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="users-0 is quarantined"):
        log.clean()
    assert path.read_bytes() == damaged
    assert quarantine.load(log.files, log.directory) is not None
    assert not [name for name in log.tree() if "rewrite-" in name]
    log.abandon()


def test_a_lost_message_is_seen_before_the_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: a wrapper loses a live message, or gets the value of another message."""
    real = output.filter_entry

    def lossy(buffer, header, keep, *rest, **more):  # type: ignore[no-untyped-def]
        return real(buffer, header, [False, *[True] * (len(list(keep)) - 1)], *rest, **more)

    rows = [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"c", b"2"), (3, b"b", b"2")]
    log = old_log(tmp_path / "data", (0, [wrapper(1, 3, rows)]))
    monkeypatch.setattr(output, "filter_entry", lossy)
    log.roll()
    before = file(log, 0)
    with pytest.raises(CertificateError):
        log.clean()
    assert file(log, 0) == before
    log.abandon()


# ---------------------------------------------------------------- crashes

NEWEST = {b"a": b"3", b"b": b"2", b"keep": b"1"}


def crash_log(root: Path, files: Files | None = None) -> LogBuilder:
    """Write a log in which every record from 4 to 8 is dead: there are sources above the output's end.

    A value and its due tombstone are among these records.
    """
    log = old_log(
        root,
        (0, [entry(1, 0, b"a", b"1"), entry(1, 1, b"keep", b"1")]),
        (2, [wrapper(1, 1, [(2, b"a", b"2"), (3, b"b", b"1")])]),
        (4, [entry(1, 4, b"gone", b"1"), entry(1, 5, b"a", b"2b")]),
        (6, [entry(1, 6, b"gone", None)]),
        (7, [entry(1, 7, b"a", b"2c"), entry(1, 8, b"a", b"2d")]),
        (9, [entry(1, 9, b"a", b"3"), entry(1, 10, b"b", b"2")]),
        files=files,
        delete_retention_ms=HOUR,
        segment_bytes=200,
    )
    log.first_dirty = 11
    return log


def check_crashed(log: LogBuilder, label: str) -> None:
    assert state_of(data(log)) == NEWEST, label  # a second process, before any repair
    assert log.log.log_end == 11, label
    assert state_of(data(log)) == NEWEST, label
    log.first_dirty = 11
    log.clean()
    assert [record.offset for record in data(log)] == [1, 9, 10], label
    log.abandon()


def again(root: Path, log: LogBuilder) -> LogBuilder:
    fresh = LogBuilder(root, files=HastyFiles(), clock=log.clock)
    fresh.config = log.config
    return fresh


@pytest.mark.slow
def test_kills_and_power_cuts_at_every_moment_of_a_round(tmp_path: Path) -> None:
    crash_log(tmp_path / "live")
    files = ForgetfulFiles(tmp_path / "live", HastyFiles())
    log = LogBuilder(
        tmp_path / "live", files=files, clock=ManualClock(NOW), delete_retention_ms=HOUR, segment_bytes=200
    )
    log.topic("users").first_dirty = 11
    log.log.flush()
    start = len(files.journal)
    log.clean()
    images = list(files.images(seeds=range(2), start=start))
    assert len(images) > 100
    kills = files.kills(range(start, len(files.journal) + 1, stride(4)))
    for image in [*images[:: stride(24)], *kills]:
        image.write(tmp_path / "image")
        check_crashed(again(tmp_path / "image", log), image.label)


def test_an_empty_segment_below_the_limit_is_accounted_once(tmp_path: Path) -> None:
    """A segment whose messages had no keys has no survivor, and a younger segment sets the limit."""
    log = old_log(
        tmp_path / "data",
        (0, [entry(0, 0, b"a", b"1" * 300), entry(0, 1, b"b", b"1" * 300)]),
        (2, [entry(0, 2, None, b"1" * 300)]),
        (4, [entry(0, 4, b"d", b"1")]),
        segment_bytes=700,
        min_compaction_lag_ms=12 * HOUR,
    )
    log.clean(strategy="generational")
    assert log.sizes()[1] == (2, 0)
    Path(log.directory, names.PRIVATE, names.ACCOUNTS).unlink()
    ledger = Ledger.open(log.files, log.directory, log.log.segments, map_bytes=1 << 20)
    for _ in range(3):
        log.clean(strategy="generational", ledger=ledger)
        assert [entry.base_offset for entry in ledger.entries] == [0, 2]
    log.wait(DAY).put("a", 2)
    log.clean(strategy="generational", ledger=ledger)
    assert [offset for offset, _, _ in kept(log)] == [0, 1, 4, 5]
    log.wait(DAY)
    log.clean(strategy="generational", ledger=ledger)
    assert [offset for offset, _, _ in kept(log)] == [1, 4, 5]
