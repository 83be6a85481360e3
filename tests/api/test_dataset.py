"""A reader as a dataset: query engines scan it without a copy. Only the columns that they name are made."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import dataset

from lastword.api import arrow
from lastword.api.reader import COLUMNS
from lastword.errors import SerializerError, UsageError

MANY = 3000


@pytest.fixture
def topic(logs: Any) -> Any:
    topic = logs.create_topic("t", 2, key_serializer="str", value_serializer="str", segment_bytes="64KiB")
    topic.extend((f"k{n % 1000}", f"v{n}" if n % 7 else None) for n in range(MANY))
    topic.append("k3", "with headers", headers={"h": b"x"})
    return topic


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the names of those columns of each batch are added that are bytes of the log."""
    names: list[str] = []
    honest = arrow.ArrowForm._batch

    def batch(self: arrow.ArrowForm, *given: Any) -> Any:
        names.extend({"key", "value", "headers"} & {*self.schema.names})
        return honest(self, *given)

    monkeypatch.setattr(arrow.ArrowForm, "_batch", batch)
    return names


@pytest.mark.parametrize("view", ["log", "newest", "changes"])
@pytest.mark.parametrize("end", ["latest", {0: 20, 1: 20}])
def test_columns_of_a_read(topic: Any, view: str, end: Any) -> None:
    whole = topic.read(view=view, end=end).arrow().read_all()
    for columns in [
        *([name] for name in COLUMNS),
        ["value", "partition", "key"],
        ["timestamp", "offset"],
        [],
    ]:
        reader = topic.read(view=view, end=end)
        table = reader.arrow(columns=columns).read_all()
        assert (table, table.num_rows) == (whole.select(columns), whole.num_rows)
        assert reader.position == {
            part: min(last, 20) if end != "latest" else last for part, (_, last) in topic.bounds().items()
        }


def test_a_column_that_is_not_read_is_not_decoded(logs: Any) -> None:
    logs.create_topic("bytes").extend([(b"k", b"\xff")] * 10)
    reader = logs.topic("bytes", value_serializer="str").read
    assert reader().arrow(columns=["key"]).read_all().num_rows == 10
    with pytest.raises(SerializerError, match="not UTF-8"):
        reader().arrow(columns=["key", "value"]).read_all()
    with pytest.raises(UsageError, match="unknown column 'keys'; nearest: key"):
        reader().arrow(columns=["keys"])


@pytest.mark.parametrize("view", ["log", "newest"])
def test_each_scan_reads_from_the_position_on(topic: Any, made: list[str], view: str) -> None:
    reader = topic.read(view=view)
    next(reader)
    position = reader.position
    expected = pa.table(reader)
    rows, few = reader.dataset(), dataset.field("offset") < 1400
    made.clear()
    assert rows.to_table() == expected and rows.schema == expected.schema
    assert rows.to_table(columns=["offset"], filter=few) == expected.filter(few).select(["offset"])
    assert set(made) == {"key", "value", "headers"}
    made.clear()
    assert (rows.count_rows(), made) == (expected.num_rows, [])
    assert rows.count_rows(filter=few) == expected.filter(few).num_rows
    made.clear()
    assert rows.to_table(columns=["key", "offset"], filter=few).num_rows == expected.filter(few).num_rows
    assert set(made) == {"key"}  # the filter names offset, which is selected
    made.clear()
    assert rows.to_table(columns=["offset"], filter=dataset.field("value").is_null()).num_rows == (
        expected["value"].null_count
    )
    assert rows.to_table(columns={"twice": dataset.field("offset") * 2}).schema.names == ["twice"]
    assert set(made) == {"key", "value", "headers"}  # an expression does not list its columns
    assert reader.position == position


def test_filters_of_a_dataset_add_up(topic: Any) -> None:
    rows, offset, part = topic.read().dataset(), dataset.field("offset"), dataset.field("partition")
    few = rows.filter(offset < 1400).filter(part == 1)
    expected = rows.to_table().filter((offset < 1400) & (part == 1))
    assert few.to_table() == expected
    assert (few.count_rows(), rows.count_rows()) == (expected.num_rows, MANY + 1)
    assert few.to_table(columns=["key"], filter=offset > 9) == expected.filter(offset > 9).select(["key"])
    assert [part.to_table() for part in few.get_fragments()] == [expected]


@pytest.mark.parametrize("call", [pickle.dumps, copy.copy])
def test_a_dataset_belongs_to_its_process(topic: Any, call: Any) -> None:
    with pytest.raises(UsageError, match="a ReaderDataset belongs to one process"):
        call(topic.read().dataset())


def test_what_does_not_scan_raises(topic: Any) -> None:
    rows = topic.read().dataset()
    for call in (
        lambda: dataset.dataset([rows]).to_table(),
        lambda: rows.sort_by("offset"),
        lambda: dataset.Scanner.from_dataset(rows).to_table(),
    ):
        with pytest.raises(FileNotFoundError, match="with its own methods"):
            call()
    with pytest.raises(UsageError, match="follow=True has none"):
        topic.read(follow=True).dataset()


