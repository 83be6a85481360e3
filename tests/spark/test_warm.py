"""The plan of a read loads no kernels if they are compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from lastword.kernels import cache_folder
from lastword.spark import bootstrap
from tests.spark.conftest import append, create, numbered


def test_the_folder_is_the_one_that_kernels_are_kept_in() -> None:
    assert bootstrap.folder_name() == cache_folder().name


def test_planning_imports_no_numba(tmp_path: Path) -> None:
    create(tmp_path, "t", 1, segment_bytes="4KiB")
    append(tmp_path, "t", 0, [numbered(n, 20, 30) for n in range(0, 400, 20)])
    program = f"""
import sys
from lastword.spark.options import parse_read
from lastword.spark.source import LogReader
from lastword.spark.schema import full_schema
reader = LogReader(parse_read({{"path": {str(tmp_path)!r}, "subscribe": "t"}}), full_schema(False))
assert len(reader.partitions()) == 1
print("numba" in sys.modules)
"""

    def loads_numba(**environment: str) -> bool:
        given = {**os.environ, **environment}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=given, check=True
        )
        return done.stdout.strip() == "True"

    assert loads_numba() == (not (cache_folder() / "ready").exists())
