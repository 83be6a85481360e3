"""MessagePack: JSON's values and bytes, in a short binary form (https://msgpack.org, format version 5).

```
00-7f int    80-8f map    90-9f array    a0-bf text      c0 null      c2 c3 false true
c4 c5 c6 bytes (length of 1, 2, 4 bytes)    ca cb float (4, 8 bytes)    cc-cf unsigned    d0-d3 signed
d9 da db text    dc dd array    de df map    e0-ff int -32..-1    c7-c9 d4-d8 extensions: refused
```

One spelling for one value, since a key *is* its bytes: the shortest form of each number and length, floats in
8 bytes, the entries of a map in the order of their keys' bytes. A tuple is written as an array. Arrays and
maps may nest 100 deep; the keys of a map are plain values.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import Any

DEEPEST = 100
_FLOAT = struct.Struct(">d")
_SMALL = {2: struct.Struct(">H"), 4: struct.Struct(">I")}


def dumps(value: Any) -> bytes:
    """TypeError for what has no form, ValueError for an int outside 64 bits."""
    out = bytearray()
    _write(out, value, DEEPEST)
    return bytes(out)


def loads(data: bytes) -> Any:
    """ValueError unless `data` is one whole value."""
    reader = _Reader(data)
    value = reader.value(DEEPEST)
    if reader.position != len(data):
        raise ValueError("expected one value")
    return value


def _write(out: bytearray, value: Any, deep: int) -> None:
    if deep < 0:
        raise ValueError(f"expected at most {DEEPEST} levels")
    if value is None:
        out.append(0xC0)
    elif value is True or value is False:
        out.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        out += _integer(value)
    elif isinstance(value, float):
        out.append(0xCB)
        out += _FLOAT.pack(value)
    elif isinstance(value, str):
        data = value.encode()
        out += _head(len(data), 0xA0, 32, 0xD9, True) + data
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out += _head(len(bytes(value)), 0, 0, 0xC4, True) + bytes(value)
    elif isinstance(value, (list, tuple)):
        out += _head(len(value), 0x90, 16, 0xDC, False)
        for item in value:
            _write(out, item, deep - 1)
    elif isinstance(value, dict):
        out += _head(len(value), 0x80, 16, 0xDE, False)
        for data, key in sorted(((dumps(key), key) for key in value), key=itemgetter(0)):
            if isinstance(key, tuple):
                raise TypeError("expected a map's keys to be plain values, got tuple")
            out += data
            _write(out, value[key], deep - 1)
    else:
        raise TypeError(f"expected a value that MessagePack has, got {type(value).__name__}")


def _head(length: int, short: int, shorts: int, long: int, with_byte: bool) -> bytes:
    """Type and length. `short`, `shorts`: type byte and number of the lengths that fit into it; `long`: type
    byte of the first longer form.
    """
    if length < shorts:
        return bytes([short | length])
    if with_byte and length < 1 << 8:
        return bytes([long, length])
    long += with_byte
    if length < 1 << 16:
        return bytes([long]) + _SMALL[2].pack(length)
    if length < 1 << 32:
        return bytes([long + 1]) + _SMALL[4].pack(length)
    raise ValueError("expected less than 4 GiB")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return bytes([value & 0xFF])
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("expected an int of 64 bits")
    signed = value < 0
    for power in range(4):
        bits = 8 << power
        if (-(1 << (bits - 1)) <= value) if signed else value < 1 << bits:
            return bytes([(0xD0 if signed else 0xCC) + power]) + value.to_bytes(
                bits // 8, "big", signed=signed
            )
    raise AssertionError


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise ValueError("expected more bytes")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def value(self, deep: int) -> Any:
        if deep < 0:
            raise ValueError(f"expected at most {DEEPEST} levels")
        kind = self.number(1)
        if kind < 0x80 or kind >= 0xE0:
            return kind if kind < 0x80 else kind - 256
        if kind < 0x90:
            return self.map(kind & 0x0F, deep)
        if kind < 0xA0:
            return self.array(kind & 0x0F, deep)
        if kind < 0xC0:
            return self.take(kind & 0x1F).decode()
        if kind in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[kind]
        if 0xC4 <= kind <= 0xC6:
            return self.take(self.number(1 << (kind - 0xC4)))
        if kind == 0xCA:
            return struct.unpack(">f", self.take(4))[0]
        if kind == 0xCB:
            return _FLOAT.unpack(self.take(8))[0]
        if 0xCC <= kind <= 0xD3:
            return self.number(1 << ((kind - 0xCC) & 3), signed=kind >= 0xD0)
        if 0xD9 <= kind <= 0xDB:
            return self.take(self.number(1 << (kind - 0xD9))).decode()
        if kind in (0xDC, 0xDD):
            return self.array(self.number(2 << (kind - 0xDC)), deep)
        if kind in (0xDE, 0xDF):
            return self.map(self.number(2 << (kind - 0xDE)), deep)
        raise ValueError("expected no extension type")

    def array(self, length: int, deep: int) -> list[Any]:
        return [self.value(deep - 1) for _ in range(length)]

    def map(self, length: int, deep: int) -> dict[Any, Any]:
        found = {}
        for _ in range(length):
            key = self.value(deep - 1)
            if isinstance(key, (list, dict)):
                raise ValueError("expected a map's keys to be plain values")
            found[key] = self.value(deep - 1)
        return found
