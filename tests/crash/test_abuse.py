"""Damage by users, drives and attackers in a log directory: twenty groups, one numbered test each.

Each case must end with a right answer, an error of ours that names the file, a repair that keeps
everything acknowledged, or one partition offline while the others work. A wrong answer, another exception
or a hang fails.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c

import lastword
from lastword.clock import ManualClock
from lastword.errors import (
    CorruptBatchError,
    DataError,
    DiskFullError,
    InvalidTopicError,
    LastwordError,
    LogDirLockedError,
    NotPermittedError,
    UnknownTopicError,
)
from lastword.files import OsFiles
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from tests.crash.faults import FaultyOs, planted
from tests.support.exhaustive import stride

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


def prefix_or_error(path: Path, sound: list[Any], least: int = 0) -> None:
    """Check that a reader, then a writer, returns a prefix of `sound` or raises an error with the file."""
    for mode in ("r", "a"):
        with opened(path, mode) as logs:
            result = ended(lambda logs=logs: [(r.offset, r.key, r.value) for r in logs.topic("t").read()])
        if isinstance(result, LastwordError):
            assert isinstance(result, DataError) and result.file, result
        else:
            assert result == sound[: len(result)] and len(result) >= least


def sealed(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[CHECKED_FROM:])))
    return bytes(batch)


def one_batch(count: int = 1, **more: Any) -> bytearray:
    builder = BatchBuilder(**more)
    for number in range(count):
        builder.append(NOW, b"k%d" % number, b"v" * 10)
    return bytearray(builder.build(0))


def crafted(path: Path, batch: bytes) -> tuple[Any, Any]:
    """Read a directory that ends with this batch, then open it to append; return both results."""
    sound = write_log_dir(path, 2)
    with logs_of(path)[-1].open("ab") as file:
        file.write(batch)
    read = ended(lambda: records(path))
    killed(path)

    def recover() -> Any:
        with opened(path) as logs:
            return [(r.offset, r.key, r.value) for r in logs.topic("t").read()]

    recovered = ended(recover)
    for result in (read, recovered):
        if isinstance(result, list):
            assert result[:2] == sound
    shutil.rmtree(path)
    return read, recovered


# ---------------------------------------------------------------- bytes of records and batches


@pytest.mark.slow
def test_abuse_01_a_wrong_bit_at_every_position(tmp_path: Path) -> None:
    sound = write_log_dir(tmp_path / "d", 3)
    log = logs_of(tmp_path / "d")[0]
    data = log.read_bytes()
    size = len(data) // 3
    for middle in (True, False):
        start = size if middle else 2 * size
        for bit in range(64, 8 * size, stride(9)):  # no checksum covers the base offset: see the test below
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "d", copy)
            changed = bytearray(data)
            changed[start + bit // 8] ^= 1 << bit % 8
            logs_of(copy)[0].write_bytes(changed)
            result = ended(lambda copy=copy: records(copy))
            assert isinstance(result, DataError) or result == sound[: len(result)], bit
            if middle and isinstance(result, list):
                assert result == sound, "what was acknowledged is behind it"
            prefix_or_error(killed(copy), sound, 0 if middle else 2)
            shutil.rmtree(copy)


def test_abuse_01_a_wrong_base_offset_in_the_newest_segment(tmp_path: Path) -> None:
    """No checksum covers the base offset: closed segments are checked by the next base offset, the newest
    segment by the log end.
    """
    sound = write_log_dir(tmp_path / "d", 3)
    log = logs_of(tmp_path / "d")[0]
    data = bytearray(log.read_bytes())
    data[len(data) // 3 + 6] ^= 1  # 1 becomes 257
    log.write_bytes(data)
    result = ended(lambda: records(tmp_path / "d"))
    assert isinstance(result, DataError) or result == sound


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


@pytest.mark.parametrize("magic", [3, 5, 127, 255])
def test_abuse_02_unknown_magic(tmp_path: Path, magic: int) -> None:
    batch = one_batch()
    struct.pack_into(">q", batch, 0, 2)
    batch[16] = magic
    read, recovered = crafted(tmp_path / "d", bytes(batch))
    for result in (read, recovered):  # an invalid tail is cut, and never returned
        assert isinstance(result, DataError) or len(result) == 2


@pytest.mark.parametrize("bits", [5, 6, 7, 0x40, 0x80, 0x20])
def test_abuse_02_unknown_codecs_and_stray_bits(tmp_path: Path, bits: int) -> None:
    batch = one_batch()
    struct.pack_into(">q", batch, 0, 2)
    struct.pack_into(">h", batch, 21, bits)
    read, _ = crafted(tmp_path / "d", sealed(batch))
    assert isinstance(read, DataError) or len(read) in (2, 3)
    if bits in (5, 6, 7):
        assert isinstance(read, DataError)


LENGTHS = (-(2**31), -1, 0, 1, 48, 49, 60, 2**31 - 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_abuse_03_lengths_that_lie(tmp_path: Path, length: int) -> None:
    batch = one_batch()
    struct.pack_into(">qi", batch, 0, 2, length)
    for result in crafted(tmp_path / "d", bytes(batch)):
        assert isinstance(result, DataError) or len(result) == 2


@pytest.mark.parametrize(
    ("position", "form", "number"),
    [
        (57, ">i", -1),
        (57, ">i", 0),
        (57, ">i", 2),
        (57, ">i", 2**31 - 1),
        (23, ">i", -1),
        (23, ">i", 7),
        (23, ">i", 2**31 - 1),
        (0, ">q", -1),
        (0, ">q", 2**63 - 1),
    ],
)
def test_abuse_03_counts_and_offsets_that_lie(tmp_path: Path, position: int, form: str, number: int) -> None:
    batch = one_batch()
    struct.pack_into(">q", batch, 0, 2)
    struct.pack_into(form, batch, position, number)
    for result in crafted(tmp_path / "d", sealed(batch)):
        assert isinstance(result, DataError) or result[2:] in ([], [(2, b"k0", b"v" * 10)])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 10,  # a varint that never ends
        b"\x80" * 12 + b"\x00",
        b"\x7f",  # longer than the rest, and negative
        b"\x02\x00",
        b"\x0e\x00\x00\x00\xfe\xff\xff\xff\x0f",  # a key of 2 GiB
        b"\x0e\x00\x00\x00\x01\x01\xfe\x7f",  # a thousand headers
    ],
)
def test_abuse_03_records_that_lie(tmp_path: Path, body: bytes) -> None:
    batch = one_batch()[:61] + body
    struct.pack_into(">qi", batch, 0, 2, len(batch) - 12)
    read, _ = crafted(tmp_path / "d", sealed(batch))
    assert isinstance(read, DataError)


def test_abuse_03_a_record_without_a_key_in_a_compacted_topic(tmp_path: Path) -> None:
    sound = write_log_dir(tmp_path / "d", 2)
    with opened(tmp_path / "d") as logs:
        assert isinstance(ended(lambda: logs.topic("t").append(None, b"v")), lastword.errors.KeyRequiredError)
        logs.topic("t").append(b"k", b"v")
    assert records(tmp_path / "d")[:2] == sound and len(records(tmp_path / "d")) == 3


@pytest.mark.parametrize(
    "tail", [b"\0" * 300, b"\0", b"\0" * 5000, *(b"\0" * 7 + b"\x06" * n for n in (1, 30, 53))]
)
def test_abuse_04_tails(tmp_path: Path, tail: bytes) -> None:
    """Zeros of a preallocated file and torn headers are cut off. Zeros are no damage, and not reported."""
    sound = write_log_dir(tmp_path / "d", 3)
    with logs_of(tmp_path / "d")[-1].open("ab") as file:
        file.write(tail)
    assert records(tmp_path / "d") == sound
    killed(tmp_path / "d")
    with opened(tmp_path / "d") as logs:
        assert [(r.offset, r.key, r.value) for r in logs.topic("t").read()] == sound
        codes = {repair.code for recovery in logs.recovery for repair in recovery.repaired}
        assert ("torn-tail" in codes) == bool(tail.strip(b"\0"))
        assert logs.topic("t").append(b"next", b"one").offset == 3


def test_abuse_04_the_last_batch_twice_and_half_a_batch(tmp_path: Path) -> None:
    """Half a batch is a torn write, and is cut. A whole batch is not: the log is refused, unchanged."""
    for twice in (True, False):
        path = tmp_path / str(twice)
        sound = write_log_dir(path, 3)
        log = logs_of(path)[-1]
        data = log.read_bytes()
        last = data[len(data) // 3 * 2 :]
        log.write_bytes(data + (last if twice else last[: len(last) // 2]))
        killed(path)
        if twice:
            with pytest.raises(CorruptBatchError, match="its checksum is right"):
                _opened_and_read(path)
            assert log.read_bytes() == data + last
        else:
            assert _opened_and_read(path) == sound and records(path) == sound


@pytest.mark.slow
@pytest.mark.parametrize("codec", [2, 1, 4, 3][:: stride(2)])  # 1 and 3: test_decompression_limit.py
def test_abuse_05_bombs(tmp_path: Path, codec: int) -> None:
    """256 MiB of zeros in a batch, the limit of decompression: refused, within three times that memory."""
    from lastword.records.compression import compress

    body = compress(codec, bytes(256 << 20))
    batch = one_batch()[:61] + body
    struct.pack_into(">qi", batch, 0, 2, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    before = _rss()
    read, _ = crafted(tmp_path / "d", sealed(batch))
    assert isinstance(read, DataError)
    assert _rss() - before < 768 << 20


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_abuse_05_broken_frames(tmp_path: Path, codec: int) -> None:
    whole = one_batch(5, codec=codec)
    rng = random.Random(codec)
    for number in range(12):
        batch = bytearray(whole)
        if number < 4:
            batch = batch[: 62 + (len(batch) - 62) * number // 4]
        elif number == 4:
            batch += b"garbage"
        elif number == 5:
            batch += whole[61:]
        else:
            batch[rng.randrange(61, len(batch))] ^= 1 << rng.randrange(8)
        struct.pack_into(">qi", batch, 0, 2, len(batch) - 12)
        read, _ = crafted(tmp_path / f"{number}", sealed(batch))
        assert isinstance(read, DataError) or len(read) == 7


MD5_PAIR = tuple(
    b"TEXTCOLLBYfGiJUETHQ4h%scKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak" % letter
    for letter in (b"A", b"E")
)


def test_abuse_06_keys(tmp_path: Path) -> None:
    """Empty, 1 MiB, not UTF-8, NUL, two keys with one MD5: cleaning keeps records that Kafka would lose."""
    import hashlib

    assert len({hashlib.md5(key).digest() for key in MD5_PAIR}) == 1 and len(set(MD5_PAIR)) == 2
    keys = [b"", b"x" * (1 << 20) + b"y", b"\xff\xfe", b"\0", b"\0\0", *MD5_PAIR]
    with opened(tmp_path / "d", max_message_bytes="4MiB") as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(2):
            for key in keys:
                topic.append(key, b"%d" % number)
        logs.clean()
        state = {r.key: r.value for r in topic.read()}
    assert state == dict.fromkeys(keys, b"1") and len(records(tmp_path / "d")) == len(keys)


@pytest.mark.slow
def test_abuse_07_keys_of_one_murmur2_value(tmp_path: Path) -> None:
    """All keys go to one partition, as with Kafka's clients; a cleaning is not much slower."""
    hostile, harmless = _colliding(20_000), [struct.pack(">Q", n * 7919) for n in range(20_000)]
    seconds = {}
    for name, keys in (("harmless", harmless), ("hostile", hostile)):
        with opened(tmp_path / name) as logs:
            topic = logs.create_topic("t", 4, cleanup_policy="compact", key_serializer="bytes")
            topic.extend([(key, b"old") for key in keys])
            topic.extend([(key, b"new") for key in keys])
            started = time.monotonic()
            logs.clean()
            seconds[name] = time.monotonic() - started
            assert sum(1 for _ in topic.read(view="newest")) == len(keys)
            if name == "hostile":
                assert sorted(end for _, end in topic.bounds().values())[:3] == [0, 0, 0]
    assert seconds["hostile"] < 2 * seconds["harmless"] + 1.0


