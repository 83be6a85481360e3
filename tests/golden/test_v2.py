"""Magic 2 as Kafka wrote it: every record, header, batch and index entry is equal to Kafka's own reading.

Both of our readers read each case, the plain one and the kernels. Then copies are cut, emptied and given
flipped bits: a reader returns the first of the right records, then a typed error that names the file and the
position.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lastword.errors import CorruptBatchError, DataError
from lastword.files import DEFAULT
from lastword.records.batch import BatchHeader, crc_ok, read_header, read_records
from lastword.records.chunk import ChunkReader
from lastword.records.columns import decode_columns, raw_records
from lastword.records.record import RawRecord
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from tests.golden import loader

CASES = loader.names("v2-*")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Bytes of a batch header that its checksum leaves out: base offset (0-7) and leader epoch (12-15).
UNCHECKED_OFFSET = range(8)
UNCHECKED_EPOCH = range(12, 16)

Read = Callable[[Path], Iterator[RawRecord]]


def read_plain(path: Path) -> Iterator[RawRecord]:
    data = path.read_bytes()
    for header in headers(data, path.name):
        if not crc_ok(data, header):
            raise CorruptBatchError("bad checksum", file=path.name, position=header.position)
        yield from read_records(data, header)


def read_by_kernels(path: Path) -> Iterator[RawRecord]:
    with DEFAULT.open_read(str(path)) as handle:
        for chunk in ChunkReader(handle, path.name, 0, handle.size(), chunk_bytes=4096):
            yield from raw_records(decode_columns(chunk), chunk)


def headers(data: bytes, file: str) -> Iterator[BatchHeader]:
    position = 0
    while position < len(data):
        header = read_header(data, position, len(data), file)
        yield header
        position += header.size


both_ways = pytest.mark.parametrize("read", [read_plain, read_by_kernels], ids=["plain", "kernels"])
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that unpacks a case once and returns its partition directory."""
    directories: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in directories:
            target = loader.case(name).unpack(tmp_path_factory.mktemp(name))
            directories[name] = target / "data" / f"{name}-0"
        return directories[name]

    return directory


@every_case
def test_every_batch(name: str, unpacked: Callable[[str], Path]) -> None:
    expected = loader.case(name).batches("data")
    batches = []
    for path in loader.partition_files(unpacked(name)):
        data = path.read_bytes()
        for h in headers(data, path.name):
            codec = CODECS[h.attributes & 7]
            assert crc_ok(data, h)
            batches.append(
                {
                    "partition": f"{name}-0",
                    "file": path.name,
                    "position": h.position,
                    "size": h.size,
                    "magic": h.magic,
                    "valid": True,
                    "baseOffset": h.base_offset,
                    "lastOffset": h.last_offset,
                    "crc": h.crc,
                    "codec": codec,
                    "timestampType": "LogAppendTime" if h.log_append else "CreateTime",
                    "baseTimestampField": h.base_timestamp,
                    "lastOffsetDelta": h.last_offset - h.base_offset,
                    "maxTimestamp": h.max_timestamp,
                    "attributes": h.attributes,
                    "count": h.count,
                    "producerId": h.producer_id,
                    "producerEpoch": h.producer_epoch,
                    "baseSequence": h.base_sequence,
                    "lastSequence": h.base_sequence + h.count - 1 if h.base_sequence >= 0 else -1,
                    "partitionLeaderEpoch": h.leader_epoch,
                    "isTransactional": h.transactional,
                    "isControl": h.control,
                }
            )
    assert batches == expected


def read_damaged(path: Path, read: Read) -> tuple[list[RawRecord], DataError | None]:
    """Return the records that can be read, and the error at their end; any other exception is raised."""
    records: list[RawRecord] = []
    try:
        records.extend(read(path))
    except DataError as error:
        return records, error
    return records, None


def names_its_place(error: DataError | None, path: Path, data: bytes) -> bool:
    """Check that the error names the file, and a position in it."""
    return (
        error is not None
        and error.file is not None
        and error.file.endswith(path.name)
        and error.position is not None
        and 0 <= error.position <= len(data)
        and path.name in str(error)
    )


def smallest_log(directory: Path) -> Path:
    """Return a segment of several batches; of the case with huge values, the segment that reads fastest."""
    logs = [p for p in loader.partition_files(directory) if len(list(headers(p.read_bytes(), p.name))) > 1]
    return min(logs, key=lambda path: path.stat().st_size)


