"""The source without Spark: readers and tasks are called as Spark calls them."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

import lastword
from lastword.errors import (
    CorruptBatchError,
    LastwordError,
    NotALogDirError,
    OffsetOutOfRangeError,
    ReadOvertakenError,
    SparkOptionError,
    UnknownTopicError,
)
from lastword.files import Files, OsFiles
from lastword.logdir.log_dir import LogDirectory
from lastword.records.batch import BatchBuilder
from lastword.spark import read, splits
from lastword.spark.options import parse_read
from lastword.spark.read import read_batches
from lastword.spark.schema import arrow_schema, full_schema
from lastword.spark.source import LogReader
from lastword.spark.splits import LogPartition
from lastword.spark.stream import LogStreamReader
from tests.fakes.recording import RecordingFiles
from tests.golden.loader import case, names, value_matches
from tests.naive.pack import seal
from tests.spark.conftest import append, changed, create, numbered, read_directly, rows_of
from tests.support.exhaustive import stride
from tests.transactions import end_transaction

T0 = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make topic t: partition 0 has 300 records of 20 keys in batches of 10, several segments; 1 has 30."""
    root = tmp_path / "log"
    create(root, "t", 2, segment_bytes="2KiB", index_interval_bytes=100)
    append(root, "t", 0, [numbered(n, 10, 20) for n in range(0, 300, 10)])
    append(root, "t", 1, [numbered(1000, 30, 5)])
    return root


def columns(**types: str) -> StructType:
    schema = StructType()
    for name, kind in types.items():
        schema = schema.add(name, kind)
    return schema


def offsets(rows: list[dict[str, object]], partition: int = 0) -> list[int]:
    return [row["offset"] for row in rows if row["partition"] == partition]


LARGE = {"v2-big": [pytest.mark.slow]}


@pytest.mark.parametrize("name", [pytest.param(n, marks=LARGE.get(n, [])) for n in names("v2-*")])
def test_every_record_that_kafka_reads(name: str, tmp_path: Path) -> None:
    golden = case(name)
    root = golden.unpack(tmp_path) / "data"
    topic = name
    rows = read_directly(root, subscribe=topic, includeHeaders="true")
    expected = golden.expected("data")
    assert len(rows) == len(expected)
    for row, line in zip(rows, expected, strict=True):
        assert (row["offset"], row["key"]) == (line["offset"], line["key"])
        assert value_matches(line, row["value"])
        assert tuple((h["key"], h["value"]) for h in row["headers"] or ()) == line["headers"]


def test_everything_once_and_in_order(root: Path) -> None:
    rows = read_directly(root)
    assert offsets(rows) == list(range(300))
    assert offsets(rows, 1) == list(range(30))
    assert rows[3]["value"] is None and rows[3]["key"] == b"key-3"
    assert rows[5]["timestampType"] == 0 and rows[5]["topic"] == "t"


@pytest.mark.parametrize(
    "options",
    [
        {"maxBytesPerPartition": "500"},
        {"minPartitions": "9"},
        {"maxRecordsPerPartition": "7"},
        {"maxRecordsPerPartition": "13", "minPartitions": "20", "startingTimestamp": str(T0 + 5)},
    ],
)
def test_however_it_is_cut_nothing_is_lost_or_doubled(root: Path, options: dict[str, str]) -> None:
    start = 5 if "startingTimestamp" in options else 0
    assert offsets(read_directly(root, **options)) == list(range(start, 300))


def test_tasks_are_cut_by_bytes_at_batches(root: Path) -> None:
    reader = LogReader(
        parse_read({"path": str(root), "assign": '{"t":[0]}', "maxbytesperpartition": "1500"}),
        full_schema(False),
    )
    tasks = reader.partitions()
    assert len(tasks) > 5
    assert all(isinstance(task, LogPartition) and task.start % 10 == 0 for task in tasks)