def _colliding(count: int) -> list[bytes]:
    """Return 8-byte keys with the same murmur2 value: the second word cancels the effect of the first."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    inverse = pow(m, -1, 1 << 32)

    def mixed(word: int) -> int:
        word = word * m & mask
        word ^= word >> 24
        return word * m & mask

    def unmixed(word: int) -> int:
        word = word * inverse & mask
        word ^= word >> 24
        return word * inverse & mask

    seed = 0x9747B28C ^ 8
    target = 0x12345678
    keys = []
    for first in range(count):
        state = (seed * m & mask) ^ mixed(first)
        second = unmixed((state * m & mask) ^ target)
        keys.append(struct.pack("<II", first, second))
    return keys


@pytest.mark.slow
def test_abuse_08_more_keys_than_the_map_holds(tmp_path: Path) -> None:
    count = 120_000
    with opened(tmp_path / "d", segment_bytes="4MiB") as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for value in (b"old", b"new"):
            topic.extend([(b"key %d" % n, value) for n in range(count)])
    shutil.copytree(tmp_path / "d", tmp_path / "small")
    kept = []
    for name, buffer in (("d", "128MiB"), ("small", "1MiB")):
        with opened(tmp_path / name, log_cleaner_dedupe_buffer_size=buffer) as logs:
            logs.clean()
        kept.append(records(tmp_path / name))
    assert kept[0] == kept[1] and len(kept[0]) == count
    assert all(value == b"new" for _, _, value in kept[0])


# ---------------------------------------------------------------- files and directories


@pytest.mark.parametrize("extension", [".index", ".timeindex"])
def test_abuse_09_index_files(tmp_path: Path, extension: str) -> None:
    """A read is right whatever an index contains; recovery rebuilds it."""
    sound = write_log_dir(tmp_path / "d", 30, segment_bytes=800, index_interval_bytes=100)
    files = sorted((tmp_path / "d" / "t-0").glob("*" + extension))
    other = files[1].read_bytes()
    whole = files[0].read_bytes()
    for bad in (
        b"",
        b"\xff" * 48,
        bytes(48),
        whole[:-3],
        whole + b"abc",
        whole[::-1],
        other,
        whole * 2,
        None,
    ):
        for clean in (True, False):
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "d", copy)
            file = copy / "t-0" / files[0].name
            if bad is None:
                file.unlink()
            else:
                file.write_bytes(bad)
            assert records(copy) == sound and records(copy, start=3, end=5) == sound[3:5]
            if not clean:
                killed(copy)
            with opened(copy, segment_bytes=800, index_interval_bytes=100) as logs:
                for offset in (0, 3, 17, 29):
                    shown = [
                        (r.offset, r.key, r.value) for r in logs.topic("t").read(start=offset, end=offset + 1)
                    ]
                    assert shown == sound[offset : offset + 1]
                assert clean or file.read_bytes() == whole
            shutil.rmtree(copy)


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


BAD_CHECKPOINTS = (
    b"",
    b"0",
    b"0\n1\n",
    b"7\n1\nt 0 3\n",
    b"0\n1\nt 0 -5\n",
    b"0\n1\nt 0 999999\n",
    b"0\n2\nt 0 3\nt 0 4\n",
    b"0\n1\nt 0 99999999999999999999\n",
    b"\xff\xfe\x00",
    b"0\n1\nt x y\n",
)


@pytest.mark.parametrize(
    "name", [names.RECOVERY_POINTS, names.LOG_STARTS, names.FIRST_DIRTY, names.HIGH_WATERMARKS]
)
def test_abuse_11_checkpoints(tmp_path: Path, name: str) -> None:
    sound = write_log_dir(tmp_path / "d", 12, segment_bytes=800)
    for bad in (*BAD_CHECKPOINTS, None):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "d", copy)
        (copy / names.CLEAN_SHUTDOWN).unlink()
        if bad is None:  # a sparse file of 1 GiB
            with (copy / name).open("wb") as file:
                file.truncate(1 << 30)
        else:
            (copy / name).write_bytes(bad)
        with opened(copy, segment_bytes=800) as logs:
            shown = [(r.offset, r.key, r.value) for r in logs.topic("t").read()]
            end = logs.topic("t").append(b"one", b"more").offset
        if not (name == names.LOG_STARTS and bad == BAD_CHECKPOINTS[5]):  # a log start, far above
            assert shown == sound and end == 12
        shutil.rmtree(copy)


def test_abuse_12_names_that_are_no_segments(tmp_path: Path) -> None:
    sound = write_log_dir(tmp_path / "d", 4)
    partition = tmp_path / "d" / "t-0"
    for name in (
        "123.log",
        "9" * 20 + ".log",
        "-0000000000000000001.log",
        "x.log",
        "0000000000000000000x.log",
    ):
        (partition / name).write_bytes(b"not a log")
        assert records(tmp_path / "d") == sound
        with opened(tmp_path / "d") as logs:
            assert len(list(logs.topic("t").read())) == 4
        (partition / name).unlink(missing_ok=True)


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


def test_abuse_12_gaps_and_overlaps(tmp_path: Path) -> None:
    """A segment that overlaps its neighbour is damage."""
    write_log_dir(tmp_path / "d", 30, segment_bytes=800)
    log = logs_of(tmp_path / "d")
    copy = log[1].with_name(f"{int(log[1].stem) + 1:020}.log")
    shutil.copy(log[1], copy)
    result = ended(lambda: records(tmp_path / "d"))
    assert isinstance(result, DataError)
    assert isinstance(ended(lambda: _opened_and_read(killed(tmp_path / "d"))), DataError)


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "/etc",
        "a/../b",
        "a\0b",
        "a\nb",
        "x" * 250,
        "",
        " ",
        "a b",
        "ä",
        "-delete",
        "__cluster_metadata",
    ],
)
def test_abuse_13_topic_names(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "d") as logs:
        result = ended(lambda: logs.create_topic(name))
        if isinstance(result, LastwordError):
            assert isinstance(result, InvalidTopicError)
        else:
            result.append(b"k", b"v")
        assert isinstance(ended(lambda: logs.topic("nosuch")), UnknownTopicError)
    assert _names(tmp_path) == ["d"]


@pytest.mark.parametrize("linked", ["segment", "partition", "lock"])
def test_abuse_13_symbolic_links(tmp_path: Path, linked: str) -> None:
    """A link could lead a write out of the directory, so no write follows a link."""
    write_log_dir(tmp_path / "d", 3)
    outside = tmp_path / "outside"
    outside.mkdir()
    path = {
        "segment": logs_of(tmp_path / "d")[-1],
        "partition": tmp_path / "d" / "t-0",
        "lock": tmp_path / "d" / names.LOCK,
    }[linked]
    target = outside / path.name
    shutil.move(path, target)
    path.symlink_to(target)
    before = {str(p): p.read_bytes() for p in outside.rglob("*") if p.is_file()}

    def write() -> Any:
        with opened(tmp_path / "d") as logs:
            return logs.topic("t").append(b"k", b"v")

    assert isinstance(ended(write), LastwordError)
    assert {str(p): p.read_bytes() for p in outside.rglob("*") if p.is_file()} == before


def test_abuse_14_one_partition_that_cannot_be_read(tmp_path: Path) -> None:
    """Root can read every file, so a planted error makes the system refuse. The other partition works."""
    with opened(tmp_path / "d") as logs:
        topic = logs.create_topic("t", 2)
        for number in range(2):
            topic.append(b"k", b"v", partition=number)
    real_open = os.open

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def open(self, path: Any, *args: Any, **more: Any) -> int:
            if "t-0/0000" in os.fspath(path):
                raise PermissionError(13, "Permission denied", path)
            return real_open(path, *args, **more)

    with planted(Refusing()), opened(tmp_path / "d", files=OsFiles()) as logs:  # type: ignore[arg-type]
        assert isinstance(ended(lambda: logs.topic("t").append(b"k", b"w", partition=0)), LastwordError)
        assert logs.topic("t").append(b"k", b"w", partition=1).offset == 1
        assert len(list(logs.topic("t").read(partition=1))) == 2
    assert len(records(tmp_path / "d")) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_abuse_14_a_directory_that_is_read_only(tmp_path: Path) -> None:
    sound = write_log_dir(tmp_path / "d", 3)
    (tmp_path / "d" / "t-0").chmod(0o500)
    try:
        assert records(tmp_path / "d") == sound
        logs = opened(tmp_path / "d")
        ended(lambda: logs.topic("t").append(b"k", b"v"))
        # The files can be written, so the append may succeed. The directory cannot take a new snapshot.
        assert isinstance(ended(logs.close), NotPermittedError)
    finally:
        (tmp_path / "d" / "t-0").chmod(0o700)
    kept = records(tmp_path / "d")
    assert kept[:3] == sound
    with opened(tmp_path / "d") as logs:
        assert logs.topic("t").append(b"k", b"w").offset == len(kept)


def test_abuse_15_two_writers(tmp_path: Path) -> None:
    write_log_dir(tmp_path / "d", 3)
    with opened(tmp_path / "d") as logs:
        assert isinstance(ended(lambda: opened(tmp_path / "d")), LogDirLockedError)
        child = os.fork()
        if child == 0:  # a fork does not hold the lock, and must not write
            result = ended(lambda: opened(tmp_path / "d"))
            os._exit(0 if isinstance(result, LogDirLockedError) else 1)
        assert os.waitpid(child, 0)[1] == 0
        code = f"import lastword; lastword.open({str(tmp_path / 'd')!r}, 'a')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "LogDirLockedError" in done.stderr and str(os.getpid()) in done.stderr
        assert logs.topic("t").append(b"k", b"v").offset == 3


def test_abuse_15_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    write_log_dir(tmp_path / "d", 3)
    code = f"""
