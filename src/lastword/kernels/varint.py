"""Zig-zag varints: 32-bit (at most 5 bytes) and 64-bit (at most 10)."""

from __future__ import annotations

import numpy as np

from lastword.kernels import inline
from lastword.kernels.memory import load8, store8

OVERLONG = 1 << 40
"""What `read_varint` gives for a varint of more than 5 bytes: no length, count or offset delta can be as
large.
"""


@inline
def read_varint(data, position):
    """(value, position after it); reads at most 5 bytes, unchecked. OVERLONG when the fifth is not the
    last.
    """
    byte = load8(data, position)
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 127
    byte = load8(data, position + 1)
    value |= (byte & 127) << 7
    if byte < 128:
        return (value >> 1) ^ -(value & 1), position + 2
    byte = load8(data, position + 2)
    value |= (byte & 127) << 14
    if byte < 128:
        return (value >> 1) ^ -(value & 1), position + 3
    byte = load8(data, position + 3)
    value |= (byte & 127) << 21
    if byte < 128:
        return (value >> 1) ^ -(value & 1), position + 4
    byte = load8(data, position + 4)
    if byte >= 128:
        return OVERLONG, position + 5
    value |= (byte & 15) << 28
    return (value >> 1) ^ -(value & 1), position + 5


@inline
def read_varlong(data, position):
    """(value, position after it, sound); reads at most 10 bytes, unchecked. Not sound when the tenth is
    not the last.
    """
    byte = load8(data, position)
    value = np.uint64(byte & 127)
    position += 1
    shift = np.uint64(7)
    while byte >= 128 and shift < np.uint64(70):
        byte = load8(data, position)
        value |= np.uint64(byte & 127) << shift
        shift += np.uint64(7)
        position += 1
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position, byte < 128


@inline
def zigzag(value):
    """The unsigned form of a signed value, as uint64."""
    return np.uint64((value << 1) ^ (value >> 63))


@inline
def varint_size(value):
    """Bytes of `value` as a varint or varlong (for a value of 32 bits both forms are the same)."""
    bits = zigzag(value)
    size = 1
    while bits >= np.uint64(128):
        bits >>= np.uint64(7)
        size += 1
    return size


@inline
def write_varint(data, position, value):
    """Write `value` and give the position after it; up to 10 bytes, unchecked."""
    bits = zigzag(value)
    while bits >= np.uint64(128):
        store8(data, position, np.int64(bits & np.uint64(127)) | 128)
        bits >>= np.uint64(7)
        position += 1
    store8(data, position, np.int64(bits))
    return position + 1