def test_many_partitions_share_tasks_and_keep_their_rows(tmp_path: Path) -> None:
    root = tmp_path / "many"
    create(root, "t", 100)
    filled = [number for number in range(100) if number % 10]
    for number in filled:
        append(root, "t", number, [numbered(1000 * number, 5, 5)])
    for view in ("log", "newest"):
        reader = LogReader(
            parse_read({"path": str(root), "subscribe": "t", "view": view}), full_schema(False, view)
        )
        tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]
        assert len(tasks) < len(filled) and any(len(splits.parts_of(task)) > 1 for task in tasks)
        rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        assert [row["partition"] for row in rows] == sorted(row["partition"] for row in rows)
        alone = [row for n in range(100) for row in read_directly(root, assign=f'{{"t":[{n}]}}', view=view)]
        assert rows == alone and {row["partition"] for row in rows} == set(filled)


@pytest.fixture(scope="module")
def golden_roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    unpacked = [case(name).unpack(tmp_path_factory.mktemp(name)) for name in names("*") if name != "v2-big"]
    return [root / "data" for root in unpacked if (root / "data").is_dir()]


@pytest.mark.parametrize(
    ("cut", "room_bytes", "isolation"),
    [
        ({}, read.JOINED_BYTES, "read_committed"),
        ({}, read.JOINED_BYTES, "read_uncommitted"),
        ({"maxrecordsperpartition": "7"}, 2000, "read_uncommitted"),
        ({"maxrecordsperpartition": "7"}, 2000, "read_committed"),
        ({"maxbytesperpartition": "300"}, 300, "read_committed"),
        ({"maxbytesperpartition": "300"}, 300, "read_uncommitted"),
    ][:: stride(2)],
)
def test_a_shared_task_has_the_rows_of_its_parts(
    golden_roots: list[Path],
    cut: dict[str, str],
    isolation: str,
    room_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each codec and magic, transactions, headers, and ranges that begin inside of batches, side by side."""
    monkeypatch.setattr(read, "JOINED_BYTES", room_bytes)
    parts: list[LogPartition] = []
    for root in golden_roots:
        given = {"path": str(root), "subscribepattern": ".*", "isolationlevel": isolation, **cut}
        options = parse_read({**given, "includeheaders": "true"})
        reader = LogReader(options, full_schema(True))
        parts += [part for task in reader.partitions() for part in splits.parts_of(task)]
    target = arrow_schema(reader.schema)

    def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
        return [row for batch in batches for row in batch.to_pylist()]

    expected = [row for part in parts for row in rows_of(read_batches(part, options, target, reader.columns))]
    task = splits.SharedTask(tuple(parts))
    assert rows_of(read.read_task(task, options, reader.schema, reader.columns)) == expected
    assert len(expected) > 1000 and len({row["topic"] for row in expected}) > 10


def test_damage_in_one_part_of_a_shared_task_names_its_file(tmp_path: Path) -> None:
    root = tmp_path / "log"
    create(root, "t", 3)
    for number in range(3):
        append(root, "t", number, [numbered(1000 * number, 5, 5)])
    reader = LogReader(parse_read({"path": str(root), "subscribe": "t"}), full_schema(False))
    log = root / "t-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[61] ^= 0x7E  # the length of the first record; the checksum is made right again
    log.write_bytes(seal(bytes(data)))
    parts = tuple(part for task in reader.partitions() for part in splits.parts_of(task))
    with pytest.raises(CorruptBatchError) as raised:
        list(read.read_task(splits.SharedTask(parts), reader.options, reader.schema, reader.columns))
    assert (raised.value.file, raised.value.position) == (str(log), 0)


def test_a_shared_task_costs_a_constant_number_of_calls_for_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted as the difference of 40 and 10 parts; the rows of all parts are one batch."""
    root = tmp_path / "many"
    create(root, "t", 40)
    for number in range(40):
        append(root, "t", number, [numbered(1000 * number, 5, 5)])
    reader = LogReader(parse_read({"path": str(root), "subscribe": "t"}), full_schema(False))
    parts = [part for task in reader.partitions() for part in splits.parts_of(task)]
    settings_read: list[str] = []
    monkeypatch.setattr(read, "register_limits", lambda root, files: settings_read.append(root))
    converted: list[StructType] = []

    def convert(schema: StructType) -> pa.Schema:
        converted.append(schema)
        return arrow_schema(schema)

    monkeypatch.setattr(read, "arrow_schema", convert)

    def calls(count: int) -> Counter[str]:
        files = RecordingFiles(OsFiles())
        task = splits.SharedTask(tuple(parts[:count]))
        (batch,) = read.read_task(task, reader.options, reader.schema, reader.columns, files)
        assert batch["offset"].to_pylist() == list(range(5)) * count
        return Counter(call.name for call in files.calls)

    few, many = calls(10), calls(40)
    assert many["listdir"] == 0, "the segments of the plan are opened"
    assert many.total() - few.total() <= 30 * 14, (few, many)
    assert settings_read == [str(root)] * 2 and len(converted) == 2
    parts = [replace(part, version=None) for part in parts]
    few, many = calls(10), calls(40)
    assert many["listdir"] - few["listdir"] == 30 * 2
    assert many.total() - few.total() <= 30 * 31, (few, many)


@pytest.mark.parametrize("view", ["log", "newest", "changes"])
@pytest.mark.parametrize("change", ["none", "append", "clean", "truncate", "vanish"])
def test_the_segments_of_a_plan_are_used_as_long_as_they_are_there(
    tmp_path: Path, view: str, change: str
) -> None:
    """The task's rows are those of a task that lists the partition; it lists only if a segment is gone."""
    root = tmp_path / "log"
    create(root, "t", 1, segment_bytes="2KiB", index_interval_bytes=100)
    append(root, "t", 0, [numbered(n, 10, 20) for n in range(0, 150, 10)])
    options = parse_read({"path": str(root), "subscribe": "t", "view": view})
    reader = LogReader(options, full_schema(False, view))
    (task,) = reader.partitions()
    assert isinstance(task, LogPartition) and task.version is not None
    assert 1 < len(task.version.segments) <= splits.MOST_SENT_SEGMENTS
    partition = root / "t-0"
    if change == "append":
        append(root, "t", 0, [numbered(n, 10, 20) for n in range(150, 400, 10)])
    elif change == "clean":
        cleaned(root)
    elif change == "truncate":
        with max(partition.glob("*.log")).open("r+b") as file:
            file.truncate(100)
    elif change == "vanish":
        shutil.copytree(partition, root / "copy")
        shutil.rmtree(partition)
        (root / "copy").rename(partition)

    def read_with(task: LogPartition, calls: Counter[str]) -> Any:
        files = RecordingFiles(OsFiles())
        target = arrow_schema(reader.schema)
        try:
            batches = list(read_batches(task, options, target, reader.columns, files))
        except LastwordError as error:
            return type(error), str(error)
        finally:
            calls.update(call.name for call in files.calls)
        return [row for batch in batches for row in batch.to_pylist()]

    planned, listed = Counter[str](), Counter[str]()
    expected = read_with(replace(task, version=None), listed)
    assert read_with(task, planned) == expected
    opens_the_plan = change in ("none", "append")
    assert listed["listdir"] > 0 and (planned["listdir"] < listed["listdir"]) == opens_the_plan
    if view == "log" and opens_the_plan:
        assert planned["listdir"] == 0 and len(expected) == 150


def test_bounds(root: Path) -> None:
    both = read_directly(root, startingOffsets='{"t":{"0":13,"1":-2}}', endingOffsets='{"t":{"0":29,"1":-1}}')
    assert offsets(both) == list(range(13, 29)) and offsets(both, 1) == list(range(30))
    late = read_directly(
        root, assign='{"t":[0]}', startingTimestamp=str(T0 + 250), endingTimestamp=str(T0 + 255)
    )
    assert offsets(late) == [250, 251, 252, 253, 254]
    per = read_directly(
        root,
        startingOffsetsByTimestamp=f'{{"t":{{"0":{T0 + 295},"1":0}}}}',
        endingOffsetsByTimestamp=f'{{"t":{{"0":{T0 + 999_999},"1":{T0}}}}}',
    )
    assert offsets(per) == list(range(295, 300)) and offsets(per, 1) == []


def test_a_start_time_above_every_record(root: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="no record is as young"):
        read_directly(root, startingTimestamp=str(T0 * 2))
    assert (
        read_directly(root, startingTimestamp=str(T0 * 2), startingOffsetsByTimestampStrategy="latest") == []
    )


def test_json_names_exactly_the_partitions_that_are_read(root: Path) -> None:
    with pytest.raises(SparkOptionError, match="lacks t-1"):
        read_directly(root, startingOffsets='{"t":{"0":1}}')
    with pytest.raises(SparkOptionError, match="names t-7, not read here"):
        read_directly(root, endingOffsets='{"t":{"0":1,"1":1,"7":1}}')


def test_gaps_are_no_loss_but_what_is_gone_is(root: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: the end, offset 301, is above log end 300"):
        read_directly(root, assign='{"t":[0]}', endingOffsets='{"t":{"0":301}}')
    kept = read_directly(root, assign='{"t":[0]}', endingOffsets='{"t":{"0":301}}', failOnDataLoss="false")
    assert offsets(kept) == list(range(300))


def test_a_start_above_its_end(root: Path) -> None:
    with pytest.raises(SparkOptionError, match="starts at offset 9, above its end 8"):
        read_directly(
            root, assign='{"t":[0]}', startingOffsets='{"t":{"0":9}}', endingOffsets='{"t":{"0":8}}'
        )


def test_a_range_of_which_all_is_gone(root: Path) -> None:
    changed(root, lambda logs: logs.topic("t").trim(200, partition=0))
    ends = {"assign": '{"t":[0]}', "endingOffsets": '{"t":{"0":50}}'}
    with pytest.raises(OffsetOutOfRangeError, match="the end, offset 50, is below log start 200"):
        read_directly(root, **ends)
    assert read_directly(root, **ends, failOnDataLoss="false") == []


def test_nothing_is_as_young_as_the_start_and_the_end_is_given(root: Path) -> None:
    late = {"startingTimestamp": "9999999999999", "startingOffsetsByTimestampStrategy": "latest"}
    assert read_directly(root, **late, endingOffsets='{"t":{"0":50,"1":3}}') == []


@pytest.mark.parametrize("view", ["log", "newest", "changes"])
def test_what_happens_to_a_topic_after_its_read_was_planned(root: Path, view: str) -> None:
    """The records below the log start, or the whole topic, are gone: an error, or the records are skipped.

    Records of a recreated topic are never returned.
    """
    options = {"path": str(root), "assign": '{"t":[0]}', "view": view}
    strict = LogReader(parse_read(options), full_schema(False))
    lenient = LogReader(parse_read({**options, "failondataloss": "false"}), full_schema(False))
    (task,) = strict.partitions()

    def found() -> list[int]:
        return [row["offset"] for batch in lenient.read(task) for row in batch.to_pylist()]

    changed(root, lambda logs: logs.topic("t").trim(295, partition=0))
    with pytest.raises(OffsetOutOfRangeError, match=r"below log start 295\n.*load it again"):
        list(strict.read(task))
    assert min(found()) == 295
    changed(root, lambda logs: logs.delete_topic("t"))
    with pytest.raises(UnknownTopicError, match=r"t-0 is not in .*: it was deleted after"):
        list(strict.read(task))
    assert found() == []
    create(root, "t", 2)
    append(root, "t", 0, [numbered(0, 300, 20)])
    with pytest.raises(OffsetOutOfRangeError, match="t-0: the topic was deleted and recreated"):
        list(strict.read(task))
    assert found() == []


@pytest.mark.parametrize("view", ["log", "newest", "changes"])
def test_a_planned_range_that_is_wholly_below_the_log_start_has_no_rows(root: Path, view: str) -> None:
    """With a saved garbage index, view newest failed with an IndexError."""
    options = {"path": str(root), "assign": '{"t":[0]}', "view": view, "failondataloss": "false"}
    reader = LogReader(parse_read(options), full_schema(False))
    (task,) = reader.partitions()
    append(root, "t", 0, [numbered(n, 10, 20) for n in range(300, 500, 10)])
    changed(root, lambda logs: logs.topic("t").trim(450, partition=0))
    cleaned(root)  # saves the garbage index
    assert list(reader.read(task)) == []


def test_absent_things(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError, match="nearest: 't'"):
        read_directly(root, subscribe="tt")
    with pytest.raises(UnknownTopicError, match="no partition 5"):
        read_directly(root, assign='{"t":[0,5]}')
    with pytest.raises(NotALogDirError):
        read_directly(tmp_path / "absent")


def test_a_pattern_matches_whole_names(root: Path) -> None:
    create(root, "tt")
    assert {row["topic"] for row in _by_pattern(root, "t.*")} == {"t"}  # tt is empty
    assert _by_pattern(root, "x.*") == []


def test_a_pattern_means_no_topic_of_a_brokers_own(root: Path) -> None:
    create(root, "__consumer_offsets")
    append(root, "__consumer_offsets", 0, [numbered(0, 3, 3)])
    assert {row["topic"] for row in _by_pattern(root, ".*")} == {"t"}
    assert len(read_directly(root, subscribe="__consumer_offsets")) == 3


def _by_pattern(root: Path, pattern: str) -> list[dict[str, object]]:
    options = parse_read({"path": str(root), "subscribepattern": pattern})
    return rows_of(LogReader(options, full_schema(False)))


def test_projection_in_any_order(root: Path) -> None:
    schema = columns(offset="long", key="binary")
    reader = LogReader(parse_read({"path": str(root), "assign": '{"t":[1]}'}), schema)
    batch = next(reader.read(reader.partitions()[0]))
    assert batch.schema.names == ["offset", "key"]
    assert batch.to_pylist()[0] == {"offset": 0, "key": b"key-0"}


@pytest.mark.parametrize("view", ["log", "newest", "changes"])
def test_each_column_is_read_alone(root: Path, view: str) -> None:
    """Also `change`, which is no column of the log: then none is left that tells the number of rows."""
    given = parse_read({"path": str(root), "subscribe": "t", "view": view, "includeheaders": "true"})
    schema = full_schema(True)
    if view == "changes":
        schema = schema.add("change", "string")
    whole = rows_of(LogReader(given, schema))
    assert len(whole) > 20
    for field in schema.fields:
        alone = rows_of(LogReader(given, StructType([field])))
        assert alone == [{field.name: row[field.name]} for row in whole], field.name


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"ofset": "long"}, "nearest: offset"),
        ({}, "it has no column"),
        ({"key": "string"}, "'key' is binary, not string"),
    ],
)
def test_a_schema_that_no_record_has(schema: dict[str, str], said: str) -> None:
    with pytest.raises(SparkOptionError, match=said):
        LogReader(parse_read({"path": "/x", "subscribe": "t"}), columns(**schema))


