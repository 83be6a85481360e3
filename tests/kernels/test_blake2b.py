"""The digests of the kernel are those of `hashlib.blake2b`."""

import hashlib
import random

import numpy as np
import pytest

from lastword.kernels import NO_SLACK, OK, SLACK
from lastword.kernels.blake2b import digest_spans, initial_state


def digests(data, position, length, salt):
    found = np.zeros(2 * len(position), np.uint64)
    status = digest_spans(
        np.frombuffer(data, np.uint8),
        np.array(position, np.int64),
        np.array(length, np.int32),
        initial_state(salt),
        np.empty(24, np.uint64),
        found,
    )
    return status, [row.tobytes() for row in found.view(np.uint8).reshape(-1, 16)]


def test_every_length_around_the_blocks():
    chosen = random.Random(1)
    salt = chosen.randbytes(16)
    keys = [chosen.randbytes(size) for size in [*range(300), 1000, 4096, 100_000]]
    position = [sum(map(len, keys[:n])) for n in range(len(keys))]
    status, found = digests(b"".join(keys) + bytes(SLACK), position, list(map(len, keys)), salt)
    assert status == OK
    assert found == [hashlib.blake2b(key, digest_size=16, salt=salt).digest() for key in keys]


def test_bytes_behind_a_key_and_another_salt_count_not_and_count():
    data = b"key-one" + b"\xff" * SLACK
    _, first = digests(data, [0], [7], bytes(16))
    _, same = digests(b"key-one" + bytes(SLACK), [0], [7], bytes(16))
    _, other = digests(data, [0], [7], b"\x01" + bytes(15))
    assert first == same != other


@pytest.mark.parametrize("at, size", [(-1, 1), (0, -1), (2, 7), (9, 0), (1 << 40, 1)])
def test_a_span_outside_is_refused(at, size):
    status, _ = digests(b"12345678" + bytes(SLACK), [at], [size], bytes(16))
    assert status == NO_SLACK
