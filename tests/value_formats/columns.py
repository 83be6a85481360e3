"""Hypothesis strategies for Arrow columns of any type that Spark has, nested."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

TIMESTAMP, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
NAMES = st.text("abcdefghij_", min_size=1, max_size=4)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(1 << 7), (1 << 7) - 1),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): texts,
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    TIMESTAMP: st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    LOCAL: st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),
}


def decimals(kind: pa.DataType) -> st.SearchStrategy[Decimal]:
    most = 10**kind.precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}e-{kind.scale}"))


def exact_decimal_types() -> st.SearchStrategy[pa.DataType]:
    precision = st.integers(1, 38)
    return precision.flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))


def scalar_types() -> st.SearchStrategy[pa.DataType]:
    return st.sampled_from(list(SCALARS)) | exact_decimal_types()


def types(keys: list[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    """Return types nested up to three levels; a map's keys are of the given types."""

    def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        field = st.tuples(NAMES, inner, st.booleans())
        structs = st.lists(field, min_size=1, max_size=4, unique_by=lambda f: f[0]).map(
            lambda fields: pa.struct([pa.field(name, kind, null) for name, kind, null in fields])
        )
        arrays = st.tuples(inner, st.booleans()).map(lambda f: pa.list_(pa.field("element", f[0], f[1])))
        maps = st.tuples(st.sampled_from(keys), inner, st.booleans()).map(
            lambda f: pa.map_(f[0], pa.field("value", f[1], f[2]))
        )
        return structs | arrays | maps

    return st.recursive(scalar_types(), nested, max_leaves=6)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type as `to_pylist` shows them, without a null at the top."""
    if pa.types.is_decimal(kind):
        return decimals(kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return st.fixed_dictionaries({f.name: items(f.type, f.nullable) for f in fields})
    if pa.types.is_map(kind):
        entries = st.tuples(values(kind.key_type), items(kind.item_type, kind.item_field.nullable))
        return st.lists(entries, max_size=3, unique_by=lambda entry: entry[0])
    if pa.types.is_list(kind):
        return st.lists(items(kind.value_type, kind.value_field.nullable), max_size=3)
    return SCALARS[kind]


def items(kind: pa.DataType, nullable: bool) -> st.SearchStrategy[Any]:
    return st.none() | values(kind) if nullable else values(kind)


def columns(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.Array]:
    """Return columns with nulls at the top."""
    return kinds.flatmap(
        lambda kind: st.lists(items(kind, True), max_size=4).map(lambda rows: pa.array(rows, kind))
    )


def same(left: pa.Array, right: pa.Array) -> bool:
    """Return whether two columns are equal; NaN equals NaN, and -0.0 differs from 0.0."""
    return left.type == right.type and repr(left.to_pylist()) == repr(right.to_pylist())
