"""Batches with a right checksum and wrong content, by name; and a mutation of the bytes of records.

Each case is a Produce of one batch to each kind of topic. `malformed.jsonl` has the answers of a real broker:
`tests/kafka/test_malformed.py` compares the file with a broker, `tests/server/test_malformed.py` with this
server. To write the file again:

    python -m tests.server.malformed HOST:PORT
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import lz4.frame

import lastword
from lastword.errors import CorruptBatchError
from lastword.records.batch import read_header, read_records, write_batch
from lastword.records.compression import compress
from lastword.records.record import encode_varint
from lastword.wire import GZIP, LZ4, SNAPPY, ZSTD
from tests.server.client import Address, Client

TOPICS: dict[str, dict[str, str]] = {
    "plain": {"cleanup.policy": "delete"},
    "table": {"cleanup.policy": "compact"},
    "stamped": {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"},
    "packed": {"cleanup.policy": "delete", "compression.type": "gzip"},
    "unpacked": {"cleanup.policy": "compact", "compression.type": "uncompressed"},
    "narrow": {"cleanup.policy": "delete", "message.timestamp.before.max.ms": "60000"},
}
"""The kinds of topics to which each case is produced."""
CODECS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
HOUR = 3_600_000
DAY = 24 * HOUR
LONG_ZERO = b"\x80\x80\x80\x80\x80\x00"  # a varint of six bytes


def field(data: bytes | None, length: int | None = None) -> bytes:
    """Return a key, a value or a header's part with its length, or with another length."""
    size = (-1 if data is None else len(data)) if length is None else length
    return encode_varint(size) + (data or b"")


def record(
    delta: int = 0,
    *,
    key: bytes = field(b"k"),
    value: bytes = field(b"value"),
    headers: bytes = encode_varint(0),
    delta_time: bytes = encode_varint(0),
    offset: bytes | None = None,
    attributes: int = 0,
    size: int | None = None,
    more: int = 0,
) -> bytes:
    """Return a record of these parts; `size` replaces its length, `more` is added to it."""
    body = bytes([attributes]) + delta_time + (encode_varint(delta) if offset is None else offset)
    body += key + value + headers
    return encode_varint(len(body) + more if size is None else size) + body


def header(name: bytes = field(b"h"), value: bytes = field(b"1"), count: int = 1) -> bytes:
    return encode_varint(count) + name + value


def three(**parts: Any) -> bytes:
    """Return three records, of which the second has these parts."""
    return record(0) + record(1, **parts) + record(2)


def batch_of(now: int, payload: bytes, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "base_offset": 0,
        "leader_epoch": -1,
        "attributes": 0,
        "last_offset_delta": fields.get("count", 3) - 1,
        "base_timestamp": now,
        "max_timestamp": now,
        "count": 3,
        "payload": payload,
    }
    return write_batch(**(given | fields))


PAYLOADS: dict[str, bytes] = {
    "three records": three(),
    "headers": three(headers=header()),
    "a header without a value": three(headers=header(value=field(None))),
    "no key and no value": three(value=field(None)),
    "a null key": three(key=field(None)),
    "record attributes": three(attributes=0x7F),
    "record of 0 bytes": record(0) + encode_varint(0) + record(2),
    "record of -1 bytes": three(size=-1),
    "record longer than the batch": three(size=5000),
    "record longer than 2^31": record(0) + b"\xfe\xff\xff\xff\xff\xff" + record(2),
    "record shorter than its fields": three(more=-2),
    "record longer than its fields": three(more=3),
    "bytes behind the headers": three(headers=encode_varint(0) + b"xyz"),
    "long varint of a length": record(0) + LONG_ZERO + record(1)[1:] + record(2),
    "long varint of a key": three(key=LONG_ZERO),
    "long varint of an offset": three(offset=LONG_ZERO),
    "offset with high bits": three(offset=b"\x82\x80\x80\x80\x70"),
    "long varlong of a time": three(delta_time=b"\x80" * 10 + b"\x00"),
    "varlong with high bits": three(delta_time=b"\x80" * 9 + b"\x7e"),
    "key of -2 bytes": three(key=field(b"", -2)),
    "key beyond the record": three(key=field(b"k", 50)),
    "key of 2^31 - 1 bytes": three(key=field(b"k", 0x7FFFFFFF)),
    "value of -2 bytes": three(value=field(b"", -2)),
    "value beyond the record": three(value=field(b"v", 50)),
    "value of 2^31 - 1 bytes": three(value=field(b"v", 0x7FFFFFFF)),
    "value shorter": three(value=field(b"value", 2)),
    "-1 headers": three(headers=encode_varint(-1)),
    "headers that are missing": three(headers=header(count=2)),
    "headers that are not counted": three(headers=header(count=0)),
    "2^31 - 1 headers": three(headers=encode_varint(0x7FFFFFFF)),
    "no count of headers": three(headers=b""),
    "header without a name": three(headers=header(name=field(None))),
    "header with a name of -2 bytes": three(headers=header(name=field(b"", -2))),
    "header name beyond the record": three(headers=header(name=field(b"h", 50))),
    "header value of -2 bytes": three(headers=header(value=field(b"", -2))),
    "header value beyond the record": three(headers=header(value=field(b"1", 50))),
    "header name that is not UTF-8": three(headers=header(name=field(b"\xff\xfe"))),
    "repeated offsets": record(0) + record(0) + record(0),
    "falling offsets": record(2) + record(1) + record(0),
    "a gap of offsets": record(0) + record(2) + record(2),
    "offsets from 1": record(1) + record(2) + record(3),
    "negative offset": three(offset=encode_varint(-1)),
    "offset beyond the last": record(0) + record(1) + record(7),
    "bytes behind the records": three() + b"xyz",
    "zeros behind the records": three() + b"\0\0\0",
    "a record too many": three() + record(3),
    "a record too few": record(0) + record(1),
    "last record is cut": three()[:-3],
    "no bytes of records": b"",
    "random bytes": random.Random(5).randbytes(60),
}
"""The bytes of records, by name; the header counts three records."""


