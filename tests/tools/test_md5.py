"""Keys of one MD5 are found with any memory size; keys of different MD5 are never reported."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.config.tables import DEFAULT_MAP_BYTES
from lastword.errors import CorruptBatchError, NotPermittedError, StorageError
from lastword.files import DEFAULT
from lastword.files.scratch import Scratch
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.resolve import whole
from lastword.segment.segment import Segment
from lastword.tools import md5
from tests.build import LogBuilder
from tests.cleaner.transactional import Producer
from tests.golden import loader
from tests.support.damage import flip

KEYS = sorted(
    {
        line["key"]
        for line in loader.case("md5-collision").expected("round1-before")
        if len(line["key"]) == 72 and line["key"].startswith(b"TEXTCOLL")
    }
)
DIGEST = hashlib.md5(KEYS[0]).hexdigest()


def view_of(log: LogBuilder) -> PartitionView:
    return PartitionView.load(DirectorySegments(log.files, log.directory))


def test_the_two_keys_are_what_they_should_be() -> None:
    assert len(KEYS) == 2 and KEYS[0] != KEYS[1]
    assert hashlib.md5(KEYS[1]).hexdigest() == DIGEST


def many_keys(directory: Path, value: bytes = b"v") -> LogBuilder:
    """Return a log of 1552 keys, 1500 of them twice, and among them the two keys with one MD5."""
    log = LogBuilder(directory, segment_bytes=20_000)
    for number in range(30):
        log.batch([(b"key %d" % (number * 50 + n), value) for n in range(100)])
        if number in (3, 7, 20):
            log.put(KEYS[0], b"%d" % number)
        if number == 11:
            log.delete(KEYS[1])
    return log


def check_many_keys(md5_check: md5.Md5Check) -> None:
    (collision,) = md5_check.collisions
    assert (collision.md5, collision.topic, collision.partition) == (DIGEST, "users", 0)
    assert collision.keys == (KEYS[1], KEYS[0]) and collision.offsets == (1202, 2103)
    assert md5_check.keys == 1552


@pytest.mark.parametrize("memory_bytes", [DEFAULT_MAP_BYTES, 40_000, 12_000])
def test_both_keys_are_found_among_many_in_any_memory(tmp_path: Path, memory_bytes: int) -> None:
    log = many_keys(tmp_path)
    md5_check = md5.md5_collisions(view_of(log), memory_bytes=memory_bytes)
    check_many_keys(md5_check)
    assert (md5_check.passes > 3) == (memory_bytes < 50_000)
    log.close()


@pytest.fixture
def divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogBuilder]:
    """Return a log that takes a scratch file if its keys do not fit."""
    monkeypatch.setattr(whole, "DIVIDE_FROM_BYTES", 0)
    log = many_keys(tmp_path, b"v" * 100)
    yield log
    log.close()


def test_more_keys_than_memory_take_one_reading(
    divided: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files have no name, and the part up to which the map was full is read another time."""
    names = sorted(tmp_path.rglob("*"))
    read: list[int] = []
    real_reader, real_append = Segment.chunk_reader, Scratch.append

    def reader(self: Segment, *where: Any, **how: Any) -> Iterator[Any]:
        for chunk in real_reader(self, *where, **how):
            read.append(chunk.size_bytes)
            yield chunk

    def append(self: Scratch, data: Any) -> int:
        assert sorted(tmp_path.rglob("*")) == names
        return real_append(self, data)

    view = view_of(divided)
    size = sum(segment.size for segment in view.segments)
    reports: list[int] = []
    monkeypatch.setattr(Segment, "chunk_reader", reader)
    monkeypatch.setattr(Scratch, "append", append)
    md5_check = md5.md5_collisions(view, memory_bytes=12_000, progress=reports.append)
    check_many_keys(md5_check)
    assert md5_check.passes == 1 and size < sum(read) < 1.5 * size
    assert 0 <= sum(read) - md5_check.read_bytes <= max(read)  # the chunk at which the map was full
    assert 0 < max(reports) <= size
    monkeypatch.setattr(whole, "DIVIDE_FROM_BYTES", 4 << 20)
    in_passes = md5.md5_collisions(view, memory_bytes=12_000)
    assert in_passes.collisions == md5_check.collisions and in_passes.keys == md5_check.keys
    assert in_passes.passes > 5 and in_passes.read_bytes > 5 * size


def absent(directory: str) -> Scratch:
    raise NotPermittedError("cannot open it", file=directory)


def full(self: Scratch, data: Any) -> int:
    raise StorageError("cannot write", file=self.path)


