"""Reading: bounds, views, keys, positions; plain Python and kernels give equal results."""

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword import errors
from lastword.partition import scan
from lastword.partition.moment import Range
from lastword.state.newest import newest
from tests.api.conftest import BEGIN_MS
from tests.golden import loader
from tests.support.exhaustive import few


@pytest.fixture
def topic(logs, clock):
    """Make a topic with two partitions; the first has offsets 0-5 at seconds 0 to 5, one a tombstone."""
    topic = logs.create_topic("t", 2, key_serializer="str", value_serializer="str", cleanup_policy="compact")
    for second, (key, value) in enumerate(
        [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None), ("a", "3")]
    ):
        topic.append(key, value, partition=0)
        clock.advance(1000)
        assert second == topic.bounds()[0][1] - 1
    topic.append("x", "1", partition=1)
    return topic


def seen(reader):
    return [(r.partition, r.offset) for r in reader]


def at(seconds):
    return datetime.fromtimestamp(BEGIN_MS / 1000, UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [
        ("earliest", "latest", [0, 1, 2, 3, 4, 5]),
        (2, 4, [2, 3]),
        ({0: "latest"}, "latest", []),
        (6, 6, []),
        (4, 2, []),
        (at(2), "latest", [2, 3, 4, 5]),
        (at(1.5), at(4), [2, 3]),
        (at(1.5).isoformat(), at(4).isoformat().replace("+00:00", "Z"), [2, 3]),
        (at(-100), at(100), [0, 1, 2, 3, 4, 5]),
        (at(100), "latest", []),
        ({0: 5}, "latest", [5]),
        ("earliest", {0: at(1)}, [0]),
    ],
)
def test_bounds(topic, start, end, offsets):
    assert seen(topic.read(start, end, partition=0)) == [(0, offset) for offset in offsets]


def test_offsets_outside_the_log(topic):
    with pytest.raises(errors.OffsetOutOfRangeError, match="above log end 6"):
        topic.read(7, partition=0)
    with pytest.raises(errors.OffsetOutOfRangeError, match="above log end 1"):
        topic.read({1: 2})


def test_views(topic):
    def view(name, *bounds):
        return [(r.offset, r.key, r.value) for r in topic.read(*bounds, view=name, partition=0)]

    assert view("newest") == [(3, "c", "1"), (5, "a", "3")]
    assert view("changes") == [(3, "c", "1"), (4, "b", None), (5, "a", "3")]
    assert view("newest", 0, 4) == [(1, "b", "1"), (2, "a", "2"), (3, "c", "1")]
    assert view("changes", 4) == [(4, "b", None), (5, "a", "3")]


def test_keys(topic):
    assert seen(topic.read(keys=["a", "x"])) == [(0, 0), (0, 2), (0, 5), (1, 0)]
    assert seen(topic.read(keys=["a"], view="newest")) == [(0, 5)]
    assert seen(topic.read(keys=["nobody"])) == []


def test_position_goes_on_where_it_stopped(topic):
    reader = topic.read()
    first = [next(reader) for _ in range(3)]
    assert reader.position == {0: 3, 1: 0}
    rest = topic.read(reader.position)
    assert seen(iter(first)) + seen(rest) == seen(topic.read())
    assert rest.position == {0: 6, 1: 1}
    assert seen(topic.read(rest.position)) == []


def test_a_bounded_read_ends_at_the_end_it_saw_first(topic):
    reader = topic.read(partition=0)
    next(reader)
    topic.append("late", "1", partition=0)
    assert [r.key for r in reader] == ["b", "a", "c", "b", "a"]
    assert reader.position == {0: 6}


def test_position_moves_past_gaps(logs, topic, clock):
    topic.append("a", None, partition=0)
    logs.clean("t")
    clock.advance(2 * 86_400_000)
    logs.clean("t")
    reader = topic.read(0, partition=0)
    assert [(r.offset, r.key) for r in reader] == [(3, "c"), (6, "a")]  # the newest record stays
    assert reader.position == {0: 7}


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("case", ["tx-delete", "tx-compact-dr0", "v2-mixed", "v1-lz4", "offset-gap"])
def test_the_records_at_offsets_are_those_of_a_read(tmp_path, case, mode):
    golden = loader.case(case)
    stage = golden.stages[-1]
    root = golden.unpack(tmp_path, stage) / stage
    with lastword.open(root, mode, **({"log_cleaner_enable": False} if mode == "a" else {})) as logs:
        name = next(topic.name for topic in logs.topics())
        topic = logs.topic(name, key_serializer="bytes", value_serializer="bytes")
        start, end = topic.bounds()[0]
        for isolation in ("read_committed", "read_uncommitted"):
            records = {r.offset: r for r in topic.read(partition=0, isolation=isolation)}
            assert records
            near = {start, end, *(offset + step for offset in records for step in (-1, 0, 1))}
            offsets = sorted(offset for offset in near if start <= offset <= end)
            for offset in offsets[:3000]:
                record = topic.record_at(offset, partition=0, isolation=isolation)
                assert record == records.get(offset), offset
            for count in (1, 7, 3000):
                some = random.Random(count).choices(offsets, k=count)  # some of them more than once
                expected = [records.get(offset) for offset in some]
                assert topic.records_at(some, partition=0, isolation=isolation) == expected
            assert topic.records_at(np.array(offsets), partition=0, isolation=isolation) == [
                records.get(offset) for offset in offsets
            ]
            assert topic.records_at([], partition=0, isolation=isolation) == []


