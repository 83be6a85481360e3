"""Values as rows of a DataFrame, without Spark."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("pyspark")

from lastword.cleaner.engine.report import Phases
from lastword.spark.schema import row_of, schema_of


@dataclass(frozen=True)
class Told:
    seconds: float
    ratio: float | None
    phases: Phases


def test_a_whole_number_in_a_float_field_is_a_float() -> None:
    """A round that rewrites nothing has an integer 0 as its seconds, and Spark refused the row."""
    row = row_of(Told(0, 1, Phases(1, 0, 2)))
    assert row == (0.0, 1.0, (1.0, 0.0, 2.0))
    assert {type(value) for value in (*row[:2], *row[2])} == {float}
    assert row_of(Told(0.5, None, Phases(1, 0, 2)))[1] is None
    assert schema_of(Told).simpleString().startswith("struct<seconds:double,ratio:double,phases:struct<")
