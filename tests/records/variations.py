"""Batches whose payloads vary in what decoders may ignore, by seed, and their reading by Kafka.

    python -m tests.records.variations --batches 20000

A payload is one of what a codec's writers make, and then has one to three changes of its container: bytes
behind it, its end cut off, fields of its headers, another stream behind it. Base times and time deltas have
sums that wrap. Each batch that Kafka reads must be read by the plain functions and by the kernels, with the
same offsets, times and values. `variation_table.txt` has Kafka's answers to the first seeds, for tests
without a JVM; --save writes it.
"""

from __future__ import annotations

import argparse
import base64
import random
import struct
import subprocess
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.frame
import zstandard

from lastword.errors import DataError
from lastword.records.batch import write_batch
from lastword.records.compression import xxh32
from lastword.records.formats import read_header, read_records
from lastword.records.record import encode_varint
from tests.support.answering import AnsweringProcess
from tests.support.jars import KafkaJars

TABLE = Path(__file__).with_name("variation_table.txt")
SAVED = 1500
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
XERIAL = b"\x82SNAPPY\0"


def record(delta: int, time_delta: int, value: bytes, key: bytes = b"k") -> bytes:
    """Return the bytes of a record of magic 2."""
    body = b"\0" + encode_varint(time_delta) + encode_varint(delta)
    for field in (key, value):
        body += encode_varint(len(field)) + field
    body += b"\0"
    return encode_varint(len(body)) + body


# ---------------------------------------------------------------- what writers make


def gzip(rng: random.Random, data: bytes) -> bytes:
    packer = zlib.compressobj(rng.choice((0, 1, 6, 9)), wbits=-15)
    packed = packer.compress(data) + packer.flush()
    flags, head = 0, b""
    if rng.random() < 0.2:
        flags, head = flags | 4, head + struct.pack("<H", 3) + b"ext"
    if rng.random() < 0.2:
        flags, head = flags | 8, head + b"name\0"
    if rng.random() < 0.2:
        flags, head = flags | 16, head + b"comment\0"
    head = b"\x1f\x8b\x08" + bytes([flags]) + rng.randbytes(6) + head
    if rng.random() < 0.2:
        head = head[:3] + bytes([flags | 2]) + head[4:]
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    return head + packed + struct.pack("<II", zlib.crc32(data), len(data))


def snappy(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return bytes(cramjam.snappy.compress_raw(data))
    size = rng.choice((200, 1000, 32 << 10))
    out = XERIAL + struct.pack(
        rng.choice((">ii", "<ii")), rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 0, 77))
    )
    for start in range(0, len(data), size):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + size]))
        out += struct.pack(">i", len(block)) + block
    return out


def lz4_frame(rng: random.Random, data: bytes) -> bytes:
    packed: bytes = lz4.frame.compress(
        data,
        block_size=rng.choice((4, 5, 6, 7)),
        block_linked=rng.random() < 0.1,
        content_checksum=rng.random() < 0.3,
        block_checksum=rng.random() < 0.3,
        store_size=rng.random() < 0.3,
        compression_level=rng.choice((0, 9)),
    )
    return packed


