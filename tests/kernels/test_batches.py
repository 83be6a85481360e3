from __future__ import annotations

from itertools import cycle

import numpy as np
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword import kernels
from lastword.kernels import table as fields
from lastword.kernels.batches import assign_offsets, find_plain_zstd, rows_that_fit, walk_batches
from lastword.records.compression import compress
from lastword.records.formats import build_message
from lastword.records.record import RawRecord
from tests.kernels.support import padded, walked
from tests.naive.batches import Header, is_plain_zstd, most_plain_bytes, walk
from tests.naive.batches import assign_offsets as naive_assign_offsets
from tests.naive.pack import Record, encode_batch, seal
from tests.naive.strategies import T, batches
from tests.support.legacy import build_wrapper

NAMES = {
    kernels.OK: "ok",
    kernels.MORE: "more",
    kernels.BAD_LENGTH: "length",
    kernels.BAD_MAGIC: "magic",
    kernels.BAD_CRC: "crc",
    kernels.BAD_OFFSET: "offset",
    kernels.BAD_COUNT: "count",
    kernels.BAD_RECORD: "record",
}
ORDER = (
    fields.POSITION,
    fields.SIZE,
    fields.BASE_OFFSET,
    fields.LAST_OFFSET,
    fields.ATTRIBUTES,
    fields.COUNT,
    fields.BASE_TIMESTAMP,
    fields.MAX_TIMESTAMP,
    fields.PRODUCER_ID,
    fields.PRODUCER_EPOCH,
    fields.BASE_SEQUENCE,
    fields.LEADER_EPOCH,
    fields.CRC,
)


def check(data: bytes) -> None:
    headers, position, stopped = walk(data)
    _, table, reached, status = walked(data)
    assert (reached, NAMES[status]) == (position, stopped)
    assert [Header(*(int(row[i]) for i in ORDER)) for row in table] == headers


@st.composite
def any_magic(draw: st.DrawFn, most: int = 8) -> list[bytes]:
    """Draw batches and entries of all magics, with rising offsets."""
    log, offset = [], draw(st.integers(0, 5))
    for kind in draw(st.lists(st.integers(0, 4), max_size=most)):
        magic, codec = kind % 2, draw(st.integers(1, 3))
        value = draw(st.none() | st.binary(max_size=20))
        if kind < 2:
            log.append(build_message(magic, offset, b"k", value, T if magic else -1))
        elif kind < 4:
            pair = [RawRecord(offset + n, T if magic else -1, 0, b"k", value) for n in (0, 3)]
            log.append(build_wrapper(magic, codec, pair))
            offset += 3
        else:
            log.append(encode_batch([Record(offset, T, b"k", value)]))
        offset += draw(st.integers(1, 3))
    return log


@given(batches() | any_magic())
def test_sound_logs(log: list[bytes]) -> None:
    check(b"".join(log))


@given(batches(most=3) | any_magic(most=3), st.data())
def test_damaged_logs(log: list[bytes], data: st.DataObject) -> None:
    joined = bytearray(b"".join(log))
    if joined:
        for _ in range(data.draw(st.integers(1, 3))):
            joined[data.draw(st.integers(0, len(joined) - 1))] ^= data.draw(st.integers(1, 255))
        del joined[data.draw(st.integers(0, len(joined))) :]
    check(bytes(joined))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    check(data)


def test_zeros_are_a_bad_length() -> None:
    assert walked(bytes(100))[2:] == (0, kernels.BAD_LENGTH)


@given(batches(), st.integers(1, 3))
def test_a_full_table_goes_on_where_it_stopped(log: list[bytes], rows: int) -> None:
    data = b"".join(log)
    raw = padded(data)
    table = np.zeros((rows, fields.FIELDS), np.int64)
    position, offset, total, status = 0, 0, 0, kernels.FULL
    while status == kernels.FULL:
        count, position, offset, status = walk_batches(raw, position, len(data), 0, offset, True, table, 0)
        total += count
    assert (status, total, position) == (kernels.OK, len(log), len(data))


def test_a_buffer_without_slack_is_refused() -> None:
    raw = np.zeros(100, np.uint8)
    table = np.zeros((1, fields.FIELDS), np.int64)
    assert walk_batches(raw, 0, 100, 0, 0, True, table, 0)[3] == kernels.NO_SLACK
    assert walk_batches(raw, -1, 10, 0, 0, True, table, 0)[3] == kernels.NO_SLACK


def test_a_batch_may_not_begin_where_the_last_one_ended() -> None:
    batch = encode_batch([Record(5, 0, b"k", b"v")])
    assert walked(batch + batch)[2:] == (len(batch), kernels.BAD_OFFSET)
    assert walked(batch, 6)[3] == kernels.BAD_OFFSET
    assert walked(batch, 5)[3] == kernels.OK


@given(
    batches(),
    st.lists(st.sampled_from([0, 1, 2, 3, 4, "zstd with size", "two frames"]), min_size=1),
    st.data(),
)
def test_rows_within_a_bound(log: list[bytes], codecs: list[int | str], data: st.DataObject) -> None:
    packed = []
    for batch, codec in zip(log, cycle(codecs), strict=False):
        head, records = bytearray(batch[:61]), batch[61:]
        number = codec if isinstance(codec, int) else 4
        head[22] = head[22] & ~7 | number
        if codec == "zstd with size":
            body = zstandard.ZstdCompressor(write_checksum=True).compress(records)
        elif codec == "two frames":
            body = compress(4, records) + compress(4, b"")
        else:
            body = compress(number, records)
        packed.append((seal(bytes(head) + body), len(records)))
    raw, table, _, _ = walked(b"".join(batch for batch, _ in packed))
    bounds = [most_plain_bytes(batch) for batch, _ in packed]
    for bound, (_, size) in zip(bounds, packed, strict=True):
        assert bound is not None
        assert bound >= size
    skip_rows = np.array(data.draw(st.lists(st.integers(0, 1), max_size=len(bounds))), np.uint8)
    dropped = set(skip_rows.nonzero()[0].tolist())
    most = data.draw(st.integers(1, sum(bound or 0 for bound in bounds) + 1))
    expected = total = 0
    for row, bound in enumerate(bounds):
        total += 0 if row in dropped else bound or 0
        if total > most and row and row not in dropped:
            break
        expected += 1
    assert rows_that_fit(raw, table, len(table), skip_rows, most) == expected