@both_ways
@every_case
def test_a_cut_copy_gives_whole_batches_and_then_an_error(
    name: str, read: Read, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    source = smallest_log(unpacked(name))
    data = source.read_bytes()
    starts = [header.position for header in headers(data, source.name)]
    right = list(read(source))
    places = random.Random(name)
    cuts = {1, 11, 12, 16, 17, 60, 61, len(data) - 1, *(places.randrange(1, len(data)) for _ in range(40))}
    copy = tmp_path / source.name
    for cut in sorted((cuts | {s + 1 for s in starts}) - set(starts)):
        copy.write_bytes(data[:cut])
        records, error = read_damaged(copy, read)
        assert names_its_place(error, copy, data), f"cut at {cut}: {error!r}"
        assert error is not None and error.position == max(s for s in starts if s < cut), f"cut at {cut}"
        assert records == right[: len(records)], f"cut at {cut}"


@both_ways
@every_case
def test_an_empty_copy_has_no_records(
    name: str, read: Read, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    copy = tmp_path / smallest_log(unpacked(name)).name
    copy.write_bytes(b"")
    assert read_damaged(copy, read) == ([], None)


@both_ways
@every_case
def test_a_flipped_bit_is_found_or_cannot_matter(
    name: str, read: Read, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    source = smallest_log(unpacked(name))
    data = source.read_bytes()
    right = list(read(source))
    places = random.Random(name)
    batches = list(headers(data, source.name))
    flips = {(batches[1].position + place, places.randrange(8)) for place in range(61)}
    anywhere = 100 if len(data) < 1 << 20 else 5
    flips |= {(places.randrange(len(data)), places.randrange(8)) for _ in range(anywhere)}
    copy = tmp_path / source.name
    for position, bit in sorted(flips):
        damaged = bytearray(data)
        damaged[position] ^= 1 << bit
        copy.write_bytes(damaged)
        records, error = read_damaged(copy, read)
        place = position - max(h.position for h in batches if h.position <= position)
        where = f"bit {bit} of byte {position}, byte {place} of its batch"
        if place in UNCHECKED_EPOCH:
            assert (records, error) == (right, None), where
        elif place in UNCHECKED_OFFSET:
            # no checksum covers the offset: refused if it breaks the order, else only the offset is wrong
            assert error is None or names_its_place(error, copy, data), where
            assert [content(r) for r in records] == [content(r) for r in right[: len(records)]], where
        else:
            assert names_its_place(error, copy, data), f"{where}: {error!r}"
            assert records == right[: len(records)], where


def content(record: RawRecord) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, record.headers


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@every_case
def test_a_damaged_index_never_leads_to_a_wrong_place(
    kind: str, name: str, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    """In indexes that are cut, emptied, lost or have a flipped bit, lookups still find the right results."""
    log = max(
        loader.partition_files(unpacked(name)),
        key=lambda path: path.with_suffix(f".{kind}").stat().st_size,
    )
    for file in log.parent.glob(f"{log.stem}.*"):
        shutil.copy2(file, tmp_path)
    index = tmp_path / f"{log.stem}.{kind}"
    data = index.read_bytes()
    batches = list(headers(log.read_bytes(), log.name))
    offsets = range(batches[0].base_offset, batches[-1].last_offset + 1)
    times = sorted({h.max_timestamp + delta for h in batches for delta in (-1, 0, 1)})

    def found() -> tuple[list[int], list[int | None]]:
        segment = Segment.load(SegmentFiles(DEFAULT, str(tmp_path), int(log.stem)))
        return (
            [segment.position_of(offset) for offset in offsets],
            [segment.position_of_timestamp(time) for time in times],
        )

    right = (
        [next(h.position for h in batches if h.last_offset >= offset) for offset in offsets],
        [next((h.position for h in batches if h.max_timestamp >= time), None) for time in times],
    )
    assert found() == right
    copies = [data[:cut] for cut in range(len(data))]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        copies.append(bytes(flipped))
    for copy in random.Random(name).sample(copies, min(len(copies), 40)):
        index.write_bytes(copy)
        assert found() == right, copy.hex()
    index.unlink()
    assert found() == right