def zstd(rng: random.Random, data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(
        level=rng.choice((1, 3)), write_checksum=rng.random() < 0.3, write_content_size=rng.random() < 0.4
    )
    packed = packer.compress(data)
    if rng.random() < 0.1:
        packed = struct.pack("<II", 0x184D2A50 + rng.randrange(16), 5) + b"skip!" + packed
    return packed


WRITERS: dict[int, Callable[[random.Random, bytes], bytes]] = {1: gzip, 2: snappy, 3: lz4_frame, 4: zstd}


# ---------------------------------------------------------------- changes of the container


def _changed(rng: random.Random, codec: int, payload: bytes) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return payload + rng.randbytes(rng.choice((1, 2, 3, 4, 8, 17, 18, 19, 30, 9000)))
    if kind == 1:
        return payload + bytes(rng.choice((1, 3, 4, 8, 20, 100)))
    if kind == 2:  # a whole or a cut stream behind it, with or without contents
        other = WRITERS[codec](rng, rng.choice((b"", b"more")))
        return payload + other[: rng.choice((len(other), len(other), len(other) - 1, 8, 16, 4))]
    if kind == 3:
        return payload[: -rng.choice((1, 2, 3, 4, 5, 8, 9))]
    at = rng.choice(
        (rng.randrange(min(20, len(payload))), len(payload) - 1 - rng.randrange(min(9, len(payload))))
    )
    if kind == 4 and codec == 1:
        at = 3
    changed = bytearray(payload)
    changed[at] ^= 1 << rng.randrange(8)
    if codec == 3 and at < 6 and rng.random() < 0.7 and len(changed) > 15:  # a right header checksum
        end = 14 if changed[4] & 8 else 6
        changed[end] = xxh32(bytes(changed[4:end])) >> 8 & 0xFF
    return bytes(changed)


def batch(seed: int) -> tuple[int, bytes, str]:
    """Return the codec and the batch of a seed, and its records if the changes do not reach them."""
    rng = random.Random(seed)
    codec = rng.choice((0, 1, 2, 2, 3, 4)) if rng.random() < 0.95 else 0
    count = rng.randint(1, 4)
    base_time = rng.choice((1_700_000_000_000, 1_700_000_000_000, 0, -1, -(2**63), 2**63 - 1, 2**62))
    time_deltas = [0, *rng.choices((0, 1, -5, 2**40, 2**63 - 1, -(2**63), 10), k=count - 1)]
    filler = rng.choice((1, 1, 1, 1, 1, 3_000, 40_000))
    values = [rng.randbytes(4) * filler for _ in range(count)]
    data = b"".join(record(d, time_deltas[d], values[d]) for d in range(count))
    times = [(base_time + delta + 2**63) % 2**64 - 2**63 for delta in time_deltas]
    records = "".join(f"{10 + d} {times[d]} {zlib.crc32(values[d])}," for d in range(count))
    payload = data
    if codec:
        cut = rng.choice((len(data), len(data), rng.randrange(len(data))))
        payload = WRITERS[codec](rng, data[:cut]) + (
            WRITERS[codec](rng, data[cut:]) if cut < len(data) else b""
        )
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            payload = _changed(rng, codec, payload) or b"\0"
    made = write_batch(
        base_offset=10,
        leader_epoch=0,
        attributes=codec,
        last_offset_delta=len(time_deltas) - 1,
        base_timestamp=base_time,
        max_timestamp=base_time,
        count=count,
        payload=payload,
    )
    return codec, made, records


# ---------------------------------------------------------------- readers


def by_functions(data: bytes) -> str:
    header = read_header(data, 0, len(data), "")
    records = read_records(data, header)
    return "".join(f"{r.offset} {r.timestamp} {zlib.crc32(r.value or b'')}," for r in records)


def by_kernels(data: bytes) -> str:
    from lastword.records.chunk import chunk_of
    from lastword.records.columns import decode_columns, raw_records

    chunk = chunk_of(data, "")
    records = raw_records(decode_columns(chunk), chunk)
    return "".join(f"{r.offset} {r.timestamp} {zlib.crc32(r.value or b'')}," for r in records)


def fault(data: bytes, right: str | None) -> str:
    """Compare the readers with Kafka's records, None if Kafka refuses; return the fault or ""."""
    for reader in (by_functions, by_kernels):
        try:
            read = reader(data)
        except DataError as error:
            if right is not None:
                return f"{reader.__name__}: {error}"
            continue
        if right is not None and read != right:
            return f"{reader.__name__}: {read[:200]}, Kafka {right[:200]}"
    return ""


class KafkaDecoders:
    """Kafka's record classes in a process that stays alive."""

    def __init__(self, jars: KafkaJars) -> None:
        from tests.differential.kafka_cleaner import SOURCES

        command = jars.command("DecodeMany", sources=SOURCES)
        self._process = AnsweringProcess(command, stderr=subprocess.DEVNULL)

    def read(self, data: bytes) -> str | None:
        """Return the records of a batch; None if Kafka refuses the batch."""
        kind, records = self._process.ask(base64.b64encode(data).decode())
        return records if kind == "ok" else None

    def close(self) -> None:
        self._process.close()


def _entry(kafka: KafkaDecoders, seed: int) -> str:
    """Return the letter of the saved table: r, read; c, read with other records; or a dash, refused."""
    _, data, records = batch(seed)
    right = kafka.read(data)
    return "-" if right is None else "r" if right == records else "c"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="write the table of the first seeds")
    options = parser.parse_args()
    kafka = KafkaDecoders(KafkaJars.find_or_fetch())
    counts: Counter[str] = Counter()
    faults = []
    try:
        for seed in range(options.first, options.first + options.batches):
            codec, data, records = batch(seed)
            right = kafka.read(data)
            if right not in (None, records):
                counts[f"{NAMES[codec]} with other records"] += 1
                continue
            counts[f"{NAMES[codec]} {'refused' if right is None else 'read'}"] += 1
            wrong = fault(data, right)
            if wrong:
                faults.append(f"seed {seed}: {NAMES[codec]}: {wrong}")
        if options.save:
            TABLE.write_text("".join(_entry(kafka, seed) for seed in range(SAVED)) + "\n")
    finally:
        kafka.close()
    print(f"{options.batches} batches: " + ", ".join(f"{n} {word}" for word, n in sorted(counts.items())))
    if faults:
        raise SystemExit("\n".join([*faults[:20], f"{len(faults)} faults"]))


if __name__ == "__main__":
    main()
