"""New files in memory that keep the buffer of an append, and do not copy it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pyarrow as pa
import pytest

import lastword
from lastword.bucket import scratch
from lastword.bucket.scratch import LocalFile, ScratchSpace
from lastword.clock import ManualClock
from lastword.files.given import GivenBuffer
from lastword.files.interface import GivenBytes

Open = Callable[..., lastword.LogDir]
MIB = 1 << 20


@pytest.fixture
def file() -> Iterator[LocalFile]:
    with ScratchSpace(None, ManualClock()) as space:
        yield LocalFile(space, 1)


def given(size: int, value: int = 7) -> GivenBuffer:
    buffer = GivenBuffer.of(size)
    buffer[:] = value
    return buffer


@pytest.mark.parametrize(
    ("data", "is_kept"),
    [
        (given(MIB).data[: MIB - 100], True),
        (given(4 * MIB).data[:MIB], False),
        (np.full(MIB, 8, np.uint8).data, False),
    ],
    ids=["most of a given buffer", "a small part of one", "another buffer"],
)
def test_a_given_buffer_is_kept_and_another_one_is_copied(
    file: LocalFile, data: memoryview, is_kept: bool
) -> None:
    with file.open("x") as handle:
        handle.append(data)
    assert np.shares_memory(np.frombuffer(file.content()[-1], np.uint8), data) == is_kept
    assert file.facts().size == len(data)


def test_a_file_with_a_given_buffer_is_written_as_any_other(file: LocalFile) -> None:
    buffer = given(MIB)
    with file.open("x") as handle:
        handle.append(buffer.data)
        handle.pwrite(b"abc", 10)
        assert buffer[10] == 7  # the buffer is not changed
        handle.append(b"end")
        assert handle.pread(4, 9) == b"\x07abc"
        assert handle.pread(10, MIB) == b"end"
        handle.truncate(12)
        assert handle.pread(100, 0) == b"\x07" * 10 + b"ab"


@pytest.mark.parametrize("seed", range(20))
def test_a_file_of_pieces_is_one_of_bytes(file: LocalFile, seed: int) -> None:
    rng, twin = Random(seed), bytearray()
    with file.open("x") as handle:
        for _ in range(60):
            data = rng.randbytes(rng.choice([1, 100, 5000]))
            action, at = rng.choice("aaagggggwt"), rng.randrange(len(twin) + 50)
            if action == "w":
                twin.extend(bytes(max(0, at - len(twin))))
                handle.pwrite(data, at)
                twin[at : at + len(data)] = data
            elif action == "t":
                handle.truncate(at)
                twin = (twin + bytes(50))[:at]
            else:
                handle.append(GivenBytes(data) if action == "g" else data)
                twin += data
            start, size = rng.randrange(len(twin) + 2), rng.randrange(12_000)
            assert handle.pread(size, start) == twin[start : start + size]
        assert b"".join(file.content()) == twin
    assert b"".join(file.content()) == twin


def test_given_bytes_are_not_copied(file: LocalFile) -> None:
    given = [GivenBytes(b"x" * 5000), GivenBytes(b"y" * 5000)]
    with file.open("x") as handle:
        for data in given:
            handle.append(data)
    pieces = file.content()
    assert [piece.obj is data for piece, data in zip(pieces, given, strict=True)] == [True, True]
    with pytest.raises(BufferError):
        given[0].append(1)  # a view of it is in the file


def test_a_file_with_a_given_buffer_moves_to_the_drive(file: LocalFile) -> None:
    with file.open("x") as handle:
        handle.append(given(MIB).data)
        handle.append(GivenBytes(b"z" * 5000))
        file._scratch._free_bytes = 0
        handle.append(b"end")
        assert file.path is not None
        assert handle.size() == MIB + 5003
        assert handle.pread(4, MIB - 2) == b"\x07\x07zz"
        assert handle.pread(9, MIB + 4999) == b"zend"


def test_a_large_append_to_a_log_in_a_bucket_copies_its_batches_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    original = scratch._is_given

    def note(data: memoryview) -> bool:
        kept.append(original(data))
        return kept[-1]

    monkeypatch.setattr(scratch, "_is_given", note)
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    pairs = {b"k%d" % number: b"v" * 1000 for number in range(3000)}
    table = pa.table({"key": list(pairs), "value": list(pairs.values())})
    for _ in range(2):
        topic.extend(table)
    assert kept.count(True) == 2
    assert {record.key: record.value for record in topic.read(view="newest")} == pairs
    assert logs.verify().ok
