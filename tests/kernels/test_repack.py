from __future__ import annotations

from collections.abc import Set

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import kernels
from lastword.kernels import table as fields
from lastword.kernels.digest import sum_contents, sum_pairs
from lastword.kernels.hashing import digest_seeds
from lastword.kernels.pages import DeadBits
from lastword.kernels.repack import (
    JOINED,
    JOINING_FIELDS,
    MAX_BYTES,
    MIXED,
    OPEN_ROW,
    TARGET_BYTES,
    RepackOutput,
    RepackSource,
    bytes_needed,
    repack_rows,
    seal_joined,
)
from lastword.resolve.survivors import NO_BEFORE
from lastword.wire import LZ4
from tests.kernels.support import NO_BITS, bits, walked
from tests.naive import digest as naive_digest
from tests.naive.batches import walk
from tests.naive.columns import decode
from tests.naive.pack import Record, encode_batch, seal
from tests.naive.repack import repack_all
from tests.naive.strategies import T, batches


def joining_state(target: int = 0, most: int = 1 << 20) -> np.ndarray:
    state = np.full(JOINING_FIELDS, -1, np.int64)
    state[TARGET_BYTES], state[MAX_BYTES] = target, most
    return state


def kernel_repack(
    data: bytes,
    dead: Set[int],
    retain: list[int],
    horizon_ms: int,
    target: int = 0,
    most: int = 1 << 20,
) -> bytes:
    """Repack into an output that is always too small, so that every continuation is tested."""
    raw, table, _, _ = walked(data)
    source = RepackSource(raw, raw, table, NO_BEFORE)
    return repacked(source, bits(dead), retain, horizon_ms, target, most)


