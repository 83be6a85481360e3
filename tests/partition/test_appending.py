"""Ready batches as one table, and one by one: the same files, the same answers, the same refusals."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
from lastword.partition import log as log_module
from lastword.partition.staged_batches import SLACK_BYTES, Block
from lastword.records.batch import BatchBuilder
from tests.fakes.failing import FailingFiles
from tests.fakes.hasty import HastyFiles
from tests.partition.logs import NOW, batch, indexes_fit, make, opened, records

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
    """Calls as (ms that pass before, batches)."""
    found = []
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
        found.append((draw(st.sampled_from([0, 0, 50])), batches))
    return found


@contextmanager
def only_plain() -> Iterator[None]:
    before, log_module.FEW = log_module.FEW, 1 << 30
    try:
        yield
    finally:
        log_module.FEW = before


def as_block(batches: list[bytes]) -> Block:
    return Block(bytearray(b"".join(batches) + bytes(SLACK_BYTES)), list(map(len, batches)))


def told(
    config: TopicConfig,
    made: list[tuple[int, list[bytes]]],
    clean: bool,
    ready: Callable[[list[bytes]], Sequence[Any]] = list,
) -> tuple[list[Any], Any]:
    """What each call said, and every file after it: at the end also after closing."""
    root = tempfile.mkdtemp()
    try:
        clock = ManualClock(NOW)
        log, _ = opened(make(root), files=HastyFiles(), config=config, clock=clock)
        said: list[Any] = []
        for passed, batches in made:
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


@pytest.mark.parametrize("examples", [8, pytest.param(150, marks=pytest.mark.slow)])
def test_both_ways_leave_the_same_bytes(examples: int) -> None:
    settings(max_examples=examples, deadline=None)(given(CONFIGS, calls(), st.booleans())(_both_ways))()


def _both_ways(config: TopicConfig, made: list[tuple[int, list[bytes]]], clean: bool) -> None:
    by_table = told(config, made, clean)
    assert told(config, made, clean, as_block) == by_table
    with only_plain():
        assert told(config, made, clean) == by_table


def test_many_batches_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch of a large call is looked at by itself."""
    log, _ = opened(make(tmp_path))
    monkeypatch.setattr(appending.Pending, "add", None)
    done = log.append_batches([batch((b"k%d" % n, b"v" * 50)) for n in range(40)])
    assert [one.base_offset for one in done] == list(range(40))
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
    """Both ways stop at the same place, with whole batches, and go on from there."""
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
