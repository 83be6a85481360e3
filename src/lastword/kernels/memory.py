"""Raw loads, stores and copies on byte arrays, wide multiplies, and varints.

An array is always `uint8[::1]`, a position always a byte in it. Nothing here checks bounds, except with
`NUMBA_BOUNDSCHECK=1`; the kernels check lengths before they use them.

Varints are zig-zag: 32-bit (at most 5 bytes) and 64-bit (at most 10).
"""

from __future__ import annotations

import numpy as np

from lastword.kernels.native import Intrinsic, inline

load8 = Intrinsic("load8")
load16 = Intrinsic("load16")
load32 = Intrinsic("load32")
load64 = Intrinsic("load64")
load16_be = Intrinsic("load16_be")
load32_be = Intrinsic("load32_be")
load64_be = Intrinsic("load64_be")
store8 = Intrinsic("store8")
store32 = Intrinsic("store32")
store64 = Intrinsic("store64")
store16_be = Intrinsic("store16_be")
store32_be = Intrinsic("store32_be")
store64_be = Intrinsic("store64_be")
copy_exact = Intrinsic("copy_exact")
prefetch = Intrinsic("prefetch")
not_negative = Intrinsic("not_negative")
multiply_fold = Intrinsic("multiply_fold")
multiply_high = Intrinsic("multiply_high")
count_bits = Intrinsic("count_bits")


@inline
def copy_wide(target, target_position, source, source_position, size):
    """Copy `size` bytes; may read and write up to 7 bytes more, so both arrays need slack."""
    if size > 128:
        copy_exact(target, target_position, source, source_position, size)
    else:
        done = 0
        while done < size:
            store64(target, target_position + done, load64(source, source_position + done))
            done += 8


OVERLONG = 1 << 40
"""Result of `read_varint` for more than 5 bytes: larger than any length, count or offset delta."""


@inline
def read_varint(data, position):
    """Return (value, position after it); OVERLONG if the fifth byte is not the last.

    Reads at most 5 bytes, unchecked.
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
    """Return (value, position after it, valid); not valid if the tenth byte is not the last.

    Reads at most 10 bytes, unchecked.
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
    """Return the unsigned form of a signed value, as uint64."""
    return np.uint64((value << 1) ^ (value >> 63))


@inline
def varint_size(value):
    """Return the bytes of `value` as a varint or varlong: for a value of 32 bits both forms are the same."""
    bits = zigzag(value)
    size = 1
    while bits >= np.uint64(128):
        bits >>= np.uint64(7)
        size += 1
    return size


@inline
def write_varint(data, position, value):
    """Write `value` and return the position after it; up to 10 bytes, unchecked."""
    bits = zigzag(value)
    while bits >= np.uint64(128):
        store8(data, position, np.int64(bits & np.uint64(127)) | 128)
        bits >>= np.uint64(7)
        position += 1
    store8(data, position, np.int64(bits))
    return position + 1
