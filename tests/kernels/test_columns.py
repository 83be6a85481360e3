from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import kernels
from lastword.kernels import table as fields
from lastword.kernels.columns import (
    RECORD_FIELDS,
    ColumnArrays,
    check_records,
    decode_headers,
    decode_live_rows,
    decode_rows,
    find_plain,
    find_record,
)
from lastword.records.columns import binary_array, byte_strings
from lastword.resolve import DeadBitmaps
from tests.kernels.support import padded, walked
from tests.naive.batches import Header, walk
from tests.naive.columns import BadRecord, check, decode, gather, live
from tests.naive.pack import Record, encode_batch, seal
from tests.naive.strategies import batches


def kernel_decode(data: bytes, *, with_control: bool = True) -> tuple[list[Record], int]:
    raw, table, _, _ = walked(data)
    arrays = ColumnArrays.empty(len(data))
    done, _, status = decode_rows(raw, table, len(table), with_control, arrays)
    return records_in(raw, arrays, done), status


def records_in(raw: np.ndarray, arrays: ColumnArrays, done: int) -> list[Record]:
    offset, time, key_at, key_size, value_at, value_size, header_at, header_count, _ = (
        a[:done] for a in arrays
    )
    total = int(header_count.sum())
    spans = [np.zeros(total, kind) for kind in (np.int64, np.int32, np.int64, np.int32)]
    assert decode_headers(raw, header_at, header_count, *spans) == total
    pairs = iter(
        [
            (raw[a : a + n].tobytes(), raw[b : b + m].tobytes() if m >= 0 else None)
            for a, n, b, m in zip(*spans, strict=True)
        ]
    )
    return [
        Record(
            int(offset[i]),
            int(time[i]),
            raw[key_at[i] : key_at[i] + key_size[i]].tobytes() if key_size[i] >= 0 else None,
            raw[value_at[i] : value_at[i] + value_size[i]].tobytes() if value_size[i] >= 0 else None,
            tuple(next(pairs) for _ in range(header_count[i])),
        )
        for i in range(done)
    ]


def naive_decode(data: bytes, *, with_control: bool = True) -> tuple[list[Record], int]:
    records: list[Record] = []
    for header in walk(data)[0]:
        if header.attributes & 0x20 and not with_control:
            continue
        try:
            records += decode(data, header)
        except BadRecord:
            return records, kernels.BAD_RECORD
    return records, kernels.OK


@given(batches(most=8), st.sets(st.integers(0, 60)), st.integers(0, 40), st.booleans())
def test_live_records(log: list[bytes], numbers: set[int], first_offset: int, tombstones: bool) -> None:
    """Those that the bits, the first offset and their keys leave over."""
    data = b"".join(log)
    every, _ = naive_decode(data, with_control=False)
    first_offset += every[0].offset if every else 0
    gone = {record.offset for number, record in enumerate(every) if number in numbers}
    raw, table, _, _ = walked(data)
    arrays = ColumnArrays.empty(len(data))
    dead = DeadBitmaps.of(sorted(gone)).arrays
    done, row, status = decode_live_rows(raw, table, len(table), dead, first_offset, tombstones, arrays)
    assert (row, status) == (len(table), kernels.OK)
    assert records_in(raw, arrays, done) == live(every, gone, first_offset, tombstones=tombstones)
    rows = arrays.row[:done]
    assert (table[rows, fields.BASE_OFFSET] <= arrays.offset[:done]).all()
    assert (arrays.offset[:done] <= table[rows, fields.LAST_OFFSET]).all()