def _lz4_checked(data: bytes) -> bytes:
    frame = bytearray(compress(LZ4, data))
    frame[6] ^= 0x55
    return bytes(frame)


PACKED: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    **{f"{name}": (codec, lambda data, codec=codec: compress(codec, data)) for name, codec in CODECS.items()},
    **{f"{name}, garbage": (codec, lambda data: b"garbage" * 9) for name, codec in CODECS.items()},
    **{
        f"{name}, cut": (codec, lambda data, codec=codec: compress(codec, data)[:-9])
        for name, codec in CODECS.items()
    },
    **{f"{name}, empty": (codec, lambda data: b"") for name, codec in CODECS.items()},
    **{
        f"{name}, bytes behind": (codec, lambda data, codec=codec: compress(codec, data) + b"xyz")
        for name, codec in CODECS.items()
    },
    **{f"{name}, not compressed": (codec, lambda data: data) for name, codec in CODECS.items()},
    "zstd as gzip": (GZIP, lambda data: compress(ZSTD, data)),
    "gzip with a wrong checksum": (GZIP, lambda data: compress(GZIP, data)[:-8] + bytes(8)),
    "gzip of two members": (GZIP, lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:])),
    "lz4 with a wrong header checksum": (LZ4, _lz4_checked),
    "lz4 with linked blocks": (LZ4, lambda data: lz4.frame.compress(data * 1, block_linked=True)),
    "lz4 without an end mark": (LZ4, lambda data: compress(LZ4, data)[:-4]),
    "lz4 with a content checksum": (
        LZ4,
        lambda data: lz4.frame.compress(data, block_linked=False, content_checksum=True),
    ),
    "snappy as one raw block": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy that claims 1 GiB": (SNAPPY, lambda data: b"\x80\x80\x80\x80\x04" + data),
    "zstd with a content size": (ZSTD, lambda data: bytes(cramjam.zstd.compress(data, 3))),
}
"""Codec and compression of the records, by name."""


