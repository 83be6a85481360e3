"""Ready batches as one table and one by one, and single records the short way: equal files and results."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword.kernels  # noqa: F401 - the table path is taken where kernels are loaded
from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, DiskFullError, LastwordError
from lastword.partition import appending
from lastword.partition import tail as tail_module
from lastword.partition.staged_batches import SLACK_BYTES, Block
from lastword.records.batch import BatchBuilder, checked_part
from lastword.segment.append import SegmentAppender
from lastword.wire import ATTRIBUTES_AT, INT64_MAX
from tests.fakes.failing import FailingFiles
from tests.fakes.hasty import HastyFiles
from tests.partition.logs import NOW, batch, indexes_fit, make, opened, records
from tests.support.exhaustive import few, stride
from tests.support.threads import together
from tests.transactions import end_transaction

CONFIGS = st.builds(
    TopicConfig,
    segment_bytes=st.sampled_from([300, 700, 5000]),
    segment_ms=st.sampled_from([40, 10_000]),
    index_interval_bytes=st.sampled_from([0, 150, 4096]),
    segment_index_bytes=st.sampled_from([24, 40, 10 << 20]),
    message_timestamp_type=st.sampled_from(["CreateTime"] * 4 + ["LogAppendTime"]),
    max_message_bytes=st.sampled_from([1 << 20] * 4 + [150]),
    flush_messages=st.sampled_from([7, 2**63 - 1]),
)


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[int, list[bytes]]]:
    """Generate calls as (ms that pass before the call, batches)."""
    timed_calls = []
    for _ in range(draw(st.integers(1, 4))):
        batches = []
        for _ in range(draw(st.integers(0, 12))):
            producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": draw(st.integers(0, 3))}
            builder = BatchBuilder(**producer if draw(st.integers(0, 40)) == 0 else {})
            for _ in range(draw(st.sampled_from([1, 1, 1, 2, 5]))):
                time = draw(st.sampled_from([NOW, NOW + 30, NOW + 90, NOW - 5, -1]))
                builder.append(time, b"k", b"v" * draw(st.integers(0, 100)))
            data = bytearray(builder.build(draw(st.sampled_from([0, 77]))))
            if draw(st.integers(0, 40)) == 0:
                data[draw(st.integers(8, len(data) - 1))] ^= 1
            batches.append(bytes(data))
        timed_calls.append((draw(st.sampled_from([0, 0, 50])), batches))
    return timed_calls


@contextmanager
def only_plain() -> Iterator[None]:
    before, tail_module.FEW = tail_module.FEW, 1 << 30
    try:
        yield
    finally:
        tail_module.FEW = before


def as_block(batches: list[bytes]) -> Block:
    return Block(bytearray(b"".join(batches) + bytes(SLACK_BYTES)), list(map(len, batches)))


def replay(
    config: TopicConfig,
    timed_calls: list[tuple[int, list[bytes]]],
    clean: bool,
    ready: Callable[[list[bytes]], Sequence[Any]] = list,
) -> tuple[list[Any], Any]:
    """Return the result of each call with all files after it, and all files at the end."""
    root = tempfile.mkdtemp()
    try:
        clock = ManualClock(NOW)
        log, _ = opened(make(root), files=HastyFiles(), config=config, clock=clock)
        said: list[Any] = []
        for passed, batches in timed_calls:
            clock.advance(passed)
            try:
                said.append(log.append_batches(ready(batches), sync_follows=True))
            except (LastwordError, ValueError) as error:
                said.append((type(error), str(error)))
            said.append((log.log_end, log.synced_to, log.recovery_point, log.stable_offset, _files(root)))
            assert indexes_fit(log)
        if clean:
            log.close()
        else:
            log.abandon()
        return said, _files(root)
    finally:
        shutil.rmtree(root)


def _files(root: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    "examples", [pytest.param(8, marks=pytest.mark.quick), pytest.param(few(150), marks=pytest.mark.slow)]
)
def test_both_ways_leave_the_same_bytes(examples: int) -> None:
    settings(max_examples=examples, deadline=None)(given(CONFIGS, calls(), st.booleans())(_both_ways))()


def _both_ways(config: TopicConfig, timed_calls: list[tuple[int, list[bytes]]], clean: bool) -> None:
    by_table = replay(config, timed_calls, clean)
    assert replay(config, timed_calls, clean, as_block) == by_table
    with only_plain():
        assert replay(config, timed_calls, clean) == by_table


def test_many_batches_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch of a large call is checked alone."""
    log, _ = opened(make(tmp_path))
    monkeypatch.setattr(appending.Pending, "add", None)
    done = log.append_batches([batch((b"k%d" % n, b"v" * 50)) for n in range(40)])
    assert [appended.base_offset for appended in done] == list(range(40))
    assert len(log.segments) > 2
    log.close()


