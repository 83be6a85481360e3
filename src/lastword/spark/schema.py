"""The columns of DataFrames: of a record, of the rows that the sink accepts, and of the results of verbs.

Read: the columns of Spark's Kafka source, in its order, all nullable.

    key            binary
    value          binary
    topic          string
    partition      int
    offset         long
    timestamp      timestamp
    timestampType  int: 0 create time, 1 log-append time
    headers        array<struct<key:string,value:binary>>, null when a record has none; with `includeHeaders`
    change         string: `upsert` or `delete`; in view `changes`. With an envelope the event decides, so
                   it is decoded also if `value` is not selected
    _corrupt_record  struct<key:binary,value:binary,reason:string>: the bytes that could not be decoded; with
                   option `mode` permissive

With a format (`value_format`, `key_format`) the column `value` or `key` has the type that the user gives or
the format's schema has.

A user's schema is the projection: any of these columns, in any order. Omitted columns are neither gathered
nor sent through the JVM, which doubles the speed (PySpark has no column pruning of its own).

Results: the fields of a frozen dataclass become columns of the same names. int becomes long, float double, a
nested value a struct, a tuple an array; a field that may be None is nullable. So an attribute in Python, a
field of `--json` and a column have the same name, and there is no separate list of columns.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark.sql.types
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lastword.arrow import pa
from lastword.errors import SparkOptionError
from lastword.spark.options import ColumnFormats, ReadOptions, View, hint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword.value_formats.interface import ValueFormat

EngineSchema: typing.TypeAlias = "StructType | pa.Schema"
"""A schema as the engine gives it to a reader or a writer: Spark a StructType, Sail an Arrow schema."""

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}

MAY_BE_NULL = ("key", "value", "headers", "_corrupt_record")
FORMATTED = ("key", "value")
"""Columns that may have a format."""

CHANGE = "change"
CHANGES_COLUMNS: dict[str, DataType] = {**COLUMNS, CHANGE: StringType()}

CORRUPT = "_corrupt_record"
CORRUPT_TYPE = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("reason", StringType()),
    ]
)

SINK_SCHEMA = StructType([StructField(name, COLUMNS[name]) for name in ("key", "value")])

SINK_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "headers": (ArrayType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}


def columns_of(view: View, formats: ColumnFormats = ColumnFormats()) -> dict[str, DataType]:
    """Return all columns of a view, in order."""
    columns = CHANGES_COLUMNS if view == "changes" else COLUMNS
    return {**columns, CORRUPT: CORRUPT_TYPE} if formats.permissive else columns


def full_schema(include_headers: bool, view: View = "log") -> StructType:
    """Return the schema of a read without a user's schema and without formats."""
    columns = columns_of(view)
    names = [name for name in columns if include_headers or name != "headers"]
    return StructType([StructField(name, columns[name]) for name in names])


def schema_of_read(options: ReadOptions) -> StructType | str:
    """Return the schema of a read without a user's schema: DDL if an option gives a type as DDL.

    SparkOptionError if the type of a column with a format is not known. Only Spark can parse DDL.
    """
    from pyspark.sql.pandas.types import from_arrow_type

    formats = options.formats
    schema = full_schema(options.include_headers, options.view)
    if formats.permissive:
        schema = schema.add(CORRUPT, CORRUPT_TYPE)
    given: dict[str, str] = {}
    for field in schema.fields:
        value_format, ddl = formats.of(field.name), formats.schema_of(field.name)
        if ddl is not None:
            given[field.name] = _type_ddl(ddl)
        elif value_format is not None:
            own, reason = None, f"{value_format.name} has no schema"
            try:
                own = value_format.own_type()
            except ValueError as error:
                reason = str(error)
            if own is None:
                raise SparkOptionError(
                    f"the type of column '{field.name}' is not known: {reason}",
                    remedy=f"option {field.name}_schema, such as 'city STRING, population BIGINT', or "
                    f".schema('{field.name} struct<city:string,population:bigint>, offset long')",
                )
            field.dataType = from_arrow_type(own)
    if not given:
        return schema
    return ", ".join(f"`{f.name}` {given.get(f.name) or _ddl_of(f.dataType)}" for f in schema.fields)