def repacked(
    source: RepackSource,
    dead: DeadBits,
    retain: list[int],
    horizon_ms: int,
    target: int,
    most: int,
) -> bytes:
    table = source.table
    out = np.full(64, 0xEE, np.uint8)
    out_table = np.zeros((2, fields.FIELDS), np.int64)
    classes = np.zeros(2, np.int64)
    joining = joining_state(target, most)
    side = np.empty(target // 2 + kernels.SLACK, np.uint8)
    row = position = out_row = 0
    joined = b""
    while True:
        row, position, out_row, _, status = repack_rows(
            source,
            len(table),
            row,
            np.array(retain, np.uint8),
            dead,
            horizon_ms,
            RepackOutput(out, out_table, classes, joining, side),
            position,
            out_row,
        )
        done = []
        for i in range(out_row):  # the new table agrees with the new bytes
            start, size = out_table[i, fields.POSITION], out_table[i, fields.SIZE]
            done.append(out[start : start + size].tobytes())
            if classes[i] == JOINED:
                done[-1] = seal(done[-1])
            _, again, _, status_again = walked(done[-1])
            assert status_again == kernels.OK
            same = [fields.SIZE, *range(fields.BASE_OFFSET, fields.CRC), fields.MAGIC]
            assert out_table[i, same].tolist() == again[0, same].tolist()
        assert position == sum(map(len, done))
        if status == kernels.OK:
            return joined + b"".join(done)
        assert status == kernels.FULL
        first = int(joining[OPEN_ROW])
        kept = done[first:] if first >= 0 else []  # the batch that may grow is kept in the output
        joined += b"".join(done[: len(done) - len(kept)])
        position = len(b"".join(kept))
        out = np.full(position + int(bytes_needed(table, row, side)), 0xEE, np.uint8)
        out_row = len(kept)
        if kept:
            out[:position] = np.frombuffer(kept[0], np.uint8)
            out_table[0], classes[0] = out_table[first], classes[first]
            out_table[0, fields.POSITION] = joining[OPEN_ROW] = 0


logs = batches(time=st.integers(T - 100, T + 100), most=4)


mixed_logs = batches(
    time=st.integers(T - 100, T + 100),
    most=7,
    attribute_choices=(0, 0, 0, 0, 0x08, 0x10, 0x20, 0x40),
    leader_epochs=(0, 0, 1),
    producers=((-1, -1, -1), (-1, -1, -1), (-1, -1, -1), (5, 2, 9), (-1, -1, 4)),
)


@pytest.mark.slow
@given(mixed_logs, st.data())
def test_like_the_twin(log: list[bytes], data: st.DataObject) -> None:
    joined = b"".join(log)
    headers = walk(joined)[0]
    offsets = [record.offset for header in headers for record in decode(joined, header)]
    dead = data.draw(st.sets(st.sampled_from(offsets))) if offsets else set()
    retain = [
        data.draw(st.sampled_from([0, 2, 3] if header.attributes & 0x20 else [0, 0, 1])) for header in headers
    ]
    horizon_ms = data.draw(st.sampled_from([-1, T, T + 1500]))
    target = data.draw(st.sampled_from([0, 100, 150, 300, 1000, 4000]))
    most = data.draw(st.sampled_from([250, 700, 1 << 20]))
    expected = repack_all(
        joined,
        headers,
        dead,
        retain=retain,
        horizon_ms=horizon_ms,
        target=target,
        most=most,
    )
    assert kernel_repack(joined, dead, retain, horizon_ms, target, most) == b"".join(expected)


def summed(
    raw: np.ndarray, table: np.ndarray, dead: set[int], retain: list[int], horizon_ms: int
) -> tuple[int, int, int, int, list[int], list[int]]:
    """Return (contents, batches, controls, records, ends, largest timestamps)."""
    ends, largest = np.empty(len(table), np.uint8), np.empty(len(table), np.int64)
    kept = np.array(retain, np.uint8)
    *sums, row, status = sum_contents(
        raw, table, NO_BEFORE, len(table), bits(dead), kept, horizon_ms, ends, largest
    )
    assert (row, status) == (len(table), kernels.OK)
    contents, batches, controls, records = map(int, sums)
    return contents, batches, controls, records, ends.tolist(), largest.tolist()


def without_timestamps(table: np.ndarray) -> np.ndarray:
    """Clear the timestamp of headers that hold only the end of a range, as the writer does."""
    empty = (table[:, fields.COUNT] == 0) & (table[:, fields.PRODUCER_ID] < 0)
    table[empty & (table[:, fields.BASE_TIMESTAMP] == -1), fields.MAX_TIMESTAMP] = -1
    return table


@given(logs, st.data())
def test_digests_of_what_is_left(log: list[bytes], data: st.DataObject) -> None:
    """The certificate's sums are equal: over the source without its dead records, and over the output."""
    joined = b"".join(log)
    headers = walk(joined)[0]
    records = [r for h in headers if not h.attributes & 0x20 for r in decode(joined, h)]
    dead = data.draw(st.sets(st.sampled_from([r.offset for r in records]))) if records else set()
    horizon_ms = data.draw(st.sampled_from([-1, T + 1500]))
    retain = [
        data.draw(st.sampled_from([0, 2, 3] if header.attributes & 0x20 else [0, 1])) for header in headers
    ]
    raw, table, _, _ = walked(joined)
    contents, batches, controls, count, ends, largest = summed(raw, table, dead, retain, horizon_ms)
    assert count == len(records) - len(dead)
    assert contents == naive_digest.sum_contents(records, dead)
    naive = naive_digest.sum_batches(joined, headers, dead, retain, horizon_ms)
    assert (batches, controls, ends) == naive[:3]
    wholly_dead = [
        h.count > 0 and not h.attributes & 0x20 and all(r.offset in dead for r in decode(joined, h))
        for h in headers
    ]
    assert [x for x, gone in zip(largest, wholly_dead, strict=True) if not gone] == [
        x for x, gone in zip(naive[3], wholly_dead, strict=True) if not gone
    ]
    batches = summed(raw, without_timestamps(table), dead, retain, horizon_ms)[1]
    target = data.draw(st.sampled_from([0, 400]))
    output = kernel_repack(joined, dead, retain, horizon_ms, target)
    raw, table, _, _ = walked(output)
    sums = summed(raw, without_timestamps(table), set(), [1] * len(table), -1)
    assert sums[:4] == (contents, batches, controls, count)
    last_offsets = {h.last_offset for h, end in zip(headers, ends, strict=True) if end}
    assert set(table[np.array(sums[4], bool), fields.LAST_OFFSET].tolist()) <= last_offsets
    seeds = digest_seeds(5)
    pairs, _, _, status = sum_pairs(raw, table, len(table), *seeds)
    kept = [record for record in records if record.offset not in dead]
    assert (int(pairs), status) == (naive_digest.sum_pairs(kept, *map(int, seeds)), kernels.OK)


SOURCE = encode_batch(
    [Record(40, T, b"a", b"1"), Record(41, T + 1, b"b", None), Record(42, T + 2, b"c", b"3")]
)


def test_as_kafkas_cleaner_rewrites() -> None:
    assert SOURCE.hex().startswith("00000000000000280000004b000000000294d9578c")
    horizon = kernel_repack(SOURCE, set(), [False], T + 1500)
    assert horizon.hex() == (
        "00000000000000280000004e00000000026f32527d0040000000020000018bcfe56ddc0000018bcfe56802ffffffff"
        "ffffffffffffffffffff000000031200b7170002610231001000b51702026201001200b317040263023300"
    )
    only_a = kernel_repack(SOURCE, {41, 42}, [False], -1)
    assert only_a.hex() == (
        "00000000000000280000003a0000000002e5608a800000000000020000018bcfe568000000018bcfe56800ffffffff"
        "ffffffffffffffffffff00000001100000000261023100"
    )


def test_the_empty_batch_is_kafkas() -> None:
    source = encode_batch(
        [Record(20, T, b"a", b"1"), Record(22, T - 1, b"b", b"1")],
        attributes=0x10,
        leader_epoch=4,
        producer=(5, 2, 9),
    )
    assert kernel_repack(source, {20, 22}, [True], -1).hex() == (
        "0000000000000014000000310000000402062c5e8e001000000002ffffffffffffffff0000018bcfe568000000000000000005"
        "00020000000900000000"
    )
    assert kernel_repack(source, {20, 22}, [False], -1) == b""


@pytest.mark.slow
@given(logs.filter(bool), st.data())
def test_malformed_records_are_a_status(log: list[bytes], data: st.DataObject) -> None:
    batch = bytearray(log[0])
    if len(batch) > 61:
        batch[data.draw(st.integers(61, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    joined = seal(bytes(batch))
    raw, table, _, _ = walked(joined)
    out = np.zeros(1 << 16, np.uint8)
    dead = bits({int(table[0, fields.BASE_OFFSET])}) if len(table) else NO_BITS
    table_out, classes = np.zeros((2, fields.FIELDS), np.int64), np.zeros(2, np.int64)
    status = repack_rows(
        RepackSource(raw, raw, table, NO_BEFORE),
        len(table),
        0,
        np.zeros(len(table), np.uint8),
        dead,
        T,
        RepackOutput(out, table_out, classes, joining_state(200), np.empty(200, np.uint8)),
        0,
        0,
    )[4]
    assert status in (kernels.OK, kernels.BAD_RECORD)


def test_a_delta_in_more_bytes_than_it_needs() -> None:
    """Readers accept a longer delta, so a rewrite must not cut in the middle of it."""
    plain = encode_batch([Record(0, T, b"k", None), Record(1, T, b"l", b"v")])
    body = plain[61:]
    assert body[:3] == b"\x0e\x00\x00"
    longer = seal(plain[:61] + b"\x14\x00\x80\x80\x80\x00" + body[3:])
    (header,) = walk(longer)[0]
    expected = [Record(0, T, b"k", None), Record(1, T, b"l", b"v")]
    assert decode(longer, header) == expected
    rewritten = kernel_repack(longer, set(), [False], T + 1500)
    assert decode(rewritten, walk(rewritten)[0][0]) == expected
    kept = kernel_repack(longer, {1}, [False], -1)
    assert decode(kept, walk(kept)[0][0]) == expected[:1]


@given(st.lists(st.tuples(st.binary(max_size=90), st.sampled_from([JOINED, JOINED, MIXED]), st.booleans())))
def test_seals_joined_batches_side_by_side(cases: list[tuple[bytes, int, bool]]) -> None:
    """Joined batches without a codec get their checksums; all other bytes stay."""
    sealed = [
        encode_batch([Record(number, T, None, value)], base_offset=number)
        for number, (value, _, _) in enumerate(cases)
    ]
    unsealed = [batch[:17] + b"\0\0\0\0" + batch[21:] for batch in sealed]
    data, table, _, status = walked(b"".join(unsealed), verify=False)
    assert status == kernels.OK
    classes = np.array([kind for _, kind, _ in cases], np.int64)
    coded = np.array([is_coded for _, _, is_coded in cases], np.int64)
    table[:, fields.ATTRIBUTES] |= coded * LZ4
    assert seal_joined(data, table, classes, len(cases)) == kernels.OK
    expected = [
        sealed[number] if kind == JOINED and not is_coded else unsealed[number]
        for number, (_, kind, is_coded) in enumerate(cases)
    ]
    assert data[: -kernels.SLACK].tobytes() == b"".join(expected)


def test_seals_nothing_outside_the_buffer() -> None:
    data, table, _, _ = walked(encode_batch([Record(0, T, b"k", b"v")]))
    table[0, fields.SIZE] += 1
    before = data.copy()
    assert seal_joined(data, table, np.array([JOINED], np.int64), 1) == kernels.NO_SLACK
    assert (data == before).all()