def test_batches_that_are_wholly_dead_are_not_read() -> None:
    """A reader does not decompress them. All other damage is found, also in dead records."""
    log = [encode_batch([Record(n, 0, b"a", b"1"), Record(n + 1, 0, b"b", b"2")]) for n in (0, 2)]
    raw, table, _, _ = walked(b"".join(log))
    arrays = ColumnArrays.empty(8)
    table[0, fields.RECORDS_END] = table[0, fields.RECORDS_POSITION]
    for bits, result in (([0, 1], (2, 2, kernels.OK)), ([0], (0, 0, kernels.BAD_COUNT))):
        dead = DeadBitmaps.of(bits).arrays
        assert decode_live_rows(raw, table, 2, dead, 0, True, arrays) == result
    raw, table, _, _ = walked(b"".join(log))
    raw[table[1, fields.RECORDS_POSITION]] = 255
    assert decode_live_rows(raw, table, 2, DeadBitmaps.of([2]).arrays, 0, True, arrays) == (
        2,
        1,
        kernels.BAD_RECORD,
    )
    raw, table, _, _ = walked(b"".join(log))
    few = ColumnArrays.empty(1)
    assert decode_live_rows(raw, table, 2, DeadBitmaps.of([0]).arrays, 0, True, few) == (1, 1, kernels.FULL)
    table[0, fields.RECORDS_END] = raw.size
    assert decode_live_rows(raw, table, 1, DeadBitmaps.of([0]).arrays, 0, True, arrays)[2] == kernels.NO_SLACK


def looked_up(header: Header) -> list[int]:
    """Return offsets in a batch and beside it."""
    base, last = header.base_offset, header.last_offset
    return sorted({*range(base - 1, min(base + 8, last)), *range(max(base, last - 8), last + 2)})


def kernel_find(data: bytes) -> list[tuple[Record | None, int]]:
    """Return a record, with empty pairs as headers, and a status for offsets of each batch."""
    raw, table, _, _ = walked(data)
    fields = np.empty(RECORD_FIELDS, np.int64)
    results: list[tuple[Record | None, int]] = []
    for row, header in enumerate(walk(data)[0]):
        for offset in looked_up(header):
            found, status = find_record(raw, table, row, offset, fields)
            record = None
            if found:
                time, key_at, key_size, value_at, value_size, headers = fields.tolist()
                key = raw[key_at : key_at + key_size].tobytes() if key_size >= 0 else None
                value = raw[value_at : value_at + value_size].tobytes() if value_size >= 0 else None
                record = Record(offset, time, key, value, ((b"", None),) * headers)
            results.append((record, status))
    return results


def naive_find(data: bytes) -> list[tuple[Record | None, int]]:
    results: list[tuple[Record | None, int]] = []
    for header in walk(data)[0]:
        try:
            records, status = {record.offset: record for record in decode(data, header)}, kernels.OK
        except BadRecord:
            records, status = {}, kernels.BAD_RECORD
        for offset in looked_up(header):
            record = records.get(offset)
            if record is not None:
                record = replace(record, headers=((b"", None),) * len(record.headers))
            results.append((record, status))
    return results


EXCLUDED = 0x27  # compressed, or a control batch


def kernel_find_plain(data: bytes, offset: int, below: int = 0, first: int = -1, bound: int = -1) -> Any:
    """Return the record that `find_plain` finds without headers, and the bytes of its batch; None: none."""
    raw, record = padded(data), np.empty(RECORD_FIELDS, np.int64)
    size, _ = find_plain(raw, len(data), below, first, offset, bound, EXCLUDED, record)
    if not size:
        return None
    time, key_at, key_size, value_at, value_size, headers = record.tolist()
    assert headers == 0 and 0 <= key_at <= len(data) and 0 <= value_at <= len(data)
    key = data[key_at : key_at + key_size] if key_size >= 0 else None
    return Record(
        offset, time, key, data[value_at : value_at + value_size] if value_size >= 0 else None
    ), size


@given(batches())
def test_a_plain_record_is_found_in_the_bytes_of_a_log(log: list[bytes]) -> None:
    data, offsets, expected = b"".join(log), set[int](), {}
    is_plain = True
    for header in walk(data)[0]:
        offsets.update(looked_up(header))
        is_plain = is_plain and data[header.position + 16] == 2
        if (
            is_plain
            and not int.from_bytes(data[header.position + 21 : header.position + 23], "big") & EXCLUDED
        ):
            size = int.from_bytes(data[header.position + 8 : header.position + 12], "big") + 12
            found = {record.offset: (record, size) for record in decode(data, header) if not record.headers}
            expected |= found
    assert {o: kernel_find_plain(data, o) for o in offsets} == {o: expected.get(o) for o in offsets}


