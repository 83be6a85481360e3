"""Appending: one record or many, from every accepted type; a call is refused as a whole or not at all."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import lastword
from lastword import errors
from lastword.api.schema import by_murmur2
from lastword.clock import ManualClock
from lastword.files import OsFiles
from lastword.partition import PartitionLog
from tests.api.conftest import BEGIN_MS, tree_digest
from tests.fakes.recording import RecordingFiles


def rows(topic, **options):
    return [(r.key, r.value) for r in topic.read(**options)]


def test_append_says_where(logs, clock):
    topic = logs.create_topic("t")
    assert topic.append(b"a", b"1") == lastword.Appended(0, 0, BEGIN_MS)
    clock.advance(5)
    assert topic.append(None, b"2", ack="disk") == lastword.Appended(0, 1, BEGIN_MS + 5)
    assert topic.append(b"a", None, timestamp=7).timestamp == 7
    when = datetime(2026, 1, 2, tzinfo=UTC)
    appended = topic.delete(b"a", timestamp=when, headers={"why": b"gone", "note": None})
    assert (appended.offset, appended.timestamp) == (3, int(when.timestamp() * 1000))
    last = list(topic.read())[-1]
    assert last.is_tombstone and last.headers == (("why", b"gone"), ("note", None)) and last.time == when


def test_none_is_null_and_empty_is_not(logs):
    topic = logs.create_topic("t", key_serializer="json", value_serializer="json")
    topic.extend([(None, 1), ("", ""), ("k", None)])
    first, second, third = topic.read()
    assert not first.has_key and first.key is None
    assert second.has_key and second.key == "" and second.value == "" and not second.is_tombstone
    assert third.is_tombstone and third.value is None


def test_json_null_is_a_value(logs):
    logs.create_topic("t", value_serializer="json")
    raw = logs.topic("t", value_serializer="bytes")
    raw.append(b"k", b"null")
    (record,) = logs.topic("t").read()
    assert record.value is None and not record.is_tombstone


@pytest.mark.parametrize("many", [3, 700, 25_000])
@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_extend_in_python_and_by_kernels(logs, many, compression):
    topic = logs.create_topic(
        "t", 2, compression_type=compression, key_serializer="int64", value_serializer="str"
    )
    pairs = [(number % 100, f"value {number}") for number in range(many)]
    assert topic.extend(pairs) == many
    records = list(topic.read())
    assert [r.offset for r in records if r.partition == 1] == list(
        range(sum(r.partition == 1 for r in records))
    )
    for number in range(100):
        mine = [value for key, value in pairs if key == number]
        assert [r.value for r in records if r.key == number] == mine
    assert logs.verify().ok


def test_both_ways_of_packing_give_the_same_batches(logs, monkeypatch):
    from lastword.api import batches

    pairs = [(f"k{n}".encode(), None if n % 7 == 0 else bytes(n % 300)) for n in range(600)]
    records = [
        lastword.Record(
            "", 0, 0, BEGIN_MS + n, "create", key, value, (("n", b"%d" % n),) * (n % 3), True, value is None
        )
        for n, (key, value) in enumerate(pairs)
    ]
    for name, limit in (("plain", 1 << 30), ("packed", 0)):
        monkeypatch.setattr(batches, "KERNEL_RECORDS", limit)
        monkeypatch.setattr(batches, "KERNEL_RECORDS_LOADED", limit)
        logs.create_topic(name).extend(records)
    plain, packed = (
        [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in logs.topic(name).read()]
        for name in ("plain", "packed")
    )
    assert plain == packed


def test_extend_takes_mappings_records_and_generators(logs):
    topic = logs.create_topic("t", key_serializer="str", value_serializer="int64")
    assert topic.extend({"a": 1, "b": None}) == 2
    assert topic.extend((key, 2) for key in "cd") == 2
    assert topic.extend([]) == 0
    copy = logs.create_topic("copy", key_serializer="str", value_serializer="json")
    assert copy.extend(topic.read()) == 4
    assert rows(copy) == [("a", 1), ("b", None), ("c", 2), ("d", 2)]
    assert [r.timestamp for r in copy.read()] == [r.timestamp for r in topic.read()]


@pytest.mark.parametrize("given", ["text", b"bytes", [1], ["ab"], [("k", "v", "x")]], ids=str)
def test_extend_refuses_what_is_no_record(logs, given):
    topic = logs.create_topic("t", key_serializer="str", value_serializer="str")
    with pytest.raises(errors.UsageError):
        topic.extend(given)
    assert rows(topic) == []


def test_a_refused_record_stops_its_whole_group(logs):
    topic = logs.create_topic("t", cleanup_policy="compact", max_message_bytes=1000)
    good = [(b"k", b"v")] * 5
    for bad, error in (
        ((None, b"v"), errors.KeyRequiredError),
        ((b"k", b"v" * 1000), errors.RecordTooLargeError),
        ((b"k" * 1000, b"v"), errors.RecordTooLargeError),
        (("text", b"v"), errors.SerializerError),
    ):
        with pytest.raises(error):
            topic.extend([*good, bad, *good])
        assert rows(topic) == []


def test_keys_choose_the_partition(logs):
    topic = logs.create_topic("t", 5, key_serializer="str")
    for number in range(20):
        key = f"key {number}"
        assert topic.append(key, b"").partition == by_murmur2(key.encode(), 5)
    topic.extend((f"key {number}", b"") for number in range(20))
    for record in topic.read():
        assert record.partition == by_murmur2(record.key.encode(), 5)
    mine = logs.topic("t", partitioner=lambda key, n: len(key) % n)
    assert mine.append("abc", b"").partition == 3
    assert mine.append("abc", b"", partition=1).partition == 1


def test_records_without_a_key_take_turns(logs):
    topic = logs.create_topic("t", 3)
    assert [topic.append(None, b"v").partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    topic.extend((None, bytes(1000)) for _ in range(100))
    sizes = [end for _, end in topic.bounds().values()]
    assert min(sizes) > 20


@pytest.mark.parametrize("place", ["directory", "bucket"])
@pytest.mark.parametrize("by", ["logs", "topic", "other topic", "defaults"])
def test_a_topic_takes_settings_that_change(tmp_path, clock, place, by):
    where = tmp_path / "data" if place == "directory" else f"memory://{tmp_path.name}-{len(by)}/log"
    with lastword.open(where, "a", clock=clock) as logs:
        topic = logs.create_topic("t", max_message_bytes=10_000)
        topic.append(b"k", b"v" * 5000)
        size = topic.bounds(), logs["t"].describe()[0].size_bytes
        changes = {"compression_type": "gzip", "lastword_ack": "disk"}
        change = {
            "logs": lambda: logs.set_config("t", **changes),
            "topic": lambda: topic.set_config(**changes),
            "other topic": lambda: logs["t"].set_config(**changes),
            "defaults": lambda: logs.set_config(**changes),
        }[by]
        change()
        assert (topic.config.compression_type, topic.config.lastword_ack) == ("gzip", "disk")
        topic.append(b"k", b"v" * 5000)
        topic.extend([(b"k", b"v" * 5000)])
        assert logs["t"].describe()[0].size_bytes < size[1] + 1000


def test_ack_disk_syncs_once_for_a_call_also_if_it_changes_while_a_topic_is_open(tmp_path):
    files = RecordingFiles(OsFiles())
    with lastword.open(tmp_path, "a", files=files, log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t")
        topic.append(b"k", b"v")
        logs.set_config("t", lastword_ack="disk")
        for append, syncs in (
            (lambda: topic.append(b"k", b"v"), 1),
            (lambda: topic.extend([(b"k", b"v")]), 1),
            (lambda: topic.extend([(b"k", b"v")] * 1000), 1),
            (lambda: topic.append(b"k", b"v", ack="os"), 0),
        ):
            before = len(files.calls)
            append()
            names = [call.name for call in files.calls[before:] if call.path.endswith(".log")]
            assert names.count("fsync") == syncs


def test_timestamps_outside_the_topics_bounds(logs):
    topic = logs.create_topic("t", message_timestamp_after_max_ms="1h")
    topic.append(b"k", b"v", timestamp=BEGIN_MS + 3_600_000)
    with pytest.raises(errors.UsageError, match="too far from now"):
        topic.append(b"k", b"v", timestamp=BEGIN_MS + 3_600_001)


def test_log_append_time(logs, clock):
    topic = logs.create_topic("t", message_timestamp_type="LogAppendTime")
    assert topic.append(b"k", b"v", timestamp=1).timestamp == BEGIN_MS
    (record,) = topic.read()
    assert (record.timestamp, record.timestamp_type) == (BEGIN_MS, "append")


def test_a_full_drive_leaves_the_log_as_it_was(tmp_path):
    full = []

    def fail(call):
        if full and call.name == "append" and call.path.endswith(".log"):
            return errors.DiskFullError("no room", remedy="free space", file=call.path)
        return None

    files = RecordingFiles(OsFiles(), fail=fail)
    with lastword.open(tmp_path / "data", "a", files=files) as logs:
        topic = logs.create_topic("t")
        topic.append(b"a", b"1")
        full.append(True)
        before = tree_digest(tmp_path)
        for call in (lambda: topic.append(b"b", b"2"), lambda: topic.extend([(b"b", b"2")] * 10)):
            with pytest.raises(errors.DiskFullError):
                call()
            assert tree_digest(tmp_path) == before
        full.clear()
        topic.append(b"c", b"3")
        assert rows(topic) == [(b"a", b"1"), (b"c", b"3")]
        assert logs.verify().ok


def test_the_level_of_a_codec_is_used(logs):
    """For every way to append: one record, pairs, a table."""
    value = bytes(range(256)) * 40 + b"lastword" * 500
    sizes = {}
    for level in (1, 9):
        topic = logs.create_topic(f"gzip{level}", compression_type="gzip", compression_gzip_level=level)
        topic.append(b"k", value)
        topic.extend([(b"k", value)])
        topic.extend(pa.table({"key": [b"k"], "value": [value]}))
        file = next(Path(logs.paths[0], topic.name + "-0").glob("*.log"))
        sizes[level] = [batch.size_bytes for batch in lastword.dump(file, records=False)]
    assert len(sizes[1]) == 3
    assert all(small < large for small, large in zip(sizes[9], sizes[1], strict=True))


SINGLE_CALLS = [
    {},
    {"timestamp": BEGIN_MS - 5},
    {"headers": {"a": b"1"}},
    {"partition": 1},
    {"ack": "disk"},
]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cleanup_policy": "compact"},
        {"compression_type": "lz4"},
        {"message_timestamp_type": "LogAppendTime"},
        {"flush_messages": 3},
        {"segment_bytes": 1000, "index_interval_bytes": 200},
    ],
    ids=str,
)
@pytest.mark.parametrize("directories", [1, 2])
def test_one_call_a_record_leaves_the_same_bytes_the_short_way(
    tmp_path, clock, monkeypatch, settings, directories
):
    """Single records appended the short way, and the general way that all other calls use."""

    def appended(name):
        paths = [tmp_path / f"{name}{number}" for number in range(directories)]
        answers = []
        with lastword.open(paths, "a", clock=ManualClock(BEGIN_MS), log_cleaner_enable=False) as logs:
            topic = logs.create_topic("t", 2, key_serializer="str", value_serializer="json", **settings)
            raw = logs.topic("t", key_serializer="bytes", value_serializer="bytes")
            for number in range(60):
                options = SINGLE_CALLS[number % len(SINGLE_CALLS)] if number % 3 == 0 else {}
                key, value = f"key {number % 7}", None if number % 11 == 0 else [number] * (number % 9)
                answers.append(topic.append(key, value, **options))
                answers.append(raw.append(key.encode(), b"%d" % number))
                if number == 40:
                    topic.set_config(max_message_bytes=200)
                elif number > 40:
                    with pytest.raises(errors.RecordTooLargeError):
                        raw.append(b"k", bytes(range(256)))
            with pytest.raises(errors.SerializerError):
                topic.append(5, {})
        files = {
            path.name if path.parent.name != "t-1" else f"1/{path.name}": path.read_bytes()
            for root in paths
            for path in root.glob("t-?/0*")
        }
        return answers, files

    short = appended("short")
    assert len(short[1]) >= 6
    monkeypatch.setattr(PartitionLog, "append_single", lambda *given: None)
    assert appended("general") == short


def test_the_short_way_ends_with_the_directory(logs, tmp_path):
    topic = logs.create_topic("t")
    for _ in range(3):
        topic.append(b"k", b"v")
    logs.delete_topic("t")
    with pytest.raises(errors.UnknownTopicError):
        topic.append(b"k", b"v")
    logs.create_topic("t")
    assert topic.append(b"k", b"v").offset == 0
    assert topic.append(b"k", b"v").offset == 1
    logs.close()
    before = tree_digest(tmp_path)
    with pytest.raises(errors.UsageError, match="closed"):
        topic.append(b"k", b"v")
    assert tree_digest(tmp_path) == before