def _ddl_of(kind: DataType) -> str:
    """Return the DDL of a type, with quoted names and NOT NULL, which `simpleString` lacks."""
    if isinstance(kind, StructType):
        ends = {True: "", False: " NOT NULL"}
        fields = [f"`{f.name}`:{_ddl_of(f.dataType)}{ends[f.nullable]}" for f in kind.fields]
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_ddl_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_ddl_of(kind.keyType)},{_ddl_of(kind.valueType)}>"
    return kind.simpleString()


def _type_ddl(text: str) -> str:
    """Return the DDL of a type. As for Spark's `from_json`, a list of columns is a struct."""
    text = text.strip()
    if re.match(r"(struct|array|map)\s*<", text, re.I) or re.fullmatch(r"\w+\s*(\([^()]*\))?", text):
        return text
    return f"STRUCT<{text}>"


def check_projection(
    schema: StructType, view: View = "log", formats: ColumnFormats = ColumnFormats()
) -> tuple[str, ...]:
    """Return the columns of a user's schema. SparkOptionError for an unknown column or a wrong type."""
    columns = columns_of(view, formats)
    problems = []
    for field in schema.fields:
        known = columns.get(field.name)
        value_format = formats.of(field.name)
        got = field.dataType.simpleString()
        if known is None and field.name == CHANGE:
            problems.append("column 'change' is there in view changes only")
        elif known is None and field.name == CORRUPT:
            problems.append(f"column '{CORRUPT}' is there with option mode=permissive only")
        elif known is None:
            problems.append(f"no column '{field.name}'{hint(field.name, columns)}")
        elif value_format is not None:
            problem = _format_problem(field, value_format, writing=False)
            if problem is not None:
                problems.append(f"column '{field.name}' cannot be {got}: {problem}")
        elif not _same_type(field.dataType, known):
            how = ""
            if field.name in FORMATTED and _is_nested(field.dataType):
                how = f"; option {field.name}_format decodes it"
            problems.append(f"column '{field.name}' is {known.simpleString()}, not {got}{how}")
        if known is not None and field.name in MAY_BE_NULL and not field.nullable:
            problems.append(f"column '{field.name}' may be null")
    names = [field.name for field in schema.fields]
    events = formats.value if formats.value is not None and formats.value.has_deletions else None
    needs_deletions = "value" not in names and (view == "newest" or CHANGE in names)
    if events is not None and needs_deletions and events.unselected_type() is None:
        reader = "view newest" if view == "newest" else "column 'change'"
        problems.append(f"{reader} decodes the events, and without column 'value' or avroSchema has no type")
    if not names:
        problems.append("it has no column")  # Arrow would transfer no rows
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"column '{name}' is given twice")
    if problems:
        known_columns = {
            name: "the type that it decodes to" if formats.of(name) else kind.simpleString()
            for name, kind in columns.items()
        }
        listed = ", ".join(f"{name} {kind}" for name, kind in known_columns.items())
        raise SparkOptionError(
            "the schema does not fit a record: " + "; ".join(problems),
            remedy=f"choose from: {listed}; cast after loading",
        )
    return tuple(names)


def _format_problem(field: StructField, value_format: ValueFormat, *, writing: bool) -> str | None:
    """Return the reason why a format cannot have the type of a column, or None."""
    inexact = _first_of(field.dataType, _INEXACT if value_format.has_variant else (*_INEXACT, *_VARIANT))
    if inexact is not None:
        how = f"to_json({field.name}) writes its text" if writing else "read the text and parse it in Spark"
        return f"type {inexact} has no exact form here; without the format, {how}"
    try:
        kind = arrow_schema(StructType([field])).field(0).type
    except PySparkException as error:
        return str(error)
    if field.name.lower() == "key" and _first_of(field.dataType, (MapType,)):
        return "the entries of a map have no order, and equal keys must have equal bytes"
    return value_format.problem(kind, writing=writing)