@pytest.mark.parametrize("count", [1, 9])
def test_damage_on_the_way_is_refused(tmp_path: Path, count: int) -> None:
    log, _ = opened(make(tmp_path))
    ready = [batch((b"k", b"v" * n)) for n in range(count)]
    ready[-1] = ready[-1][:-2] + b"\x7f" + ready[-1][-1:]
    with pytest.raises(CorruptBatchError, match="<append>"):
        log.append_batches(ready)
    assert log.log_end == 0
    log.append_batches(ready[:-1])
    assert len(records(log)) == count - 1
    log.close()


@pytest.mark.parametrize("number", range(1, 8))
def test_a_full_drive_leaves_the_segments_that_were_filled_before(tmp_path: Path, number: int) -> None:
    """Both ways stop at the same place, with whole batches, and continue from there."""
    ready = [batch((b"k%d" % n, b"v" * 100)) for n in range(12)]
    ends = []
    for name in ("table", "plain"):
        files = FailingFiles(HastyFiles(), "ENOSPC", number)
        log, _ = opened(make(tmp_path / name), files=files)
        files.arm()
        with pytest.raises(DiskFullError), only_plain() if name == "plain" else nullcontext():
            log.append_batches(ready)
        files.disarm()
        assert files.hit
        ends.append((log.log_end, len(records(log)), indexes_fit(log)))
        log.append_batches(ready)
        assert indexes_fit(log)
        assert len(records(log)) == log.log_end == ends[-1][0] + len(ready)
        log.close()
    assert ends[0] == ends[1]
    assert ends[0][0] == ends[0][1]


# ---------------------------------------------------------------- single records

BYTES = st.none() | st.binary(max_size=90) | st.sampled_from([b"v" * 63, b"v" * 64, b"v" * 8200])


@given(st.sampled_from([0, 1, NOW, INT64_MAX]), BYTES, BYTES)
@settings(max_examples=few(200), deadline=None)
def test_the_checked_part_is_that_of_a_builder(
    timestamp: int, key: bytes | None, value: bytes | None
) -> None:
    builder = BatchBuilder()
    builder.append(timestamp, key, value)
    assert checked_part(timestamp, key, value) == builder.build()[ATTRIBUTES_AT:]


SINGLES = st.tuples(
    st.just("single"),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=80),
    st.sampled_from([0] * 6 + [30, 90, -5, -NOW - 1]),
    st.sampled_from([1 << 20] * 5 + [100]),
)
OTHERS = st.sampled_from(
    [("roll",), ("sync",), ("flush",), ("trim",), ("transact",), ("end",), ("extend",), ("full drive",)]
)
CHANGES = st.tuples(st.just("config"), CONFIGS) | st.tuples(st.just("cut"), st.integers(0, 3))
STEPS = st.lists(SINGLES | SINGLES | SINGLES | SINGLES | OTHERS | CHANGES, min_size=5, max_size=40)


class Twin:
    """A log to which single records are appended the short way, or with `short` False the general way."""

    def __init__(self, root: str, config: TopicConfig, *, short: bool) -> None:
        self.clock = ManualClock(NOW)
        self.files = FailingFiles(HastyFiles(), "ENOSPC", 0)
        self.log, _ = opened(make(root), files=self.files, config=config, clock=self.clock)
        self.short = short
        self.short_ones = 0

    def single(self, key: bytes | None, value: bytes | None, later_ms: int, most_bytes: int) -> Any:
        timestamp = self.clock.now_ms() + later_ms
        if self.short and (single := self.log.append_single(key, value, timestamp, most_bytes)) is not None:
            self.short_ones += 1
            return single
        builder = BatchBuilder()
        builder.append(timestamp, key, value)
        data = builder.build()
        if len(data) > most_bytes:
            return "too large"
        return self.log.append_batch(data).base_offset, len(data)

    def do(self, step: tuple[Any, ...]) -> Any:
        log, action = self.log, step[0]
        self.clock.advance(7)
        if action == "single":
            return self.single(*step[1:])
        if action == "trim":
            return log.raise_log_start(log.log_end - 1), len(log.remove_prefix())
        if action == "transact":
            known = log.producer(5)
            sequence = 0 if known is None or known.last_sequence < 0 else known.last_sequence + 1
            builder = BatchBuilder(
                producer_id=5, producer_epoch=0, base_sequence=sequence, transactional=True
            )
            builder.append(self.clock.now_ms(), b"k", b"v")
            return log.append_batch(builder.build())
        if action == "end":
            return end_transaction(log, 5, 0, commit=False)
        if action == "extend":
            return log.append_batches([batch((b"k", b"v"))] * 6)
        if action == "config":
            log.config = step[1]
        elif action == "cut":
            log.truncate_to(max(0, log.log_end - step[1]))
        elif action == "full drive":
            self.files.hit = False
            self.files.arm()
            try:
                return self.single(b"k", b"v", 0, 1 << 20)
            finally:
                self.files.disarm()
        else:
            getattr(log, action)()
        return None

    def state(self, root: str) -> Any:
        log = self.log
        offsets = log.log_start, log.log_end, log.stable_offset, log.synced_to, log.recovery_point
        return offsets, log.active.largest_timestamp, _files(root)


