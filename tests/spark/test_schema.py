"""Values as rows of a DataFrame, without Spark."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StructType

from lastword.cleaner.engine.report import Phases
from lastword.errors import LastwordError, SparkOptionError
from lastword.spark.bootstrap import typed
from lastword.spark.schema import arrow_schema, full_schema, schema_of, struct_of, table_of
from lastword.spark.source import LastwordDataSource
from tests.spark.conftest import append, create, numbered, read_directly


@dataclass(frozen=True)
class Told:
    seconds: float
    ratio: float | None
    phases: Phases


def test_a_whole_number_in_a_float_field_is_a_float() -> None:
    """A round that rewrites nothing has an integer 0 as its seconds, and Spark refused the row."""
    rows = table_of(Told, [Told(0, 1, Phases(1, 0, 2)), Told(0.5, None, Phases(1, 0, 2))]).to_pylist()
    first = [rows[0]["seconds"], rows[0]["ratio"], *rows[0]["phases"].values()]
    assert first == [0.0, 1.0, 1.0, 0.0, 2.0] and {type(value) for value in first} == {float}
    assert rows[1]["ratio"] is None
    assert schema_of(Told).simpleString().startswith("struct<seconds:double,ratio:double,phases:struct<")


# ---------------------------------------------------------------- Sail, whose schemas are Arrow's


def test_an_arrow_schema_becomes_sparks_and_is_the_one_of_the_batches() -> None:
    full = full_schema(True, "changes")
    given = arrow_schema(full)
    assert struct_of(given) == full and struct_of(full) is full
    assert arrow_schema(given) is given
    local = pa.schema([("timestamp", pa.timestamp("us"))])
    assert struct_of(local).simpleString() == "struct<timestamp:timestamp_ntz>"


def test_the_schema_of_a_read_is_arrows_and_sparks(tmp_path: Path) -> None:
    create(tmp_path, "t")
    schema = LastwordDataSource({"path": str(tmp_path), "subscribe": "t"}).schema()
    assert pa.schema(schema) == arrow_schema(full_schema(False))  # by Arrow's interface, as Sail does
    assert isinstance(schema, StructType) and schema.json() == full_schema(False).json()  # as Spark does


def test_a_reader_gives_batches_of_the_arrow_schema_that_it_gets(tmp_path: Path) -> None:
    create(tmp_path, "t")
    append(tmp_path, "t", 0, [numbered(0, 20, 5)])
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    fields = {"offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "value": pa.binary()}
    given = pa.schema([*fields.items(), ("headers", pa.list_(pa.field("item", header)))])
    reader = LastwordDataSource({"path": str(tmp_path), "subscribe": "t"}).reader(given)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {batch.schema for batch in batches} == {given}
    rows = pa.Table.from_batches(batches).select(["offset", "value"]).to_pylist()
    assert rows == [{"offset": row["offset"], "value": row["value"]} for row in read_directly(tmp_path)]
    wrong = pa.schema([("offset", pa.int32())])
    with pytest.raises(SparkOptionError, match="column 'offset' is bigint, not int"):
        LastwordDataSource({"path": str(tmp_path), "subscribe": "t"}).reader(wrong)


def test_tasks_without_a_number_stage_their_own_files_in_the_order_of_their_messages(tmp_path: Path) -> None:
    """Sail has no TaskContext: under one name, the last task would overwrite the rows of the others."""
    given = pa.schema([("key", pa.string()), ("value", pa.string())])
    writer = LastwordDataSource({"path": str(tmp_path), "topic": "t"}).writer(given, False)
    values = [str(number) for number in range(12)]
    messages = [
        writer.write(iter([pa.RecordBatch.from_pydict({"key": ["k"], "value": [value]}, given)]))
        for value in values
    ]
    writer.commit(messages)
    assert [row["value"].decode() for row in read_directly(tmp_path)] == values


def test_what_sail_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path, "t")
    given = pa.schema([("key", pa.string()), ("value", pa.string())])
    options = {"path": str(tmp_path), "topic": "t", "checkpointlocation": "x"}
    with pytest.raises(SparkOptionError, match="Sail runs a stream of this format as one batch"):
        LastwordDataSource(options).writer(given, False)
    monkeypatch.setitem(sys.modules, "pysail", None)
    options = {"path": str(tmp_path), "subscribe": "t", "value_format": "json", "value_schema": "city STRING"}
    with pytest.raises(SparkOptionError, match="Sail takes no type of a column from an option"):
        LastwordDataSource(options).schema()


def test_an_error_that_sail_passes_on_is_typed_again() -> None:
    for place in ("[lastword::partitions] ", "partition 0\ncaused by\nExternal error: "):
        error = typed(Exception(f"Python error: {place}SparkOptionError: no\n  fix: yes\nTraceback:\nx"))
        assert isinstance(error, SparkOptionError) and (error.message, error.remedy) == ("no", "yes")
    other = Exception("Python error: [x::read] ValueError: no")
    assert typed(other) is other and not isinstance(other, LastwordError)


def test_sail_finds_the_format_by_an_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["pysail.datasources"].items()
    assert EntryPoint(name, value, "pysail.datasources").load() is LastwordDataSource
    assert name == LastwordDataSource.name()
