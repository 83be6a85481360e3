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
    change         string: `upsert` or `delete`; in view `changes`

A user's schema is the projection: any of these columns, in any order. Omitted columns are neither gathered
nor sent through the JVM, which doubles the speed (PySpark has no column pruning of its own).

Results: the fields of a frozen dataclass become columns of the same names. int becomes long, float double, a
nested value a struct, a tuple an array; a field that may be None is nullable. So an attribute in Python, a
field of `--json` and a column have the same name, and there is no separate list of columns.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

from lastword.errors import SparkOptionError
from lastword.spark.options import hint

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

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

MAY_BE_NULL = ("key", "value", "headers")

CHANGE = "change"
CHANGES_COLUMNS: dict[str, DataType] = {**COLUMNS, CHANGE: StringType()}

SINK_SCHEMA = StructType([StructField(name, COLUMNS[name]) for name in ("key", "value")])

SINK_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "headers": (ArrayType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}


def columns_of(view: str) -> dict[str, DataType]:
    """Return all columns of a view, in order."""
    return CHANGES_COLUMNS if view == "changes" else COLUMNS


def full_schema(include_headers: bool, view: str = "log") -> StructType:
    """Return the schema of a read without a user's schema."""
    columns = columns_of(view)
    names = [name for name in columns if include_headers or name != "headers"]
    return StructType([StructField(name, columns[name]) for name in names])


def check_projection(schema: StructType, view: str = "log") -> tuple[str, ...]:
    """Return the columns of a user's schema. SparkOptionError for an unknown column or a wrong type."""
    columns = columns_of(view)
    problems = []
    for field in schema.fields:
        known = columns.get(field.name)
        if known is None and field.name == CHANGE:
            problems.append("column 'change' is there in view changes only")
        elif known is None:
            problems.append(f"no column '{field.name}'{hint(field.name, columns)}")
        elif not _same_type(field.dataType, known):
            got = field.dataType.simpleString()
            problems.append(f"column '{field.name}' is {known.simpleString()}, not {got}")
        elif field.name in MAY_BE_NULL and not field.nullable:
            problems.append(f"column '{field.name}' may be null")
    names = [field.name for field in schema.fields]
    if not names:
        problems.append("it has no column")  # Arrow would transfer no rows
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"column '{name}' is given twice")
    if problems:
        listed = ", ".join(f"{name} {type_.simpleString()}" for name, type_ in columns.items())
        raise SparkOptionError(
            "the schema does not fit a record: " + "; ".join(problems),
            remedy=f"choose from: {listed}; cast after loading",
        )
    return tuple(names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires of the first batch, with nullability and child names."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Positions of the written columns in the frame; None for a column that it does not have.

    key_is_text, value_is_text: the column is a string; it is written as UTF-8.
    """

    key: int | None
    value: int
    headers: int | None
    topic: int | None
    partition: int | None
    timestamp: int | None
    key_is_text: bool
    value_is_text: bool
    ignored: tuple[str, ...]


READ_ONLY = ("offset", "timestamptype", "change")
"""Columns of our source that the sink ignores without a warning: a copied log gets new offsets."""


def sink_columns(schema: StructType) -> SinkColumns:
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

    def is_text(name: str) -> bool:
        return name in positions and isinstance(schema.fields[positions[name]].dataType, StringType)

    return SinkColumns(
        key=positions.get("key"),
        value=positions["value"],
        headers=positions.get("headers"),
        topic=positions.get("topic"),
        partition=positions.get("partition"),
        timestamp=positions.get("timestamp"),
        key_is_text=is_text("key"),
        value_is_text=is_text("value"),
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
        if isinstance(field.dataType, StructType | MapType | ArrayType):
            return f"to_json({column}) AS {name} writes JSON"
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
    """Return a DataFrame with one local row for each value.

    As rows are Arrow, no job runs to create or collect them.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = schema_of(kind)
    arrow = to_arrow_schema(schema)
    rows = [row_of(value) for value in values]
    columns = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(arrow)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=arrow), schema)


def schema_of(kind: type[Any]) -> StructType:
    """Return the columns of a dataclass."""
    hints = typing.get_type_hints(kind)
    columns = []
    for field in dataclasses.fields(kind):
        hint, nullable = _without_none(hints[field.name])
        columns.append(StructField(field.name, _type_of(hint), nullable))
    return StructType(columns)


def row_of(value: Any) -> tuple[Any, ...]:
    """Return the fields of a dataclass in order; a nested dataclass becomes a tuple.

    An int in a float field becomes a float, because Spark accepts no int in a double column.
    """
    hints = typing.get_type_hints(type(value))
    row = []
    for field in dataclasses.fields(value):
        cell = _cell_of(getattr(value, field.name))
        is_float = type(cell) is int and _without_none(hints[field.name])[0] is float
        row.append(float(cell) if is_float else cell)
    return tuple(row)


def _cell_of(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return row_of(value)
    if isinstance(value, tuple | list):
        return [_cell_of(item) for item in value]
    return value


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
