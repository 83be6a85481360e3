"""A short log is read in plain Python: the results, and the errors, are those of the kernels."""

import random
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import CorruptBatchError, LastwordError
from lastword.partition import scan
from lastword.partition.counts import count_plain
from lastword.records.batch import BatchBuilder, read_header
from lastword.wire import LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT
from tests.support.exhaustive import stride
from tests.transactions import end_transaction

NOW = 1_700_000_000_000
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


def write(root: Path, rng: random.Random) -> None:
    """Make a topic with tombstones, headers, transactions of three outcomes, and perhaps cleaned segments."""
    keyless = rng.random() < 0.3
    with lastword.open(root, "a", clock=ManualClock(NOW), log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            "t",
            cleanup_policy="delete" if keyless else "compact",
            compression_type=rng.choice(CODECS),
            segment_bytes=rng.choice([30_000, 1 << 20]),
            lastword_ttl_ms=rng.choice([-1, 1000]),
        )
        log = logs.dirs.log("t", 0)
        for step in range(rng.choice([0, 30, 50, 57]), 60):
            records = [
                (
                    None if keyless and rng.random() < 0.2 else b"key %d" % rng.randrange(25),
                    None if rng.random() < 0.2 else b"v" * rng.choice([0, 1, 100, 2500]),
                )
                for _ in range(rng.randrange(1, 12))
            ]
            if rng.random() < 0.6:
                topic.extend(records)
                continue
            builder = BatchBuilder(producer_id=step, producer_epoch=0, transactional=True, base_sequence=0)
            for key, value in records:
                builder.append(NOW + step, key, value, (("h", None),) * rng.randrange(2))
            log.append_batch(builder.build())
            if step < 55 or rng.random() < 0.5:  # else it stays undecided
                end_transaction(log, step, 0, commit=rng.random() < 0.5)
        if not keyless and rng.random() < 0.5:
            logs.clean("t")


def force(monkeypatch, *, plain: bool) -> None:
    limit = 1 << 40 if plain else -1
    monkeypatch.setattr(scan, "PLAIN_BYTES", limit)
    monkeypatch.setattr(scan, "PLAIN_BYTES_LOADED", limit)


def seen(root: Path, name: str = "t") -> list[object]:
    """Return every view of a topic that has a plain way, or the error of each."""
    with lastword.open(root, clock=ManualClock(NOW)) as logs:
        topic = logs.topic(name, key_serializer="bytes", value_serializer="bytes")
        file = root.parent / "out.jsonl"

        def state() -> object:
            found = logs.state(name, key_serializer="bytes", value_serializer="bytes")
            return list(found.items()), found.position, [entry.bytes for entry in found.restored]

        def restore() -> object:
            file.unlink(missing_ok=True)
            (restored,) = logs.restore(name, 0, to=file)
            return file.read_text().rpartition("}")[0].splitlines()[:-1], restored.keys, restored.bytes

        views = (
            state,
            restore,
            topic.describe,
            topic.segments,
            lambda: list(topic.read(0)),
            lambda: list(topic.read(0, view="newest")),
        )
        results: list[object] = []
        for view in views:
            try:
                results.append(view())
            except LastwordError as error:
                results.append((type(error), error.code, error.message))
        return results


@pytest.mark.parametrize("seed", range(0, 20, stride(2)))
def test_random_logs(tmp_path, monkeypatch, seed):
    write(tmp_path / "data", random.Random(seed))
    with lastword.open(tmp_path / "data") as logs:
        assert count_plain(logs.dirs.views("t")[0]) is not None
    force(monkeypatch, plain=True)
    plain = seen(tmp_path / "data")
    force(monkeypatch, plain=False)
    assert seen(tmp_path / "data") == plain


def positions(data: bytes) -> list[int]:
    """Return the positions of bytes that a checksum protects, or whose change it finds."""
    found, at = [], 0
    while at < len(data):
        size = read_header(data, at, len(data), "file").size
        found += [*range(at + LENGTH_AT, at + LEADER_EPOCH_AT), *range(at + MAGIC_AT, at + size)]
        at += size
    return found


def codes(results: list[object]) -> list[object]:
    """Return the results with the kind and the code of each error."""
    return [
        found[:2] if isinstance(found, tuple) and isinstance(found[0], type) else found for found in results
    ]


@pytest.mark.parametrize("seed", range(stride(2), 21, stride(2)))
def test_damaged_logs(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    write(tmp_path / "data", rng)
    logs = sorted((tmp_path / "data" / "t-0").glob("*.log"))
    file = rng.choice([log for log in logs if log.stat().st_size])
    sound = file.read_bytes()
    refused = 0
    for _ in range(4):
        damaged = bytearray(sound)
        for _ in range(rng.choice([1, 1, 8])):
            damaged[rng.choice(positions(sound))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        force(monkeypatch, plain=True)
        plain = codes(seen(tmp_path / "data"))
        force(monkeypatch, plain=False)
        assert codes(seen(tmp_path / "data")) == plain
        refused += any(isinstance(found, tuple) and isinstance(found[0], type) for found in plain)
    assert refused


@pytest.mark.parametrize("batches", [60, 61])
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_damaged_offset_hides_no_record_behind_it(tmp_path, monkeypatch, is_plain, batches):
    """No checksum covers a base offset. A search for the end, from an index entry on, stopped at this batch.

    Every second batch has an entry: with one of the numbers it is the one before the damaged batch.
    """
    with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for batch in range(batches):
            topic.extend((b"%02d-%02d" % (batch, n), b"v" * 20) for n in range(100))
    file = next(tmp_path.glob("t-0/*.log"))
    data = bytearray(file.read_bytes())
    position = 0
    for _ in range(batches - 2):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    data[position + 4] ^= 1
    file.write_bytes(data)
    monkeypatch.setattr(scan, "is_short", lambda *_: is_plain)
    with lastword.open(tmp_path) as logs:
        for read in (lambda: list(logs["t"].newest()), lambda: logs.state("t")):
            with pytest.raises(CorruptBatchError, match="offset"):
                read()