def test_a_record_at_an_offset_beside_a_writer(logs, clock):
    topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=4096, value_serializer="str")
    topic.extend([(b"key %d" % (number % 50), str(number)) for number in range(500)])
    with lastword.open(logs.paths[0]) as beside:
        there = beside.topic("t")
        for offset in (3, 499, 500):
            for _ in range(2):
                record = there.record_at(offset)
                assert record == topic.record_at(offset)
                assert record is None if offset == 500 else record.value == str(offset)
                assert there.records_at([offset]) == topic.records_at([offset]) == [record]
        topic.append(b"new", "500")
        assert there.record_at(500).value == "500"
        logs.clean("t")
        assert there.record_at(3) is None and there.record_at(499).value == "499"
        assert there.records_at([499, 3]) == [there.record_at(499), None]
        topic.trim(450)
        with pytest.raises(errors.OffsetOutOfRangeError, match="below log start"):
            there.record_at(449)
        logs.delete_topic("t")
        logs.create_topic("t", value_serializer="str").extend([(b"k", "other")] * 480)
        assert there.record_at(470).value == "other"
        with pytest.raises(errors.OffsetOutOfRangeError, match="above log end"):
            there.record_at(499)
        logs.delete_topic("t")
        with pytest.raises(errors.UnknownTopicError):
            there.record_at(470)


def test_a_damaged_record_at_an_offset_is_an_error(logs, tmp_path):
    topic = logs.create_topic("t")
    for number in range(3):
        topic.append(b"k", b"value %d" % number)
    path = tmp_path / "data" / "t-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes().replace(b"value 1", b"value 9"))
    with lastword.open(logs.paths[0]) as beside:
        for there in (topic, beside.topic("t")):
            with pytest.raises(errors.CorruptBatchError):
                there.record_at(1)
            assert there.record_at(0).value == b"value 0" and there.record_at(2).value == b"value 2"
            with pytest.raises(errors.CorruptBatchError):
                there.records_at([0, 1, 2])
            assert [record.value for record in there.records_at([2, 0])] == [b"value 2", b"value 0"]


def test_mistakes_with_the_offset_of_one_record(topic):
    assert topic.record_at(2, partition=0).value == "2" and topic.record_at(6, partition=0) is None
    for offset, partition, message in (
        (0, None, "2 partitions"),
        (0, 2, "no partition 2"),
        (0, True, "no partition True"),
        ("latest", 0, "is not an offset"),
        (True, 0, "is not an offset"),
    ):
        with pytest.raises(errors.UsageError, match=message):
            topic.record_at(offset, partition=partition)
        with pytest.raises(errors.UsageError, match=message):
            topic.records_at([0, offset], partition=partition)
    for offset in (-1, 7):
        with pytest.raises(errors.OffsetOutOfRangeError):
            topic.record_at(offset, partition=0)
        with pytest.raises(errors.OffsetOutOfRangeError):
            topic.records_at([0, offset], partition=0)
    with pytest.raises(errors.UsageError, match="offsets=3 are no offsets"):
        topic.records_at(3, partition=0)


records_ = st.lists(
    st.tuples(st.sampled_from([None, b"", b"a", b"b", b"cc", b"dd"]), st.none() | st.binary(max_size=5)),
    max_size=40,
)


@settings(max_examples=few(25), deadline=None)
@given(batches=st.lists(records_, min_size=1, max_size=6), data=st.data())
def test_both_ways_of_reading_agree(tmp_path_factory, batches, data):
    path = tmp_path_factory.mktemp("agree")
    with lastword.open(path, "a") as logs:
        topic = logs.create_topic("t", segment_bytes=600)
        model = []
        for batch in batches:
            topic.extend(batch)
            model += batch
        view = logs.dirs.views("t")[0]
        start = data.draw(st.integers(0, len(model)))
        end = data.draw(st.integers(0, len(model)))
        keys = data.draw(st.none() | st.frozensets(st.sampled_from([b"", b"a", b"cc", b"zz"])))
        expected = [
            (offset, *model[offset])
            for offset in range(start, end)
            if keys is None or model[offset][0] in keys
        ]
        for plain in (True, False):
            records = scan.records(view, start, end, keys=keys, plain=plain)
            assert [(r.offset, r.key, r.value) for r in records] == expected
        for tombstones in (True, False):
            last = {key: offset for offset, key, _ in expected if key is not None}
            wanted = [
                row for row in expected if last.get(row[1]) == row[0] and (tombstones or row[2] is not None)
            ]
            for plain in (True, False):
                range_ = Range(view, start, end)
                records = newest(range_, tombstones=tombstones, map_bytes=1 << 20, keys=keys, plain=plain)
                assert [(r.offset, r.key, r.value) for r in records] == wanted