@given(st.binary(max_size=60))
def test_rows_within_a_bound_of_damaged_zstd(junk: bytes) -> None:
    head = bytearray(encode_batch([Record(0, T, b"k", None)])[:61])
    head[22] = 4
    damaged = seal(bytes(head) + b"\x28\xb5\x2f\xfd" + junk)
    raw, table, _, _ = walked(damaged + encode_batch([Record(1, T, b"k", None)]))
    bound = most_plain_bytes(damaged)
    expected = 1 if bound is None or bound > (1 << 20) - 69 else 2
    assert rows_that_fit(raw, table, 2, np.empty(0, np.uint8), 1 << 20) == (expected)


@given(st.lists(st.sampled_from(["plain", "checksum", "size", "two", "cut", "more", "junk"])), st.data())
def test_plain_frames_of_zstd(kinds: list[str], data: st.DataObject) -> None:
    frames = []
    for kind in kinds:
        plain = compress(4, b"v" * data.draw(st.integers(0, 70)) + data.draw(st.binary(max_size=40)))
        frames.append(
            {
                "plain": plain,
                "checksum": plain[:4] + b"\x04" + plain[5:] + bytes(4),
                "size": zstandard.ZstdCompressor().compress(b"v" * 300),
                "two": plain + plain,
                "cut": plain[: data.draw(st.integers(0, len(plain) - 1))],
                "more": plain + b"\0",
                "junk": plain[:6] + data.draw(st.binary(max_size=12)),
            }[kind]
        )
    ends = np.cumsum([len(frame) for frame in frames], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(frames)]
    marks = np.empty(len(frames), np.bool_)
    find_plain_zstd(padded(b"".join(frames)), starts, ends, marks)
    assert marks.tolist() == [is_plain_zstd(frame) for frame in frames]
    assert all(marks[number] for number, kind in enumerate(kinds) if kind == "plain")


def test_no_plain_frame_outside_the_buffer() -> None:
    frame = compress(4, b"value")
    raw, marks = padded(frame), np.ones(3, np.bool_)
    places = np.array([(-1, len(frame) - 1), (1, len(frame) + 1), (0, len(frame))], np.int64)
    find_plain_zstd(raw, places[:, 0].copy(), places[:, 1].copy(), marks)
    assert marks.tolist() == [False, False, True]


@st.composite
def some_batches(draw: st.DrawFn) -> list[bytes]:
    encoded = []
    for number in range(draw(st.integers(0, 11))):
        value = b"v" * draw(st.integers(0, 70))
        data = bytearray(
            encode_batch([Record(9, 5 + number, b"k", value, ())], base_offset=9, last_offset=9 + number)
        )
        if draw(st.integers(0, 7)) == 0:
            data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
        if draw(st.integers(0, 15)) == 0:
            del data[draw(st.integers(0, len(data))) :]
        encoded.append(bytes(data))
    return encoded


def placed(batches: list[bytes], next_offset: int, epoch: int) -> tuple[int, list[bytes], np.ndarray]:
    data = np.frombuffer(b"".join(batches) + bytes(kernels.SLACK), np.uint8).copy()
    sizes = np.array([len(batch) for batch in batches], np.int64)
    table = np.zeros((sizes.size, fields.FIELDS), np.int64)
    rows = assign_offsets(data, sizes, next_offset, epoch, table)
    ends = np.cumsum(sizes)
    return rows, [data[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)], table


@settings(deadline=None)
@given(some_batches(), st.sampled_from([0, 7, 2**63 - 20, 2**63 - 1]), st.integers(-1, 2**31 - 1))
def test_placed_like_the_twin(batches: list[bytes], next_offset: int, epoch: int) -> None:
    rows, placed_batches, table = placed(batches, next_offset, epoch)
    assert (rows, placed_batches) == naive_assign_offsets(batches, next_offset, epoch)
    if rows == len(batches):
        position = 0
        for row, data in enumerate(placed_batches):
            assert table[row, fields.POSITION] == table[row, fields.FILE_POSITION] == position
            assert table[row, fields.SIZE] == len(data)
            assert table[row, fields.BASE_OFFSET] == int.from_bytes(data[:8], "big")
            assert table[row, fields.LEADER_EPOCH] == epoch
            assert table[row, fields.MAX_TIMESTAMP] == int.from_bytes(data[35:43], "big", signed=True)
            position += len(data)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=4, max_size=4))
def test_four_checksums_side_by_side(parts: list[bytes]) -> None:
    """The batches of `assign_offsets` with their own checksums, in every order of their lengths."""
    batches = [encode_batch([Record(0, 1, None, part, ())], base_offset=0, last_offset=0) for part in parts]
    assert placed(batches, 0, 0)[0] == 4
    for number in range(4):
        broken = list(batches)
        broken[number] = broken[number][:-1] + bytes([broken[number][-1] ^ 1])
        assert placed(broken, 0, 0)[0] == number
