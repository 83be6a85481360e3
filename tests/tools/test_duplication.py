"""`duplication`: results compared with a dictionary."""

import random
from types import SimpleNamespace

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import UsageError
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.resolve import whole
from lastword.segment.segment import Segment
from lastword.tools import duplication as tool
from tests.api.conftest import BEGIN_MS, tree_digest
from tests.build import LogBuilder as PartitionBuilder
from tests.cleaner.transactional import Producer


@pytest.fixture
def logs(tmp_path):
    clock = ManualClock(BEGIN_MS)
    with lastword.open(tmp_path / "data", "a", clock=clock, log_cleaner_enable=False) as opened:
        yield opened


def filled(logs, seed, *, partitions=3, records=400, keys=60, name="t"):
    """Make a topic: keys in several partitions, tombstones, records without a key, several segments."""
    rng = random.Random(seed)
    topic = logs.create_topic(name, partitions)
    for n in range(records):
        key = None if rng.random() < 0.05 else b"k%d" % rng.randrange(keys)
        value = None if key is not None and rng.random() < 0.1 else b"x" * rng.randrange(40)
        topic.append(key, value, partition=rng.randrange(partitions))
        if n % 97 == 96:
            logs.dirs.log(name, rng.randrange(partitions)).roll()
    return topic


def by_dictionary(topic):
    """Return (records, keyless, tombstones, distinct, superseded, split) of each partition and the topic."""
    seen = {}
    rows = {}
    for number in range(topic.partitions):
        records = list(topic.read(partition=number))
        keyed = [record for record in records if record.key is not None]
        seen[number] = {record.key for record in keyed}
        rows[number] = [
            len(records),
            len(records) - len(keyed),
            sum(record.value is None for record in keyed),
            len(seen[number]),
            len(keyed) - len(seen[number]),
        ]
    every = set().union(*seen.values())
    where = {key: sum(key in keys for keys in seen.values()) for key in every}
    for number, keys in seen.items():
        rows[number].append(sum(where[key] > 1 for key in keys))
    total = [sum(row[i] for row in rows.values()) for i in range(5)]
    total[3] = len(every)
    rows[None] = [*total, sum(count > 1 for count in where.values())]
    return rows


def figures(row):
    return [
        row.records,
        row.keyless,
        row.tombstones,
        row.distinct_keys,
        row.superseded_records,
        row.split_keys,
    ]


@pytest.mark.parametrize("seed", range(4))
def test_it_is_what_a_dictionary_finds(logs, seed):
    topic = filled(logs, seed, partitions=1 + seed)
    expected = by_dictionary(topic)
    rows = logs.duplication(topic.name)
    assert {row.partition: figures(row) for row in rows} == {
        number: row for number, row in expected.items() if number is not None
    }
    (whole,) = logs.duplication("t", by="topic")
    assert figures(whole) == expected[None]