def test_a_column_that_may_be_null_is_not_promised_otherwise(root: Path) -> None:
    """Spark would rely on it, and fail on a tombstone with its own error."""
    schema = StructType().add("value", "binary", False)
    with pytest.raises(SparkOptionError, match="'value' may be null"):
        LogReader(parse_read({"path": str(root), "subscribe": "t"}), schema)
    assert LogReader(
        parse_read({"path": str(root), "subscribe": "t"}), StructType().add("offset", "long", False)
    )


def test_keys_select(root: Path) -> None:
    rows = read_directly(root, keys='["key-3", "absent"]')
    assert rows and {row["key"] for row in rows} == {b"key-3"}
    schema = columns(offset="long")
    options = parse_read({"path": str(root), "assign": '{"t":[0]}', "keys": '["key-3"]'})
    assert [row["offset"] for row in rows_of(LogReader(options, schema))] == list(range(3, 300, 20))


def newest_by_hand(rows: list[dict[str, object]]) -> dict[object, int]:
    newest: dict[object, tuple[int, object]] = {}
    for row in rows:
        newest[row["partition"], row["key"]] = (row["offset"], row["value"])
    return {key: offset for key, (offset, value) in newest.items() if value is not None}


@pytest.mark.parametrize(("start", "end"), [(0, 300), (0, 297), (4, 297), (13, 14), (111, 222), (50, 60)])
def test_latest_is_the_newest_record_of_each_key_in_the_range(root: Path, start: int, end: int) -> None:
    bounds = {
        "startingOffsets": f'{{"t":{{"0":{start},"1":-2}}}}',
        "endingOffsets": f'{{"t":{{"0":{end},"1":-1}}}}',
    }
    log = read_directly(root, **bounds)
    newest_view = read_directly(root, view="newest", **bounds)
    assert {(row["partition"], row["key"]): row["offset"] for row in newest_view} == newest_by_hand(log)
    assert len(newest_view) == len(newest_by_hand(log))