_INEXACT = tuple(
    getattr(pyspark.sql.types, name)
    for name in ("GeometryType", "GeographyType", "CalendarIntervalType")
    if hasattr(pyspark.sql.types, name)
)
"""Types whose values come from Spark as structs of its internal bytes. Older versions lack some of them."""
_VARIANT = (pyspark.sql.types.VariantType,)
"""The same, but `value_formats.variant` reads and writes them for formats that can have any JSON."""


def _first_of(kind: DataType, kinds: tuple[type[DataType], ...]) -> str | None:
    """Return the first type in a type that is one of some kinds, or None."""
    if isinstance(kind, kinds):
        return kind.simpleString()
    parts: list[DataType] = []
    if isinstance(kind, StructType):
        parts = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    return next(filter(None, (_first_of(part, kinds) for part in parts)), None)


def incomparable(kind: DataType) -> str | None:
    """Return the first type in a type whose values Spark cannot compare, or None."""
    return _first_of(kind, (MapType, *_VARIANT))


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, StructType | MapType | ArrayType)


def arrow_schema(schema: EngineSchema) -> pa.Schema:
    """Return the Arrow schema that the engine requires of the first batch, with nullability and child names.

    Spark derives it from its own; Sail gives it.
    """
    if not isinstance(schema, StructType):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def struct_of(schema: EngineSchema) -> StructType:
    """Return Spark's schema of the schema that an engine gives to a reader or a writer."""
    if isinstance(schema, StructType):
        return schema
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


