"""The text of an error for a user of Spark: one sentence, without internal frames."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import lastword.spark
from lastword.errors import LastwordError, MissingError, SparkOptionError
from lastword.spark.bootstrap import hide_traceback, typed
from lastword.spark.options import parse_read
from lastword.spark.schema import full_schema
from lastword.spark.source import LastwordDataSource, LogReader, RefusedStream
from tests.spark.conftest import append, create, numbered


def lines_of(call: Callable[[], Any]) -> list[str]:
    """Return the lines that Spark prints of the error: Python's traceback, from the frames below the call."""
    with pytest.raises(LastwordError) as caught:
        call()
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    return "".join(traceback.format_exception(error)).splitlines()


def test_no_frame_but_the_one_that_spark_called(tmp_path: Path) -> None:
    create(tmp_path, "t")
    reader = LogReader(parse_read({"path": str(tmp_path), "subscribe": "users"}), full_schema(False))
    lines = lines_of(reader.partitions)
    assert [line for line in lines if line.startswith("  File")] == [lines[1]]
    assert "bootstrap.py" in lines[1]
    assert lines[-2:] == [
        f"lastword.errors.UnknownTopicError: no topic 'users' in {tmp_path}",
        "  fix: create_topic if it is new",
    ]


def test_what_an_iterator_raises() -> None:
    @hide_traceback
    def read() -> Iterator[int]:
        yield 1
        raise SparkOptionError("wrong")

    assert next(read()) == 1
    assert len(lines_of(lambda: list(read()))) <= 7


def test_a_format_that_spark_does_not_find_has_a_remedy() -> None:
    error = typed(
        Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: lastword. Make sure ...")
    )
    assert isinstance(error, MissingError) and "PYSPARK_PYTHON" in (error.remedy or "")
    other = Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: lastwords. Make sure ...")
    assert typed(other) is other


def test_other_errors_keep_every_frame() -> None:
    @hide_traceback
    def broken() -> None:
        deeper()

    def deeper() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        broken()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "deeper"


def test_a_stream_that_cannot_be_says_so_when_it_is_asked_for_anything(tmp_path: Path) -> None:
    """If `streamReader` raised this error, PySpark would fail with an error about its own variable."""
    create(tmp_path, "t")
    append(tmp_path, "t", 0, [numbered(0, 3, 3)])
    source = LastwordDataSource({"path": str(tmp_path), "subscribe": "t", "endingoffsets": "latest"})
    reader = source.streamReader(full_schema(False))
    assert isinstance(reader, RefusedStream)
    for call in (
        reader.initialOffset,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
    ):
        assert "'endingOffsets' is not for a stream" in "".join(lines_of(call))


@pytest.mark.parametrize("verb", [lastword.spark.clean, lastword.spark.plan])
def test_an_unknown_argument_of_clean_and_plan_is_refused_before_any_work(
    verb: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'dueue'; known: due, strategy"):
        verb(None, tmp_path / "no log", dueue=True)
