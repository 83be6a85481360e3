"""Columns with a format: struct keys and values are written and read as they are, in batches and streams."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark.sql.types
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

import lastword
import lastword.spark
from lastword.errors import MissingError, SparkOptionError, UsageError, ValueFormatError
from lastword.spark.bootstrap import typed
from lastword.spark.options import parse_read, parse_write
from lastword.spark.schema import check_projection, sink_columns
from lastword.spark.source import LastwordDataSource, LogReader
from lastword.spark.write import normal_rows, with_deletions
from tests.spark.conftest import append, create, rows_of
from tests.spark.test_stream_write import update
from tests.value_formats.registries import serving

NOW = 1_700_000_000_000
PLACE = StructType().add("city", "string").add("population", "long")


def records(root: Path, *values: bytes | None, key: bytes = b"k") -> None:
    create(root, "t")
    append(root, "t", 0, [[(NOW, key, value, ()) for value in values]])


def read(root: Path, schema: StructType, **options: str) -> list[dict[str, Any]]:
    chosen = parse_read({"path": str(root), "subscribe": "t", "value_format": "json", **options})
    return rows_of(LogReader(chosen, schema))


def source(**options: str) -> LastwordDataSource:
    return LastwordDataSource({"path": "/data", "subscribe": "t", **options})


def test_a_malformed_value_is_named_with_its_record(tmp_path: Path) -> None:
    records(tmp_path, b'{"city":"Rome"}', None, b"{", b'{"city":"Bern"}')
    schema = StructType().add("value", PLACE)
    with pytest.raises(
        ValueFormatError, match=r"t-0: offset 2: the value cannot be read as json: "
    ) as caught:
        read(tmp_path, schema)
    assert caught.value.offset == 2 and "mode=permissive" in (caught.value.remedy or "")
    assert isinstance(
        typed(Exception(f"x lastword.errors.ValueFormatError: {caught.value}")), ValueFormatError
    )
    rows = read(tmp_path, schema, mode="PERMISSIVE")
    assert [row["value"] and row["value"]["city"] for row in rows] == ["Rome", None, None, "Bern"]


def test_a_permissive_read_distinguishes_a_deletion(tmp_path: Path) -> None:
    records(tmp_path, b"{", None, b"{}", key=b"[1")
    given = {"key_format": "json", "mode": "permissive"}
    schema = source(value_format="json", value_schema="city STRING", **given, key_schema="int").schema()
    assert isinstance(schema, str) and schema.startswith(
        "`key` int, `value` STRUCT<city STRING>, `topic` string"
    )
    assert schema.endswith("`_corrupt_record` struct<`key`:binary,`value`:binary,`reason`:string>")
    corrupt = StructType().add("key", "binary").add("value", "binary").add("reason", "string")
    wanted = StructType().add("_corrupt_record", corrupt).add("key", "integer").add("value", PLACE)
    rows = read(tmp_path, wanted, **given)
    assert [row["_corrupt_record"]["value"] for row in rows] == [b"{", None, None]
    assert {row["_corrupt_record"]["key"] for row in rows} == {b"[1"}
    assert rows[0]["_corrupt_record"]["reason"].startswith("key: it is not JSON")
    assert "; value: it is not JSON" in rows[0]["_corrupt_record"]["reason"]
    assert rows[2]["value"] == {"city": None, "population": None}


def test_only_selected_columns_are_decoded(tmp_path: Path) -> None:
    records(tmp_path, b"{")
    assert read(tmp_path, StructType().add("key", "binary").add("offset", "long")) == [
        {"key": b"k", "offset": 0}
    ]
    assert read(tmp_path, StructType().add("value", PLACE), keys='["x"]') == []
    row_type = StructType().add("change", "string").add("value", PLACE)
    assert read(tmp_path, row_type, view="changes", keys='["x"]') == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value_format": "xml"}, "'value_format' is json or avro or confluent"),
        ({"avroSchema": "string"}, "'avroSchema' is for value_format avro or confluent, not none"),
        ({"subject": "users"}, "'subject' is for value_format confluent, not none"),
        (
            {"key_format": "json", "key_avroSchema": "string"},
            "'key_avroSchema' is for key_format avro or confluent, not json",
        ),
        ({"value_format": "json"}, "the type of column 'value' is not known(.|\n)*value_schema"),
        ({"value_schema": "a int"}, "'value_schema' needs value_format"),
        ({"mode": "permissive"}, "'mode' needs value_format or key_format"),
        ({"value_format": "json", "mode": "dropmalformed"}, "'mode' is failfast or permissive"),
        ({"value_format": "json", "envelope": "canal"}, "'envelope' is debezium"),
        ({"key_format": "json", "envelope": "debezium"}, "'envelope' needs value_format"),
        ({"value_format": "json", "envelope": "debezium"}, "the type of column 'value' is not known"),
    ],
)
def test_what_options_of_a_format_must_say(options: dict[str, str], said: str) -> None:
    with pytest.raises(SparkOptionError, match=said):
        source(**options).schema()


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (StructType().add("value", PLACE), {}, "is binary, not struct<.*>; option value_format decodes it"),
        (StructType().add("value", "string"), {"value_format": "json"}, "cannot be string: text and bytes"),
        (StructType().add("value", "interval day to second"), {"value_format": "json"}, "no JSON"),
        (
            StructType().add("_corrupt_record", "string"),
            {"value_format": "json"},
            "with option mode=permissive only",
        ),
        (StructType().add("key", PLACE, False), {"key_format": "json"}, "column 'key' may be null"),
    ],
)
def test_a_schema_that_a_format_lacks_is_refused(
    schema: StructType, options: dict[str, str], said: str
) -> None:
    with pytest.raises(SparkOptionError, match=said):
        source(**options).reader(schema)


def test_the_sink_names_the_option_and_refuses_a_map_as_key() -> None:
    from pyspark.sql.types import IntegerType, MapType, StringType

    nested = StructType().add("key", PLACE).add("value", PLACE)
    with pytest.raises(
        SparkOptionError, match=r"to_json\(`key`\) AS key writes JSON, and so does option key_format"
    ):
        sink_columns(nested)
    formats = parse_write({"path": "/d", "key_format": "json", "value_format": "json"}).formats
    columns = sink_columns(nested, formats)
    assert (columns.key_serializer, columns.value_serializer) == ("bytes", "json")
    mapped = StructType().add("key", MapType(StringType(), IntegerType())).add("value", PLACE)
    with pytest.raises(SparkOptionError, match="entries of a map have no order"):
        sink_columns(mapped, formats)
    with pytest.raises(SparkOptionError, match="cannot be string in json: text and bytes"):
        sink_columns(StructType().add("key", PLACE).add("value", "string"), formats)


@pytest.mark.parametrize("name", ["VariantType", "GeometryType", "GeographyType", "CalendarIntervalType"])
@pytest.mark.parametrize("within", ["itself", "a struct", "an array", "a map"])
def test_a_type_without_an_exact_form_is_refused(name: str, within: str) -> None:
    """A VARIANT was written as the bytes that Spark has inside, without an error."""
    kind = getattr(pyspark.sql.types, name, None)
    if kind is None:
        pytest.skip("a newer version of Spark has this type")
    inner = kind(4326) if name.startswith("Geo") else kind()
    whole = {
        "itself": inner,
        "a struct": StructType().add("x", inner),
        "an array": ArrayType(inner),
        "a map": MapType(StringType(), inner),
    }[within]
    schema = StructType().add("value", whole)
    given = {"path": "/d", "topic": "t", "value_format": "avro" if name == "VariantType" else "json"}
    formats = parse_write(given).formats
    with pytest.raises(SparkOptionError, match=r"has no exact form here; without the format, to_json\(value"):
        sink_columns(schema, formats)
    with pytest.raises(SparkOptionError, match="has no exact form here"):
        check_projection(schema, "log", formats)


AVRO = (
    '{"type":"record","name":"P","fields":['
    '{"name":"city","type":"string"},{"name":"n","type":["null","int"]}]}'
)


def test_avro_gives_the_type_of_its_schema(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    options = {"value_format": "avro", "avroschema": AVRO, "key_format": "avro", "key_avroschema": "string"}
    schema = source(**options).schema()
    assert isinstance(schema, StructType)
    wanted = StructType().add("city", "string", False).add("n", "integer")
    assert (schema["key"].dataType.typeName(), schema["value"].dataType) == ("string", wanted)
    mixed = source(**options | {"key_format": "json", "key_schema": "int"} | {"key_avroschema": ""}).schema
    with pytest.raises(SparkOptionError, match="key_avroSchema"):
        mixed()
    del options["key_avroschema"]
    text = source(**options | {"key_format": "json", "key_schema": "id int"}).schema()
    assert isinstance(text, str) and "`value` struct<`city`:string NOT NULL,`n`:int>" in text
    with pytest.raises(SparkOptionError, match="option avroSchema is no Avro schema"):
        source(value_format="avro", avroSchema="{").schema()
    records(tmp_path, b"\x08Rome\x02\x0e", None, b"\x08Rome")
    rows = read(
        tmp_path, StructType().add("value", wanted), value_format="avro", avroSchema=AVRO, mode="permissive"
    )
    assert rows == [{"value": {"city": "Rome", "n": 7}}, {"value": None}, {"value": None}]
    with pytest.raises(
        ValueFormatError, match="offset 2: the value cannot be read as avro: it is not of the schema"
    ):
        read(tmp_path, StructType().add("value", wanted), value_format="avro", avroSchema=AVRO)


def event(op: str, city: str | None = None) -> bytes:
    return json.dumps({"op": op, "after": city and {"city": city}}).encode()


def test_an_event_decides_what_is_deleted(tmp_path: Path) -> None:
    create(tmp_path, "t")
    rows = [(b"1", event("r", "Rome")), (b"2", event("c", "Bern")), (b"3", event("c", "Oslo")), (b"4", b"{")]
    rows += [
        (b"2", event("d")),
        (b"3", event("d")),
        (b"3", None),
        (b"5", event("d")),
        (b"5", event("c", "Kyiv")),
    ]
    append(tmp_path, "t", 0, [[(NOW, key, value, ()) for key, value in rows]])
    change, place = (
        StructType().add("key", "binary").add("change", "string"),
        StructType().add("city", "string"),
    )

    def shown(view: str, schema: StructType, **more: str) -> list[list[Any]]:
        given = {"envelope": "debezium", "view": view, "mode": "permissive", **more}
        return [list(row.values()) for row in read(tmp_path, schema, **given)]

    expected = [[b"1", "upsert"], [b"4", "upsert"], [b"2", "delete"], [b"3", "delete"], [b"5", "upsert"]]
    assert shown("changes", change) == expected
    cities = [{"city": "Rome"}, None, None, None, {"city": "Kyiv"}]
    with_value = shown("changes", StructType([*change.fields, *StructType().add("value", place).fields]))
    assert with_value == [[*row, city] for row, city in zip(expected, cities, strict=True)]
    row_type = StructType().add("key", "binary").add("value", place)
    assert shown("newest", row_type) == [[b"1", cities[0]], [b"4", None], [b"5", cities[4]]]
    assert shown("newest", StructType().add("key", "binary")) == [[b"1"], [b"4"], [b"5"]]
    assert shown("newest", row_type, keys='["2","3","5"]') == [[b"5", cities[4]]]
    assert [row[0] for row in shown("log", StructType().add("offset", "long"))] == list(range(9))
    with pytest.raises(
        ValueFormatError, match="t-0: offset 3: the value cannot be read as debezium: it is not JSON"
    ):
        shown("newest", StructType().add("key", "binary"), mode="failfast")


def test_deletions_of_events_without_a_type_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    given = {"value_format": "avro", "envelope": "debezium"}
    for schema, view in (
        (StructType().add("key", "binary"), "newest"),
        (StructType().add("change", "string"), "changes"),
    ):
        with pytest.raises(SparkOptionError, match="without column 'value' or avroSchema has no type"):
            source(**given, view=view).reader(schema)
    source(**given, view="changes").reader(StructType().add("key", "binary"))
    source(**given, view="newest").reader(StructType().add("value", PLACE))
    with pytest.raises(SparkOptionError, match="option 'envelope': the schema is not of change events"):
        source(**given, avroSchema=AVRO).schema()
    with pytest.raises(SparkOptionError, match="the row of a change event is a struct"):
        sink_columns(StructType().add("value", "integer"), parse_write({"path": "/d", **given}).formats)


def test_a_null_is_written_as_a_deletion_and_a_tombstone() -> None:
    import pyarrow as pa

    options = parse_write({"path": "/d", "value_format": "json", "envelope": "debezium"})
    schema = StructType().add("key", "string").add("partition", "integer").add("value", PLACE)
    columns = sink_columns(schema, options.formats)
    assert columns.value_serializer == "json"
    kind = pa.struct([("city", pa.string()), ("population", pa.int64())])
    values = pa.array([None, {"city": "Rome", "population": None}, None], kind)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a", "b", "c"]), pa.array([1, 2, 3]), values], names=schema.names
    )
    rows, copied = with_deletions(normal_rows(batch, columns, options, NOW), batch, columns)
    ops = [data and json.loads(data)["op"] for data in rows.column("value").to_pylist()]
    written = list(zip(rows.column("key").to_pylist(), ops, strict=True))
    assert written == [(b"a", "d"), (b"a", None), (b"b", "c"), (b"c", "d"), (b"c", None)]
    assert copied.column(1).to_pylist() == [1, 1, 2, 3, 3]
    full = batch.slice(1, 1)
    encoded = normal_rows(full, columns, options, NOW)
    assert with_deletions(encoded, full, columns) == (encoded, full)


@pytest.mark.parametrize("name", ["avro", "confluent"])
def test_a_missing_package_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    (tmp_path / "1.avsc").write_text('"string"')
    records(tmp_path / "data", b"\0\0\0\0\x01\x02a")
    given = {"schema.registry.url": str(tmp_path)} if name == "confluent" else {}
    missing = r'needs fastavro(.|\n)*pip install "fastavro>=1\.9"'
    if name == "confluent":  # only Avro needs the package
        with pytest.raises(MissingError, match=missing):
            read(tmp_path / "data", StructType().add("value", "string"), value_format=name, **given)
        given["avroSchema"] = "string"
    with pytest.raises(MissingError, match=missing):
        source(value_format=name, **given).schema()


def test_protobuf_gives_the_type_of_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.protobuf")
    from tests.spark.test_docs import write_descriptors

    file = tmp_path / "place.desc"
    write_descriptors(file)
    given = {"value_format": "protobuf", "descfilepath": str(file), "messagename": "example.Place"}
    wanted = StructType().add("city", "string", False).add("population", "long")
    schema = source(**given).schema()
    assert isinstance(schema, StructType) and schema["value"].dataType == wanted
    records(tmp_path / "data", b"\x0a\x04Rome\x10\x07", None, b"\x0a")
    rows = read(tmp_path / "data", StructType().add("value", wanted), **given, mode="permissive")
    assert rows == [{"value": {"city": "Rome", "population": 7}}, {"value": None}, {"value": None}]
    with pytest.raises(
        ValueFormatError, match="offset 2: the value cannot be read as protobuf: it is no example"
    ):
        read(tmp_path / "data", StructType().add("value", wanted), **given)
    keys = {"key_format": "protobuf", "key_descFilePath": str(file)}
    with pytest.raises(SparkOptionError, match="option key_messageName is not given"):
        source(**keys).schema()
    with pytest.raises(
        SparkOptionError, match="'messageName' is for value_format protobuf or confluent, not json"
    ):
        source(value_format="json", messageName="x").schema()
    with pytest.raises(SparkOptionError, match="option 'envelope': the schema is not of change events"):
        source(**given, envelope="debezium").schema()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingError, match=r'needs protobuf(.|\n)*pip install "protobuf>=6\.31"'):
        source(**given).schema()


def test_a_registry_gives_the_type_by_the_topics_subject(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    with pytest.raises(SparkOptionError, match=r"option schema\.registry\.url is not given"):
        source(value_format="confluent").schema()
    with serving() as registry:
        given = {"schema.registry.url": registry.url, "value_format": "confluent"}
        registry.add("t-value", AVRO)
        registry.add("t-key", "string")
        schema = source(**given, key_format="confluent").schema()
        assert (
            isinstance(schema, StructType)
            and schema["value"].dataType.simpleString() == "struct<city:string,n:int>"
        )
        assert schema["key"].dataType.simpleString() == "string"
        with pytest.raises(SparkOptionError, match="the type of column 'value' is not known"):
            source(**given, subject="other").schema()
        assert "GET /subjects/other/versions/latest" in registry.requests
        records(tmp_path, b"\0\0\0\0\x01\x08Rome\x00", None, b"\0\0\0\0\x09")
        wanted = StructType().add("value", schema["value"].dataType)
        assert read(tmp_path, wanted, **given, mode="permissive")[0] == {"value": {"city": "Rome", "n": None}}
        with pytest.raises(
            ValueFormatError, match="offset 2: the value cannot be read as confluent: its schema id 9"
        ):
            read(tmp_path, wanted, **given)
        with pytest.raises(SparkOptionError, match="no subject of the registry is given"):
            sink_columns(wanted, parse_write({"path": "/d", **given}).formats)


def test_a_union_of_several_types_is_named(tmp_path: Path) -> None:
    """The error names the column and the field; a type of the user's own leaves the field out."""
    pytest.importorskip("fastavro")
    union = {"name": "v", "type": ["int", "string"]}
    row = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, union]}
    given = {"value_format": "avro", "avroSchema": json.dumps(row)}
    reason = "column 'value' is not known: field v: a union of several types(.|\n)*value_schema"
    with pytest.raises(SparkOptionError, match=reason):
        source(**given).schema()
    records(tmp_path, b"\x02\x02\x02a")
    schema = StructType().add("value", StructType().add("id", "long"))
    assert read(tmp_path, schema, **given) == [{"value": {"id": 1}}]
    noted = StructType().add("key", "binary").add("value", "binary").add("reason", "string")
    corrupt = StructType().add("_corrupt_record", noted)
    assert read(tmp_path, corrupt, **given, mode="permissive") == [{"_corrupt_record": None}]