import time, lastword
logs = lastword.open({str(tmp_path / "d")!r}, "a")
print("open", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"open\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    started = time.monotonic()
    with opened(tmp_path / "d") as logs:
        assert logs.topic("t").append(b"k", b"v").offset == 3
    assert time.monotonic() - started < 5


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


def test_abuse_17_a_full_drive(tmp_path: Path) -> None:
    """A full drive during append, roll, clean and close; once there is room, everything continues."""
    faulty = FaultyOs("pwrite", 28, sticky=True)
    with planted(faulty):
        logs = opened(tmp_path / "d", files=OsFiles(), segment_bytes=800)
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(20):
            topic.append(b"k%d" % (number % 3), b"value %d" % number)
        faulty.fail_at, faulty.armed = 0, True
        for _ in range(3):
            assert isinstance(ended(lambda: topic.append(b"k", b"x")), DiskFullError)
            assert isinstance(ended(lambda: topic.extend([(b"k", b"y" * 300)] * 9)), DiskFullError)
            assert isinstance(ended(logs.clean), DiskFullError)
        assert [r.offset for r in topic.read()] == list(range(20))
        faulty.armed = False
        assert topic.append(b"k0", b"with room again").offset == 20
        logs.clean()
        assert {r.key: r.value for r in topic.read()}[b"k0"] == b"with room again"
        logs.close()
    assert records(tmp_path / "d", view="newest")[-1][2] == b"with room again"
    assert not [n for n in _names(tmp_path / "d" / "t-0") if n.endswith((".cleaned", ".swap", ".deleted"))]


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


@pytest.mark.slow
def test_abuse_19_few_file_handles(tmp_path: Path) -> None:
    """64 handles, 150 partitions: all partitions are written and read."""
    code = f"""
import resource, lastword
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with lastword.open({str(tmp_path / "d")!r}, "a", segment_bytes=2000) as logs:
    topic = logs.create_topic("t", 150)
    for n in range(150):
        topic.append(b"k", b"%d" % n, partition=n)
    for n in range(150):
        topic.append(b"k", b"again", partition=n)
with lastword.open({str(tmp_path / "d")!r}) as logs:
    print(sum(1 for _ in logs.topic("t").read()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "300"


def test_abuse_20_readers_over_a_cleaning(tmp_path: Path) -> None:
    """A reader that is active during a cleaning continues in order, with every newest value; a reader that
    pauses for longer than `delete.retention.ms` misses a tombstone, as documented for the setting.
    """
    clock = ManualClock(NOW)
    with opened(tmp_path / "d", clock=clock, segment_bytes=800) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", delete_retention_ms=HOUR)
        for number in range(60):
            topic.append(b"k%d" % (number % 5), b"value %d" % number)
        topic.append(b"gone", b"x")
        topic.delete(b"gone")
        reader = topic.read()
        paused = topic.read()
        seen = [next(reader) for _ in range(7)]
        assert next(paused).offset == 0
        logs.clean()
        seen += list(reader)
        offsets = [r.offset for r in seen]
        assert offsets == sorted(set(offsets))
        assert {r.key: r.value for r in seen} == {
            **{b"k%d" % (n % 5): b"value %d" % n for n in range(60)},
            b"gone": None,
        }
        clock.advance(2 * HOUR)
        topic.append(b"other", b"x")
        logs.clean()
        logs.clean()
        late = {r.key: r.value for r in paused}
        assert {k: v for k, v in late.items() if k != b"gone"} | {b"other": b"x"} == {
            **{b"k%d" % (n % 5): b"value %d" % n for n in range(60)},
            b"other": b"x",
        }