def _said_and_left(config: TopicConfig, steps: list[tuple[Any, ...]], *, short: bool, clean: bool) -> Any:
    root = tempfile.mkdtemp()
    try:
        twin = Twin(root, config, short=short)
        said: list[Any] = []
        for step in steps:
            try:
                said.append(twin.do(step))
            except (LastwordError, ValueError) as error:
                said.append((type(error), str(error).replace(root, "")))
            said.append(twin.state(root))
        twin.log.close() if clean else twin.log.abandon()
        return said, _files(root)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize(
    "examples",
    [pytest.param(25, marks=pytest.mark.quick), pytest.param(600 // stride(24), marks=pytest.mark.slow)],
)
def test_single_records_leave_the_same_bytes_both_ways(examples: int) -> None:
    def both_ways(config: TopicConfig, steps: list[tuple[Any, ...]], clean: bool) -> None:
        general = _said_and_left(config, steps, short=False, clean=clean)
        assert _said_and_left(config, steps, short=True, clean=clean) == general

    settings(max_examples=examples, deadline=None)(given(CONFIGS, STEPS, st.booleans())(both_ways))()


def test_nearly_all_single_records_take_the_short_way(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=4000, index_interval_bytes=300)
    twin = Twin(str(tmp_path), config, short=True)
    for _ in range(200):
        twin.single(b"key", b"v" * 30, 0, 1 << 20)
    rolls = len(twin.log.segments) - 1
    assert rolls >= 4 and twin.short_ones == 200 - 1 - rolls
    twin.log.close()


@pytest.mark.parametrize("how", ["closed", "abandoned", "retired", "failed"])
def test_the_short_way_ends_with_the_log(tmp_path: Path, how: str) -> None:
    """The short way writes nothing; the general way raises the reason."""
    twin = Twin(str(tmp_path), TopicConfig(), short=True)
    log = twin.log
    for _ in range(3):
        twin.single(b"k", b"v", 0, 1 << 20)
    assert twin.short_ones == 2
    before = _files(str(tmp_path))
    if how == "closed":
        log.close()
        before = _files(str(tmp_path))
    elif how == "abandoned":
        log.abandon()
    elif how == "retired":
        log.retire(LastwordError("moved", remedy="open it there"))
    else:
        log._local.failure.latch(LastwordError("failed", remedy="open it again"))
    assert log.append_single(b"k", b"v", NOW, 1 << 20) is None
    with pytest.raises((LastwordError, ValueError)):
        log.append_batch(batch((b"k", b"v")))
    assert _files(str(tmp_path)) == before
    log.abandon()


def test_threads_append_single_records(tmp_path: Path) -> None:
    """Each offset is assigned once, in file order, beside syncs and rolls."""
    config = TopicConfig(segment_bytes=5000, index_interval_bytes=300)
    log, _ = opened(make(tmp_path), files=HastyFiles(), config=config)
    offsets: list[tuple[int, bytes]] = []

    def append(number: int) -> None:
        for count in range(150):
            value = b"%d-%d" % (number, count)
            single = log.append_single(b"k", value, NOW, 1 << 20)
            offset = log.append_batch(batch((b"k", value))).base_offset if single is None else single[0]
            offsets.append((offset, value))
            if count % 50 == 0:
                log.sync()

    together(*(partial(append, number) for number in range(4)))
    assert sorted(offsets) == [(offset, value) for offset, _, value in records(log)]
    assert log.log_end == log.stable_offset == 600
    assert indexes_fit(log)
    log.close()


def test_a_single_record_outside_of_the_limits_is_left_to_the_general_way(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), config=TopicConfig(max_message_bytes=150))
    log.append_batch(batch((b"k", b"v")))
    assert log.append_single(b"k", b"v" * 200, NOW, 1 << 20) is None
    assert log.append_single(b"k", b"v" * 20, NOW, 80) is None
    assert log.append_single(b"k", b"v" * 20, -1, 1 << 20) is None
    assert log.append_single(b"k", b"v" * 20, NOW, 1 << 20) == (1, 89)
    log.close()


def test_every_append_is_notified_while_a_reader_waits(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path))
    log.append_batch(batch((b"k", b"v")))
    assert log.append_single(b"k", b"v", NOW, 1 << 20) == (1, 70)
    ends: list[int] = []
    log.on_append(lambda: ends.append(log.log_end))
    assert log.append_single(b"k", b"v", NOW, 1 << 20) is None  # it would not notify
    log.append_batch(batch((b"k", b"v")))
    log.append_batches([batch((b"k", b"v"))] * 9)
    assert ends == [3, 12]
    log.on_append(None)
    assert log.append_single(b"k", b"v", NOW, 1 << 20) == (12, 70)
    assert ends == [3, 12]
    log.close()


def test_a_short_way_that_misses_index_entries_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the test: the comparison of both ways can fail."""
    monkeypatch.setattr(SegmentAppender, "last_unindexed_position", 1 << 40)
    steps = [("single", b"k", b"v" * 50, 0, 1 << 20)] * 30
    config = TopicConfig(index_interval_bytes=150)
    general = _said_and_left(config, steps, short=False, clean=False)
    assert _said_and_left(config, steps, short=True, clean=False) != general