# ---------------------------------------------------------------- in a session


TYPES = (
    "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(38,18), i string, "
    "j binary, k date, l timestamp, m timestamp_ntz, n array<struct<x:int,y:array<string>>>, "
    "o map<string,decimal(5,2)>, p struct<z:int>"
)
FULL = (
    *(True, -128, -32768, 2**31 - 1, -(2**63), 0.1, float("nan")),
    *(Decimal("12345678901234567890.123456789012345678"), 'é"\n', b"\xff\x00", date(1, 1, 1)),
    *(datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    *([(1, ["a", None]), None, (None, None)], {"": Decimal("1.10"), "b": None}, (None,)),
)


def reader_of(spark: Any, topic: str, **options: str) -> Any:
    return spark.read.format("lastword").option("subscribe", topic).options(**options)


def write(frame: Any, root: str, topic: str, **options: str) -> None:
    frame.coalesce(1).write.format("lastword").mode("append").option("topic", topic).options(**options).save(
        root
    )


@pytest.mark.spark
def test_every_type_in_a_batch(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    root = str(tmp_path / "data")
    schema = f"key struct<id:bigint,part:string>, value struct<{TYPES}>"
    both = {"key_format": "json", "value_format": "json"}
    frame = spark.createDataFrame([((1, "x"), FULL), ((2, None), (None,) * 16), ((3, "y"), None)], schema)
    expected = frame.collect()
    write(frame, root, "t", **both)
    derived = reader_of(
        spark, "t", **both, value_schema=TYPES, key_schema="struct<id:bigint, part:string>"
    ).load(root)
    assert derived.columns[2:] == ["topic", "partition", "offset", "timestamp", "timestampType"]
    assert derived.select("key", "value").schema == frame.schema
    assert repr(derived.select("key", "value").collect()) == repr(expected)

    raw = reader_of(spark, "t").schema("value binary").load(root)
    theirs = raw.select(F.from_json(F.col("value").cast("string"), TYPES).alias("value"))
    assert repr(theirs.collect()) == repr([Row(value=row.value) for row in expected])
    theirs = frame.select("key", F.to_json(F.col("value").dropFields("m", "l")).alias("value"))
    write(theirs, root, "u", key_format="json")
    ours = reader_of(spark, "u", **both).schema(schema).load(root)
    fields = F.col("value").dropFields("m", "l").alias("value")
    assert repr(ours.select("key", fields).collect()) == repr(frame.select("key", fields).collect())
    with lastword.open(root) as logs:
        values = [record.value for record in logs.topic("t").read()]
    assert values[0]["n"] == [{"x": 1, "y": ["a", None]}, None, {}] and values[1:] == [{}, None]


@pytest.mark.spark
def test_streams_and_a_malformed_value(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    create(root, "t")
    append(root, "t", 0, [[(NOW, b"ada", b'{"city":"Rome","population":7}', ()), (NOW, b"bob", None, ())]])
    stream = (
        spark.readStream.format("lastword").option("subscribe", "t").option("startingOffsets", "earliest")
    )
    stream = (
        stream.option("value_format", "json")
        .option("value_schema", "city STRING, population BIGINT")
        .load(str(root))
    )
    changed = stream.selectExpr(
        "key", "if(value is null, null, struct(value.city, value.population + 1 AS n)) AS value"
    )

    def run() -> Any:
        writer = changed.writeStream.format("lastword").option("topic", "copy").option("value_format", "json")
        query = (
            writer.option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start(str(root))
        )
        query.awaitTermination(180)

    run()
    with lastword.open(root) as logs:
        written = [(r.key, r.value) for r in logs.topic("copy").read()]
    assert written == [(b"ada", {"city": "Rome", "n": 8}), (b"bob", None)]
    append(root, "t", 0, [[(NOW, b"eve", b"[]", ())]])
    with pytest.raises(
        Exception, match=r"t-0: offset 2: the value cannot be read as json: \[\] is no object"
    ):
        run()


EXACT_IN_VARIANT = (
    """parse_json('{"b": 1, "a": [1, 2.5, -0.0, 1.0, 12345678901234567890123.456789, null, {}], "": []}')""",
    "CAST(TIMESTAMP'2026-01-02 03:04:05.1' AS VARIANT)",
    "CAST(TIMESTAMP_NTZ'0001-01-02 03:04:05.123456' AS VARIANT)",
    "CAST(DATE'2026-01-31' AS VARIANT)",
    "CAST(0.0000001BD AS VARIANT)",
    "CAST(-100.00BD AS VARIANT)",
    "CAST(12345678901234567890123456789012345678BD AS VARIANT)",
    "CAST(-1.2345678901234567890123456789012345678BD AS VARIANT)",
    "CAST(DOUBLE('NaN') AS VARIANT)",
    "CAST(FLOAT('-Infinity') AS VARIANT)",
    "CAST(FLOAT('1.1') AS VARIANT)",
    "CAST(123456.5D AS VARIANT)",
    "CAST(X'00ff' AS VARIANT)",
    "CAST('é\u2028 \U0001f600 \\\\ \" / \\t \\u0001' AS VARIANT)",
    "CAST(repeat('x', 70000) AS VARIANT)",
    "CAST(array(1, 300, 70000, 5000000000, -1, NULL) AS VARIANT)",
    "to_variant_object(transform(sequence(1, 300), n -> named_struct('n' || 1, n, 'd', DATE'2026-01-01')))",
    "parse_json('{' || array_join(transform(sequence(1, 300), n -> concat('\"k', n, '\":', n)), ',') || '}')",
    "CAST(true AS VARIANT)",
    "parse_json('null')",
    "CAST(NULL AS VARIANT)",
)
"""Values whose text `to_json` gives. The texts of doubles with an exponent differ: 1.0E10, and 1e+10 here."""


@pytest.mark.spark
def test_variant_as_its_json(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    root = str(tmp_path / "data")
    values = " UNION ALL ".join(f"SELECT {n} AS n, {sql} AS v" for n, sql in enumerate(EXACT_IN_VARIANT))
    frame = spark.sql(f"SELECT n, v, to_json(v) AS text FROM ({values})")
    both = {"key_format": "json", "value_format": "json"}
    write(frame.selectExpr("struct(n) AS key", "v AS value"), root, "t", **both)
    raw = reader_of(spark, "t").schema("value binary").load(root)
    expected = [row.text for row in frame.collect()]
    assert [row.value and row.value.decode() for row in raw.collect()] == expected
    ours = reader_of(spark, "t", **both, key_schema="n INT", value_schema="VARIANT").load(root)
    again = ours.selectExpr("to_json(value) text", "value IS NULL AS is_null").collect()
    assert [row.text for row in again] == expected and not again[-2].is_null and again[-1].is_null
    places = spark.sql("""SELECT parse_json('{"a": 12345678901234567890.5}') AS key, named_struct('x', v,
        'y', array(v, CAST(NULL AS VARIANT)), 'z', map('k', v), 'u', array(named_struct('v', v))) AS value
        FROM (SELECT parse_json('{"c": {"d": 1.5}}') v UNION ALL SELECT parse_json('null')
        UNION ALL SELECT NULL)""")
    write(places, root, "u", **both)
    kind = "struct<x:variant,y:array<variant>,z:map<string,variant>,u:array<struct<v:variant>>>"
    ours = reader_of(spark, "u", **both).schema(f"key variant, value {kind}").load(root)
    texts = F.to_json("key").alias("key"), F.to_json("value").alias("value")
    rows = places.select(*texts).collect()
    assert ours.select(*texts).collect() == rows
    raw = reader_of(spark, "u").schema("key binary, value binary").load(root)
    assert [(row.key.decode(), row.value.decode()) for row in raw.collect()] == rows
    theirs = raw.select(F.from_json(F.col("value").cast("string"), kind).alias("v"))
    inner = "variant_get(v.x, '$.c.d', 'double')", "v.x IS NULL", "v.y[0] IS NULL", "v.z['k'] IS NULL"
    renamed = ours.selectExpr("value AS v").selectExpr(*inner)
    assert renamed.collect() == theirs.selectExpr(*inner).collect()
    stream = (
        spark.readStream.format("lastword").option("subscribe", "u").option("startingOffsets", "earliest")
    )
    stream = stream.options(**both).schema("key variant, value struct<x:variant>").load(root)
    writer = stream.selectExpr("key", "value.x AS value").writeStream.format("lastword").options(**both)
    writer = writer.option("topic", "copy").option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start(root).awaitTermination(180)
    with lastword.open(root) as logs:
        assert [r.value for r in logs.topic("copy").read()] == [{"c": {"d": 1.5}}, None, None]


@pytest.mark.spark
def test_complete_mode_compares_decoded_values(spark: Any, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    root.mkdir()
    create(root, "t")
    append(root, "t", 0, [[(NOW, b"ada", b"", ()), (NOW, b"bob", b"", ())]])
    stream = (
        spark.readStream.format("lastword").option("subscribe", "t").option("startingOffsets", "earliest")
    )
    counted = stream.load(str(root)).groupBy("key").count().where("count < 3")
    counted = counted.selectExpr(
        "struct(CAST(key AS STRING) AS name) AS key", "struct(count AS n, array(count) AS all) AS value"
    )
    given = {"mode": "complete", "options": {"key_format": "json", "VALUE_FORMAT": "json"}}

    def rows() -> list[tuple[Any, Any]]:
        with lastword.open(root) as logs:
            return [(r.key, r.value) for r in logs.topic("rare").read()]

    update(counted, root, "rare", checkpoint, **given)
    value = {"n": 1, "all": [1]}
    assert sorted(rows()) == [(b'{"name":"ada"}', value), (b'{"name":"bob"}', value)]
    append(root, "t", 0, [[(NOW, key, b"", ()) for key in (b"ada", b"ada", b"eve")]])
    update(counted, root, "rare", checkpoint, **given)
    second = rows()
    assert sorted(second[2:], key=str) == [(b'{"name":"ada"}', None), (b'{"name":"eve"}', value)]
    mapped = counted.selectExpr("key", "map('a', value) AS value")
    with pytest.raises(UsageError, match=r"compares column value, and Spark compares no map<"):
        update(mapped, root, "rare", tmp_path / "other", **given)


@pytest.mark.spark
def test_avro_and_a_registry_in_a_session(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    root = str(tmp_path / "data")
    types = TYPES.replace("a boolean", "a boolean NOT NULL")
    frame = spark.createDataFrame([("x", FULL), ("y", None)], f"key string, value struct<{types}>")
    expected = repr(frame.collect())
    write(frame, root, "t", key_format="avro", value_format="avro")
    reader = reader_of(spark, "t", key_format="avro", key_avroSchema="string", value_format="avro")
    assert repr(reader.schema(frame.schema).load(root).collect()) == expected
    with serving() as registry:
        given = {"schema.registry.url": registry.url, "value_format": "confluent", "key_format": "confluent"}
        write(frame, root, "u", **given)
        rows = reader_of(spark, "u", **given).load(root)
        assert repr(rows.select("key", "value").collect()) == expected
        assert list(registry.subjects) == ["u-key", "u-value"]


@pytest.mark.spark
def test_change_events_in_a_session(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    create(root, "t")
    rows = [(b"ada", event("r", "Rome")), (b"bob", event("c", "Bern")), (b"bob", event("d")), (b"bob", None)]
    append(root, "t", 0, [[(NOW, key, value, ()) for key, value in rows]])
    create(root, "cities")
    known = [(b"Bern", event("u", "Bern")), (b"Rome", event("u", "Rome")), (b"Oslo", event("c", "Oslo"))]
    append(root, "cities", 0, [[(NOW, key, value, ()) for key, value in [*known, (b"Oslo", event("d"))]]])
    given = {"envelope": "debezium", "value_format": "json"}
    stream = spark.readStream.format("lastword").options(**given, subscribe="t", view="changes")
    stream = (
        stream.option("startingOffsets", "earliest").option("value_schema", "city STRING").load(str(root))
    )
    cities = stream.where("change = 'upsert'").groupBy("value.city").count()
    cities = cities.selectExpr("city AS key", "struct(city) AS value")
    update(cities, root, "cities", tmp_path / "checkpoint", mode="complete", options=given)
    with lastword.open(root) as logs:
        written = [(record.key, record.value) for record in logs.topic("cities").read(start=4)]
    assert [(key, value and json.loads(value)["op"]) for key, value in written] == [
        (b"Bern", "d"),
        (b"Bern", None),
    ]
