"""Convert values to DataFrames: the fields of a frozen dataclass become columns of the same names.

int becomes long, float double, a nested value a struct, a tuple an array; a field that may be None is
nullable. So a result has the same names as a Python attribute, in `--json` and in a DataFrame, and there is
no separate list of columns.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCALARS: dict[Any, DataType] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
    bytes: BinaryType(),
}


def frame_of(spark: SparkSession, kind: type[Any], values: Sequence[Any]) -> DataFrame:
    """Return a DataFrame with one local row for each value. As rows are Arrow, no job runs to create or
    collect them.
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
    for one in dataclasses.fields(kind):
        given, nullable = _without_none(hints[one.name])
        columns.append(StructField(one.name, _type_of(given), nullable))
    return StructType(columns)


def row_of(value: Any) -> tuple[Any, ...]:
    """Return the fields of a dataclass in order, nested ones likewise. An int in a float field becomes a
    float, because Spark accepts no int in a double column.
    """
    hints = typing.get_type_hints(type(value))
    found = []
    for one in dataclasses.fields(value):
        plain = _plain(getattr(value, one.name))
        wants_float = type(plain) is int and _without_none(hints[one.name])[0] is float
        found.append(float(plain) if wants_float else plain)
    return tuple(found)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return row_of(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _type_of(given: Any) -> DataType:
    if given in SCALARS:
        return SCALARS[given]
    if typing.get_origin(given) is typing.Literal:
        return StringType()
    if typing.get_origin(given) in (tuple, list):
        item, nullable = _without_none(typing.get_args(given)[0])
        return ArrayType(_type_of(item), nullable)
    if dataclasses.is_dataclass(given):
        return schema_of(typing.cast("type[Any]", given))
    raise TypeError(f"no column type for {given}")


def _without_none(given: Any) -> tuple[Any, bool]:
    """Return the type, and whether it may be None."""
    if typing.get_origin(given) in (types.UnionType, typing.Union):
        rest = [one for one in typing.get_args(given) if one is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return given, False