def flipped_keys(self: Scratch, buffer: Any, position: int) -> int:
    count = os.preadv(self._fd, [buffer], position)
    buffer[count // 2] ^= 1
    return count


def flipped_index(self: Scratch, n: int, position: int) -> bytes:
    data = bytearray(os.pread(self._fd, n, position))
    if position + n == self.size():  # the index of a run
        data[-40] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("without_name", staticmethod(absent)),
        ("append", full),
        ("pread_into", flipped_keys),
        ("pread", flipped_index),
    ],
    ids=["a directory that is read only", "a broken drive", "damage of the keys", "damage of an index"],
)
def test_without_the_files_there_are_passes(
    divided: LogBuilder, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any
) -> None:
    monkeypatch.setattr(Scratch, name, fault)
    md5_check = md5.md5_collisions(view_of(divided), memory_bytes=12_000)
    check_many_keys(md5_check)
    assert md5_check.passes > 5


def test_damage_of_the_log_is_raised_beside_a_scratch_file(divided: LogBuilder) -> None:
    path = Path(view_of(divided).segments[1].file)
    flip(path, -5)
    with pytest.raises(CorruptBatchError):
        md5.md5_collisions(view_of(divided), memory_bytes=12_000)


def test_keys_of_an_open_transaction_are_not_in_the_scratch_file(divided: LogBuilder) -> None:
    producer = Producer(divided, 8)
    producer.put((b"key 7", b"aborted"), (KEYS[1], b"aborted")).abort()
    Producer(divided).put((b"key 5", b"open"), (KEYS[0], b"open"), (None, b"open"))
    divided.put(b"key 6", b"v")
    view = view_of(divided)
    md5_check, at_once = (md5.md5_collisions(view, memory_bytes=n) for n in (12_000, DEFAULT_MAP_BYTES))
    assert md5_check.collisions == at_once.collisions and md5_check.keys == at_once.keys == 1552
    assert [collision.offsets for collision in md5_check.collisions] == [(1202, 3008)]
    assert md5_check.passes == 1 and at_once.passes == 3


def test_the_same_key_again_and_again_is_no_collision(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    for number in range(5):
        log.put(KEYS[0], b"%d" % number).put(None, b"no key").roll()
    md5_check = md5.md5_collisions(view_of(log))
    assert (md5_check.collisions, md5_check.keys, md5_check.passes) == ((), 1, 2)
    log.close()


def test_an_empty_log_has_none(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    assert log.log.log_end == 0
    assert md5.md5_collisions(view_of(log)).collisions == ()
    log.close()


def test_a_prefix_shared_by_chance_is_no_collision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests that agree in their first 8 bytes only."""
    log = LogBuilder(tmp_path).put("a", 1).put("b", 2).put("c", 3)
    monkeypatch.setattr(md5, "_digest", lambda key: b"12345678" + hashlib.md5(key).digest()[:8])
    md5_check = md5.md5_collisions(view_of(log))
    assert md5_check.collisions == () and md5_check.passes == 3
    log.close()


def test_a_key_of_an_open_transaction_met_outside_it_is_one_key(tmp_path: Path) -> None:
    """Both records of the key are live, because the transaction is undecided."""
    log = LogBuilder(tmp_path).put("a", 1)
    Producer(log).put(("a", 2), (KEYS[0], 1))
    Producer(log, 8).put((KEYS[1], 1)).abort()
    assert md5.md5_collisions(view_of(log)).collisions == ()
    log.put(KEYS[1], 2)
    assert [collision.keys for collision in md5.md5_collisions(view_of(log)).collisions] == [
        (KEYS[0], KEYS[1])
    ]
    log.close()


def test_the_golden_case_and_a_log_of_kafka_without(tmp_path: Path) -> None:
    for name, count in (("md5-collision", 1), ("compact-none-dr0", 0)):
        stage = "round1-before"
        directory = loader.case(name).unpack(tmp_path, stage) / stage / f"{name}-0"
        md5_check = md5.md5_collisions(PartitionView.load(DirectorySegments(DEFAULT, str(directory))))
        assert len(md5_check.collisions) == count


def test_verify_tells_and_damage_does_not_stop_it(tmp_path: Path) -> None:
    heard = []
    with lastword.open(tmp_path / "d", "a", log_cleaner_enable=False) as logs:
        for name in ("t", "u"):
            topic = logs.create_topic(name, cleanup_policy="compact")
            for key in KEYS:
                topic.append(key, b"v")
        assert logs.verify().collisions == ()
        verification = logs.verify(md5=True, progress=heard.append)
        assert (
            not verification.ok
            and not verification.problems
            and verification.keys == 4
            and [collision.topic for collision in verification.collisions] == ["t", "u"]
        )
        assert verification.to_dict()["collisions"][0]["md5"] == DIGEST
        assert logs.verify("u", md5=True).keys == 2
    assert {progress.verb for progress in heard} >= {"verify", "compare keys"}
    path = tmp_path / "d" / "t-0" / f"{0:020d}.log"
    flip(path, 100, 255)
    with lastword.open(tmp_path / "d") as logs:
        verification = logs.verify(md5=True)
        assert not verification.ok and [collision.topic for collision in verification.collisions] == ["u"]
        assert any("keys were not compared" in problem.text for problem in verification.problems)
