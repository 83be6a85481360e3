"""One export at a time: what it writes, what it refuses, and what readers see."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

import lastword
from lastword import metrics
from lastword.clock import ManualClock
from lastword.errors import (
    BusyError,
    DiskFullError,
    InvalidSettingError,
    MissingError,
    TableRefusedError,
    UncertainCommitError,
    UnconditionalStoreError,
    UsageError,
    ValueFormatError,
)
from lastword.files import DEFAULT
from lastword.lake import data, export, vectors
from lastword.lake.directory import DirectoryStore
from lastword.lake.table import Table, commit_key
from lastword.wire import INT64_MAX
from tests.fakes.recording import RecordingFiles, Stopped
from tests.lake.histories import rows_of
from tests.lake.plain_vectors import deleted_rows
from tests.support.stores import Server

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def logs(tmp_path: Path, clock: ManualClock) -> Iterator[Any]:
    with lastword.open(tmp_path / "log", "a", clock=clock, log_cleaner_enable=False) as opened:
        yield opened


@pytest.fixture
def topic(logs: Any) -> Any:
    return created(logs)


def created(logs: Any, **settings: Any) -> Any:
    given = {"key_serializer": "str", "value_serializer": "str", "cleanup_policy": "compact"}
    return logs.create_topic("t", **{**given, **settings})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def to(place: Path) -> str:
    return f"delta:{place}"


def fill(topic: Any, first: int, last: int, value: str = "v") -> None:
    topic.extend([(f"k{number}", f"{value}{number}") for number in range(first, last)])


def values_of(place: Path) -> dict[str, str]:
    return dict(rows_of(str(place)).values())


def actions_of(place: Path, version: int, kind: str) -> list[Any]:
    lines = (place / commit_key(version)).read_text().splitlines()
    return [action[kind] for action in map(json.loads, lines) if kind in action]


def write_commit(place: Path, version: int, *actions: dict[str, Any]) -> None:
    (place / commit_key(version)).write_text("\n".join(map(json.dumps, actions)))


# ---------------------------------------------------------------- what is written


def test_rows_are_written_once_and_dead_ones_get_a_vector(topic: Any, to: str, place: Path) -> None:
    fill(topic, 0, 100)
    assert topic.export(to).added_rows == 100
    topic.append("k3", "new")
    topic.delete("k70")
    result = topic.export(to)
    assert (result.version, result.added_rows, result.removed_rows, result.rewritten_rows) == (1, 1, 2, 0)
    first, second = actions_of(place, 1, "add")
    assert deleted_rows(place, first["deletionVector"]) == [3, 70]
    assert json.loads(first["stats"])["numRecords"] == 100
    assert json.loads(first["stats"])["tightBounds"] is False
    assert "deletionVector" not in second
    assert [remove["path"] for remove in actions_of(place, 1, "remove")] == [first["path"]]
    assert values_of(place) == {record.key: record.value for record in topic.newest()}


def test_a_time_beyond_microseconds_is_the_nearest_that_they_hold(topic: Any, to: str, place: Path) -> None:
    """A producer may give nanoseconds for milliseconds; one such record does not stop an export."""
    most = INT64_MAX // 1000
    times = {
        "fits": most,
        "above": most + 1,
        "nanoseconds": 1_700_000_000_000_000_000,
        "now": 1_700_000_000_000,
    }
    for key, time_ms in times.items():
        topic.append(key, "v", timestamp=time_ms)
    topic.export(to, layout="merge")
    rows = DeltaTable(str(place)).to_pyarrow_table(columns=["key", "timestamp"])
    found = dict(zip(rows["key"].to_pylist(), rows["timestamp"].cast(pa.int64()).to_pylist(), strict=True))
    assert found == {key: min(time_ms, most) * 1000 for key, time_ms in times.items()}


def test_the_position_is_in_the_table(logs: Any, topic: Any, to: str, place: Path) -> None:
    fill(topic, 0, 5)
    topic.export(to)
    name = f"lastword/{logs.dirs.topic_id('t')}/0"
    assert DeltaTable(str(place)).transaction_version(name) == 5


def test_an_export_that_is_repeated_writes_nothing(topic: Any, to: str, place: Path) -> None:
    fill(topic, 0, 5)
    topic.export(to)
    before = sorted(place.rglob("*"))
    assert topic.export(to).version is None
    assert sorted(place.rglob("*")) == before


def test_a_table_above_the_space_target_is_rewritten(topic: Any, to: str, place: Path) -> None:
    fill(topic, 0, 30)
    topic.export(to)
    fill(topic, 0, 16, "new")
    result = topic.export(to)
    assert (result.added_rows, result.removed_rows, result.rewritten_rows) == (16, 16, 14)
    (add,) = actions_of(place, 1, "add")
    assert json.loads(add["stats"])["numRecords"] == 30
    assert values_of(place) == {record.key: record.value for record in topic.newest()}


def test_the_files_with_the_most_dead_rows_are_rewritten(topic: Any, to: str, place: Path) -> None:
    """A file that has few stays, also if the export before gave it a vector."""
    fill(topic, 0, 20)
    topic.export(to)
    fill(topic, 20, 40)
    topic.export(to)
    fill(topic, 0, 12, "new")
    fill(topic, 20, 22, "new")
    topic.export(to)
    fill(topic, 22, 32, "newer")
    result = topic.export(to)
    assert result.rewritten_rows == 8
    assert len(actions_of(place, 3, "add")) == 2
    assert values_of(place) == {record.key: record.value for record in topic.newest()}


def test_the_layout_merge_has_no_vectors(topic: Any, to: str, place: Path) -> None:
    """Each file of which a row died is written again; readers without vectors see the newest values."""
    fill(topic, 0, 20)
    topic.export(to, layout="merge")
    fill(topic, 20, 40)
    topic.export(to, layout="merge")
    topic.delete("k7")
    result = topic.export(to, layout="merge")
    assert (result.added_rows, result.removed_rows, result.rewritten_rows) == (0, 1, 19)
    assert not list(place.glob("deletion_vector_*"))
    (protocol,) = actions_of(place, 0, "protocol")
    assert protocol == {"minReaderVersion": 1, "minWriterVersion": 2}
    rows = DeltaTable(str(place)).to_pyarrow_table(columns=["key", "value"]).to_pylist()
    expected = {record.key: record.value for record in topic.newest()}
    assert {row["key"]: row["value"] for row in rows} == expected and len(rows) == 39
    assert values_of(place) == expected
    with pytest.raises(TableRefusedError, match="in layout merge, not of 't' in layout vectors"):
        topic.export(to)


def test_many_small_files_are_joined(topic: Any, to: str, place: Path) -> None:
    for number in range(export.MOST_SMALL + 2):
        topic.append(f"k{number}", "v")
        topic.export(to)
    assert len(DeltaTable(str(place)).file_uris()) < export.MOST_SMALL
    assert len(values_of(place)) == export.MOST_SMALL + 2


def test_a_data_file_ends_at_its_size(
    logs: Any, to: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "FILE_BYTES", 1)
    monkeypatch.setattr(data, "BUFFERED_BYTES", 1)
    topic = created(logs, partitions=3)
    fill(topic, 0, 90)
    assert topic.export(to).files == 3
    assert len(rows_of(str(place))) == 90


def test_large_rows_are_decoded_a_few_at_a_time(
    topic: Any, to: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.extend([(f"k{number}", "x" * 1000) for number in range(300)])
    topic.export(to)
    monkeypatch.setattr(data, "BUFFERED_BYTES", 20_000)
    (add,) = actions_of(place, 0, "add")
    reader = data.DataReader(DirectoryStore(DEFAULT, str(place)), add["path"], add["size"])
    names = ["key", "value", "partition", "offset", "timestamp"]
    schema = pa.schema([reader._file.schema_arrow.field(name) for name in names])
    batches = list(reader.live(np.arange(300) % 3 == 0, schema))
    assert sum(batch.num_rows for batch in batches) == 200
    assert 0 < max(batch.nbytes for batch in batches) < 30_000


def test_a_dry_run_measures_and_writes_nothing(topic: Any, to: str, place: Path) -> None:
    fill(topic, 0, 100)
    planned = topic.export(to, dry_run=True)
    assert not place.exists()
    done = topic.export(to)
    assert (planned.added_rows, planned.files, planned.version) == (100, 1, None)
    assert planned.written_bytes == done.written_bytes
    topic.delete("k1")
    assert topic.export(to, dry_run=True).removed_rows == 1
    assert len(rows_of(str(place))) == 100


def test_metrics_of_exports(topic: Any, to: str) -> None:
    def value(metric: metrics.Metric, *labels: str) -> Any:
        return dict(metric.samples()).get(("t", *labels), 0)

    before = value(metrics.EXPORTS, "committed"), value(metrics.EXPORT_ROWS, "added")
    fill(topic, 0, 5)
    topic.export(to, dry_run=True)
    written = value(metrics.EXPORT_WRITTEN_BYTES) + topic.export(to).written_bytes
    topic.export(to)
    assert value(metrics.EXPORTS, "committed") == before[0] + 1
    assert value(metrics.EXPORT_ROWS, "added") == before[1] + 5
    assert value(metrics.EXPORT_WRITTEN_BYTES) == written
    assert value(metrics.EXPORT_LAST_SUCCESS) == NOW_MS / 1000
    failed = value(metrics.EXPORTS, "failed")
    with pytest.raises(TableRefusedError):
        topic.export(to, layout="merge")
    assert value(metrics.EXPORTS, "failed") == failed + 1


def test_an_empty_topic_makes_an_empty_table(topic: Any, to: str, place: Path) -> None:
    assert topic.export(to).version == 0
    assert rows_of(str(place)) == {}


def test_checkpoints_keep_vectors_and_positions(topic: Any, to: str, place: Path) -> None:
    fill(topic, 0, 100)
    topic.export(to)
    for number in range(export.CHECKPOINT_COMMITS):
        topic.delete(f"k{number}")
        topic.export(to)
    newest = export.CHECKPOINT_COMMITS
    assert (place / f"_delta_log/{newest:020}.checkpoint.parquet").exists()
    for version in range(newest):
        (place / commit_key(version)).unlink()
    assert topic.export(to).version is None
    topic.delete("k50")
    assert topic.export(to).removed_rows == 1
    assert len(rows_of(str(place))) == 100 - newest - 1


def test_offsets_above_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    high = 5 << 32
    known = vectors.Offsets()
    known.add(np.array([1, 3, high + 1], np.int64))
    known.add(np.array([high + 2], np.int64))
    asked = np.array([high + 1, 1, 2, high + 3, high + 2, 3, 9 << 32], np.int64)
    assert known.mask(asked).tolist() == [True, True, False, False, True, True, False]
    less = known.copy()
    less.discard(np.array([3, high + 2, 9 << 32], np.int64))
    assert known.minus(less).mask(asked).tolist() == [False, False, False, False, True, True, False]
    assert known.minus(vectors.Offsets()).mask(asked).tolist() == known.mask(asked).tolist()


@pytest.mark.parametrize("count", [1, 3, 5000])
def test_a_vector_is_read_by_both_readers(tmp_path: Path, count: int) -> None:
    store = DirectoryStore(DEFAULT, str(tmp_path))
    rows = np.unique(np.random.default_rng(count).integers(0, 500_000, count))
    runs = np.concatenate([rows, np.arange(900_000, 900_000 + count)])
    file = vectors.VectorFile(export._identity(7, 99))
    found = [file.add(vectors.bitmap_of(numbers)) for numbers in (rows, runs)]
    store.put(file.name, bytes(file.data))
    for vector, numbers in zip(found, (rows, runs), strict=True):
        assert vectors.numbers_of(vectors.read_vector(store, vector)).tolist() == numbers.tolist()
        assert deleted_rows(tmp_path, vector.to_action()) == numbers.tolist()


def test_a_damaged_vector_is_refused(topic: Any, to: str, place: Path) -> None:
    fill(topic, 0, 100)
    topic.export(to)
    topic.delete("k1")
    topic.export(to)
    (file,) = place.glob("deletion_vector_*.bin")
    content = bytearray(file.read_bytes())
    content[-6] ^= 1
    file.write_bytes(content)
    topic.delete("k2")
    with pytest.raises(lastword.errors.CorruptFileError, match="checksum"):
        topic.export(to)


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("serializers", "pairs", "kind"),
    [
        (("str", "json"), [("a", {"n": 1})], "string"),
        (("int64", "float64"), [(7, 1.5)], "double"),
        (("bytes", "bytes"), [(b"\xff", b"\x00")], "binary"),
    ],
)
def test_columns_are_those_of_the_serializers(
    logs: Any, to: str, place: Path, serializers: tuple[str, str], pairs: list[Any], kind: str
) -> None:
    topic = created(logs, key_serializer=serializers[0], value_serializer=serializers[1])
    topic.extend(pairs)
    topic.export(to)
    fields = {field.name: field.type for field in DeltaTable(str(place)).schema().fields}
    assert list(fields) == ["key", "value", "partition", "offset", "timestamp"]
    assert fields["value"].type == kind
    (row,) = polars.scan_delta(str(place)).collect().rows(named=True)
    value = json.loads(row["value"]) if serializers[1] == "json" else row["value"]
    assert (row["key"], value, row["offset"]) == (*pairs[0], 0)
    assert row["timestamp"].timestamp() * 1000 == NOW_MS


def test_nan_is_in_no_bounds_of_a_data_file(logs: Any, to: str, place: Path) -> None:
    topic = created(logs, value_serializer="json")
    topic.append("a", {"size": "NaN", "numbers": {"low": "NaN"}, "parts": [1]})
    schema = "size DOUBLE, numbers STRUCT<low: FLOAT>, parts ARRAY<INT>"
    topic.export(to, value_format="json", value_schema=schema)
    group = pq.read_metadata(next(place.glob("*.parquet"))).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    bounded = {column.path_in_schema for column in columns if column.is_stats_set}
    assert bounded == {"key", "partition", "offset", "timestamp"}


def test_values_in_a_format_are_typed(logs: Any, to: str, place: Path) -> None:
    topic = created(logs, value_serializer="json")
    topic.append("a", {"city": "Oslo", "population": 700_000, "tags": ["x"]})
    schema = "city STRING, population BIGINT, tags array<string>, size DECIMAL(5,2)"
    topic.export(to, value_format="json", value_schema=schema)
    (row,) = polars.scan_delta(str(place)).collect().rows(named=True)
    assert row["value"] == {"city": "Oslo", "population": 700_000, "tags": ["x"], "size": None}
    topic.append("b", {"population": "many"})
    with pytest.raises(ValueFormatError, match="t-0: offset 1"):
        topic.export(to, value_format="json", value_schema=schema)
    with pytest.raises(TableRefusedError, match="columns"):
        topic.export(to, value_format="json", value_schema="city STRING")
    assert len(polars.scan_delta(str(place)).collect()) == 1


def test_values_in_avro_have_the_type_of_their_schema(logs: Any, to: str, place: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    import io

    fields = [{"name": "city", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "Place", "fields": fields}
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), {"city": "Oslo"})
    topic = created(logs, value_serializer="bytes")
    topic.append("a", buffer.getvalue())
    topic.export(to, value_format=("avro", {"avroSchema": json.dumps(schema)}))
    (row,) = polars.scan_delta(str(place)).collect().rows(named=True)
    assert row["value"] == {"city": "Oslo"}
    with pytest.raises(TableRefusedError, match="value_format=avro, not json"):  # the columns are the same
        topic.export(to, value_format="json", value_schema="city STRING")
    needed = json.dumps({**schema, "fields": [{"name": "city", "type": "string"}]})
    with pytest.raises(TableRefusedError, match=r"the topic now has .*city string not null"):
        topic.export(to, value_format=("avro", {"avroSchema": needed}))
    topic.append("b", buffer.getvalue())
    topic.export(to, value_format=("avro", {"avroSchema": json.dumps(schema)}))
    assert len(polars.scan_delta(str(place)).collect()) == 2


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"layout": "bitmaps"}, UsageError, "layout"),
        ({"value_format": "xml"}, UsageError, "value_format"),
        ({"value_format": ("avro", "user.avsc")}, UsageError, "not a pair of a name and its options"),
        (
            {"value_format": ("avro", {"avroSchema": {"type": "record"}})},
            InvalidSettingError,
            "avroSchema is text, not dict",
        ),
        ({"value_format": ["json", {}]}, UsageError, "not a pair of a name and its options"),
        ({"value_format": "json"}, UsageError, "gives no type"),
        ({"value_schema": "a INT"}, UsageError, "needs value_format"),
        (
            {"value_format": ("json", {"envelope": "debezium"}), "value_schema": "a INT"},
            UsageError,
            "no option 'envelope'",
        ),
        ({"value_format": ("avro", {"avroShema": "{}"})}, UsageError, "nearest: avroSchema"),
        ({"value_format": "json", "value_schema": "a"}, InvalidSettingError, "position 0"),
        ({"value_format": "json", "value_schema": "a INT b INT"}, InvalidSettingError, "the end"),
        ({"value_format": "json", "value_schema": "a ; INT"}, InvalidSettingError, "position 1"),
        ({"value_format": "json", "value_schema": "a TIMESTAMP_NTZ"}, InvalidSettingError, "timestampNtz"),
        ({"value_format": "json", "value_schema": "d DECIMAL(5, 9)"}, InvalidSettingError, "no such columns"),
        ({"value_format": "json", "value_schema": "a INT, A INT"}, InvalidSettingError, "Duplicate field"),
        ({"value_format": "json", "value_schema": pa.struct([])}, InvalidSettingError, "without fields"),
        ({"value_format": "json", "value_schema": 5}, InvalidSettingError, "5 is no type"),
        ({"value_format": ("avro", {"avroSchema": "{"})}, InvalidSettingError, "avroSchema"),
    ],
)
def test_formats_that_are_refused(
    topic: Any, to: str, place: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        topic.export(to, **options)
    assert not place.exists()


# ---------------------------------------------------------------- a table that others have changed


@pytest.fixture
def exported(topic: Any, to: str) -> Any:
    fill(topic, 0, 100)
    topic.export(to)
    topic.append("k0", "newer")
    topic.export(to)
    topic.append("k1", "newest")
    return topic


def test_a_table_of_another_program_is_refused(topic: Any, to: str, place: Path) -> None:
    DeltaTable.create(str(place), schema=pa.schema([("k", pa.int64())]))
    with pytest.raises(TableRefusedError, match="another program made this table"):
        topic.export(to)


@pytest.mark.parametrize(
    ("protocol", "settings", "text"),
    [
        ({"writerFeatures": ["deletionVectors", "rowTracking"]}, {}, "the feature rowTracking"),
        ({"readerFeatures": ["deletionVectors", "columnMapping"]}, {}, "the feature columnMapping"),
        ({"minReaderVersion": 4}, {}, "a newer protocol"),
        ({}, {"delta.constraints.low": "offset < 8"}, "the feature delta.constraints.low"),
        ({}, {"delta.appendOnly": "true"}, "append-only"),
        ({}, {"lastword.topic": "other"}, "the table of 'other'"),
    ],
)
def test_a_table_with_what_is_not_known_is_refused(
    exported: Any, to: str, place: Path, protocol: dict[str, Any], settings: dict[str, str], text: str
) -> None:
    (before,) = actions_of(place, 0, "protocol")
    (metadata,) = actions_of(place, 0, "metaData")
    metadata["configuration"] |= settings
    write_commit(place, 2, {"protocol": {**before, **protocol}}, {"metaData": metadata})
    files = sorted(place.rglob("*"))
    with pytest.raises(TableRefusedError, match=text):
        exported.export(to)
    assert sorted(place.rglob("*")) == files


def test_a_restore_by_another_program_is_refused_until_it_is_undone(
    exported: Any, to: str, place: Path
) -> None:
    files = [{"add": add | {"dataChange": True}} for add in actions_of(place, 0, "add")]
    gone = [
        {"remove": {"path": a["path"], "dataChange": True, **_vector(a)}} for a in actions_of(place, 1, "add")
    ]
    write_commit(place, 2, {"commitInfo": {"operation": "RESTORE"}}, *gone, *files)
    with pytest.raises(
        TableRefusedError, match="RESTORE of another program has changed its rows at version 2"
    ):
        exported.export(to)
    back = [{"add": add} for add in actions_of(place, 1, "add")]
    away = [{"remove": {"path": a["path"], "dataChange": True}} for a in actions_of(place, 0, "add")]
    write_commit(place, 3, {"commitInfo": {"operation": "RESTORE"}}, *away, *back)
    assert exported.export(to).version == 4
    assert values_of(place) == {record.key: record.value for record in exported.newest()}


def _vector(add: dict[str, Any]) -> dict[str, Any]:
    return {"deletionVector": add["deletionVector"]} if "deletionVector" in add else {}


def test_rows_that_another_program_has_moved_to_other_files_are_found(
    exported: Any, to: str, place: Path
) -> None:
    """As OPTIMIZE does: one file of all live rows, in another order, without vectors."""
    import pyarrow.parquet as pq

    adds = actions_of(place, 1, "add")
    table = polars.scan_delta(str(place)).sort("key", descending=True).collect().to_arrow()
    schema = pq.read_schema(place / adds[0]["path"])
    pq.write_table(table.cast(schema), place / "part-00000.parquet")
    size = (place / "part-00000.parquet").stat().st_size
    moved = {"path": "part-00000.parquet", "partitionValues": {}, "size": size, "modificationTime": 0}
    removed = [{"remove": {"path": a["path"], "dataChange": False, **_vector(a)}} for a in adds]
    info = {"commitInfo": {"operation": "OPTIMIZE"}}
    write_commit(place, 2, info, *removed, {"add": {**moved, "dataChange": False}})
    assert exported.export(to).removed_rows == 1
    assert values_of(place) == {record.key: record.value for record in exported.newest()}


def test_the_bytes_of_an_erased_value_can_be_removed(topic: Any, to: str, place: Path) -> None:
    def found() -> list[Path]:
        return [file for file in place.glob("*.parquet") if b"secret" in file.read_bytes()]

    fill(topic, 0, 20)
    topic.append("who", "secret")
    topic.export(to)
    topic.erase(["who"])
    topic.export(to)
    assert "who" not in values_of(place)
    assert found()
    DeltaTable(str(place)).optimize.z_order(["key"])
    DeltaTable(str(place)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert not found()
    assert topic.export(to).version is None
    assert len(values_of(place)) == 20


def test_a_write_above_commits_that_are_gone_is_refused(exported: Any, to: str, place: Path) -> None:
    write_commit(place, 2, {"commitInfo": {"operation": "OPTIMIZE"}})
    DeltaTable(str(place)).create_checkpoint()
    for version in range(2):
        (place / commit_key(version)).unlink()
    with pytest.raises(TableRefusedError, match="commit 1 is gone"):
        exported.export(to)


@pytest.mark.parametrize(
    "text", ['{"add":', '{"add":{}}', '{"txn":null}', '{"metaData":{"schemaString":"{"}}']
)
def test_a_damaged_commit_is_refused(exported: Any, to: str, place: Path, text: str) -> None:
    settings = '"configuration":{"lastword.topic":"t","lastword.layout":"vectors"},"schemaString"'
    (place / commit_key(1)).write_text(text.replace('"schemaString"', settings))
    with pytest.raises(lastword.errors.CorruptFileError, match="is damaged"):
        exported.export(to)


@pytest.mark.parametrize("part", ["footer", "pages"])
def test_a_damaged_data_file_is_refused(exported: Any, to: str, place: Path, part: str) -> None:
    (add,) = actions_of(place, 0, "add")
    content = bytearray((place / add["path"]).read_bytes())
    changed = range(4, len(content) // 2) if part == "pages" else range(len(content) - 8, len(content))
    for at in changed:
        content[at] ^= 0xFF
    (place / add["path"]).write_bytes(content)
    with pytest.raises(lastword.errors.CorruptFileError, match="parquet is damaged"):
        exported.export(to)


def test_a_missing_commit_is_refused(exported: Any, to: str, place: Path) -> None:
    (place / commit_key(0)).unlink()
    with pytest.raises(TableRefusedError, match="commit 0 is missing"):
        exported.export(to)


# ---------------------------------------------------------------- the log


def test_a_topic_that_comes_back_replaces_its_rows(tmp_path: Path, to: str, place: Path) -> None:
    """A log of another id was exported between: the position of the first one holds no longer."""
    for name in "ab":
        with lastword.open(tmp_path / name, "a") as logs:
            created(logs).append("key", name)
    for name in "abaabb":
        with lastword.open(tmp_path / name) as logs:
            logs["t"].export(to)
        assert values_of(place) == {"key": name}
    assert [values["key"] for values in (dict(rows_of(str(place), n).values()) for n in range(4))] == [
        *"abab"
    ]


def test_a_log_start_that_is_lower_than_before_replaces_the_rows(
    tmp_path: Path, to: str, place: Path
) -> None:
    """A log of another replica, or of a backup, still has the trimmed records."""
    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        fill(created(logs), 0, 10)
        logs["t"].trim(5)
        logs["t"].export(to)
    (tmp_path / "log" / "log-start-offset-checkpoint").write_text("0\n0\n")
    with lastword.open(tmp_path / "log") as logs:
        logs["t"].export(to)
        assert values_of(place) == {record.key: record.value for record in logs["t"].newest()}
    assert len(values_of(place)) == 10


def test_a_topic_without_an_id_is_refused(exported: Any, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(exported.dirs), "topic_id", lambda self, topic: None)
    with pytest.raises(TableRefusedError, match="no topic id"):
        exported.export(to)


# ---------------------------------------------------------------- crashes and other exporters


def test_files_of_a_killed_export_are_removed_later(
    exported: Any, to: str, place: Path, tmp_path: Path, clock: ManualClock
) -> None:
    for at in range(12):
        files = RecordingFiles(DEFAULT, stop_at=at)
        with pytest.raises(Stopped), lastword.open(tmp_path / "log", "r", files=files, clock=clock) as logs:
            logs.topic("t").export(to)
    table = Table(DirectoryStore(DEFAULT, str(place)))
    before = values_of(place)
    for file in place.rglob("*"):
        os.utime(file, (NOW_MS / 1000, NOW_MS / 1000))
    orphans = export.orphans(table, 1, NOW_MS + 8 * DAY_MS)
    assert len(orphans) > 8
    assert any(name.endswith(".tmp") for name in orphans)
    assert any("deletion_vector_" in name for name in orphans)
    assert export.orphans(table, 1, NOW_MS + 6 * DAY_MS) == []
    clock.advance(8 * DAY_MS)
    for number in range(export.CHECKPOINT_COMMITS):
        exported.append("k9", f"v{number}")
        exported.export(to)
    assert not [name for name in orphans if (place / name).exists()]
    assert values_of(place) == {record.key: record.value for record in exported.newest()}
    assert rows_of(str(place), 1) and len(before) == 100


def test_an_export_that_always_comes_second_ends(
    exported: Any, to: str, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr(Table, "commit", lambda self, version, actions: False)
    files = sorted(place.rglob("*"))
    with pytest.raises(BusyError, match="16 times"):
        exported.export(to)
    assert sorted(place.rglob("*")) == files


# ---------------------------------------------------------------- a bucket


def in_bucket(server: Server, topic: Any, prefix: str) -> tuple[str, Callable[[], dict[str, str]]]:
    address = f"{server.root}/{prefix}"
    storage = {**server.options, "allow_http": "true"}

    def values() -> dict[str, str]:
        delta = DeltaTable(address, storage_options=storage)
        query = QueryBuilder().register("t", delta).execute("select key, value from t")
        return {row["key"]: row["value"] for row in pa.table(query).to_pylist()}

    return f"delta:{address}", values


@pytest.fixture
def topic_of_now(tmp_path: Path) -> Iterator[Any]:
    """A topic with the machine's clock, which the store's is compared with."""
    with lastword.open(tmp_path / "now", "a", log_cleaner_enable=False) as opened:
        yield created(opened)


def test_a_table_in_a_bucket(topic_of_now: Any, moto: Server) -> None:
    topic = topic_of_now
    to, values = in_bucket(moto, topic, "lake/a")
    fill(topic, 0, 100)
    topic.export(to, storage_options=moto.options)
    for number in range(export.CHECKPOINT_COMMITS + 1):
        topic.append(f"k{number}", "new")
        topic.export(to, storage_options=moto.options)
    assert values() == {record.key: record.value for record in topic.newest()}
    with moto.open("lake/a") as store:
        names = {facts.key for facts in store.list("_delta_log")}
    assert f"_delta_log/{export.CHECKPOINT_COMMITS:020}.checkpoint.parquet" in names


def test_a_store_without_conditions_is_refused_before_a_write(topic_of_now: Any, moto: Server) -> None:
    topic = topic_of_now
    fill(topic, 0, 10)
    with pytest.raises(UnconditionalStoreError):
        topic.export("delta:s3://ignorant/lake", storage_options=moto.options)
    with lastword.objects.open_store("s3://ignorant/lake", moto.options) as store:
        assert not [facts.key for facts in store.list() if not facts.key.startswith(".probe")]


def test_an_answer_that_is_lost(topic: Any) -> None:
    from tests.fakes.objects import Bucket, FakeStore, Fault, Planned

    fill(topic, 0, 3)
    bucket = Bucket()
    table = Table(FakeStore(bucket, "a", Planned({1: Fault.LOST}), None))
    assert table.commit(0, [{"commitInfo": {}}])
    late = Table(FakeStore(bucket, "b", Planned({1: Fault.LATE}), None))
    with pytest.raises(UncertainCommitError):
        late.commit(1, [{"commitInfo": {}}])
    taken = Table(FakeStore(bucket, "c", None, None))
    assert not taken.commit(0, [{"commitInfo": {"operation": "other"}}])


# ---------------------------------------------------------------- bad calls


@pytest.mark.parametrize(
    ("to", "options", "text"),
    [
        *((name, {}, "names no table") for name in ("lake/users", "iceberg:lake", "delta:")),
        ("delta:{}/table", {"storage_options": {"region": "x"}}, "in a bucket"),
        # A broker does not start beside a directory that is no partition.
        *((f"delta:{{}}/{name}", {}, "is in the log directory") for name in ("log", "log/lake", "log/t-0")),
        ("delta:{}/link/lake", {}, "is in the log directory"),
    ],
)
def test_calls_that_are_refused(
    tmp_path: Path, topic: Any, to: str, options: dict[str, Any], text: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "log")
    for _ in range(2):
        with pytest.raises(UsageError, match=text):
            topic.export(to.format(tmp_path), **options)
        (tmp_path / "log" / "meta.properties").unlink(missing_ok=True)  # a log directory may have none


def test_a_path_that_readers_decode(tmp_path: Path, topic: Any) -> None:
    """deltalake opens `a b` for `a%20b`: its checkpoint would have the files of another table."""
    for place in (f"{tmp_path}/a%20b", "s3://bucket/a%20b", f"{tmp_path}/a\\b"):
        with pytest.raises(UsageError, match="decode"):
            topic.export(f"delta:{place}")
    topic.export(f"delta:{tmp_path}/100%")


def test_a_failed_export_leaves_no_files(
    logs: Any, to: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "FILE_BYTES", 1)
    monkeypatch.setattr(data, "BUFFERED_BYTES", 1)
    topic = created(logs, partitions=2)
    topic.append("k1", '{"n": 1}', partition=0)
    topic.append("k2", "no json", partition=1)
    with pytest.raises(ValueFormatError):
        topic.export(to, value_format="json", value_schema="n INT")
    assert not list(place.rglob("*.parquet"))


def test_a_full_drive_leaves_no_scratch_file(topic: Any, to: str, place: Path, tmp_path: Path) -> None:
    topic.append("a", "b")
    full = DiskFullError("no space", file=str(place))
    files = RecordingFiles(
        DEFAULT, fail=lambda call: full if call.name == "append" and call.path.endswith(".tmp") else None
    )
    with lastword.open(tmp_path / "log", files=files) as logs, pytest.raises(DiskFullError):
        logs["t"].export(to)
    assert not list((place / "_delta_log").iterdir())


@pytest.mark.parametrize("package", ["deltalake", "pyroaring"])
def test_a_package_that_is_missing(
    exported: Any, to: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingError, match=package):
        exported.export(to)


def test_progress_ends_at_the_whole(topic: Any, to: str) -> None:
    fill(topic, 0, 100)
    for _ in range(2):
        seen: list[Any] = []
        topic.export(to, progress=seen.append)
        assert seen and seen[-1].done_bytes == seen[-1].total_bytes > 0


def test_the_table_can_be_copied(exported: Any, to: str, place: Path, tmp_path: Path) -> None:
    """No path in the log is absolute."""
    exported.export(to)
    shutil.copytree(place, tmp_path / "copied")
    shutil.rmtree(place)
    assert values_of(tmp_path / "copied") == {record.key: record.value for record in exported.newest()}


def test_a_saved_garbage_index_takes_the_place_of_a_scan(
    to: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records above the index are scanned; the rows are those of a scan of everything."""
    from lastword.state import changes

    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        topic = created(logs, segment_bytes=4000)
        fill(topic, 0, 300)
        fill(topic, 0, 100, "new")
        logs.clean("t", strategy="generational")
        topic.export(to)
    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        topic = logs.topic("t")
        fill(topic, 50, 150, "newest")
        topic.delete("k299")
        found: list[Any] = []
        inner = changes.saved_ledger
        monkeypatch.setattr(
            changes, "saved_ledger", lambda *given, **how: found.append(inner(*given, **how)) or found[-1]
        )
        topic.export(to)
        assert found and found[0] is not None
        assert values_of(place) == {record.key: record.value for record in topic.newest()}


