"""The plan of a read imports no Numba if the kernels are compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from lastword.kernels.warming import warm
from tests.spark.conftest import append, create, numbered


def test_planning_imports_no_numba(tmp_path: Path) -> None:
    warm()
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

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