@pytest.mark.parametrize("view", ["newest", "changes"])
def test_more_keys_than_memory_take_a_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    """The rows are the same, in the order of offsets."""
    from lastword.resolve import whole

    create(tmp_path, "t", segment_bytes="32KiB")
    append(tmp_path, "t", 0, [numbered(20 * n, 20, 301) for n in range(50)])
    expected = read_directly(tmp_path, view=view)
    shards = []
    inner = whole.resolve_divided
    monkeypatch.setattr(
        whole, "resolve_divided", lambda *given, **how: shards.append(given[2]) or inner(*given, **how)
    )
    monkeypatch.setattr(whole, "DIVIDE_FROM_BYTES", 0)
    monkeypatch.setattr(read, "map_bytes", lambda path, files: 2048)
    assert read_directly(tmp_path, view=view) == expected
    assert len(shards) == 1 and len(expected) > 200
    assert offsets(expected) == sorted(offsets(expected))


def cleaned(root: Path) -> None:
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.set_config("t", cleanup_policy="compact")
        logs.clean("t")


@pytest.mark.parametrize("view", ["newest", "changes"])
def test_newest_of_a_past_that_was_cleaned_away_is_refused(root: Path, view: str) -> None:
    past = {"view": view, "assign": '{"t":[0]}', "endingOffsets": '{"t":{"0":150}}'}
    whole = read_directly(root, **past)
    assert len(whole) == {"newest": 18, "changes": 20}[view]
    with LogDirectory.open(str(root), "a") as directory:
        directory.set_first_dirty("t", 0, 300)  # as a cleaning does that finds nothing to remove
    assert read_directly(root, **past) == whole
    cleaned(root)
    with pytest.raises(OffsetOutOfRangeError, match="end at 300 or later"):
        read_directly(root, **past)
    assert read_directly(root, **past | {"endingOffsets": '{"t":{"0":300}}'})