def test_what_a_lookup_must_not_trust() -> None:
    """Each of these is left to another way: the checksum, base offsets, the index, a count, the end."""
    one = encode_batch([Record(offset, 7, b"k%d" % offset, b"v") for offset in (4, 5)])
    two = encode_batch([Record(offset, 7, b"k%d" % offset, b"v") for offset in (6, 8)])
    data = one + two
    assert kernel_find_plain(data, 5) == (Record(5, 7, b"k5", b"v"), len(one))
    assert kernel_find_plain(data, 8, below=4, first=5, bound=9) == (Record(8, 7, b"k8", b"v"), len(two))
    for offset, more in ((7, {}), (9, {}), (3, {}), (5, {"below": 5}), (5, {"first": 4}), (8, {"bound": 8})):
        assert kernel_find_plain(data, offset, **more) is None
    for at in (16, 21, 30, len(one) - 1, len(one) + 16, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert kernel_find_plain(bytes(damaged), 8) is None
        assert (kernel_find_plain(bytes(damaged), 5) is None) == (at < len(one))
    lower = bytearray(data)
    lower[len(one) + 7] = 5  # no checksum covers it: the second batch begins inside the first
    assert kernel_find_plain(bytes(lower), 5) is None and kernel_find_plain(bytes(lower), 8) is None
    few = bytearray(one)
    few[60] = 1
    assert kernel_find_plain(seal(bytes(few)), 5) is None
    assert kernel_find_plain(data[:-1], 8) is None and kernel_find_plain(b"", 0) is None


Limits = tuple[int, int, bool]
LIMITS = st.tuples(st.integers(-(1 << 63), 0), st.integers(0, (1 << 63) - 1), st.booleans())


def kernel_check(data: bytes, limits: Limits) -> list[tuple[int, list[tuple[int, int]]] | None]:
    """Return the largest time and the refused records of each batch; None for a malformed batch."""
    raw, table, _, _ = walked(data)
    results: list[tuple[int, list[tuple[int, int]]] | None] = []
    refused = np.empty((len(data), 2), np.int64)
    for row in range(len(table)):
        status, largest, count = check_records(raw, table, row, *limits, 1 << 31, refused)
        found = [(int(index), int(time)) for index, time in refused[:count]]
        results.append((int(largest), found) if status == kernels.OK else None)
    return results


def naive_check(data: bytes, limits: Limits) -> list[tuple[int, list[tuple[int, int]]] | None]:
    results: list[tuple[int, list[tuple[int, int]]] | None] = []
    for header in walk(data)[0]:
        try:
            results.append(check(data, header, *limits))
        except BadRecord:
            results.append(None)
    return results


def test_a_refused_record_without_room_is_counted() -> None:
    data = encode_batch([Record(offset, 7 + offset, None, b"v") for offset in range(3)])
    raw, table, _, _ = walked(data)
    refused = np.full((2, 2), -5, np.int64)
    assert check_records(raw, table, 0, 0, 9, True, 100, refused[:1]) == (kernels.OK, 9, 3)
    assert refused.tolist() == [[0, -1], [-5, -5]]
    assert check_records(raw, table, 0, 8, 8, False, 100, refused) == (kernels.OK, 9, 2)
    assert refused.tolist() == [[0, 7], [2, 9]]
    assert check_records(raw, table, 1, 8, 8, False, 100, refused)[0] == kernels.FULL
    body = int(raw[61] >> 1)
    assert check_records(raw, table, 0, 0, 9, False, body, refused)[0] == kernels.OK
    assert check_records(raw, table, 0, 0, 9, False, body - 1, refused)[0] == kernels.BAD_LENGTH


@given(batches(), st.booleans())
def test_sound_logs(log: list[bytes], with_control: bool) -> None:
    data = b"".join(log)
    limits = (0, 1_700_000_000_000, with_control)
    assert kernel_check(data, limits) == naive_check(data, limits)
    assert kernel_decode(data, with_control=with_control) == naive_decode(data, with_control=with_control)
    assert kernel_find(data) == naive_find(data)


@given(batches(most=2, with_empty=False), LIMITS, st.data())
def test_damage_behind_a_good_checksum(log: list[bytes], limits: Limits, data: st.DataObject) -> None:
    joined = b""
    for batch in log:
        body = bytearray(batch)
        for _ in range(data.draw(st.integers(1, 3))):
            body[data.draw(st.integers(61, len(body) - 1))] = data.draw(
                st.sampled_from([0, 1, 2, 127, 128, 255])
            )
        cut = data.draw(st.integers(62, len(body)))
        joined += seal(bytes(body[:cut]))
    assert kernel_decode(joined) == naive_decode(joined)
    assert kernel_find(joined) == naive_find(joined)
    for header in walk(joined)[0]:
        for offset in looked_up(header):
            kernel_find_plain(joined, offset)
    assert kernel_check(joined, limits) == naive_check(joined, limits)


def test_a_hostile_length_reaches_nothing() -> None:
    """A key length near 2^31 in the last record of the buffer."""
    good = encode_batch([Record(0, 0, b"k", b"v")])
    for length in (b"\xfe\xff\xff\xff\x0f", b"\x03", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x0f"):
        body = good[61 + 4 :].replace(b"\x02k", length + b"k", 1)
        bad = seal(good[:61] + bytes([2 * (len(body) + 3)]) + good[62:65] + body)
        assert kernel_decode(bad) == ([], kernels.BAD_RECORD)
        assert set(kernel_find(bad)) == {(None, kernels.BAD_RECORD)}


def test_a_count_is_limited_by_the_bytes() -> None:
    good = bytearray(encode_batch([Record(0, 0, b"k", b"v")], last_offset=1 << 30))
    good[57:61] = (1 << 30).to_bytes(4, "big")
    good[22] = 1  # codec gzip: then the walker cannot check the count, the decoder must
    raw, table, _, status = walked(seal(bytes(good)))
    assert status == kernels.OK
    assert decode_rows(raw, table, 1, True, ColumnArrays.empty(4)) == (0, 0, kernels.BAD_COUNT)
    assert find_record(raw, table, 0, 0, np.empty(RECORD_FIELDS, np.int64)) == (False, kernels.BAD_COUNT)


def test_a_body_must_end_with_its_last_header() -> None:
    for headers in ((), ((b"h", b"x"),), ((b"h", None),)):
        good = encode_batch([Record(0, 0, b"k", b"v", headers)])
        assert kernel_decode(good)[1] == kernels.OK
        longer = seal(good[:61] + bytes([good[61] + 2]) + good[62:] + b"\0")
        assert kernel_decode(longer) == naive_decode(longer) == ([], kernels.BAD_RECORD)


def test_a_batch_must_end_with_its_last_record() -> None:
    good = encode_batch([Record(0, 0, b"k", b"v")])
    longer = seal(good + bytes(8))
    assert kernel_decode(longer) == naive_decode(longer) == ([], kernels.BAD_RECORD)


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(-1, 300)), max_size=20))
def test_gathered_like_the_twin(source: bytes, spans: list[tuple[int, int]]) -> None:
    fitting = [(min(p, len(source)), n) for p, n in spans]
    fitting = [(p, min(n, len(source) - p)) for p, n in fitting]
    positions = [p for p, _ in fitting]
    lengths = [n for _, n in fitting]
    arrays = padded(source), np.array(positions, np.int64), np.array(lengths, np.int32)
    array = binary_array(*arrays)
    array.validate(full=True)
    assert array.to_pylist() == byte_strings(*arrays) == gather(source, positions, lengths)


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, 11), (11, 1), ((1 << 62), 5)])
def test_a_gathered_span_outside_is_refused(position: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        binary_array(padded(bytes(10)), np.array([position], np.int64), np.array([length], np.int32))
