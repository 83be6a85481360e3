"""BLAKE2b with 16 bytes of digest and a salt (RFC 7693): the digests of keys in the key index.

`hashlib.blake2b(key, digest_size=16, salt=salt)` is the twin, and what single lookups call.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import NO_SLACK, OK, SLACK
from lastword.kernels.memory import load8, load64
from lastword.kernels.native import READ_I32, READ_I64, READ_U8, READ_U64, U64, inline, kernel

DIGEST_BYTES = 16
_IV = (
    0x6A09E667F3BCC908,
    0xBB67AE8584CAA73B,
    0x3C6EF372FE94F82B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
    0x9B05688C2B3E6C1F,
    0x1F83D9ABFB41BD6B,
    0x5BE0CD19137E2179,
)
IV = np.array(_IV, np.uint64)
SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    np.int64,
)


def initial_state(salt: bytes) -> np.ndarray:
    """Return the eight words with which a digest with this salt (16 bytes) begins."""
    parameters = np.zeros(8, np.uint64)
    parameters[0] = DIGEST_BYTES | 1 << 16 | 1 << 24  # no key; fanout and depth of a plain hash
    parameters[4:6] = np.frombuffer(salt, "<u8")
    return IV ^ parameters


@inline
def _rotate(word, bits):
    return (word >> np.uint64(bits)) | (word << np.uint64(64 - bits))


@inline
def _mix(a, b, c, d, x, y):
    a = a + b + x
    d = _rotate(d ^ a, 32)
    c = c + d
    b = _rotate(b ^ c, 24)
    a = a + b + y
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 63)
    return a, b, c, d


@inline
def _compress(scratch, counted, is_last):
    """Mix the block in scratch[8:24] into the state in scratch[:8]; `counted`: bytes up to its end."""
    v0, v1, v2, v3 = scratch[0], scratch[1], scratch[2], scratch[3]
    v4, v5, v6, v7 = scratch[4], scratch[5], scratch[6], scratch[7]
    v8, v9, v10, v11 = IV[0], IV[1], IV[2], IV[3]
    v12, v13, v14, v15 = IV[4] ^ np.uint64(counted), IV[5], IV[6], IV[7]
    if is_last:
        v14 = ~v14
    for turn in range(12):
        row = turn % 10
        v0, v4, v8, v12 = _mix(v0, v4, v8, v12, scratch[8 + SIGMA[row, 0]], scratch[8 + SIGMA[row, 1]])
        v1, v5, v9, v13 = _mix(v1, v5, v9, v13, scratch[8 + SIGMA[row, 2]], scratch[8 + SIGMA[row, 3]])
        v2, v6, v10, v14 = _mix(v2, v6, v10, v14, scratch[8 + SIGMA[row, 4]], scratch[8 + SIGMA[row, 5]])
        v3, v7, v11, v15 = _mix(v3, v7, v11, v15, scratch[8 + SIGMA[row, 6]], scratch[8 + SIGMA[row, 7]])
        v0, v5, v10, v15 = _mix(v0, v5, v10, v15, scratch[8 + SIGMA[row, 8]], scratch[8 + SIGMA[row, 9]])
        v1, v6, v11, v12 = _mix(v1, v6, v11, v12, scratch[8 + SIGMA[row, 10]], scratch[8 + SIGMA[row, 11]])
        v2, v7, v8, v13 = _mix(v2, v7, v8, v13, scratch[8 + SIGMA[row, 12]], scratch[8 + SIGMA[row, 13]])
        v3, v4, v9, v14 = _mix(v3, v4, v9, v14, scratch[8 + SIGMA[row, 14]], scratch[8 + SIGMA[row, 15]])
    scratch[0] ^= v0 ^ v8
    scratch[1] ^= v1 ^ v9
    scratch[2] ^= v2 ^ v10
    scratch[3] ^= v3 ^ v11
    scratch[4] ^= v4 ^ v12
    scratch[5] ^= v5 ^ v13
    scratch[6] ^= v6 ^ v14
    scratch[7] ^= v7 ^ v15


@inline
def _load_block(scratch, data, position, size):
    """Copy up to 128 bytes into scratch[8:24], with zeros behind them."""
    for word in range(16):
        left = size - 8 * word
        if left >= 8:
            scratch[8 + word] = load64(data, position + 8 * word)
        else:
            value = np.uint64(0)
            for at in range(left):
                byte = np.uint64(load8(data, position + 8 * word + at))
                value |= byte << np.uint64(8 * at)
            scratch[8 + word] = value


@kernel
def digest_spans(
    source: READ_U8, position: READ_I64, length: READ_I32, state: READ_U64, scratch: U64, digests: U64
) -> int:
    """Fill `digests` (two uint64 each) with the digest of each span of `source`, little-endian.

    `state`: `initial_state`; `scratch`: 24 uint64.
    """
    for i in range(position.size):
        at, size = position[i], np.int64(length[i])
        if at < 0 or size < 0 or size > source.size - SLACK - at:
            return NO_SLACK
        for word in range(8):
            scratch[word] = state[word]
        done = np.int64(0)
        while size - done > 128:
            _load_block(scratch, source, at + done, np.int64(128))
            done += 128
            _compress(scratch, done, False)
        _load_block(scratch, source, at + done, size - done)
        _compress(scratch, size, True)
        digests[2 * i] = scratch[0]
        digests[2 * i + 1] = scratch[1]
    return OK
