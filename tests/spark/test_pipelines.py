"""A declarative pipeline reads and writes the format, on Spark 4.3."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark.pipelines")
pytest.importorskip("grpc")
pytest.importorskip("yaml")

from tests.spark.clusters import script

pytestmark = [
    pytest.mark.spark,
    pytest.mark.beside,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("short_lived_jvms"),
]


def test_a_pipeline(tmp_path: Path) -> None:
    words = script("pipelines_all.py", str(tmp_path), home=tmp_path)  # beside those of the pipelines
    assert words[-1] == "everything"