def cases(now: int) -> Iterator[tuple[str, bytes]]:
    """Yield (name, batch) of all cases, in an order that does not change. `now` in milliseconds."""
    for name, payload in PAYLOADS.items():
        yield name, batch_of(now, payload)
    for name, (codec, pack) in PACKED.items():
        yield f"{name}: three records", batch_of(now, pack(three()), attributes=codec)
    inner = (
        *("a null key", "header without a name", "a record too many", "a record too few"),
        *("repeated offsets", "a gap of offsets", "key beyond the record", "last record is cut"),
        *("bytes behind the records", "no bytes of records", "bytes behind the headers"),
        *("header name beyond the record", "-1 headers", "key of -2 bytes", "random bytes"),
    )
    for name, codec in CODECS.items():
        for payload in inner:
            yield f"{name}: {payload}", batch_of(now, compress(codec, PAYLOADS[payload]), attributes=codec)
    for count in (0, 1, 2, 4, 1000, 0x7FFFFFFF):
        yield f"count {count}", batch_of(now, three(), count=count)
        yield f"lz4: count {count}", batch_of(now, compress(LZ4, three()), count=count, attributes=LZ4)
    yield "count -1", batch_of(now, three(), count=-1)
    yield "count 2, last offset 2", batch_of(now, three(), count=2, last_offset_delta=2)
    yield "last offset -1", batch_of(now, three(), last_offset_delta=-1)
    yield from _times(now)
    for name in ("a record too few", "header without a name", "three records"):
        yield f"idempotent: {name}", batch_of(now, PAYLOADS[name], producer=(9000, 0, 0))
    whole = batch_of(now, three())
    for number in (1, 3, 11, 12, 17, 100):
        yield f"{number} zeros behind the batch", whole + bytes(number)
    yield "xyz behind the batch", whole + b"xyz"
    yield "start of a batch behind the batch", whole + whole[:70]
    yield "two batches", whole + whole
    yield "wrong checksum", whole[:-1] + b"x"
    yield "wrong checksum, a record too few", batch_of(now, PAYLOADS["a record too few"])[:-1] + b"x"
    yield "wrong checksum, gzip", batch_of(now, compress(GZIP, three()), attributes=GZIP)[:-1] + b"x"
    yield "cut", whole[:-1]


def _times(now: int) -> Iterator[tuple[str, bytes]]:
    for name, codec in (("", 0), ("zstd: ", ZSTD)):

        def timed(*times: int, codec: int = codec, **fields: Any) -> bytes:
            base = fields.get("base_timestamp", now)
            deltas = [(at - base + (1 << 63)) % (1 << 64) - (1 << 63) for at in times]
            payload = b"".join(record(n, delta_time=encode_varint(delta)) for n, delta in enumerate(deltas))
            packed = compress(codec, payload) if codec else payload
            return batch_of(now, packed, attributes=fields.pop("attributes", 0) | codec, **fields)

        yield f"{name}a record 2 hours ahead", timed(now, now + 2 * HOUR, now)
        yield f"{name}a record 300 days ahead", timed(now, now + 300 * DAY, now)
        yield f"{name}a record 300 days old", timed(now, now - 300 * DAY, now)
        yield f"{name}a record before 1970", timed(now, -5, now)
        yield f"{name}a record without time", timed(now, -1, now)
        yield f"{name}no record with a time", timed(-1, -1, -1, base_timestamp=-1, max_timestamp=-1)
        yield f"{name}header 30 days old", timed(now, now, now, max_timestamp=now - 30 * DAY)
        yield f"{name}header 30 days ahead", timed(now, now, now, max_timestamp=now + 30 * DAY)
        yield f"{name}header without time", timed(now, now, now, max_timestamp=-1)
        yield f"{name}header below -1", timed(now, now, now, max_timestamp=-7)
        yield f"{name}base time of 0", timed(now, now, now, base_timestamp=0)
        yield f"{name}base time that wraps", timed(now, now, now, base_timestamp=-(1 << 63))
        yield f"{name}time of 2^63 - 1", timed(now, (1 << 63) - 1, now)
        yield f"{name}log append time", timed(now, now, now, attributes=0x08)
        yield f"{name}log append time, no time", timed(-1, -1, -1, base_timestamp=-1, attributes=0x08)
        yield f"{name}log append time, no largest", timed(now, now, now, attributes=0x08, max_timestamp=-1)
        yield f"{name}delete horizon", timed(now, now, now, attributes=0x40)
        yield (
            f"{name}ahead, and a record too few",
            timed(now + 3 * HOUR, now),
        )
    ahead = encode_varint(3 * HOUR)
    yield (
        "ahead, and a null key",
        batch_of(now, record(0, delta_time=ahead) + record(1, key=field(None)), count=2),
    )
    yield "ahead without a key", batch_of(now, record(0, delta_time=ahead, key=field(None)), count=1)


