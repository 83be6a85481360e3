"""Arrow out and Arrow in: `extend` accepts the data that a reader returns."""

import pyarrow as pa
import pytest

from lastword import errors
from lastword.api.arrow import joined
from tests.api.conftest import BEGIN_MS


def test_columns(logs):
    topic = logs.create_topic("t", key_serializer="str", value_serializer="int64")
    topic.append("a", 1, headers={"h": b"x", "n": None})
    topic.append("b", None)
    table = topic.read().arrow().read_all()
    assert table.schema.names == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "key",
        "value",
        "headers",
    ]
    rows = table.to_pylist()
    assert [(row["topic"], row["offset"], row["key"], row["value"]) for row in rows] == [
        ("t", 0, "a", 1),
        ("t", 1, "b", None),
    ]
    assert rows[0]["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert rows[0]["timestamp"].timestamp() * 1000 == BEGIN_MS
    assert table.schema.field("value").type == pa.int64()


@pytest.mark.parametrize("many", [10, 5000])
@pytest.mark.parametrize(
    ("key", "value"), [("bytes", "bytes"), ("str", "json"), ("int64", "float64"), ("int32", "str")]
)
def test_round_trip(logs, many, key, value):
    keys = {"bytes": lambda n: b"%d" % n, "str": str, "int64": int, "int32": int}[key]
    values = {"bytes": lambda n: bytes(n % 9), "json": lambda n: {"n": n}, "float64": float, "str": str}[
        value
    ]
    topic = logs.create_topic("t", 3, key_serializer=key, value_serializer=value)
    topic.extend((keys(n), None if n % 5 == 0 else values(n)) for n in range(many))
    copy = logs.create_topic("copy", 3, key_serializer=key, value_serializer=value)
    reader = topic.read()
    assert copy.extend(reader) == many  # `extend` reads a Reader by its Arrow stream
    assert reader.position == {n: end for n, (_, end) in topic.bounds().items()}

    def rows(of):
        return [(r.partition, r.offset, r.timestamp, r.key, r.value, r.is_tombstone) for r in of.read()]

    assert rows(copy) == rows(topic)


def test_small_batches(logs):
    topic = logs.create_topic("t")
    topic.extend((b"k", bytes(1000)) for _ in range(1000))
    batches = list(topic.read().arrow(batch_bytes=50_000))
    assert sum(batch.num_rows for batch in batches) == 1000
    assert max(batch.nbytes for batch in batches) < 150_000


def test_views_and_keys(logs):
    topic = logs.create_topic("t")
    topic.extend((b"%d" % (n % 10), b"%d" % n) for n in range(100))
    newest_view = topic.read(view="newest").arrow().read_all()
    assert newest_view["value"].to_pylist() == [b"%d" % n for n in range(90, 100)]
    assert topic.read(keys=[b"3"]).arrow().read_all().num_rows == 10
    assert topic.read({0: "latest"}).arrow().read_all().num_rows == 0


@pytest.mark.parametrize("view", ["newest", "changes"])
@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_newest_values_of_a_long_range_are_the_records_in_batches_of_the_wanted_size(logs, view, codec):
    topic = logs.create_topic("t", 2, key_serializer="str", compression_type=codec, segment_bytes="256KiB")
    for turn in range(4):
        values = (None if n % 11 == turn else b"%d/%d" % (turn, n) for n in range(6000))
        topic.extend((f"key-{n}", value) for n, value in enumerate(values))
        topic.append("key-7", b"with headers", headers={"turn": b"%d" % turn})
    reader = topic.read(view=view)
    next(reader)  # the rest follows as Arrow
    batches = list(reader.arrow(batch_bytes=200_000))
    rows = [
        (
            r["partition"],
            r["offset"],
            r["key"],
            r["value"],
            [(h["key"], h["value"]) for h in r["headers"] or ()],
        )
        for batch in batches
        for r in batch.to_pylist()
    ]
    expected = [(r.partition, r.offset, r.key, r.value, list(r.headers)) for r in topic.read(view=view)]
    assert rows == expected[1:] and ("turn", b"3") in [pair for row in rows for pair in row[4]]
    assert max(batch.nbytes for batch in batches) < 400_000
    assert len(batches) <= 2 + sum(batch.nbytes for batch in batches) // 100_000
    assert reader.position == {n: end for n, (_, end) in topic.bounds().items()}


def test_only_small_batches_are_joined():
    batches = [pa.record_batch({"n": pa.array([n] * rows)}) for n, rows in enumerate([2, 3, 9, 1])]
    assert [batch["n"].to_pylist() for batch in joined(batches, 6 * 8)] == [[0, 0, 1, 1, 1], [2] * 9, [3]]


@pytest.mark.parametrize("view", ["log", "newest"])
def test_a_read_that_failed_raises_its_error_again_and_never_ends(logs, view):
    """A generator that raised looks like one that has ended: the rest of the log would seem to be empty."""
    logs.create_topic("numbers").extend([(b"%08d" % n if n != 30 else b"odd", b"v") for n in range(40)])
    batches = logs.topic("numbers", key_serializer="int64").read(view=view).arrow(batch_bytes=1)
    with pytest.raises(errors.SerializerError, match="8 bytes") as first:
        batches.read_all()
    for read in (batches.read_next_batch, batches.read_all):
        with pytest.raises(errors.SerializerError) as again:
            read()
        assert again.value is first.value


def test_extend_takes_a_table(logs):
    topic = logs.create_topic("t", 2, key_serializer="str", value_serializer="json")
    table = pa.table(
        {
            "key": pa.array(["a", "b", None]).dictionary_encode(),
            "value": pa.array([{"x": 1}, None, {"x": 3}]),
            "timestamp": pa.array([BEGIN_MS, None, 5], pa.int64()),
            "partition": pa.array([1, 0, 1]),
        }
    )
    assert topic.extend(table) == 3
    assert [(r.partition, r.timestamp, r.key, r.value) for r in topic.read()] == [
        (0, BEGIN_MS, "b", None),
        (1, BEGIN_MS, "a", {"x": 1}),
        (1, 5, None, {"x": 3}),
    ]


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_a_null_partition_is_assigned_by_the_key_and_the_other_numbers_hold(logs, partitioner):
    topic = logs.create_topic("t", 4, partitioner=partitioner)
    by_key = topic.schema.partition_of(b"a")
    given = [(by_key + 1) % 4, None, (by_key + 2) % 4]
    table = {"key": [b"a", b"a", None], "value": [b"0", b"1", b"2"], "partition": pa.array(given, pa.int32())}
    assert topic.extend(pa.table(table)) == 3
    assert {r.value: r.partition for r in topic.read()} == {b"0": given[0], b"1": by_key, b"2": given[2]}
    table["partition"] = pa.array([None, 9, None], pa.int32())
    with pytest.raises(errors.UsageError, match="no partition 9"):
        topic.extend(pa.table(table))


PAIR = [("key", pa.string()), ("value", pa.binary())]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.struct(PAIR)), pa.list_(pa.struct(PAIR[::-1])), pa.map_(pa.string(), pa.binary())],
    ids=["key first", "value first", "map"],
)
def test_headers_of_a_table_are_taken_by_the_names_of_their_fields(logs, kind):
    topic = logs.create_topic("t")
    pairs = [("source", b"loader"), ("empty", None)]
    rows = [pairs, [], None]
    if not pa.types.is_map(kind):
        rows = [row and [{"key": key, "value": value} for key, value in row] for row in rows]
    topic.extend(pa.table({"key": [b"a"] * 3, "value": [b"x"] * 3, "headers": pa.array(rows, kind)}))
    assert [record.headers for record in topic.read()] == [tuple(pairs), (), ()]
    topic.extend(pa.table({"key": [b"a"], "value": [b"x"], "headers": [[]]}))
    assert [record.headers for record in topic.read(3)] == [()]


