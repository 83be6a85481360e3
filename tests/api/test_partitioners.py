"""Partitioners: the hash of Kafka's Java client, librdkafka's, and the results that a callable may return."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.api.schema import (
    by_crc32,
    by_murmur2,
    choose,
    murmur2,
    murmur2_partitions,
    partitioner_of,
)
from lastword.errors import UsageError


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_answers_as_the_java_client(key, signed):
    assert murmur2(key) == signed & 0xFFFFFFFF
    # The sign bit is cleared; a negation instead would give another partition.
    assert by_murmur2(key, 7) == (signed & 0x7FFFFFFF) % 7


def test_crc32_is_unsigned():
    assert by_crc32(b"123456789", 1 << 32) == 0xCBF43926
    assert by_crc32(b"123456789", 10) == 0xCBF43926 % 10
    assert by_crc32(b"", 3) == 0


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20), st.integers(1, 7), st.integers(0, 5))
def test_murmur2_of_a_column_is_that_of_each(keys, partitions, first):
    column = pa.array(keys, pa.binary())[first:]
    expected = [-1 if key is None else by_murmur2(key, partitions) for key in keys[first:]]
    assert murmur2_partitions(column, partitions).tolist() == expected


def test_callables_are_checked():
    name, last = partitioner_of(lambda key, n: n - 1)
    assert name is None
    assert choose(last, b"k", 4) == 3
    for wrong in (4, -1, None, "0"):
        with pytest.raises(UsageError, match="partitioner returned"):
            choose(lambda key, n, wrong=wrong: wrong, b"k", 4)


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="nearest: murmur2"):
        partitioner_of("murmur3")
    with pytest.raises(UsageError):
        partitioner_of(7)