@pytest.mark.parametrize("view", ["newest", "changes"])
def test_a_cleaning_while_the_end_is_computed_moves_it(
    root: Path, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end of "latest" that a cleaning passes during its computation is computed again.

    The reader listed the files again for the last stable offset, but kept the old end, and refused that end
    as passed by the cleaning.
    """
    for snapshot_file in (root / "t-0").glob("*.snapshot"):
        snapshot_file.unlink()  # so the last stable offset is computed from every segment
    reader = LogReader(
        parse_read({"path": str(root), "assign": '{"t":[0]}', "view": view}), full_schema(False)
    )
    compute_end = splits._end_of
    ends = []

    def end_before_a_cleaning(*given: Any) -> int:
        ends.append(compute_end(*given))
        if len(ends) == 1:
            append(root, "t", 0, [numbered(n, 10, 20) for n in range(300, 340, 10)])
            cleaned(root)
        return ends[-1]

    monkeypatch.setattr(splits, "_end_of", end_before_a_cleaning)
    (task,) = reader.partitions()
    assert (ends, task.end) == ([300, 340], 340)
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
    assert newest_by_hand(rows) == newest_by_hand(read_directly(root, assign='{"t":[0]}'))


@pytest.mark.parametrize("from_plan", [False, True])
@pytest.mark.parametrize("view", ["log", "newest", "changes"])
def test_a_task_interrupted_by_a_cleaning_gives_all_keys_or_raises(
    root: Path, view: str, from_plan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaning runs before each of the task's file operations in turn.

    `from_plan`: the task opens the segments of its plan; else it lists the partition.
    """
    monkeypatch.setattr(splits, "MOST_SENT_SEGMENTS", 1000 if from_plan else 0)
    options = parse_read({"path": str(root), "assign": '{"t":[0]}', "view": view})
    reader = LogReader(options, full_schema(False))
    (task,) = reader.partitions()

    def offsets(task: LogPartition, files: Files) -> list[int]:
        batches = read_batches(task, options, arrow_schema(full_schema(False)), reader.columns, files)
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]

    whole = offsets(task, OsFiles())
    seen = set()
    number = 0
    while True:
        path = root.parent / f"copy-{number}"
        shutil.copytree(root, path)
        calls = 0

        def before(call: Any, path: Path = path, number: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                append(path, "t", 0, [numbered(n, 10, 20) for n in range(300, 340, 10)])
                cleaned(path)

        (moved,) = LogReader(replace(options, path=str(path)), full_schema(False)).partitions()
        assert isinstance(moved, LogPartition) and (moved.version is not None) == from_plan
        try:
            given = offsets(moved, RecordingFiles(OsFiles(), fail=before))
            if view == "log":  # the cleaning may remove every record before its segment is read
                assert set(given) <= set(whole) and given == sorted(given), number
            else:
                assert given == whole, number
            seen.add("rows")
        except ReadOvertakenError:
            seen.add("refused")
        shutil.rmtree(path)
        if calls <= number:
            break
        number += stride(5)
    assert seen == ({"rows"} if view == "log" else {"rows", "refused"})


def test_a_stream_of_changes_loses_no_key_to_a_cleaning(root: Path) -> None:
    """A record that a cleaning removes from one micro-batch has a newer value in a later one."""
    options = parse_read({"path": str(root), "assign": '{"t":[0]}', "view": "changes"}, stream=True)
    stream = LogStreamReader(options, full_schema(False))
    bounds = [{"t": {"0": offset}} for offset in (0, 100, 200, 300)]
    planned = stream.partitions(bounds[0], bounds[1])
    cleaned(root)
    keys: set[bytes] = set()
    counts = []
    for number in range(3):
        tasks = planned if number == 0 else stream.partitions(bounds[number], bounds[number + 1])
        batch_keys = [key for t in tasks for batch in stream.read(t) for key in batch["key"].to_pylist()]
        counts.append(len(batch_keys))
        keys |= set(batch_keys)
    assert counts == [0, 0, 20] and len(keys) == 20


def test_latest_is_served_from_exact_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments with exact accounts are not resolved again, and later records are included."""
    create(tmp_path, "t", segment_bytes="2KiB")
    append(tmp_path, "t", 0, [numbered(20 * n, 20, 11) for n in range(20)])
    changed(tmp_path, lambda logs: logs.clean("t", strategy="generational"))
    assert (tmp_path / "t-0" / "lastword" / "accounts").exists()
    append(tmp_path, "t", 0, [numbered(400 + 20 * n, 20, 13) for n in range(9)])
    seen = []
    inner = read.from_accounts
    monkeypatch.setattr(read, "from_accounts", lambda *given: seen.append(inner(*given)) or seen[-1])
    newest_view = {row["key"]: row["value"] for row in read_directly(tmp_path, view="newest")}
    assert seen[-1] is not None
    monkeypatch.setattr(read, "from_accounts", lambda *given: None)
    assert newest_view == {row["key"]: row["value"] for row in read_directly(tmp_path, view="newest")}
    assert len(newest_view) > 10
    monkeypatch.setattr(read, "from_accounts", inner)
    (tmp_path / "t-0" / "lastword" / "accounts").write_bytes(b"damaged")
    assert newest_view == {row["key"]: row["value"] for row in read_directly(tmp_path, view="newest")}


def test_latest_uses_no_accounts_of_a_file_that_replaced_the_one_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is published, and its accounts are saved, after the task opened its files.

    The new file of the first segment ends with the same bytes as the old one.
    """
    create(tmp_path, "t", segment_bytes="64KiB")
    keys = [b"k", *(b"u%d" % number for number in range(9)), b"k"]
    append(tmp_path, "t", 0, [[(1_700_000_000_000, key, b"." * 20_000, ())] for key in keys])
    inner = read.from_accounts

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(read, "from_accounts", inner)
        with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
            (done,) = logs.clean("t", strategy="generational")
        assert done.removed.superseded == 1
        return inner(*given)

    monkeypatch.setattr(read, "from_accounts", meanwhile)
    assert offsets(read_directly(tmp_path, view="newest")) == list(range(1, len(keys)))


@pytest.mark.parametrize("view", ["log", "changes", "newest"])
@pytest.mark.parametrize("began", [False, True])
def test_files_that_a_cleaning_swapped_are_found_again(root: Path, view: str, began: bool) -> None:
    """The cleaning runs after the read was planned, or after its task returned the first rows.

    Only superseded records may be missing, and no record is returned twice.
    """
    newest = newest_by_hand(read_directly(root))
    options = {"path": str(root), "assign": '{"t":[0]}', "view": view, "maxbytesperpartition": "1GiB"}
    reader = LogReader(parse_read(options), full_schema(False))
    (task,) = reader.partitions()
    batches = reader.read(task)
    rows = next(batches).to_pylist() if began else []
    before = sorted(path.name for path in (root / "t-0").glob("*.log"))
    changed(root, lambda logs: logs.clean("t", strategy="kafka"))
    assert sorted(path.name for path in (root / "t-0").glob("*.log")) != before
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert offsets(rows) == sorted(set(offsets(rows)))
    assert newest_by_hand(rows) == {key: offset for key, offset in newest.items() if key[0] == 0}


def test_latest_with_aborted_records_takes_no_accounts_that_count_them_as_dead(tmp_path: Path) -> None:
    from lastword.accounts.ledger import Ledger
    from lastword.cleaner.engine.transactions import Transactions

    create(tmp_path, "t")
    append(tmp_path, "t", 0, [numbered(0, 20, 11)])
    with LogDirectory.open(str(tmp_path), "a") as directory:
        log = directory.log("t", 0)
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(1_700_000_000_000, b"key-1", b"aborted")
        log.append_batch(builder.build())
        end_transaction(log, 7, 0, commit=False)
        log.roll()
        log.sync()
        ledger = Ledger.open(log.files, log.directory, log.segments, map_bytes=1 << 20)
        limit = log.active.base_offset
        transactions = Transactions(log.segments, limit, 0, 1 << 40)
        ledger.add_segments(log.segments, limit, write_clock=1, now_ms=0, outcomes=transactions)
        assert ledger.save()
    for isolation, value in (("read_committed", b"value-12"), ("read_uncommitted", b"aborted")):
        rows = read_directly(tmp_path, view="newest", isolationLevel=isolation)
        assert {row["key"]: row["value"] for row in rows}[b"key-1"] == value