@pytest.mark.parametrize(
    "headers",
    [["x"], [{"key": "a", "value": b""}], [["x"]], [[None]]]
    + [[[pair]] for pair in ({"key": "a"}, {"key": "a", "value": 1}, {"key": None, "value": b""})],
    ids=["text", "no list", "no pairs", "null pair", "no value", "number", "null name"],
)
def test_headers_of_a_table_that_are_refused(logs, headers):
    topic = logs.create_topic("t")
    with pytest.raises(errors.UsageError, match="headers"):
        topic.extend(pa.table({"key": [b"a"], "value": [b"x"], "headers": pa.array(headers)}))
    assert list(topic.read()) == []


def test_a_stream_without_columns_or_with_a_column_twice_is_refused(logs):
    topic = logs.create_topic("t")
    with pytest.raises(errors.UsageError, match="no columns"):
        topic.extend(pa.chunked_array([["a"]]))
    twice = pa.table([pa.array([b"a"])] * 3, names=["key", "value", "key"])
    with pytest.raises(errors.UsageError, match="'key' 2 times"):
        topic.extend(twice)


@pytest.mark.parametrize(
    "columns",
    [
        {"key": ["a"]},
        {"value": ["a"]},
        {"key": ["a"], "value": ["b"], "partition": [9]},
        {"key": ["a"], "value": ["b"], "partition": ["x"]},
        {"key": ["a"], "value": ["b"], "partition": [0.5]},
        {"key": ["a"], "value": ["b"], "timestamp": ["now"]},
        {"key": pa.array([None], pa.string()), "value": ["b"]},
        {"key": [1.5], "value": ["b"]},
    ],
    ids=["no value", "no key", "partition", "no number", "fraction", "timestamp", "null key", "type"],
)
def test_tables_that_are_refused(logs, columns):
    topic = logs.create_topic("t", cleanup_policy="compact", key_serializer="str", value_serializer="str")
    with pytest.raises(errors.UsageError):
        topic.extend(pa.table(columns))
    assert list(topic.read()) == []


@pytest.mark.parametrize("view", ["log", "newest"])
def test_a_query_engine_may_ask_for_several_streams(logs, view):
    topic = logs.create_topic("t")
    topic.extend((b"%d" % (n % 7), b"v") for n in range(3000))
    reader = topic.read(view=view)
    skipped = next(reader)
    first, second = pa.RecordBatchReader.from_stream(reader), pa.RecordBatchReader.from_stream(reader)
    table = first.read_all()
    assert second.read_all() == table == pa.table(reader)
    assert table.num_rows == (2999 if view == "log" else 6)
    assert reader.position == {0: skipped.offset + 1}
    assert sum(batch.num_rows for batch in reader.arrow()) == table.num_rows
    assert pa.table(reader).num_rows == 0