def test_a_topic_that_is_made_again_has_one_kept_scan(to: str, place: Path, tmp_path: Path) -> None:
    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        for made in range(2):
            topic = created(logs)
            for number in range(3):
                topic.extend([(f"k{number}-{each}", f"v{made}") for each in range(2000)])
                topic.export(to)
            assert [scan.memory_bytes > 0 for scan in logs.dirs.scans.values()] == [True]
            assert values_of(place) == {record.key: record.value for record in topic.newest()}
            logs.delete_topic("t")


def test_a_kept_scan_is_not_continued_over_a_rewritten_segment(
    to: str, place: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaning removes expired records, which have no dead bit."""
    from lastword.state.changes import KeptScan

    continued: list[bool] = []
    inner = KeptScan.continues
    monkeypatch.setattr(
        KeptScan, "continues", lambda *given: continued.append(inner(*given)) or continued[-1]
    )
    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False, clock=clock) as logs:
        topic = created(logs, lastword_ttl_ms=10_000)
        topic.extend([(f"old{number}", "v") for number in range(2000)])
        logs.dirs.log("t", 0).roll()
        for number in range(3):
            topic.extend([(f"k{number}-{each}", "v") for each in range(2000)])
            topic.export(to)
        assert continued == [True]  # the second export began the scan
        clock.advance(9_000)
        topic.extend([(f"new{each}", "v") for each in range(2000)])
        clock.advance(2_000)
        logs.clean("t")
        topic.export(to)
        assert continued == [True, False]
        assert values_of(place) == {f"new{each}": "v" for each in range(2000)}
    assert not logs.dirs.scans


def test_a_range_that_has_no_batches(logs: Any, topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above it may be an open transaction, which ends the range."""
    from lastword.partition import scan
    from lastword.partition.moment import Range
    from lastword.state import changes

    monkeypatch.setattr(scan, "is_short", lambda *given: False)
    monkeypatch.setattr(
        changes, "at_one_moment", lambda range_, read: read(range_.view, range_.start, range_.end)
    )
    for number in range(6):
        topic.append("k", str(number))
    log = logs.dirs.log("t", 0)
    log.roll()
    logs.clean("t")
    range_ = Range(logs.dirs.view("t", 0).held(0), 0, 3)
    known = vectors.Offsets()
    known.add(np.array([0, 2]))
    parts = changes.newer_parts(range_, 3, known, map_bytes=1 << 20, kept=changes.KeptScan(("", 0)))
    assert [record for part in parts for record in part.records] == [] and not known.count(0, 6)
