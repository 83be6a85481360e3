"""Damage by users, drives and attackers in a log directory, one numbered test for each group.

Each case must end with a right answer, an error of ours that names the file, a repair that keeps
everything acknowledged, or one partition offline while the others work. A wrong answer, another exception
or a hang fails.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import (
    DataError,
    LastwordError,
)
from lastword.segment import names

NOW = 1_795_168_800_000
HOUR = 3_600_000
CRC_AT, CHECKED_FROM = 17, 21


def opened(path: Path, mode: Any = "a", **settings: Any) -> Any:
    settings.setdefault("clock", ManualClock(NOW))
    return lastword.open(path, mode, **settings)


def records(path: Path, topic: str = "t", **more: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    with lastword.open(path) as logs:
        return [(r.offset, r.key, r.value) for r in logs.topic(topic).read(**more)]


def write_log_dir(
    path: Path, count: int = 6, **settings: Any
) -> list[tuple[int, bytes | None, bytes | None]]:
    """Make a cleanly closed directory with one topic `t` of single-record batches; return its records."""
    with opened(path, **settings) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", exist_ok=True)
        for number in range(count):
            topic.append(b"key %d" % number, b"value %d" % number, timestamp=NOW + number)
    return [(n, b"key %d" % n, b"value %d" % n) for n in range(count)]


def killed(path: Path) -> Path:
    """Make the state after a kill: no marker of a clean stop, no recovery point."""
    for name in (names.CLEAN_SHUTDOWN, names.RECOVERY_POINTS):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "t-0" / names.PRIVATE, ignore_errors=True)
    return path


def logs_of(path: Path, topic: str = "t-0") -> list[Path]:
    return sorted((path / topic).glob("*.log"))


def _names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def ended(action: Callable[[], Any]) -> Any:
    """Return the result, or the error if it is one of ours.

    Any other exception fails the test, and so do 10 s of CPU time.
    """
    started = time.process_time()
    try:
        return action()
    except LastwordError as error:
        return error
    finally:
        assert time.process_time() - started < 10


# ---------------------------------------------------------------- bytes of records and batches


def _used(topic: Any, action: str) -> Any:
    return topic.append(b"k", b"v", partition=0) if action == "append" else list(topic.read(partition=0))


@pytest.mark.parametrize("damage", ["crc", "base offset", "lost"])
def test_abuse_01_the_last_batch_after_a_clean_stop(tmp_path: Path, damage: str) -> None:
    """The batch was acknowledged at `disk`: no verb cuts it, every reader and `verify` name it, other
    partitions work.
    """
    with opened(tmp_path / "d") as logs:
        topic = logs.create_topic("t", 2)
        for number in range(9):
            topic.append(b"k%d" % number, b"v", partition=0, ack="disk")
        topic.append(b"k", b"v", partition=1)
    log = logs_of(tmp_path / "d")[0]
    data = bytearray(log.read_bytes())
    last = len(data) * 8 // 9
    if damage == "crc":
        data[-1] ^= 1
    elif damage == "base offset":
        data[last + 6] ^= 16  # 8 becomes 4104
    else:
        del data[last:]
    log.write_bytes(data)
    for _ in range(2):
        with lastword.open(tmp_path / "d") as logs:
            seen = []
            with pytest.raises(DataError) as caught:
                for record in logs.topic("t").read(partition=0):
                    seen.append(record.offset)
            assert seen == list(range(8)) and caught.value.file == str(log)
            assert any(p.file == str(log) and not p.repairable for p in logs.verify().problems)
        with opened(tmp_path / "d") as logs:
            topic = logs.topic("t")
            for action in ("append", "read"):
                error = ended(lambda topic=topic, action=action: _used(topic, action))
                assert isinstance(error, DataError) and error.file == str(log) and error.position
            assert topic.append(b"k", b"v", partition=1).offset >= 1
        assert log.read_bytes() == data
    # The documented way to continue without the lost records.
    for name in (names.CLEAN_SHUTDOWN, names.RECOVERY_POINTS):
        (tmp_path / "d" / name).unlink(missing_ok=True)
    (log.parent / names.PRIVATE / names.SYNCED).unlink()
    with opened(tmp_path / "d") as logs:
        offsets = [r.offset for r in logs.topic("t").read(partition=0)]
    assert offsets[:8] == list(range(8)) and (len(offsets) == 8 or damage == "base offset")


# ---------------------------------------------------------------- files and directories


def test_abuse_10_leftovers_in_every_combination(tmp_path: Path) -> None:
    sound = write_log_dir(tmp_path / "d", 30, segment_bytes=800)
    base = logs_of(tmp_path / "d")[1].name[:-4]
    data = logs_of(tmp_path / "d")[1].read_bytes()
    suffixes = (
        ".log.cleaned",
        ".log.swap",
        ".log.deleted",
        ".index.swap",
        ".timeindex.cleaned",
        ".index.tmp",
    )
    for chosen in range(1 << len(suffixes)):
        for content in (data, b""):
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "d", copy)
            for number, suffix in enumerate(suffixes):
                if chosen >> number & 1:
                    whole = content if ".log" in suffix else b""
                    (copy / "t-0" / (base + suffix)).write_bytes(whole)
            result = ended(lambda copy=copy: _opened_and_read(copy))
            if isinstance(result, LastwordError):
                assert isinstance(result, DataError) and result.file, (chosen, result)
            else:
                assert result == sound, (chosen, len(content))
                names_left = [
                    n for n in _names(copy / "t-0") if n.endswith((".cleaned", ".swap", ".deleted"))
                ]
                assert names_left == []
            shutil.rmtree(copy)


def _opened_and_read(path: Path) -> list[Any]:
    with opened(path, segment_bytes=800) as logs:
        return [(r.offset, r.key, r.value) for r in logs.topic("t").read()]


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket"])
def test_abuse_12_things_that_are_no_files(tmp_path: Path, kind: str) -> None:
    sound = write_log_dir(tmp_path / "d", 4)
    path = tmp_path / "d" / "t-0" / f"{100:020}.log"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as unix_socket:
            here = Path.cwd()
            os.chdir(path.parent)
            try:
                unix_socket.bind(path.name)
            finally:
                os.chdir(here)
    for mode in ("r", "a"):
        with opened(tmp_path / "d", mode) as logs:
            result = ended(lambda logs=logs: [(r.offset, r.key, r.value) for r in logs.topic("t").read()])
        assert result == sound or (isinstance(result, LastwordError) and str(path.parent) in str(result))


def test_abuse_16_files_cut_under_readers(tmp_path: Path) -> None:
    """In a separate process: no signal may end that process."""
    write_log_dir(tmp_path / "d", 60, segment_bytes=800, index_interval_bytes=0)
    code = f"""
