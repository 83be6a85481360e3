"""A second reader of deletion vectors, in plain Python, after the formats of Delta and of Roaring."""

from __future__ import annotations

import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def z85(text: str) -> bytes:
    data = b""
    for first in range(0, len(text), 5):
        number = 0
        for character in text[first : first + 5]:
            number = number * 85 + ALPHABET.index(character)
        data += number.to_bytes(4, "big")
    return data


def deleted_rows(table: Path, descriptor: dict[str, Any]) -> list[int]:
    """Return the rows that the vector of an `add` action deletes."""
    assert descriptor["storageType"] == "u"
    name = uuid.UUID(bytes=z85(descriptor["pathOrInlineDv"][-20:]))
    data = (table / f"deletion_vector_{name}.bin").read_bytes()
    assert data[0] == 1
    start, size = descriptor["offset"], descriptor["sizeInBytes"]
    assert int.from_bytes(data[start : start + 4], "big") == size
    content = data[start + 4 : start + 4 + size]
    assert int.from_bytes(data[start + 4 + size : start + 8 + size], "big") == zlib.crc32(content)
    magic, count = struct.unpack_from("<IQ", content)
    assert magic == 1681511377
    rows: list[int] = []
    at = 12
    for _ in range(count):
        high = struct.unpack_from("<I", content, at)[0]
        low, at = roaring(content, at + 4)
        rows += [high << 32 | number for number in low]
    assert at == len(content)
    assert len(rows) == descriptor["cardinality"]
    return rows


def roaring(data: bytes, start: int) -> tuple[list[int], int]:
    """Return the numbers of a 32-bit roaring bitmap in portable form, and the position behind it."""
    cookie = struct.unpack_from("<I", data, start)[0]
    at = start + 4
    has_runs = cookie & 0xFFFF == 12347
    if has_runs:
        count = (cookie >> 16) + 1
        flags = data[at : at + (count + 7) // 8]
        at += len(flags)
    else:
        assert cookie == 12346
        count, flags = struct.unpack_from("<I", data, at)[0], b""
        at += 4
    heads = [struct.unpack_from("<HH", data, at + 4 * number) for number in range(count)]
    at += 4 * count
    if not has_runs or count >= 4:
        at += 4 * count  # the positions of the containers
    numbers: list[int] = []
    for number, (key, less) in enumerate(heads):
        base = key << 16
        if has_runs and flags[number // 8] >> number % 8 & 1:
            runs = struct.unpack_from("<H", data, at)[0]
            at += 2
            for _ in range(runs):
                first, more = struct.unpack_from("<HH", data, at)
                numbers += range(base + first, base + first + more + 1)
                at += 4
        elif less + 1 <= 4096:
            numbers += [base + low for low in struct.unpack_from(f"<{less + 1}H", data, at)]
            at += 2 * (less + 1)
        else:
            bits = int.from_bytes(data[at : at + 8192], "little")
            numbers += [base + bit for bit in range(65536) if bits >> bit & 1]
            at += 8192
    return numbers, at