def test_describe_and_segments_count_exactly(logs):
    topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=200)
    for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)]:
        topic.append(key, value)
    (info,) = topic.describe()
    assert (info.records, info.live_records, info.tombstones, info.exact) == (4, 2, 1, True)
    assert info.size_bytes == info.live_bytes + info.garbage_bytes
    assert (info.log_start, info.first_dirty, info.log_end, info.policy) == (0, 0, 4, "compact")
    segments = topic.segments()
    assert [(s.base_offset, s.next_offset, s.records, s.active) for s in segments] == [
        (0, 2, 2, False),
        (2, 4, 2, True),
    ]
    assert segments[0].live_bytes == 0 and segments[1].garbage_bytes == 0
    assert sum(s.size_bytes for s in segments) == info.size_bytes
    assert info.to_dict()["live_records"] == 2 and "4 records" in str(info)


def test_progress(logs):
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.extend((b"%d" % (n % 10), bytes(100)) for n in range(2000))
    for verb, call in (
        ("count", topic.describe),
        ("plan", logs.plan),
        ("verify", logs.verify),
        ("clean", logs.clean),
    ):
        reports = []
        call(progress=reports.append)
        assert {report.verb for report in reports} == {verb}
        assert [report.done_bytes for report in reports] == sorted(report.done_bytes for report in reports)
        assert reports[-1].done_bytes == reports[-1].total_bytes > 0


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("many", [10, 2000])
def test_take_returns_the_records_before_an_error(logs, follow, many):
    logs.create_topic("t").extend((b"k", b"{" if n == many - 3 else b"%d" % n) for n in range(many))
    reader = logs.topic("t", value_serializer="json").read(follow=follow)
    assert [record.value for record in reader.take(many)] == list(range(many - 3))
    with pytest.raises(errors.SerializerError):
        reader.take(many)
    assert reader.position == {0: many - 3}


def test_take_that_is_interrupted_leaves_the_position(logs):
    def loads(data):
        if data == b"stop":
            raise KeyboardInterrupt
        return data

    topic = logs.create_topic("t", 2)
    for partition, value in ((0, b"a"), (0, b"b"), (1, b"c"), (1, b"stop")):
        topic.append(None, value, partition=partition)
    reader = logs.topic("t", value_serializer=(bytes, loads)).read()
    assert [record.value for record in reader.take(1)] == [b"a"]
    with pytest.raises(KeyboardInterrupt):
        reader.take(10)
    assert reader.position == {0: 1, 1: 0}


@pytest.mark.parametrize("view", ["log", "newest"])
@pytest.mark.parametrize("many", [10, 2000])
def test_a_reader_raises_the_error_of_damage_at_each_step(logs, tmp_path, many, view):
    """The second step was the end of the iteration: the log seemed to have no more records."""
    topic = logs.create_topic("t")
    for first in (0, many):
        topic.extend((b"%d" % n, b"v" * 100) for n in range(first, first + many))
    logs.close()
    with next((tmp_path / "data" / "t-0").glob("*.log")).open("r+b") as file:
        file.seek(-50, 2)
        file.write(b"#")
    reader = lastword.open(tmp_path / "data").topic("t").read(view=view)
    read = []
    for _ in range(3):
        with pytest.raises(errors.CorruptBatchError):
            read += [record.offset for record in reader]
        with pytest.raises(errors.CorruptBatchError):
            reader.take(1)
        with pytest.raises(errors.CorruptBatchError):
            reader.arrow().read_all()
    reader.close()
    assert list(reader) == []
    assert list(reader.arrow()) == []


@pytest.mark.parametrize("many", [10, 2000])
def test_a_read_continues_after_an_interruption(logs, many):
    interrupted = []

    def loads(data):
        if data == b"stop" and not interrupted:
            interrupted.append(data)
            raise KeyboardInterrupt
        return data

    values = [b"a"] * many + [b"stop"] + [b"b"] * many
    logs.create_topic("t").extend((b"k", value) for value in values)
    for step in (next, lambda reader: reader.take(1)[0]):
        interrupted.clear()
        reader = logs.topic("t", value_serializer=(bytes, loads)).read()
        read = [step(reader).value for _ in range(many)]
        with pytest.raises(KeyboardInterrupt):
            step(reader)
        assert read + [record.value for record in reader] == values
