"""Everything of `lastword.spark` without a SparkContext."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")

from tests.spark.clusters import script

pytestmark = [pytest.mark.spark, pytest.mark.beside, pytest.mark.usefixtures("short_lived_jvms")]


def test_everything_works_on_connect(tmp_path: Path) -> None:
    steps = ["batch", "stream", "updated", "looks", "restored", "cleaned", "expired", "refused"]
    done = script("connect_all.py", str(tmp_path), home=tmp_path)
    assert done == [*steps, "everything"]