import os, pathlib, lastword
from lastword.errors import LastwordError
root = pathlib.Path({str(tmp_path / "d")!r})
with lastword.open(root) as views, lastword.open(root, "a", segment_bytes=800) as logs:
    readers = [opened.topic("t").read() for opened in (views, logs)]
    for reader in readers:
        assert [next(reader).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    for path in sorted(root.glob("t-0/0*")):
        os.truncate(path, 0)
    for opened in (views, logs):
        for action in (lambda: list(readers.pop()), lambda: opened.verify("t"), opened.clean):
            try:
                action()
            except LastwordError as error:
                print(type(error).__name__)
        for start in range(0, 60, 7):
            try:
                found = [r.offset for r in opened.topic("t").read(start=start)]
                assert found == list(range(start, 60))[: len(found)]
            except LastwordError as error:
                print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_abuse_16_a_file_replaced_under_a_reader(tmp_path: Path) -> None:
    sound = write_log_dir(tmp_path / "d", 30, segment_bytes=800)
    with lastword.open(tmp_path / "d") as logs:
        reader = logs.topic("t").read()
        first = [next(reader).offset for _ in range(3)]
        for path in logs_of(tmp_path / "d")[1:]:
            copy = path.with_suffix(".copy")
            shutil.copy(path, copy)
            copy.rename(path)
        result = ended(lambda: first + [r.offset for r in reader])
        assert isinstance(result, LastwordError) or result == [offset for offset, _, _ in sound]


def test_abuse_18_clocks(tmp_path: Path) -> None:
    """A clock one day back, ten years ahead, equal timestamps: no tombstone is removed before its horizon by
    the clock that set it, no lookup by time is wrong, and nothing fails.
    """
    clock = ManualClock(NOW)
    with opened(tmp_path / "d", clock=clock, segment_bytes=800) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", delete_retention_ms=HOUR)
        topic.append(b"gone", b"1")
        topic.delete(b"gone")
        logs.clean()
        clock.set_date(clock.now_ms() - 24 * HOUR)
        for number in range(10):
            topic.append(b"k%d" % number, b"v")
        logs.clean()
        assert [r.key for r in topic.read() if r.value is None] == [b"gone"]
        clock.advance(24 * HOUR + HOUR // 2)
        logs.clean()
        assert [r.key for r in topic.read() if r.value is None] == [b"gone"]
        clock.advance(10 * 365 * 24 * HOUR)
        topic.append(b"late", b"v")
        logs.clean()
        logs.clean()
        assert not [r for r in topic.read() if r.value is None]
        for _ in range(3):
            topic.append(b"same", b"time", timestamp=NOW)
        times = [(r.timestamp, r.offset) for r in topic.read()]
        for wanted in {t for t, _ in times}:
            first = next(o for t, o in times if t >= wanted)
            from datetime import UTC, datetime

            start = datetime.fromtimestamp(wanted / 1000, UTC)
            assert next(iter(topic.read(start=start))).offset == first
