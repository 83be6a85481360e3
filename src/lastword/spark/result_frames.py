"""Convert values to DataFrames: the fields of a frozen dataclass become columns of the same names.

int becomes long, float double, a nested value a struct, a tuple an array; a field that may be None is
nullable. So an attribute in Python, a field of `--json` and a column have the same name, and there is no
separate list of columns.
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
