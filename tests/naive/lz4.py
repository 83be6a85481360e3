"""Decoder of Kafka's lz4 frames, byte by byte."""

from __future__ import annotations

import struct

HEAD = bytes.fromhex("04224d18604082")


def decompress_block(block: bytes, most: int = 64 << 10) -> bytes | None:
    """Return the plain bytes of a block; None if it is damaged or holds more than `most`."""
    out = bytearray()
    position = 0

    def size_of(nibble: int) -> int:
        nonlocal position
        size = nibble
        while nibble == 15:
            byte = block[position]
            position += 1
            size += byte
            if byte != 255:
                break
        return size

    try:
        while True:
            token = block[position]
            position += 1
            size = size_of(token >> 4)
            if size > len(block) - position:
                return None
            out += block[position : position + size]
            position += size
            if len(out) > most:
                return None
            if position == len(block):
                return bytes(out)
            distance = block[position] | block[position + 1] << 8
            position += 2
            size = size_of(token & 15) + 4
            if not 0 < distance <= len(out) or len(out) + size > most:
                return None
            for _ in range(size):
                out.append(out[-distance])
    except IndexError:
        return None


def decompress_frame(data: bytes) -> bytes | None:
    """Return the plain bytes of a frame with Kafka's head; None for other heads and damaged frames."""
    if data[:7] != HEAD:
        return None
    out = b""
    position = 7
    while len(data) - position >= 4:
        (word,) = struct.unpack_from("<I", data, position)
        position += 4
        size = word & 0x7FFFFFFF
        if size == 0:
            return out
        if size > 64 << 10 or size > len(data) - position:
            return None
        block = data[position : position + size]
        plain = block if word >> 31 else decompress_block(block)
        if plain is None:
            return None
        out += plain
        position += size
    return None