@pytest.mark.parametrize("by", ["topic", "partition", "segment"])
def test_more_keys_than_memory_are_read_once(tmp_path, monkeypatch, by):
    """A partition is read once for each count; several are concatenated, forwards and backwards, too."""
    clock = ManualClock(BEGIN_MS)
    read = []
    real = Segment.chunk_reader

    def reader(self, *where, **how):
        for chunk in real(self, *where, **how):
            read.append(chunk.size_bytes)
            yield chunk

    def readings(divide_from, numbers):
        monkeypatch.setattr(whole, "DIVIDE_FROM_BYTES", divide_from)
        read.clear()
        views = {n: logs.dirs.view("t", n) for n in numbers}
        rows = tool.counted("t", views, by, _quiet, whole=len(numbers) == 3, map_bytes=4096)
        return rows, sum(read) / sum(s.size for view in views.values() for s in view.segments)

    with lastword.open(tmp_path / "d", "a", clock=clock, log_cleaner_enable=False) as logs:
        topic = filled(logs, 5, keys=300)
        for start in range(0, 3000, 100):
            keys = [7 * n % 900 for n in range(start, start + 100)]
            topic.extend([(b"k%d" % key, None if key % 5 == 0 else b"x" * 300) for key in keys])
            logs.dirs.log("t", start // 100 % 3).roll()
        monkeypatch.setattr(Segment, "chunk_reader", reader)
        for numbers in ([0], [0, 1, 2]):
            rows, divided = readings(0, numbers)
            expected, in_passes = readings(1 << 62, numbers)
            assert rows == expected and sum(row.tombstones for row in rows) > 100
            counts = 2 if by == "segment" else len(numbers)
            assert counts <= divided < 1.5 * counts and in_passes > 2 * divided
        expected = logs.duplication("t", by=by)
        assert rows == expected


def test_a_reading_that_starts_again_counts_each_tombstone_once(logs):
    topic = logs.create_topic("t", 1)
    for n in range(60):
        topic.append(b"k%d" % n, None if n % 3 == 0 else b"x")
    counting = tool._CountingSegment(logs.dirs.view("t", 0).segments[0])
    chunks = counting.chunk_reader(chunk_bytes=500)
    next(chunks), next(chunks)
    assert 0 < counting.tombstones < 20
    for _ in range(2):
        assert len(list(counting.chunk_reader(chunk_bytes=700))) > 2 and counting.tombstones == 20


def _quiet(_bytes):
    from contextlib import nullcontext

    return nullcontext(None)


def test_segments_add_up_to_their_partition(logs):
    topic = filled(logs, 8)
    parts = logs.duplication(topic.name)
    segments = logs.duplication(topic.name, by="segment")
    assert len(segments) > 3
    for part in parts:
        mine = [row for row in segments if row.partition == part.partition]
        assert [row.segment for row in mine] == sorted(row.segment for row in mine)
        assert sum(row.records for row in mine) == part.records
        assert sum(row.superseded_records for row in mine) == part.superseded_records
        assert all(row.split_keys is None for row in mine)
        for row in mine:
            inside = list(topic.read(partition=row.partition))
            end = next((x.segment for x in mine if x.segment > row.segment), 1 << 60)
            keys = {x.key for x in inside if row.segment <= x.offset < end and x.key is not None}
            assert row.distinct_keys == len(keys)


def test_bytes_are_what_the_bitmaps_say(logs):
    topic = filled(logs, 9, partitions=1)
    (row,) = logs.duplication(topic.name)
    (info,) = topic.describe()
    assert row.superseded_bytes == info.garbage_bytes and row.size_bytes == info.size_bytes


def test_one_partition_of_several_says_nothing_about_the_others(logs):
    topic = filled(logs, 3)
    (row,) = logs.duplication(topic.name, 1)
    assert row.partition == 1 and row.split_keys is None
    with pytest.raises(UsageError, match="nearest: segment"):
        logs.duplication(topic.name, by="segments")


def test_aborted_and_open_transactions_have_no_say(tmp_path):
    log = PartitionBuilder(tmp_path)
    producer = Producer(log)
    producer.put(("a", "1"), ("b", "1")).commit()
    producer.put(("a", "aborted"), ("c", "aborted")).abort()
    producer.put(("a", "2")).commit()
    producer.put(("b", "open"))
    view = PartitionView.load(DirectorySegments(log.files, log.directory))
    (row,) = tool.counted("users", {0: view}, "partition", _quiet, whole=True, map_bytes=1 << 20)
    assert (row.records, row.distinct_keys, row.superseded_records) == (6, 2, 1)
    log.log.close()


def test_garbage_has_aborted_records_and_no_markers(logs):
    topic = logs.create_topic("t", cleanup_policy="compact")
    producer = Producer(SimpleNamespace(codec=0, clock=logs.dirs.clock, log=logs.dirs.log("t", 0)))
    producer.put(("a", "1")).commit()
    before = topic.describe()[0].size_bytes
    producer.put(("b", "2"))
    aborted_bytes = topic.describe()[0].size_bytes - before
    producer.abort()
    assert topic.describe()[0].garbage_bytes == aborted_bytes
    assert logs.duplication(topic.name)[0].superseded_bytes == 0


def test_an_empty_topic(logs):
    topic = logs.create_topic("empty", 2)
    for by, count in (("topic", 1), ("partition", 2), ("segment", 2)):
        rows = logs.duplication(topic.name, by=by)
        assert len(rows) == count
        assert all(row.records == row.distinct_keys == row.superseded_records == 0 for row in rows)


def test_looking_changes_nothing_and_tells_its_progress(logs, tmp_path):
    topic = filled(logs, 2)
    logs.sync()
    before = tree_digest(tmp_path / "data")
    progress = []
    with lastword.open(tmp_path / "data") as looking:
        looking.duplication(progress=progress.append)
    assert tree_digest(tmp_path / "data") == before
    assert progress[-1].verb == "duplication" and progress[-1].done_bytes == progress[-1].total_bytes
    assert str(logs.duplication(topic.name, by="topic")[0]).startswith("t: 400 records, ")