# ---------------------------------------------------------------- engines


def test_polars(topic: Any, made: list[str]) -> None:
    polars = pytest.importorskip("polars")
    expected = topic.newest().arrow().read_all()
    made.clear()
    users = polars.scan_pyarrow_dataset(topic.newest().dataset())
    keys = users.select("key").collect()["key"].to_list()
    assert sorted(keys) == sorted(expected["key"].to_pylist())
    assert set(made) == {"key"}
    found = users.filter(polars.col("key") == "k3").collect().to_dicts()
    assert [row["value"] for row in found] == ["with headers"]


def test_duckdb(topic: Any, made: list[str]) -> None:
    duckdb = pytest.importorskip("duckdb")
    expected = topic.newest().arrow().read_all()
    made.clear()
    users = topic.newest().dataset()  # noqa: F841  DuckDB finds the variable
    assert duckdb.sql('SELECT count(*), max("offset") FROM users').fetchall() == [
        (expected.num_rows, max(expected["offset"].to_pylist()))
    ]
    assert made == []
    assert duckdb.sql("SELECT count(*) FROM users a JOIN users b USING (key)").fetchall() == [
        (expected.num_rows,)
    ]
    assert set(made) == {"key"}
    assert duckdb.sql("SELECT value FROM users WHERE key = 'k3'").fetchall() == [("with headers",)]


def test_datafusion(topic: Any, made: list[str]) -> None:
    datafusion = pytest.importorskip("datafusion")
    expected = topic.newest().arrow().read_all()
    made.clear()
    context = datafusion.SessionContext()
    context.register_dataset("users", topic.newest().dataset())
    counted = context.sql('SELECT count(*) AS n, max("offset") AS last FROM users').to_pylist()
    assert counted == [{"n": expected.num_rows, "last": max(expected["offset"].to_pylist())}]
    assert made == []
    assert context.sql("SELECT value FROM users WHERE key = 'k3'").to_pylist() == [{"value": "with headers"}]
    assert set(made) <= {"key", "value", "headers"}


def test_not_a_number_in_a_filter(logs: Any) -> None:
    """The filter of a scan compares as pyarrow does, to which NaN is not larger than a number."""
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    topic = logs.create_topic("numbers", key_serializer="str", value_serializer="float64")
    topic.extend([("one", 1.0), ("nan", float("nan")), ("none", None)])
    scan = topic.newest().dataset()  # DuckDB finds the variable
    large = polars.col("value") > 100

    def keys(frame: Any) -> list[str]:
        return frame.filter(large).collect()["key"].to_list()

    assert scan.to_table(filter=dataset.field("value") > 100).num_rows == 0
    assert keys(polars.scan_pyarrow_dataset(scan)) == []
    assert keys(polars.scan_pyarrow_dataset(scan, allow_pyarrow_filter=False)) == ["nan"]
    assert duckdb.sql("SELECT key FROM scan WHERE value > 100").fetchall() == [("nan",)]


@pytest.mark.parametrize("engine", ["pyarrow", "polars", "duckdb"])
def test_a_limit_ends_the_scan(logs: Any, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Arrow reads up to 2 GiB ahead of a slow consumer, so the scan has 8 GB: each batch many times."""
    module = pytest.importorskip(engine)
    topic = logs.create_topic("large")
    topic.extend((b"k%d" % n, bytes(1000)) for n in range(20_000))
    counted = [0]
    honest = arrow.ArrowForm.of_columns

    def of_columns(self: arrow.ArrowForm, *given: Any) -> Any:
        for batch in honest(self, *given):
            for _ in range(400):
                counted[0] += batch.num_rows
                yield batch

    monkeypatch.setattr(arrow.ArrowForm, "of_columns", of_columns)
    rows = topic.read().dataset()
    if engine == "pyarrow":
        assert rows.head(5).num_rows == 5
    elif engine == "polars":
        assert module.scan_pyarrow_dataset(rows).head(5).collect().height == 5
    else:
        assert len(module.sql("SELECT value FROM rows LIMIT 5").fetchall()) == 5
    assert 5 <= counted[0] < 8_000_000


PROGRAM = """
import sys
import lastword
import pyarrow.dataset as dataset
topic = lastword.open(sys.argv[1])["large"]
assert topic.read().dataset().head(5).num_rows == 5
assert dataset.Scanner.from_batches(topic.read().arrow()).head(5).num_rows == 5
"""


def test_a_process_ends_behind_a_limit(logs: Any) -> None:
    """Arrow reads on in a thread of its own, which must not be in Python when that ends."""
    logs.create_topic("large").extend((b"k%d" % n, bytes(1000)) for n in range(100_000))
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", PROGRAM, *logs.dirs.paths], timeout=100)
        assert ended.returncode == 0
