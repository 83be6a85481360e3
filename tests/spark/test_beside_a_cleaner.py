"""Spark reads beside a writer and cleaners, checked at every moment: see `tests/readers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.readers import process
from tests.readers.history import TOPIC
from tests.readers.judge import Row, Window


@pytest.mark.slow
@pytest.mark.spark
def test_batch_and_stream(tmp_path: Path, spark: Any) -> None:
    """DataFrames of a log that is cleaned between plan and collect, each collected twice, and a stream."""
    seen: dict[int, Row] = {}
    with process.writing(tmp_path / "data", 10) as (writer, work):
        partition = writer.history.partitions[0]
        source = spark.read.format("lastword").option("subscribe", TOPIC)
        begin = writer.files.version

        def loaded(view: str) -> Any:
            return source.option("view", view).option("maxBytesPerPartition", "2KiB").load(writer.root)

        frames = {view: loaded(view) for view in ("log", "newest", "changes")}
        stream = (
            spark.readStream.format("lastword")
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "50")
            .load(writer.root)
        )

        def take(batch: Any, number: int) -> None:
            for row in batch.collect():
                assert row.offset not in seen, "a stream gives each record once"
                key, value = (None if data is None else bytes(data) for data in (row.key, row.value))
                seen[row.offset] = Row(row.offset, key, value)
            work(2)

        for _ in range(2):
            work(5)
            for view in frames:
                try:
                    spark_rows = frames[view].collect()
                except Exception as error:  # a view of newest values: the cleaning passed the end of the plan
                    assert view != "log" and "load it again" in str(error)
                    begin = writer.files.version
                    frames[view] = loaded(view)
                    spark_rows = frames[view].collect()
                rows = [
                    Row(row.offset, *(None if d is None else bytes(d) for d in (row.key, row.value)))
                    for row in spark_rows
                ]
                window = Window(partition, begin, writer.files.version)
                if view == "log":
                    window.check_log(sorted(rows))
                else:
                    newest = {row.key: row.offset for row in rows if row.key is not None}
                    window.check_moment(newest, tombstones=view == "changes")
                work(2)
        first = writer.files.version
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        window = Window(partition, first, writer.files.version)
        for row in seen.values():
            window.check_row(row)
        window.check_complete(set(seen), -1)
