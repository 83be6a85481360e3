"""The header checksum of an LZ4 frame, in its two spellings.

    04 22 4d 18 · FLG · BD · [8 content size] · [4 dictionary id] · HC

HC is the second byte of xxHash32 over the descriptor: everything from FLG on, up to HC. Kafka before 0.10
took the four bytes of the frame's magic number in too. Entries of magic 0 keep that: 1a for FLG 60, BD 40,
where 82 is right. Kafka writes it so there and does not look at it when it reads.
"""

from __future__ import annotations

import struct


def with_checksum(frame: bytes, *, broken: bool) -> bytes:
    """The frame with its header checksum set: over the descriptor, as the format says, or (`broken`) over
    the frame's magic number too, as magic 0 has it. What is too short to have one is left to the
    decompressor's judgement."""
    if len(frame) < 7:
        return frame
    at = 6 + (8 if frame[4] & 0x08 else 0) + (4 if frame[4] & 0x01 else 0)  # content size, dictionary id
    if at >= len(frame):
        return frame
    checksum = _xxh32_short(frame[0 if broken else 4 : at]) >> 8 & 0xFF
    return b"".join((frame[:at], bytes((checksum,)), frame[at + 1 :]))


def _xxh32_short(data: bytes) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: longer input is hashed in lanes, which no frame header
    needs."""
    primes = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
    mask = 0xFFFFFFFF

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    state = (primes[4] + len(data)) & mask
    words = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        state = rotate((state + word * primes[2]) & mask, 17) * primes[3] & mask
    for byte in data[words:]:
        state = rotate((state + byte * primes[4]) & mask, 11) * primes[0] & mask
    state = (state ^ state >> 15) * primes[1] & mask
    state = (state ^ state >> 13) * primes[2] & mask
    return state ^ state >> 16