class ExportedSchema(StructType):
    """A schema of Spark that is an Arrow schema, too, by Arrow's interface for any library.

    Spark takes it as a `StructType`, Sail as the Arrow schema: Sail 0.7.2 cannot convert a timestamp.
    """

    @classmethod
    def typeName(cls) -> str:
        """Return the name of the type in JSON, which Spark derives from that of the class."""
        return StructType.typeName()

    def __arrow_c_schema__(self) -> object:
        return arrow_schema(self).__arrow_c_schema__()


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Positions of the written columns in the frame; None for a column that it does not have.

    key_format, value_format: the formats in which the columns are written; without a format they are strings
    (written as UTF-8) or binary. key_serializer, value_serializer: what a new topic stores for Python.
    """

    key: int | None
    value: int
    headers: int | None
    topic: int | None
    partition: int | None
    timestamp: int | None
    key_format: ValueFormat | None
    value_format: ValueFormat | None
    key_serializer: str
    value_serializer: str
    ignored: tuple[str, ...]


READ_ONLY = ("offset", "timestamptype", "change", CORRUPT)
"""Columns of our source that the sink ignores without a warning: a copied log gets new offsets."""


def sink_columns(schema: StructType, formats: ColumnFormats = ColumnFormats()) -> SinkColumns:
    """Return the columns of a frame that can be written. As in Spark, names are compared without case.

    SparkOptionError lists all problems: no value column, a wrong type, a duplicate column.
    """
    positions: dict[str, int] = {}
    ignored, problems = [], []
    for position, field in enumerate(schema.fields):
        name = field.name.lower()
        allowed = SINK_TYPES.get(name)
        if allowed is None:
            if name not in READ_ONLY:
                ignored.append(field.name)
            continue
        if name in positions:
            problems.append(f"column '{name}' is there twice")
        positions[name] = position
        value_format = formats.of(name)
        if value_format is not None:
            problem = _format_problem(field, value_format, writing=True)
            if problem is not None:
                given = field.dataType.simpleString()
                problems.append(f"column '{field.name}' cannot be {given} in {value_format.name}: {problem}")
            continue
        wrong_headers = name == "headers" and not _same_type(field.dataType, HEADERS)
        if not isinstance(field.dataType, allowed) or wrong_headers:
            want = HEADERS.simpleString() if name == "headers" else " or ".join(t.typeName() for t in allowed)
            given = field.dataType.simpleString()
            cast = _conversion(name, field)
            problems.append(f"column '{field.name}' must be {want}, not {given}" + (cast and f": {cast}"))
    if "value" not in positions:
        problems.append("there is no column 'value'" + hint("value", ignored))
    if problems:
        raise SparkOptionError(
            "the frame cannot be written as records: " + "; ".join(problems),
            remedy="select key, value (string or binary), if wanted headers, topic, partition, timestamp",
        )

    def format_to_write(name: str) -> ValueFormat | None:
        value_format = formats.of(name)
        if value_format is None or name not in positions:
            return None
        field = schema.fields[positions[name]]
        return value_format.for_writing(arrow_schema(StructType([field])).field(0).type)

    def serializer(name: str) -> str:
        value_format = formats.of(name)
        if value_format is not None:
            return value_format.serializer if name == "value" else "bytes"  # a dict is no key in Python
        is_text = name in positions and isinstance(schema.fields[positions[name]].dataType, StringType)
        return "str" if is_text else "bytes"

    return SinkColumns(
        key=positions.get("key"),
        value=positions["value"],
        headers=positions.get("headers"),
        topic=positions.get("topic"),
        partition=positions.get("partition"),
        timestamp=positions.get("timestamp"),
        key_format=format_to_write("key"),
        value_format=format_to_write("value"),
        key_serializer=serializer("key"),
        value_serializer=serializer("value"),
        ignored=tuple(ignored),
    )


def _conversion(name: str, field: StructField) -> str:
    """Return the expression that makes a column of a type that the sink writes, or an empty text."""
    column = f"`{field.name}`"
    if name == "timestamp" and isinstance(field.dataType, TimestampNTZType | DateType | StringType):
        return f"CAST({column} AS TIMESTAMP) AS timestamp takes it in the session's time zone"
    if name == "partition" and isinstance(field.dataType, IntegralType):
        return f"CAST({column} AS INT) AS partition"
    if name in ("key", "value"):
        if _is_nested(field.dataType):
            return f"to_json({column}) AS {name} writes JSON, and so does option {name}_format"
        return f"CAST({column} AS STRING) AS {name} writes its text"
    return ""


def _same_type(given: DataType, known: DataType) -> bool:
    """Return whether two types are equal except for nullability, which DDL cannot always express."""
    if isinstance(known, ArrayType):
        return isinstance(given, ArrayType) and _same_type(given.elementType, known.elementType)
    if isinstance(known, StructType):
        return (
            isinstance(given, StructType)
            and given.fieldNames() == known.fieldNames()
            and all(_same_type(a.dataType, b.dataType) for a, b in zip(given, known, strict=True))
        )
    if isinstance(known, StringType):
        return isinstance(given, StringType)
    return given == known


# ---------------------------------------------------------------- the results of verbs


SCALARS: dict[Any, DataType] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
    bytes: BinaryType(),
}


def frame_of(spark: SparkSession, kind: type[Any], values: Sequence[Any]) -> DataFrame:
    """Return a DataFrame with one local row for each value of a dataclass.

    As rows are Arrow, no job runs to create or collect them.
    """
    return spark.createDataFrame(table_of(kind, values), schema_of(kind))


def table_of(kind: type[Any], values: Sequence[Any]) -> pa.Table:
    """Return one row for each value of a dataclass. An int in a float field becomes a float."""
    schema = arrow_schema(schema_of(kind))
    return pa.Table.from_pylist([dataclasses.asdict(value) for value in values], schema)


def schema_of(kind: type[Any]) -> StructType:
    """Return the columns of a dataclass."""
    hints = typing.get_type_hints(kind)
    columns = []
    for field in dataclasses.fields(kind):
        hint, nullable = _without_none(hints[field.name])
        columns.append(StructField(field.name, _type_of(hint), nullable))
    return StructType(columns)


def _type_of(hint: Any) -> DataType:
    if hint in SCALARS:
        return SCALARS[hint]
    if typing.get_origin(hint) is typing.Literal:
        return StringType()
    if typing.get_origin(hint) in (tuple, list):
        item, nullable = _without_none(typing.get_args(hint)[0])
        return ArrayType(_type_of(item), nullable)
    if dataclasses.is_dataclass(hint):
        return schema_of(typing.cast("type[Any]", hint))
    raise TypeError(f"no column type for {hint}")


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type, and whether it may be None."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        others = [other for other in typing.get_args(hint) if other is not type(None)]
        if len(others) == 1:
            return others[0], True
    return hint, False
