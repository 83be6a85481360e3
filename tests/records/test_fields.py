"""The short loop over the records of a batch gives what a record after the other gives."""

import random

import pytest

from lastword.errors import CorruptBatchError
from lastword.records import batch
from lastword.records.batch import BatchBuilder, _record, fields_of, payload_of, read_header

SIZES = (0, 1, 3, 62, 63, 64, 65, 127, 128, 200, 8190, 8191, 8192, 9000)


def one_by_one(payload, header):
    """Return the fields of each record up to the first invalid one, and the text of the error."""
    position, end, last, fields = 0, len(payload), -1, []
    for number in range(header.count):
        try:
            record = _record(payload, position, end)
            if not last < record[1] <= header.last_offset - header.base_offset:
                raise ValueError
        except ValueError:
            return fields, number
        position, last = record[:2]
        fields.append(record)
    return fields, None if position == end else "behind"


def in_the_loop(payload, header):
    fields = []
    try:
        fields.extend(fields_of(payload, header, "file"))
    except CorruptBatchError as error:
        behind = "behind the last" in error.message
        return fields, "behind" if behind else int(error.message.split("record ")[1].split(" of ")[0]) - 1
    return fields, None


def built(rng, records):
    builder = BatchBuilder()
    now = 1_700_000_000_000
    for _ in range(records):
        now += rng.choice([0, 1, -1, 63, -64, 64, 8191, 8192, 1 << 31, -(1 << 40), 1 << 55, 1 << 57])
        now = max(now, 0) % (1 << 62)
        key, value = (None if rng.random() < 0.2 else rng.randbytes(rng.choice(SIZES)) for _ in range(2))
        headers = (("name", rng.choice([None, b"x" * 70])),) * rng.choice([0, 0, 0, 1, 2])
        builder.append(now, key, value, headers)
    data = builder.build()
    header = read_header(data, 0, len(data), "file")
    return bytes(payload_of(data, header, "file")), header


@pytest.mark.parametrize("seed", range(8))
def test_any_records(seed):
    rng = random.Random(seed)
    for _ in range(12):
        payload, header = built(rng, rng.choice([1, 2, 10, 200]))
        fields, error = in_the_loop(payload, header)
        assert (fields, error) == one_by_one(payload, header)
        assert error is None and len(fields) == header.count


@pytest.mark.parametrize("seed", range(8))
def test_damaged_records(seed):
    rng = random.Random(100 + seed)
    refused = 0
    for _ in range(250):
        payload, header = built(rng, rng.choice([1, 3]))
        damaged = bytearray(payload)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = min(int(rng.expovariate(0.1)), len(damaged) - 1)
            damaged[at] = rng.choice([0, 1, 2, 127, 128, 255, damaged[at] ^ 1, damaged[at] ^ 128])
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        result = in_the_loop(bytes(damaged), header)
        assert result == one_by_one(bytes(damaged), header), bytes(damaged[:40]).hex()
        refused += result[1] is not None
    assert refused > 100


def test_the_loop_reads_most_records_itself(monkeypatch):
    """Sizes of two bytes at most, and no headers; a fault that sends all to the other way is found here."""
    others = []
    monkeypatch.setattr(batch, "_record", lambda *given: others.append(1) or _record(*given))
    builder = BatchBuilder()
    for number in range(300):
        builder.append(
            1_700_000_000_000 + 1000 * number, b"key %d" % number, None if number % 5 == 0 else b"v" * 1000
        )
    data = builder.build()
    header = read_header(data, 0, len(data), "file")
    assert len(list(fields_of(payload_of(data, header, "file"), header, "file"))) == 300
    assert others == []


def test_a_row_of_continuation_bytes_takes_no_time():
    """Numbers without an end stay small: their length is bounded before it is known to be wrong."""
    data = BatchBuilder()
    data.append(0, b"k", b"v")
    whole = data.build()
    header = read_header(whole, 0, len(whole), "file")
    with pytest.raises(CorruptBatchError):
        list(fields_of(b"\xff" * (1 << 20), header, "file"))
