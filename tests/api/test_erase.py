"""Erasure of keys: no file holds a key or an old value afterwards, and the certificate says so truthfully.

`left_in` is a search of its own: it decompresses batches with Arrow's codecs and looks at every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

import lastword
from lastword.api import erasing
from lastword.cleaner.engine.erasure import ErasedRecords, SpanSet
from lastword.errors import (
    BusyError,
    CorruptFileError,
    LeaseRefusedError,
    NoPolicyError,
    PartialFailure,
    QuarantinedError,
    UsageError,
)
from lastword.files import OsFiles
from lastword.keys import index
from lastword.segment.names import marked_partition_dir
from lastword.tools import erasure
from lastword.tools.dump import dump
from lastword.tools.erasure import Listed, Wanted
from tests.fakes.hasty import HastyFiles
from tests.fakes.recording import RecordingFiles, Stopped
from tests.support.damage import flip
from tests.support.exhaustive import stride
from tests.transactions import begin_transaction, end_transaction

CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
DAY_MS = 86_400_000


def contents(path: Path) -> Iterable[bytes]:
    """Yield the bytes of a file, and of a file of batches the records of each batch, decompressed."""
    data = path.read_bytes()
    yield data
    at = 0
    while ".log" in path.name and at + 61 <= len(data):
        (size,) = struct.unpack_from(">i", data, at + 8)
        (attributes,) = struct.unpack_from(">h", data, at + 21)
        if size <= 0 or data[at + 16] != 2:
            break
        records = data[at + 61 : at + 12 + size]
        (checksum,) = struct.unpack_from(">I", data, at + 17)  # an object has other files behind the batches
        is_batch = google_crc32c.value(data[at + 21 : at + 12 + size]) == checksum
        if is_batch and attributes & 7 in CODECS and records:
            yield pa.input_stream(pa.py_buffer(records), compression=CODECS[attributes & 7]).read()
        at += 12 + size


def left_in(root: Path, wanted: Iterable[bytes]) -> set[str]:
    """Return the files below a directory that hold one of these byte strings."""
    each = list(wanted)
    return {
        str(path.relative_to(root))
        for path in sorted(root.rglob("*"))
        if path.is_file() and any(data in part for part in contents(path) for data in each)
    }


class Filled:
    """A topic with random keys and values: joined batches, both indexes, and garbage everywhere."""

    def __init__(
        self, logs: Any, codec: str = "zstd", rounds: int = 12, seed: int = 1, **settings: Any
    ) -> None:
        rng = random.Random(seed)
        self.keys = [rng.randbytes(16) for _ in range(20)]
        self.old: dict[bytes, list[bytes]] = {key: [] for key in self.keys}
        self.topic = logs.create_topic(
            "users", cleanup_policy="compact", compression_type=codec, segment_bytes=4000, **settings
        )
        for number in range(rounds):
            for key in self.keys:
                self.old[key].append(rng.randbytes(32))
                self.topic.append(key, self.old[key][-1])
            if number == rounds // 2:
                logs.clean(strategy="generational")
                self.topic.get(self.keys[0])

    def secrets(self, count: int) -> list[bytes]:
        """Return the first keys, and all their values."""
        return [*self.keys[:count], *(value for key in self.keys[:count] for value in self.old[key])]


@pytest.mark.parametrize("codec", ["uncompressed", "zstd", "lz4", "gzip"])
@pytest.mark.parametrize("now", [True, False])
def test_no_file_holds_the_keys_or_their_values(tmp_path, clock, codec, now):
    root = tmp_path / "data"
    with lastword.open(root, "a", clock=clock, files=HastyFiles()) as logs:
        filled = Filled(logs, codec)
        assert left_in(root, filled.secrets(3))
        before = {key: filled.topic.get(key) for key in filled.keys[3:]}
        done = filled.topic.erase(filled.keys[:3], now=now)
        assert done.complete
        assert sum(part.records for part in done.partitions) >= 3 * 6
        assert left_in(root, filled.secrets(3)[3:]) == set()
        assert bool(left_in(root, filled.keys[:3])) is not now
        assert {key: filled.topic.get(key) for key in filled.keys[3:]} == before
        assert [filled.topic.get(key) for key in filled.keys[:3]] == [None] * 3
        assert logs.verify().ok
        # The newest offset stays: an empty batch has it if a tombstone had it.
        filled.topic.append(b"next", b"1")
        assert filled.topic.get_record(b"next").offset == done.partitions[0].end
    if now:
        assert left_in(root, filled.secrets(3)) == set()
    else:
        (part,) = done.partitions
        assert [kept.until_ms for kept in part.kept] == [clock.now_ms() + DAY_MS] * 3
        clock.advance(2 * DAY_MS)
        with lastword.open(root, "a", clock=clock) as logs:
            logs.clean()  # starts the clock of the tombstones
            clock.advance(2 * DAY_MS)
            logs.topic("users").append(b"last", b"1")
            logs.clean()
            assert logs.topic("users").erase(filled.keys[:3]).complete
        assert left_in(root, filled.secrets(3)) == set()


def test_records_of_other_keys_stay_also_garbage_and_young_ones(logs, clock):
    filled = Filled(logs, min_compaction_lag_ms=DAY_MS)
    before = [(record.offset, record.key) for record in filled.topic.read()]
    filled.topic.erase(filled.keys[:1], now=True)
    after = [(record.offset, record.key) for record in filled.topic.read()]
    assert after == [pair for pair in before if pair[1] != filled.keys[0]]


def test_a_prefix_a_dry_run_and_keys_that_are_not_there(logs, tmp_path):
    topic = logs.create_topic("users", partitions=3, cleanup_policy="compact", key_serializer="str")
    for number in range(30):
        topic.append(f"c-{number % 10:02}/name", b"a value of 16 and more bytes")
    root = tmp_path / "data"
    planned = topic.erase(["absent"], prefix=b"c-0", dry_run=True)
    assert (len(planned.keys), planned.complete) == (11, False)
    assert sum(part.records for part in planned.partitions) == 30
    assert topic.get("c-01/name") is not None
    done = topic.erase(prefix=b"c-01", now=True)
    assert (len(done.keys), done.complete) == (1, True)
    assert topic.get("c-01/name") is None
    assert left_in(root, [b"c-01/name"]) == set()
    assert sum(part.records for part in topic.erase(["absent"]).partitions) == 0


def test_a_repeated_call_appends_no_second_tombstone(logs):
    topic = logs.create_topic("users", cleanup_policy="compact")
    topic.append(b"a", b"1")
    first = topic.erase([b"a"])
    assert topic.erase([b"a"]).partitions[0].end == first.partitions[0].end == 2


def test_a_key_that_is_written_meanwhile_stays(logs, monkeypatch, tmp_path):
    topic = logs.create_topic("users", cleanup_policy="compact")
    topic.append(b"the key of someone", b"1")
    rewrite = erasing.erase_records

    def write_first(*arguments: Any, **options: Any) -> Any:
        topic.append(b"the key of someone", b"2")
        return rewrite(*arguments, **options)

    monkeypatch.setattr(erasing, "erase_records", write_first)
    done = topic.erase([b"the key of someone"], now=True)
    assert done.complete
    assert [(record.offset, record.value) for record in topic.read()] == [(2, b"2")]
    done.save(tmp_path / "certificate.json")
    check = topic.check_erasure(tmp_path / "certificate.json")
    assert (check.came_back, check.left) == (((0, 2),), ())


def test_refusals_change_nothing(logs):
    topic = logs.create_topic("events", cleanup_policy="delete")
    topic.append(b"a", b"1")
    with pytest.raises(NoPolicyError, match="cannot be erased"):
        topic.erase([b"a"])
    users = logs.create_topic("users", cleanup_policy="compact")
    with pytest.raises(UsageError, match="no bytes"):
        users.erase([b""])


def test_an_open_transaction_is_named_and_nothing_is_appended(logs):
    topic = logs.create_topic("users", cleanup_policy="compact")
    topic.append(b"a", b"1")
    begin_transaction(logs.dirs.log("users", 0), 7, (b"b", b"2"))
    with pytest.raises(PartialFailure, match="transaction or commit at 1 is not decided") as raised:
        topic.erase([b"a"])
    assert isinstance(raised.value.errors[0], BusyError)
    assert topic.bounds() == {0: (0, 2)}


def test_markers_that_are_due_stay_until_the_next_cleaning(logs, clock):
    topic = logs.create_topic("users", cleanup_policy="compact", delete_retention_ms=1000)
    log = logs.dirs.log("users", 0)
    for number in range(2):  # the second marker is the last batch of the producer, and holds its epoch
        begin_transaction(log, 7, (b"a", b"old %d" % number), sequence=number)
        end_transaction(log, 7, 0, commit=True)
    topic.append(b"a", b"new")
    topic.append(b"b", b"value")

    def markers():
        segments = sorted(Path(log.directory).glob("*.log"))
        return [batch.base_offset for path in segments for batch in dump(path) if batch.control]

    for _ in range(2):  # after the records, the first marker gets a delete horizon
        logs.clean("users")
    clock.advance(10_000)
    topic.erase([b"b"])
    assert markers() == [1, 3]
    logs.clean("users")
    assert markers() == [3]


# ---------------------------------------------------------------- leases


def test_leases_are_named_and_with_now_their_readers_are_refused(logs, clock):
    topic = logs.create_topic("users", cleanup_policy="compact", delete_retention_ms=1000)
    for number in range(6):
        topic.append(b"k%d" % (number % 3), b"%d" % number)
    slow, ahead = topic.lease("slow", position=2), topic.lease("ahead", position=2)
    (kept,) = topic.erase([b"k0"]).partitions[0].kept
    assert sorted(kept.leases) == ["ahead at 2", "slow at 2"]
    assert kept.until_ms == clock.now_ms() + 1000
    ahead.advance(7)
    (part,) = topic.erase([b"k0"], now=True).partitions
    assert (part.leases, part.tombstones) == (("slow at 2",), 1)
    with pytest.raises(LeaseRefusedError, match="or an erasure"):
        slow.advance(7)
    ahead.advance(7)
    with pytest.raises(LeaseRefusedError):
        topic.lease("late", position=3)


# ---------------------------------------------------------------- planted copies


def plant(root: Path, filled: Filled) -> dict[str, bytes]:
    """Return files that hold the first key or a value of it, by their path in the partition."""
    key, value = filled.keys[0], filled.old[filled.keys[0]][-1]
    log = (root / sorted(name for name in left_in(root, [value]) if name.endswith(".log"))[0]).read_bytes()
    return {
        "00000000000000000777.snapshot": b"\0" * 9 + key,
        "00000000000000000777.log.deleted": log,
        "lastword/copy/00000000000000000000.log": log,
        "lastword/staging-1/00000-1.batches": log,
        "lastword/sharded-1/unit-1.data": b"x" * 5 + value + b"y",
        "../lastword.staged-1-2-3": log,
        "../users-0.0123456789abcdef0123456789abcdef-delete/00000000000000000000.log": log,
    }


def test_planted_copies_are_found(tmp_path, clock):
    root = tmp_path / "data"
    with lastword.open(root, "a", clock=clock) as logs:
        filled = Filled(logs)
        copies = plant(root, filled)
        for name, data in copies.items():
            path = root / "users-0" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        done = filled.topic.erase(filled.keys[:1], now=True)
        assert not done.complete
        found = {copy.file for copy in done.partitions[0].copies}
        assert found == {os.path.normpath(f"users-0/{name}") for name in copies}
        assert found == left_in(root, filled.secrets(1))
        for name in copies:
            (root / "users-0" / name).unlink()
        assert filled.topic.erase(filled.keys[:1], now=True).complete


@pytest.mark.parametrize("name", ["users", "u" * 240])
def test_a_deleted_copy_in_another_directory_and_of_a_long_topic_is_found(tmp_path, clock, name):
    roots = [tmp_path / "a", tmp_path / "b"]
    with lastword.open(roots, "a", clock=clock) as logs:
        topic = logs.create_topic(name, cleanup_policy="compact")
        topic.append(b"the key of someone", b"1")
        home = Path(logs.dirs.log(name, 0).directory)
        other = next(root for root in roots if root != home.parent)
        copy = other / marked_partition_dir(name, 0, "delete", "0123456789abcdef" * 2)
        shutil.copytree(home, copy)
        (part,) = topic.erase([b"the key of someone"], now=True).partitions
        assert {Path(found.file).name for found in part.copies} == {"00000000000000000000.log"}
        assert {home.parent.joinpath(found.file).resolve() for found in part.copies} == {
            path.resolve() for path in copy.glob("*.log")
        }


@pytest.mark.parametrize("key", [bytes(8), (10).to_bytes(8, "big"), (10).to_bytes(8, "little")])
def test_numbers_and_zeros_in_indexes_and_snapshots_are_no_copies(tmp_path, clock, key):
    root = tmp_path / "data"
    with lastword.open(root, "a", clock=clock) as logs:
        topic = logs.create_topic("users", cleanup_policy="compact")
        topic.extend([(b"k%d" % number, b"1") for number in range(9)], producer="p", sequence=1)
        topic.append(key, bytes(40))
        topic.append(b"sparse", bytes(3000) + b"a value of 16 and more bytes" + bytes(3000))
        (root / "users-0" / "00000000000000000777.snapshot").write_bytes(bytes(90) + key + bytes(1 << 20))
        done = topic.erase([key, b"sparse"], now=True)
        assert done.complete, done.partitions[0].copies[:3]


@pytest.mark.parametrize(
    "value",
    [bytes(9000) + b"\1" + bytes(9000) + b"a value of 16 bytes", b"x" * 20_000, b"xyz" * 7000],
)
def test_values_with_long_runs_are_found_with_few_comparisons(monkeypatch, value):
    compared = 0

    def counted(salt: bytes, data: bytes) -> bytes:
        nonlocal compared
        compared += 1
        return data

    monkeypatch.setattr(erasure, "digest_of", counted)
    wanted = Wanted(SpanSet([]), b"s")
    wanted.add_value(value)
    data = bytes(100_000) + b"<" + value + b">" + bytes(100_000) + b"<" + value + b">"
    found = sorted(wanted.find(np.frombuffer(data, np.uint8)))
    assert [at for at, *_ in found] == [100_001, len(data) - 1 - len(value)]
    assert compared < 10


def test_a_garbage_index_and_a_key_index_are_removed_and_found_if_they_come_back(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(index, "WORTH_SAVING", 1)
    root = tmp_path / "data"
    private = root / "users-0" / "lastword"
    with lastword.open(root, "a", clock=clock) as logs:
        filled = Filled(logs)
    saved = {
        path: path.read_bytes() for path in private.iterdir() if path.name.startswith(("accounts", "keys-"))
    }
    assert {path.name.split("-")[0] for path in saved} == {"accounts", "keys"}
    with lastword.open(root, "a", clock=clock) as logs:
        topic = logs.topic("users")
        assert topic.erase(filled.keys[:1], now=True).complete
        assert not any(path.exists() for path in saved)
        for path, data in saved.items():
            path.write_bytes(data)
        wanted = Wanted(SpanSet(filled.keys[:1]), b"s")
        log_dir = logs.dirs.directories[0]
        result = erasure.search(
            logs.dirs.view("users", 0), wanted, lambda key, offset: False, log_dir.path, log_dir.files
        )
        assert {copy.file for copy in result.copies} == {str(path.relative_to(root)) for path in saved}


def test_a_fault_of_the_erasure_itself_is_found(logs, monkeypatch):
    filled = Filled(logs)
    with monkeypatch.context() as patched:  # a rewrite that removes nothing
        patched.setattr(erasing, "erase_records", lambda *_, **__: ErasedRecords(None, np.empty(0, np.int64)))
        (part,) = filled.topic.erase(filled.keys[:1], now=True).partitions
        assert {copy.text for copy in part.copies} == {"a record of the key", "a tombstone of the key"}


def test_other_records_with_the_bytes_are_named_and_stay(logs):
    topic = logs.create_topic("users", cleanup_policy="compact")
    topic.append(b"customer-1234", b"the old value of customer 1234")
    topic.append(b"order-1", b'{"of": "customer-1234"}')
    topic.append(b"order-2", b"the old value of customer 1234")
    done = topic.erase([b"customer-1234"], now=True)
    assert done.complete
    (part,) = done.partitions
    assert [(copy.offset, copy.text) for copy in part.others] == [
        (1, "bytes of the key in a record of another key"),
        (2, "bytes of an old value in a record of another key"),
    ]


def test_a_partition_in_quarantine_is_refused_and_the_others_are_erased(tmp_path, clock):
    root = tmp_path / "data"
    with lastword.open(root, "a", clock=clock) as logs:
        topic = logs.create_topic("users", partitions=2, cleanup_policy="compact")
        for number in (0, 1):
            topic.append(b"the same key", b"a value of 16 and more bytes", partition=number)
            topic.append(b"another key", b"1", partition=number)
            logs.dirs.log("users", number).roll()
        path = root / "users-0" / "00000000000000000000.log"
        flip(path, 18)  # its checksum
        with pytest.raises(PartialFailure) as raised:
            topic.erase([b"the same key"], now=True)
        (result,) = raised.value.results
        assert [part.partition for part in result.partitions] == [1]
        assert not result.complete and "users-0" in result.failed[0]
        with pytest.raises(PartialFailure) as raised:
            topic.erase(prefix=b"another", now=True)
        (result,) = raised.value.results
        assert [part.records for part in result.partitions] == [1]
        assert not result.complete and "users-0" in result.failed[0]
        assert "users-0/00000000000000000000.log" in left_in(root, [b"the same key"])
        with pytest.raises(PartialFailure) as raised:
            logs.clean()
        with pytest.raises(PartialFailure) as raised:
            topic.erase([b"the same key"], now=True)
        assert isinstance(raised.value.errors[0], QuarantinedError)


def test_a_damaged_segment_is_searched_as_it_is(tmp_path, clock):
    root = tmp_path / "data"
    with lastword.open(root, "a", clock=clock) as logs:
        topic = logs.create_topic("users", cleanup_policy="compact")
        for number in range(3):
            topic.append(b"a key of 16 bytes%d" % number, b"1")
        logs.dirs.log("users", 0).roll()
        path = root / "users-0" / "00000000000000000000.log"
        flip(path, 18)  # its checksum
        log_dir = logs.dirs.directories[0]
        wanted = Wanted(SpanSet([b"a key of 16 bytes0", b"a key of 16 bytes2"]), b"s")
        result = erasure.search(
            logs.dirs.view("users", 0), wanted, lambda key, offset: offset == 2, log_dir.path, log_dir.files
        )
        assert {copy.text for copy in result.copies} >= {
            "a batch with a wrong checksum",
            "a record of the key",
        }


# ---------------------------------------------------------------- crashes


def test_a_stop_at_every_change_and_a_repeated_call_end_the_same(tmp_path, clock):
    first = tmp_path / "first"
    with lastword.open(first, "a", clock=clock, files=HastyFiles(), log_cleaner_enable=False) as logs:
        filled = Filled(logs, rounds=4)
    step = stride(7)
    number, ended = 0, False
    while not ended:
        root = tmp_path / "data"
        shutil.copytree(first, root)
        files = RecordingFiles(HastyFiles())
        try:
            logs = lastword.open(root, "a", clock=clock, files=files, log_cleaner_enable=False)
            files.stop_at = len(files.changes) + number
            logs.topic("users").erase(filled.keys[:2], now=True)
            ended = True
            files.stop_at = None
            logs.close()
        except Stopped:
            logs.dirs.closed = True  # a killed process closes nothing
        with lastword.open(root, "a", clock=clock, files=HastyFiles(), log_cleaner_enable=False) as again:
            topic = again.topic("users")
            newest = {record.key: record.value for record in topic.newest()}
            assert {key: newest[key] for key in filled.keys[2:]} == {
                key: filled.old[key][-1] for key in filled.keys[2:]
            }
            for key in filled.keys[:2]:  # all of a key, or none of it
                assert newest.get(key) in (None, filled.old[key][-1])
            done = topic.erase(filled.keys[:2], now=True)
            assert done.complete, done.partitions[0].copies
            assert again.verify().ok
        assert left_in(root, filled.secrets(2)) == set()
        shutil.rmtree(root)
        number += step
    assert number > 30


# ---------------------------------------------------------------- the certificate


@pytest.fixture
def certified(tmp_path, logs):
    filled = Filled(logs)
    path = tmp_path / "certificate.json"
    filled.topic.erase(filled.keys[:2], now=True).save(path)
    return filled, path


def test_a_certificate_of_many_keys_is_written_in_pieces(tmp_path):
    """Its keys are made when they are read; the checksum is that of the JSON as a whole."""
    part = erasure.PartitionErasure(
        0,
        ranges=((3, 5), (9, 9)),
        kept=Listed(2, lambda number: erasure.KeptTombstone("ab", number, 7, ("\u00e4,b at 4",))),
        copies=(erasure.Copy("t-0/1.log", None, 4, '","'),),
    )
    keys = Listed(50_000, lambda number: f"{number:064x}")
    made = erasure.Erasure("t", keys, "00", False, False, 1, 2, (part,), ("a, b",))
    path, files = tmp_path / "certificate.json", RecordingFiles(OsFiles())
    made.save(path, files=files)
    sizes = [len(call.detail) for call in files.calls if call.name == "append"]
    assert len(sizes) > 3 and max(sizes) < 2 << 20 and sum(sizes) == path.stat().st_size
    content = json.loads(path.read_bytes())
    stored = content.pop("checksum")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert stored == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert erasure.load_certificate(files, str(path)) == content
    plain = json.loads(json.dumps(made.to_dict()))
    assert content == {"kind": erasure.KIND, "version": 1, "complete": False, **plain}
    assert content["keys"] == [f"{number:064x}" for number in range(50_000)] == [*keys]
    assert keys[-2:] == (keys[49_998], keys[-1])


def test_keys_are_no_objects_in_memory(logs):
    keys = [b"", b"a", b"key-1", b"key-2"]
    members = SpanSet(iter(keys), is_sorted=True).members
    assert [*members] == keys
    assert (len(members), members.size_bytes, members.ends.nbytes) == (4, 11, 40)
    found = SpanSet(reversed(keys))
    assert [found.number(key) for key in (*keys, b"key-", b"z")] == [0, 1, 2, 3, -1, -1]


def test_a_certificate_names_no_key_and_every_changed_byte_is_found(certified, logs):
    filled, path = certified
    data = path.read_bytes()
    assert not any(key in data or key.hex().encode() in data for key in filled.keys)
    result = filled.topic.check_erasure(path)
    assert (result.came_back, result.left, result.changed_segments) == ((), (), 0)
    for at in range(0, len(data), stride(101)):
        if data[at : at + 1].isspace():
            continue
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptFileError):
            filled.topic.check_erasure(path)


def test_a_key_that_came_back_is_found(certified, logs):
    filled, path = certified
    offset = filled.topic.append(filled.keys[1], b"again").offset
    result = filled.topic.check_erasure(path)
    assert (result.came_back, result.left) == (((0, offset),), ())
    content = json.loads(path.read_text())
    content["partitions"][0]["end"] = offset + 1
    del content["checksum"]
    path.write_text(json.dumps({**content, "checksum": erasure._checksum(content)}))
    result = filled.topic.check_erasure(path)
    assert (result.came_back, result.left) == ((), ((0, offset),))


def test_wanted_finds_each_at_every_position_and_across_blocks(monkeypatch, tmp_path):
    rng = random.Random(3)
    monkeypatch.setattr(erasure, "_BLOCK_BYTES", 64)
    for size in (8, 9, 16, 40, 100):
        key = rng.randbytes(size)
        wanted = Wanted(SpanSet([key]), b"s")
        value = rng.randbytes(size + 8)
        wanted.add_value(value)
        for at in range(0, 300, 7):
            path = tmp_path / "file"
            path.write_bytes(rng.randbytes(at) + key + rng.randbytes(at % 5) + value + rng.randbytes(9))
            with HastyFiles().open_read(path) as handle:
                found = list(wanted.find_in_file(handle, 0, handle.size()))
            assert sorted(found) == [(at, False), (at + size + at % 5, True)]
