"""The workload of many partitions on Spark, at a size that takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from bench.registry import Run
from bench.spark_workloads import spark_many

pytestmark = [pytest.mark.spark, pytest.mark.beside]


def test_many_partitions_are_written_and_counted_beside_few(tmp_path: Path) -> None:
    sink, count = spark_many(Run(10_000, 1, tmp_path, tmp_path))
    assert (sink.what, count.what) == ("sink, 40 partitions", "count, 40 partitions")
    for measured in (sink, count):
        assert measured.ratio > 0 and measured.rival_name == "20 partitions"
        assert len(measured.facts["seconds"]) == 1  # the first run of each is not counted
    assert list(tmp_path.iterdir()) == []