def mutated(now: int, rng: random.Random) -> tuple[str, bytes]:
    """Return a batch under a right checksum whose records have one to three changed bytes, and its name."""
    count = rng.randrange(1, 6)
    payload = bytearray(
        b"".join(
            record(
                number,
                key=field(rng.randbytes(rng.randrange(4))),
                value=field(rng.choice([None, b"", rng.randbytes(rng.randrange(9))])),
                headers=header() if rng.random() < 0.5 else encode_varint(0),
                delta_time=encode_varint(rng.randrange(-3, 3)),
            )
            for number in range(count)
        )
    )
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(payload))
        change = rng.randrange(4)
        if change == 0:
            payload[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            payload[at] = rng.randrange(256)
        elif change == 2:
            del payload[at]
        else:
            payload.insert(at, rng.randrange(256))
        if not payload:
            break
    codec = rng.choice([0, 0, 0, GZIP, SNAPPY, LZ4, ZSTD])
    packed = compress(codec, bytes(payload)) if codec else bytes(payload)
    return f"codec {codec}, {payload.hex()}", batch_of(now, packed, count=count, attributes=codec)


# ------------------------------------------------------------------ answers

TABLE = Path(__file__).with_name("malformed.jsonl")
STRICTER = {
    *("key of -2 bytes", "value of -2 bytes", "header value of -2 bytes", "repeated offsets"),
    *("falling offsets", "a gap of offsets", "offsets from 1", "negative offset", "offset beyond the last"),
}
"""Kafka appends some of these batches: it takes any negative length for null, and it does not compare the
offsets of records that are not compressed. Its clients and its cleaner fail on the offsets. Here: 87."""
UNKNOWN_SERVER_ERROR, NOT_LEADER_OR_FOLLOWER, INVALID_RECORD = -1, 6, 87


def answer(client: Client, topic: str, data: bytes, now: int) -> list[Any]:
    """Return [error code, indexes of refused records], or [0, attributes, largest time - now] as stored.

    The largest time of a topic with the time of the append is "append".
    """
    answered = client.produce(topic, data, version=9)
    while answered.error_code == NOT_LEADER_OR_FOLLOWER:  # a broker that is short of time
        time.sleep(0.1)
        answered = client.produce(topic, data, version=9)
    if answered.error_code:
        return [answered.error_code, [error.batch_index for error in answered.record_errors]]
    stored = client.fetch(topic, answered.base_offset, version=11).records
    attributes, largest = struct.unpack_from(">h", stored, 21)[0], struct.unpack_from(">q", stored, 35)[0]
    shown = "append" if largest == answered.log_append_time_ms else largest if largest < 0 else largest - now
    return [0, attributes, shown]


def answers(client: Client, now: int) -> dict[str, dict[str, list[Any]]]:
    """Produce each case to each topic; return the answers by case and topic."""
    return {name: {topic: answer(client, topic, data, now) for topic in TOPICS} for name, data in cases(now)}


def saved() -> dict[str, dict[str, list[Any]]]:
    """Return the saved answers of a real broker."""
    rows = [json.loads(line) for line in TABLE.read_text(encoding="ascii").splitlines()]
    return {name: dict(zip(TOPICS, row, strict=True)) for name, row in rows}


def agrees(name: str, ours: list[Any], theirs: list[Any]) -> bool:
    """Return whether our answer is Kafka's, or a stricter one that is meant."""
    if name.rpartition(": ")[2] in STRICTER:
        return ours[0] == INVALID_RECORD
    if theirs[0] == UNKNOWN_SERVER_ERROR:
        # Kafka cannot decompress the records, or builds them again and fails on a negative time.
        return ours[0] == (0 if "before 1970" in name else INVALID_RECORD)
    return ours == theirs


def is_strict(data: bytes) -> bool:
    """Return whether no reader of ours could read a batch, as those of STRICTER."""
    try:
        return not list(read_records(data, read_header(data, 0, len(data), "")))
    except CorruptBatchError:
        return True


def create(logs: lastword.LogDir) -> None:
    """Create the topics."""
    for topic, config in TOPICS.items():
        settings: Any = {name.replace(".", "_"): value for name, value in config.items()}
        logs.create_topic(topic, **settings)


def check_readers(logs: lastword.LogDir) -> None:
    """Read all topics in every way; compare with one another, then clean and read again."""
    for name in TOPICS:
        topic = logs[name]
        records = list(topic.read())
        assert [r.offset for r in records] == list(range(logs.dirs.log(name, 0).log_end))
        assert list(topic.read(isolation="read_uncommitted")) == records
        table = topic.read().arrow().read_all()
        assert table.column("offset").to_pylist() == [r.offset for r in records]
        assert table.column("value").to_pylist() == [r.value for r in records]
        for offset in range(0, len(records), 97):
            assert topic.records_at([offset])[0] == records[offset]
    newest = {name: list(logs[name].read(view="newest")) for name in TOPICS}
    assert "table" in {round_.topic for round_ in logs.clean()}
    assert {name: list(logs[name].read(view="newest")) for name in TOPICS} == newest
    assert logs.verify().ok


def write(client: Client) -> None:
    """Save the answers of a server."""
    rows = [[name, list(row.values())] for name, row in answers(client, int(time.time() * 1000)).items()]
    TABLE.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="ascii")


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    with Client(Address(host, int(port)), timeout=30) as connected:
        write(connected)
